"""Test 16-bit tables with float32 master rows, and steps that are not taken."""

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


#: A float16 whose double is infinite.
LARGE = 4e4


def all_finite(x: Any) -> Any:
    name = islices.get_backend(x).name
    if name != "tensorflow":
        return (__import__("jax.numpy", fromlist=["isfinite"]) if name == "jax" else np).isfinite(x).all()
    import tensorflow as tf

    return tf.reduce_all(tf.math.is_finite(x))


def train(name: str, compile: Any = lambda step: step) -> dict[str, np.ndarray]:
    """Take ten steps of a float16 table with a master. The third overflows after summing duplicates, and is skipped."""
    B, dtype = islices.get_backend(name), "float16"
    optimizer = optim.adam(2.0**-9)
    table = cast(name, B.asarray(np.linspace(1, 2, ROWS * DIM, dtype=np.float32).reshape(ROWS, DIM)), dtype)
    state = optimizer.init(table, master=True)
    like = slices(name, dtype, [0], [0.0])

    def step(table: Any, state: Any, values: Any, ids: Any) -> Any:
        grad = islices.coalesce(like.replace(values=values, indices=ids))
        return optimizer.step(table, grad.astype("float32") / 16.0, state, apply=all_finite(grad.values))

    step, rng = compile(step), np.random.default_rng(0)
    for k in range(10):
        values = rng.integers(-8, 9, (5, DIM)).astype(np.float32) / 8
        if k == 2:
            values[:] = LARGE
        grad = cast(name, B.asarray(values), dtype)
        table, state = step(table, state, grad, B.asarray(np.array([1, 5, 1, 0, 5], np.int32)))
    assert numpy(state["step"]).tolist() == [9]
    return {key: numpy(x) for key, x in {"table": table, **state}.items()}


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
