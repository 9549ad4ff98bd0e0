"""16-bit tables with float32 master rows, and the loss scale: overflow is seen after duplicates are summed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import islices
from islices import optim

BACKENDS = islices.list_backends()
ROWS, DIM = 8, 2


def cast(name: str, x: Any, dtype: str) -> Any:
    if (name, dtype) == ("numpy", "bfloat16"):
        return x.astype(pytest.importorskip("ml_dtypes", reason="NumPy has no bfloat16 of its own").bfloat16)
    return islices.get_backend(name).astype(x, dtype)


def slices(name: str, dtype: str, ids: list[int], values: Any) -> islices.IndexedSlices:
    B = islices.get_backend(name)
    rows = cast(name, B.asarray(np.broadcast_to(np.asarray(values, np.float32), (len(ids), DIM))), dtype)
    return islices.IndexedSlices(rows, B.asarray(np.array(ids, np.int32)), (ROWS, DIM))


def numpy(x: Any) -> np.ndarray:
    B = islices.get_backend(x)
    if B.dtype(x) in ("float16", "bfloat16"):
        x = x.astype(np.float32) if B.name == "numpy" else B.astype(x, "float32")
    return np.array(B.to_numpy(x))


#: dtype -> two values that are finite in it, while their sum is not
OVERFLOWING = {"float16": 4e4, "bfloat16": 3e38}


@pytest.mark.parametrize(("dtype", "mode"), [("float16", "host"), ("bfloat16", "framework")])
@pytest.mark.parametrize("name", BACKENDS)
def test_overflow_is_seen_after_duplicates_are_summed(name: str, dtype: str, mode: str) -> None:
    B = islices.get_backend(name)
    if dtype not in B.float_dtypes:
        pytest.skip(f"{name} has no {dtype}")
    loss_scale = optim.LossScale(initial=8.0)
    with islices.config.execution(mode):
        state = loss_scale.init(B.asarray(np.zeros(1, np.float32)))
        big = slices(name, dtype, [3, 1, 3], [OVERFLOWING[dtype]])
        fine = slices(name, dtype, [3, 1, 3], [[1.0], [3.0], [0.25]])
        (_, _), finite = loss_scale.unscale((fine, big), state)
        assert finite is False
        (found, nothing), finite = loss_scale.unscale((fine, None), state)
        assert finite is True
        assert nothing is None
        assert B.dtype(found.values) == "float32"
        assert numpy(found.values).tolist() == [[3 / 8] * DIM, [1.25 / 8] * DIM]
        dense, finite = loss_scale.unscale(islices.to_dense(big), state)
        assert finite is False
        assert B.dtype(dense) == "float32"


def test_the_scale_grows_and_backs_off() -> None:
    loss_scale = optim.LossScale(initial=4.0, growth_interval=3)
    state = loss_scale.init(np.zeros(1, np.float32))
    seen = []
    for finite in (True, True, False, True, True, True, True, True, True, False, False):
        state = loss_scale.update(state, finite)
        seen.append((float(state["scale"][0]), int(state["good_steps"][0])))
    assert seen == [
        (4, 1), (4, 2), (2, 0), (2, 1), (2, 2), (4, 0), (4, 1), (4, 2), (8, 0), (4, 0), (2, 0)
    ]  # fmt: skip
    assert float(loss_scale.scaled(np.float32([3.0]), state)[0]) == 6.0
    # never infinite, never zero, and a count that was loaded from elsewhere may be beyond the interval
    for scale, finite, kept in ((2.0**125, True, 2.0**125), (2.0**-125, False, 2.0**-125), (1.0, True, 2.0)):
        late = {"scale": np.float32([scale]), "good_steps": np.int32([7])}
        assert loss_scale.update(late, finite)["scale"].tolist() == [kept]
    assert repr(loss_scale) == "LossScale(4.0, growth_factor=2.0, backoff_factor=0.5, growth_interval=3)"


def train(name: str, compile: Any = lambda step: step) -> dict[str, np.ndarray]:
    """Ten steps of a half table by its scaled gradients; the third overflows."""
    B, dtype = islices.get_backend(name), "float16"
    optimizer, loss_scale = optim.adam(2.0**-9), optim.LossScale(initial=16.0, growth_interval=4)
    table = cast(name, B.asarray(np.linspace(1, 2, ROWS * DIM, dtype=np.float32).reshape(ROWS, DIM)), dtype)
    state, scale = optimizer.init(table, master=True), None
    scale = loss_scale.init(table)
    like = slices(name, dtype, [0], [0.0])

    def step(table: Any, state: Any, scale: Any, values: Any, ids: Any) -> Any:
        grad = like.replace(values=values, indices=ids)
        grad, finite = loss_scale.unscale(grad, scale)
        table, state = optimizer.step(table, grad, state, apply=finite)
        return table, state, loss_scale.update(scale, finite)

    step, rng = compile(step), np.random.default_rng(0)
    for k in range(10):
        values = rng.integers(-8, 9, (5, DIM)).astype(np.float32) / 8
        if k == 2:
            values[:] = OVERFLOWING[dtype]
        grad = cast(name, B.asarray(values), dtype)
        table, state, scale = step(table, state, scale, grad, B.asarray(np.array([1, 5, 1, 0, 5], np.int32)))
    parts = {"table": table, **state, **scale}
    return {key: numpy(x) for key, x in parts.items()}


@pytest.mark.parametrize("name", [n for n in ("jax", "tensorflow") if n in BACKENDS])
def test_the_whole_step_compiles(name: str) -> None:
    if name == "jax":
        import jax

        wrap: Any = jax.jit
    else:
        import tensorflow as tf

        wrap = tf.function
    wanted, found = train(name), train(name, wrap)
    for key, x in wanted.items():
        np.testing.assert_array_equal(found[key], x, err_msg=key)


@pytest.mark.parametrize("name", [n for n in BACKENDS if n != "numpy"])
def test_a_scaled_loss_gives_scaled_gradients(name: str) -> None:
    B = islices.get_backend(name)
    loss_scale = optim.LossScale(initial=32.0)
    table = islices.Table(B.asarray(np.ones((ROWS, DIM), np.float32)))
    state = loss_scale.init(table.weights)
    ids = B.asarray(np.array([1, 1, 4], np.int32))

    def loss(table: Any) -> Any:
        total = (table[ids] * table[ids]).sum() if name != "tensorflow" else _tf_sum(table[ids] * table[ids])
        return loss_scale.scaled(total, state)

    value, grad = islices.value_and_grad(loss)(table)
    assert numpy(value).reshape(()) == 32.0 * 6
    grad, finite = loss_scale.unscale(grad, state)
    assert finite
    assert numpy(grad.values).tolist() == [[4.0] * DIM, [2.0] * DIM]


def _tf_sum(x: Any) -> Any:
    import tensorflow as tf

    return tf.reduce_sum(x)
