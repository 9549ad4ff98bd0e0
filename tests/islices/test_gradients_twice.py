"""Second derivatives and forward mode through norms and clips, and no infinity or NaN on the way to a gradient.

Beside each framework's own derivatives of its own formula, densified, in float64, to 1e-12 of the largest.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import islices

VALUES = np.array([[1.0, 2.0], [2.0, -2.0], [5.0, 1.0]])
IDS = np.array([1, 1, 3])
UPSTREAM = np.array([[1.0, -2.0], [3.0, 1.0], [0.5, 2.0]])
DIRECTION = np.array([[1.0, 0.0], [-1.0, 2.0], [0.5, 1.0]])
#: (of values and upstream to a number, the same with the norm and the limit as the framework's own functions)
LIMIT = 1.5


def slices(x: Any) -> Any:
    return islices.IndexedSlices(x, IDS, (4, 2))


def ours(total: Callable[[Any], Any]) -> dict[str, Callable[[Any], Any]]:
    """Functions of stored values to a number; total sums an array times UPSTREAM."""
    return {
        "norm": lambda x: islices.norm(slices(x)),
        "clip_by_norm": lambda x: total(islices.clip_by_norm(slices(x), LIMIT).values),
        "within": lambda x: total(islices.clip_by_norm(slices(x), 100.0).values),
        "clip_by_global_norm": lambda x: total(islices.clip_by_global_norm([slices(x)], LIMIT)[0][0].values),
    }


def theirs(norm: Callable[[Any], Any], total: Callable[[Any], Any]) -> dict[str, Callable[[Any], Any]]:
    """The same with the framework's own norm of the densified rows."""
    clipped = lambda x: total(x * (LIMIT / norm(x)))  # noqa: E731
    return {"norm": norm, "clip_by_norm": clipped, "within": total, "clip_by_global_norm": clipped}


def close(got: Any, want: Any, what: str) -> None:
    got, want = np.asarray(got), np.asarray(want)
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-12 * max(1.0, np.abs(want).max()), err_msg=what)


def test_torch() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    up, direction, x = (torch.from_numpy(a) for a in (UPSTREAM, DIRECTION, VALUES))
    mine = ours(lambda y: (y * up).sum())

    def norm(x: Any) -> Any:
        return torch.linalg.vector_norm(torch.zeros(4, 2, dtype=x.dtype).index_add(0, torch.from_numpy(IDS), x))

    for name, own in theirs(norm, lambda y: (y * up).sum()).items():
        f = mine[name]
        value, product = torch.autograd.functional.hvp(f, x, direction)
        want, want_product = torch.autograd.functional.hvp(own, x, direction)
        close(value, want, name)
        close(product, want_product, name)
        close(torch.func.hessian(f)(x), torch.func.hessian(own)(x), f"{name}, forward over reverse")
        close(torch.func.jvp(f, (x,), (direction,))[1], torch.func.jvp(own, (x,), (direction,))[1], f"{name}, forward")
        assert torch.autograd.gradgradcheck(f, x.clone().requires_grad_())


# op by op, every operation of a derivative is a program that XLA compiles
@pytest.mark.repeats_where(lambda name, compiled: not compiled or name not in ("norm", "clip_by_norm"))
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("name", ["norm", "clip_by_norm", "within", "clip_by_global_norm"])
def test_jax(name: str, compiled: bool) -> None:
    jax = pytest.importorskip("jax", reason="jax is not installed")
    import jax.numpy as jnp

    with islices.get_backend("jax").wide_types():
        up, direction, x = (jnp.asarray(a) for a in (UPSTREAM, DIRECTION, VALUES))

        def norm(x: Any) -> Any:
            return jnp.sqrt((jnp.zeros((4, 2)).at[IDS].add(x) ** 2).sum())

        f, own = (table[name] for table in (ours(lambda y: (y * up).sum()), theirs(norm, lambda y: (y * up).sum())))
        run: Callable[[Any], Any] = jax.jit if compiled else lambda f: f
        close(run(jax.hessian(f))(x), jax.jit(jax.hessian(own))(x), name)
        want = jax.jit(lambda x: jax.jvp(jax.grad(own), (x,), (direction,))[1])(x)
        close(run(lambda x: jax.jvp(jax.grad(f), (x,), (direction,))[1])(x), want, name)
        reverse = run(jax.grad(lambda x: (jax.grad(f)(x) * direction).sum()))
        close(reverse(x), want, f"{name}, reverse over reverse")


