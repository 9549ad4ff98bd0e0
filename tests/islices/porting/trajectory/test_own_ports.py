"""Test reports on a torch loop and its port to optax, which has one or two differences. Reports must name the causes of
the differences. For an optimizer that islices lacks, the report must contain a note, and must not explain the step by a
cause."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch

import islices
from islices.backends.jax.optax import recorded
from islices.backends.jax.recorder import JaxRecorder
from islices.backends.torch import TorchRecorder
from islices.porting.trajectory import Parity

STEPS = 3
SIZES = {"u": (30, 6), "v": (9, 6)}
RNG = np.random.default_rng(4)
START = {name: (RNG.standard_normal(shape) / 3).astype(np.float32) for name, shape in SIZES.items()}
BATCHES = np.stack([RNG.integers(0, n, (STEPS, 16)) for n, _ in SIZES.values()], axis=-1)
#: A limit below the norm of both tables' gradients together, and below the norm of v's gradient.
LIMIT = 0.1

Make = Callable[[Any], torch.optim.Optimizer]
Clip = Callable[[Sequence[torch.Tensor]], Any]


def torch_run(folder: Path, make: Make, clip: Clip | None = None, after: Any = None) -> None:
    model = torch.nn.ParameterDict({name: torch.nn.Parameter(torch.tensor(x)) for name, x in START.items()})
    optimizer = make(model.parameters())
    with TorchRecorder(folder, model, optimizer) as recorder:
        for batch in torch.tensor(BATCHES):
            optimizer.zero_grad()
            loss = (1 - (model["u"][batch[:, 0]] * model["v"][batch[:, 1]]).sum(1)).square().mean()
            loss.backward()
            recorder.add(batch=batch, loss=loss)
            if clip is not None:
                clip(list(model.parameters()))
            optimizer.step()
            if after is not None:
                after(model)


def optax_run(folder: Path, tx: Any, clip: Any = None) -> None:
    params = {name: jnp.asarray(x) for name, x in START.items()}
    with JaxRecorder(folder) as recorder:
        tx = recorded(tx, recorder, clip=clip)
        state = tx.init(params)

        @jax.jit
        def step(params: Any, state: Any, batch: Any) -> Any:
            def loss(p: Any) -> Any:
                return ((1 - (p["u"][batch[:, 0]] * p["v"][batch[:, 1]]).sum(1)) ** 2).mean()

            value, gradients = jax.value_and_grad(loss)(params)
            recorder.add(batch=batch, loss=value)
            updates, state = tx.update(gradients, state, params)
            return optax.apply_updates(params, updates), state

        for batch in jnp.asarray(BATCHES):
            params, state = step(params, state, batch)
        recorder.step(tables=params)
        jax.effects_barrier()


def of(name: str, *args: Any, **numbers: Any) -> Make:
    return lambda p: getattr(torch.optim, name)(p, *args, **numbers)


def sgd(p: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(p, 0.05)


def clip_norm(ps: Sequence[torch.Tensor]) -> None:
    torch.nn.utils.clip_grad_norm_(ps, LIMIT)


def clip_each(ps: Sequence[torch.Tensor]) -> None:
    for p in ps:
        clip_norm([p])


def clip_values(ps: Sequence[torch.Tensor]) -> None:
    torch.nn.utils.clip_grad_value_(ps, 0.01)


SGD, NORM = optax.sgd(0.05), optax.clip_by_global_norm
#: name -> (torch's optimizer and clip, optax's optimizer and clip, causes that the report must contain)
PORTS: dict[str, tuple[Make, Clip | None, Any, Any, set[str]]] = {
    "epsilon": (of("Adam", 0.01, eps=1e-4), None, optax.adam(0.01), None, {"step_epsilon"}),
    "one clips": (sgd, clip_norm, SGD, None, {"clipped"}),
    "by tensor": (sgd, clip_each, SGD, NORM(LIMIT), {"per_tensor"}),
    "values and norm": (sgd, clip_values, SGD, NORM(LIMIT), {"value_clip", "clipped"}),
}  # fmt: skip


def judged(tmp_path: Path, a: Callable[[Path], None], b: Callable[[Path], None]) -> Parity:
    a(tmp_path / "torch"), b(tmp_path / "jax")
    return islices.parity(tmp_path / "torch", tmp_path / "jax")


@pytest.mark.parametrize("name", PORTS)
def test_what_ports_differ_in(name: str, tmp_path: Path) -> None:
    make, clip, tx, first, names = PORTS[name]
    found = judged(tmp_path, lambda f: torch_run(f, make, clip), lambda f: optax_run(f, tx, first))
    assert found.stop is not None
    reported = found.stop.difference.causes
    assert set(reported[0].names) == names or any(set(e.names) == names for e in reported), str(found)


def test_a_class_that_islices_does_not_have_is_named_and_not_taken_for_another(tmp_path: Path) -> None:
    found = judged(tmp_path, lambda f: torch_run(f, of("RAdam", 0.01)), lambda f: optax_run(f, SGD))
    assert any("torch.optim.RAdam, which islices.optim does not have" in note for note in found.notes), str(found)
    assert found.stop is not None
    assert not any("step" in c.details for e in found.stop.difference.causes for c in e.causes), str(found)
    assert "fix: " not in str(found)


def test_tables_changed_between_steps_are_no_gradients(tmp_path: Path) -> None:
    def shrink(model: Any) -> None:
        with torch.no_grad():
            model["u"].mul_(0.99)

    found = judged(tmp_path, lambda f: torch_run(f, sgd, after=shrink), lambda f: optax_run(f, SGD))
    assert found.stop is not None
    assert found.stop.position == "between"
    assert found.stop.difference.causes[0].names == ("factor",), str(found)
    assert "fix: " not in str(found), "what scales a table is no loss"
