"""Bags and small products in jitted programs by compiled kernels: bits of eager code and of XLA, transformations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="jax is not installed")
pytest.importorskip("numba", reason="numba is not installed")
import jax.numpy as jnp  # noqa: E402

import islices  # noqa: E402
from islices import IndexedSlices  # noqa: E402
from islices.backends.jax import bags, handlers, scaling  # noqa: E402

ROWS = 30
RNG = np.random.default_rng(12)


def check_same(fn: Callable[..., Any], *args: Any) -> Any:
    """fn jitted by kernels and by XLA gives the same bits."""
    got = jax.jit(lambda *x: fn(*x))(*args)
    with islices.use_kernels(False):
        wanted = jax.jit(lambda *x: fn(*x))(*args)
    for x, y in zip(jax.tree_util.tree_leaves(got), jax.tree_util.tree_leaves(wanted), strict=True):
        assert x.dtype == y.dtype
        np.testing.assert_array_equal(np.asarray(x, np.float64), np.asarray(y, np.float64))
    return got


def table_of(shape: tuple[int, ...], dtype: str = "float32") -> Any:
    return jnp.asarray(RNG.normal(size=(ROWS, *shape)), dtype)


# ---------------------------------------------------------------------- bags
@pytest.mark.repeats_where(lambda dtype, shape: dtype == "float16" or shape != (3,))
@pytest.mark.parametrize("shape", [(), (3,), (2, 2)])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_bags_are_those_of_eager_code(dtype: str, shape: tuple[int, ...]) -> None:
    table = table_of(shape, dtype)
    for combiner in ("sum", "mean"):

        def bags_of(table: Any, ids: Any, combiner: Any = combiner) -> Any:
            return islices.lookup(table, ids, combiner=combiner, padding_idx=2)

        ids = jnp.asarray(RNG.integers(0, ROWS, (7, 4)), np.int32)
        got = check_same(bags_of, table, ids)
        np.testing.assert_array_equal(np.asarray(got, np.float64), np.asarray(bags_of(table, ids), np.float64))
        check_same(bags_of, table, jnp.asarray(RNG.integers(-9, ROWS + 9, (5, 4)), np.int32))
        check_same(bags_of, table, jnp.zeros((3, 0), np.int32))


def test_bags_at_offsets() -> None:
    """Some bags are empty, and what lies behind the last is in none."""
    table, ids = table_of((3,)), jnp.asarray(RNG.integers(0, ROWS, 9), np.int32)

    def bags_of(table: Any, ids: Any, offsets: Any) -> Any:
        return islices.lookup(table, ids, combiner="sum", offsets=offsets, include_last_offset=True)

    for offsets in ([0, 0, 4, 4, 7], [0, 9], [0, 0, 0]):
        given = jnp.asarray(offsets, np.int32)
        got = check_same(bags_of, table, ids, given)
        np.testing.assert_array_equal(got, bags_of(table, ids, given))


def test_members_in_any_order_of_bags() -> None:
    table, ids = np.asarray(table_of((2,))), np.array([3, 1, -1, 4, 5, ROWS, 9], np.int32)
    segments, keep = np.array([2, 0, 2, 5, 2, 0, 0], np.int32), np.array([1, 1, 1, 1, 1, 1, 0], np.int32)

    def refuse(*arrays: Any) -> Any:
        raise AssertionError("a kernel takes these")

    def read(*arrays: Any) -> Any:
        return bags.read_bags(*arrays[:3], jnp.zeros(4), arrays[3], refuse)

    got = jax.jit(read)(table, ids, segments, keep)
    wanted = np.zeros((4, 2), np.float32)
    wanted[0], wanted[2] = table[1], table[3] + table[5]
    np.testing.assert_array_equal(got, wanted)


def _loss(table: Any, ids: Any) -> Any:
    return (islices.lookup(table, ids, combiner="mean", padding_idx=0) ** 3).sum()


def _gradient(table: Any, ids: Any) -> Any:
    loss, grad = islices.value_and_grad(_loss)(islices.Table(table), ids)
    return loss, islices.to_dense(grad)


TRANSFORMED: dict[str, Callable[..., Any]] = {
    "value_and_grad": _gradient,
    "grad of the array": jax.grad(_loss),
    "remat": lambda t, i: jax.grad(jax.checkpoint(_loss))(t, i),
    "scan": lambda t, i: jax.lax.scan(lambda c, x: (c, _gradient(t * x, i)), 0, jnp.arange(1.0, 4.0))[1],
    "vmap of ids": lambda t, i: jax.vmap(_loss, (None, 0))(t, jnp.stack([i, i[::-1], i + 7])),
    "vmap of tables": lambda t, i: jax.vmap(_loss, (0, None))(jnp.stack([t, t * 3]), i),
    "vmap of grad": lambda t, i: jax.vmap(jax.grad(_loss), (None, 0))(t, jnp.stack([i, i[::-1]])),
}


@pytest.mark.repeats_where(lambda name: name not in ("value_and_grad", "vmap of ids"))
@pytest.mark.parametrize("name", TRANSFORMED)
def test_transformed_bags_agree_with_xla(name: str) -> None:
    check_same(TRANSFORMED[name], table_of((3,)), jnp.asarray(RNG.integers(-2, ROWS + 2, (6, 5)), np.int32))


def test_the_kernel_is_what_runs_and_an_export_has_none() -> None:
    table, ids = table_of((3,)), jnp.ones((7, 5), np.int32)
    program = jax.jit(_loss).lower(table, ids)
    assert "@islices_read_bags_float32" in program.as_text()
    assert "f32[35,3]" not in program.compile().as_text().split("islices_members")[-1], "no array of all rows"
    exported = jax.export.export(jax.jit(lambda t, i: _loss(t, i)))(table, ids)
    assert "@islices" not in exported.mlir_module()
    np.testing.assert_array_equal(exported.call(table, ids), jax.jit(_loss)(table, ids))


def test_bags_do_not_depend_on_the_number_of_threads() -> None:
    before, width = islices.get_num_threads(), 64
    ids = jnp.asarray(RNG.integers(0, ROWS, (handlers.SHARED // width // 4, 8)), np.int32)
    read, table, found = jax.jit(lambda t, i: islices.lookup(t, i, combiner="sum")), table_of((width,)), []
    try:
        for n in (1, 2, 4):
            islices.set_num_threads(n)
            found.append(np.asarray(read(table, ids)))
    finally:
        islices.set_num_threads(before)
    np.testing.assert_array_equal(found[0], islices.lookup(table, ids, combiner="sum"))
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])


# ---------------------------------------------------------------------- products
@pytest.mark.repeats_where(lambda dtype: dtype != "float32")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_clipped_values_are_those_of_eager_code(dtype: str) -> None:
    indices = jnp.asarray(RNG.integers(0, ROWS, 20), np.int32)
    for semantics in ("islices", "torch", "optax"):

        def clipped(values: Any, semantics: Any = semantics) -> Any:
            s = IndexedSlices(values, indices, (ROWS, 3))
            (c,), norm = islices.clip_by_global_norm([s], 0.5, semantics=semantics)
            return c.values, norm

        values = table_of((3,), dtype)[:20]
        got = check_same(clipped, values)
        for x, y in zip(got, clipped(values), strict=True):
            np.testing.assert_array_equal(np.asarray(x, np.float64), np.asarray(y, np.float64))


def test_products_are_differentiated() -> None:
    def scaled(values: Any, factor: Any) -> Any:
        return (islices.scale(IndexedSlices(values, jnp.arange(4), (ROWS, 3)), factor).values ** 2).sum()

    values = table_of((3,))[:4]
    check_same(jax.grad(scaled, (0, 1)), values, jnp.float32(0.3))
    check_same(lambda v, f: jax.jvp(scaled, (v, f), (v, f)), values, jnp.float32(0.3))
    check_same(jax.vmap(scaled, (None, 0)), values, jnp.arange(3.0))
    few, many = jnp.ones(8), jnp.ones(scaling.FEW)
    for x, kernel in ((few, True), (many, False)):
        program = jax.jit(lambda x, c: islices.scale(x, c)).lower(x, jnp.float32(2.0)).as_text()
        assert ("@islices_scaled_mul_float32" in program) == kernel