def test_tensorflow() -> None:
    tf = pytest.importorskip("tensorflow", reason="tensorflow is not installed")
    up, direction, x = (tf.constant(a) for a in (UPSTREAM, DIRECTION, VALUES))
    mine = ours(lambda y: tf.reduce_sum(y * up))

    def norm(x: Any) -> Any:
        return tf.norm(tf.scatter_nd(IDS[:, None], x, (4, 2)))

    def product(f: Callable[[Any], Any]) -> Any:
        def twice(x: Any) -> Any:
            with tf.GradientTape() as outer:
                outer.watch(x)
                with tf.GradientTape() as inner:
                    inner.watch(x)
                    value = f(x)
                first = inner.gradient(value, x)
            return outer.gradient(first, x, output_gradients=direction, unconnected_gradients="zero")

        return twice

    for name, own in theirs(norm, lambda y: tf.reduce_sum(y * up)).items():
        want = product(own)(x)
        close(product(mine[name])(x), want, f"{name}, eager")
        close(tf.function(product(mine[name]), autograph=False)(x), want, f"{name}, compiled")


# ---------------------------------------------------------------------- nothing infinite on the way
COMMON = """
import numpy as np, islices
def losses(total):
    ids = np.array([1, 1, 3])
    s = lambda x: islices.IndexedSlices(x, ids, (4, 2))
    per = lambda x: islices.per_sample(x, np.array([0, 1, 1]), 3)
    yield "norm", lambda x: islices.norm(s(x))
    yield "norm 1", lambda x: islices.norm(x, 1)
    yield "norm inf", lambda x: islices.norm(s(x), np.inf)
    yield "norm 3", lambda x: islices.norm(s(x), 3)
    yield "value", lambda x: total(islices.clip_by_value(x, -1.0, 2.0))
    for limit in (0.0, 0.5, 90.0):
        yield f"norm {limit}", lambda x: total(islices.clip_by_norm(s(x), limit).values)
        yield f"rows {limit}", lambda x: total(islices.clip_by_row_norm(s(x), limit).values)
        yield f"samples {limit}", lambda x: total(islices.clip_per_sample(per(x), limit)[0].values)
    for name in ("tensorflow", "torch", "optax", "mxnet"):
        yield name, lambda x: total(islices.clip_by_global_norm([x], 0.5, semantics=name)[0][0])
DATA = [np.zeros((3, 2), np.float32), np.array([[1, 2], [-1, -2], [0, 0]], np.float32), np.full((3, 2), 3, np.float32)]
"""
CHECKED = {
    "jax": """
import jax, jax.numpy as jnp
jax.config.update("jax_debug_nans", True)
for name, loss in losses(lambda y: (y * 2).sum()):
    take = jax.jit(jax.grad(loss))
    for x in DATA:
        assert np.isfinite(take(jnp.asarray(x))).all(), name
for name, loss in list(losses(lambda y: (y * 2).sum()))[:8]:
    assert np.isfinite(jax.grad(loss)(jnp.asarray(DATA[1]))).all(), name
""",
    "tensorflow": """
import tensorflow as tf
tf.debugging.enable_check_numerics()
for name, loss in losses(tf.reduce_sum):
    def take(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = loss(x)
        return tape.gradient(y, x)
    for run in (take, tf.function(take, autograph=False)):
        for x in DATA:
            assert np.isfinite(run(tf.constant(x))).all(), name
""",
}


def programs() -> Iterator[Any]:
    for framework, program in CHECKED.items():
        yield pytest.param(framework, program, id=framework)


@pytest.mark.repeats
@pytest.mark.parametrize(("framework", "program"), list(programs()))
def test_no_operation_gives_an_infinity_or_a_nan(framework: str, program: str) -> None:
    pytest.importorskip(framework, reason=f"{framework} is not installed")
    done = subprocess.run(  # a process of its own: the checks stay on
        [sys.executable, "-c", COMMON + program], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
