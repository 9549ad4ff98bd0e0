"""Test optimizers inside the compilers of JAX, TensorFlow and torch, with variables and skipped steps, and under
jax.grad."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from comparing import assert_same
from suite_runs import python

import islices
from islices import optim

ROWS, DIM, STEPS = 30, 5, 5
RNG = np.random.default_rng(3)
START = RNG.standard_normal((ROWS, DIM)).astype(np.float32)
BATCHES = [
    (RNG.integers(0, ROWS, 16).astype(np.int32), RNG.standard_normal((16, DIM)).astype(np.float32))
    for _ in range(STEPS)
]
OPTIMIZERS = {
    "adam": optim.adam(0.05, weight_decay=0.01),
    "rowwise_adagrad": optim.rowwise_adagrad(0.1, frozen=[1, 2]),
}


def eager(optimizer: optim.Optimizer, taken: Any = None) -> dict[str, np.ndarray]:
    table = START.copy()
    state = optimizer.init(table)
    for k, (ids, values) in enumerate(BATCHES):
        grad = islices.IndexedSlices(values, ids, (ROWS, DIM))
        table, state = optimizer.step(table, grad, state, apply=taken is None or taken(k))
    return {"table": table, **state}


# ---------------------------------------------------------------------- JAX


def test_any_number_but_zero_takes_the_step() -> None:
    jax = pytest.importorskip("jax")
    optimizer = optim.adam(0.05)
    grad = islices.IndexedSlices(jax.numpy.array(BATCHES[0][1]), jax.numpy.array(BATCHES[0][0]), (ROWS, DIM))
    table = jax.numpy.array(START)
    taken = optimizer.step(table, grad, optimizer.init(table))
    for apply, (expected, after) in ((2, taken), (-1, taken), (0, (table, optimizer.init(table)))):
        found, state = jax.jit(lambda n: optimizer.step(table, grad, optimizer.init(table), apply=n))(apply)
        assert_same([found, state], [expected, after])


def test_a_step_is_a_constant_to_jax_grad() -> None:
    jax = pytest.importorskip("jax")
    optimizer = optim.adam(0.05, rows="all")
    grad = islices.IndexedSlices(jax.numpy.array(BATCHES[0][1]), jax.numpy.array(BATCHES[0][0]), (ROWS, DIM))

    def total(table: Any) -> Any:
        stepped, _ = optimizer.step(table, grad, optimizer.init(table))
        return islices.scatter(stepped, grad).sum()

    assert not np.asarray(jax.grad(total)(jax.numpy.array(START))).any()


# ---------------------------------------------------------------------- TensorFlow
@pytest.mark.parametrize(("label", "as_variable"), [("adam", True), ("rowwise_adagrad", False)])
def test_tf_function(label: str, as_variable: bool) -> None:
    tf = pytest.importorskip("tensorflow")
    optimizer = OPTIMIZERS[label]
    for taken in (None, lambda k: k % 3 != 1):
        table = tf.Variable(START) if as_variable else tf.constant(START)
        state = optimizer.init(table)

        @tf.function
        def in_place(values: Any, ids: Any, apply: Any, table: Any = table, state: Any = state) -> None:
            optimizer.step(table, tf.IndexedSlices(values, ids, (ROWS, DIM)), state, apply=apply)

        @tf.function
        def functional(table: Any, state: Any, values: Any, ids: Any, apply: Any) -> Any:
            return optimizer.step(table, tf.IndexedSlices(values, ids, (ROWS, DIM)), state, apply=apply)

        for k, (ids, values) in enumerate(BATCHES):
            batch = (tf.constant(values), tf.constant(ids), tf.constant(taken is None or taken(k)))
            if as_variable:
                in_place(*batch)
            else:
                table, state = functional(table, state, *batch)
        assert_same({"table": table, **state}, eager(optimizer, taken))


# ---------------------------------------------------------------------- torch
COMPILED = """
import sys, torch, islices
from islices import optim

try:
    torch.compile(lambda x: x + 1.0, backend=sys.argv[1])(torch.ones(3))
except Exception as error:  # torch's own compiler: no C++ compiler, no Python headers
    print(error)
    sys.exit(77)
torch.manual_seed(0)
rows, dim, optimizer = 30, 5, optim.adam(0.05)
start = torch.randn(rows, dim)
batches = [(torch.randint(0, rows, (16,)), torch.randn(16, dim)) for _ in range(6)]

def train(wrap):
    table = start.clone()
    state = optimizer.init(table)

    def step(table, state, ids, values):
        grad = islices.embedding_grad(values * 2.0, ids, rows)
        (grad,), norm = islices.clip_by_global_norm([grad], 1.0)
        table, state = optimizer.step(table, grad, state)
        return table * 1.0, state, norm + 1.0

    step = wrap(step)
    seen = []
    for batch in batches:
        copy, state, norm = step(table, state, *batch)
        seen += [copy, norm]
    return [*seen, table, *state.values()]

expected = train(lambda step: step)
found = train(lambda step: torch.compile(step, backend=sys.argv[1]))
assert len(expected) == len(found) == 16
assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))
frames = torch._dynamo.utils.counters["frames"]
assert frames["ok"] > 0, "the user's own code was not compiled"
assert not any("islices" in name for name in torch._dynamo.utils.compilation_time_metrics), "the library's was"
print("equal")
"""


@pytest.mark.outside
def test_torch_compile() -> None:
    pytest.importorskip("torch")
    done = python("-c", COMPILED, "inductor")
    if done.returncode == 77:
        pytest.skip(f"inductor finds no compiler that works: {done.stdout[-300:]}")
    assert done.returncode == 0, done.stdout[-300:] + done.stderr[-3000:]
    assert done.stdout.strip().endswith("equal")
