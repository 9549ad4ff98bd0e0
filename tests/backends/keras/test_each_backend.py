"""Test Keras on each of its backends, in one process per backend. Keras reads KERAS_BACKEND only when Keras is
imported."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

keras = pytest.importorskip("keras", minversion="3")

pytestmark = pytest.mark.outside
BACKENDS = [name for name in ("tensorflow", "jax", "torch") if importlib.util.find_spec(name)]
HERE = keras.backend.backend()


def run(backend: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
    return subprocess.run([sys.executable, *arguments], text=True, capture_output=True, check=False, env=env)


@pytest.mark.parametrize("backend", [name for name in BACKENDS if name != HERE])  # this process tests HERE
def test_models_train_by_rows(backend: str) -> None:
    done = run(backend, "-m", "pytest", "-q", "-m", "", str(Path(__file__).with_name("test_fit.py")))
    assert done.returncode == 0, done.stdout[-6000:]
    assert " passed" in done.stdout


#: The loss is linear in the looked-up rows, and the coefficients are the labels times powers of two. So each backend's
#: autodiff gives the table a gradient with the same bits, compiled or eager.
PROGRAM = """
    import sys
    import numpy as np, keras
    from islices import optim

    before = {name for name in ("jax", "tensorflow", "torch") if name in sys.modules}
    from islices.backends import keras as front
    after = {name for name in ("jax", "tensorflow", "torch") if name in sys.modules}
    assert before == after, after - before

    rng, found = np.random.default_rng(0), {}
    ids = rng.integers(0, 40, (64, 5)).astype(np.int32)
    factors = rng.standard_normal((64, 5, 4)).astype(np.float32)
    start = rng.standard_normal((50, 4)).astype(np.float32)
    rules = {
        "adam of keras": (optim.adam(0.1, rows="all", semantics="keras"), {"global_clipnorm": 0.3}),
        "momentum": (optim.sgd(0.1, momentum=0.9), {"clipnorm": 0.2}),
        "micro-batches": (optim.sgd(0.1, momentum=0.9), {"clipnorm": 0.2, "gradient_accumulation_steps": 2}),
        "scaled": (optim.rmsprop(0.1), {}),
    }

    def trained(name, eager):
        (rule, options), found = rules[name], {}
        model = keras.Sequential([keras.layers.Embedding(50, 4)])
        front.row_sparse(model)
        model(ids[:1])
        model.set_weights([start])
        optimizer = front.Stepped(rule, **options)
        if name == "scaled":
            optimizer = front.LossScaleOptimizer(optimizer, initial_scale=256.0)
        model.compile(optimizer, loss=lambda y, p: keras.ops.sum(y * p, (1, 2)), run_eagerly=eager)
        model.fit(ids, factors, batch_size=8, epochs=2, shuffle=False, verbose=0)
        found[name] = model.get_weights()[0]
        for path, state in front.state_of(model.optimizer).items():
            found |= {f"{name}/{part}": x for part, x in state.items()}
        return found

    for name in rules:
        found |= trained(name, False)
        for part, x in trained(name, True).items():
            np.testing.assert_array_equal(x, found[part], err_msg=f"{part}: eager, compiled")
    np.savez(sys.argv[1], **found)
"""


def test_one_model_has_the_same_bits_on_every_backend(tmp_path: Path) -> None:
    found = {}
    for backend in BACKENDS:
        file = tmp_path / f"{backend}.npz"
        done = run(backend, "-c", textwrap.dedent(PROGRAM), str(file))
        assert done.returncode == 0, done.stderr[-3000:]
        found[backend] = dict(np.load(file))
    first = found[BACKENDS[0]]
    assert len(first) > 6
    for backend in BACKENDS[1:]:
        assert found[backend].keys() == first.keys()
        for name, x in first.items():
            np.testing.assert_array_equal(found[backend][name], x, err_msg=f"{name}: {backend}, {BACKENDS[0]}")
