"""Norms inside jitted programs by compiled kernels: the bits of eager code, the transformations, the threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="jax is not installed")
pytest.importorskip("numba", reason="numba is not installed")
import jax.numpy as jnp  # noqa: E402

import islices  # noqa: E402
from islices import IndexedSlices, optim  # noqa: E402
from islices.backends.jax import handlers  # noqa: E402

ROWS = 40
RNG = np.random.default_rng(6)


@pytest.fixture
def wide() -> Iterator[None]:
    with islices.get_backend("jax").wide_types():
        yield


def slices(n: int, shape: tuple[int, ...], dtype: str = "float32", index: str = "int32", *, most: int = ROWS) -> Any:
    """Rows of many sizes; duplicates, some of which cancel."""
    values = RNG.normal(size=(n, *shape)) * 10.0 ** RNG.integers(-4, 4, (n, *(1 for _ in shape)))
    indices = RNG.integers(0, most, n)
    if n > 3:
        values[1], indices[1] = -values[0], indices[0]
    return IndexedSlices(jnp.asarray(values, dtype), jnp.asarray(indices, index), (ROWS, *shape))


def text(fn: Callable[..., Any], *args: Any) -> str:
    return jax.jit(fn).lower(*args).as_text()  # type: ignore[no-any-return]


def check_norms(tree: Any) -> None:
    """Jitted norms by kernels, jitted ones by XLA and eager ones are equal to the bit."""
    for ord in (1, 2):
        got = jax.jit(lambda t, ord=ord: islices.global_norm(t, ord))(tree)
        eager = islices.global_norm(tree, ord)
        with islices.use_kernels(False):
            xla = jax.jit(lambda t, ord=ord: islices.global_norm(t, ord))(tree)
        assert got.dtype == eager.dtype == xla.dtype
        np.testing.assert_array_equal(np.asarray(got), np.asarray(eager), err_msg=f"{tree} of order {ord}")
        np.testing.assert_array_equal(np.asarray(got), np.asarray(xla), err_msg=f"{tree} of order {ord}")


@pytest.mark.repeats_where(lambda dtype: dtype not in ("float32", "float64"))
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_norms_are_those_of_eager_code(wide: None, dtype: str) -> None:
    dense = jnp.asarray(RNG.normal(size=(3, 5)), np.float32)
    check_norms([slices(60, (3,), dtype), dense, slices(7, (2, 2), "float32", "int64")])
    check_norms([slices(1, (), dtype), slices(0, (3,), dtype), slices(5, (0,), dtype)])


@pytest.mark.repeats
def test_norms_of_nothing() -> None:
    check_norms([slices(0, (3,))])
    check_norms([slices(5, (0,)), jnp.ones((0, 2))])


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf, 0.0, 3e38])
def test_numbers_that_are_treated_apart(number: float) -> None:
    s = slices(9, (3,))
    check_norms([s.replace(values=s.values.at[4, 1].set(number)), jnp.full(3, number)])


def test_the_kernel_is_what_runs() -> None:
    tree = [slices(20, (3,)), jnp.ones((2, 2))]
    program = text(islices.global_norm, tree)
    assert all(f"islices_{name}" in program for name in ("bins2_rows_float32", "bins2_all_float32", "total"))
    with islices.use_kernels(False):
        assert "@islices_" not in text(lambda t: islices.global_norm(t), tree)


def test_indices_out_of_range_name_no_row() -> None:
    def norm(values: Any, indices: Any) -> Any:
        return islices.norm(IndexedSlices(values, indices, (4, 1)))

    values, indices = jnp.asarray([[3.0], [8.0], [4.0], [9.0]]), jnp.asarray([0, -1, 2, 4])
    assert float(jax.jit(norm)(values, indices)) == 5.0
    assert float(jax.jit(norm)(values, indices - 9)) == 0.0


# ---------------------------------------------------------------------- transformations
def _clipped(values: Any, indices: Any) -> Any:
    (s,), norm = islices.clip_by_global_norm([IndexedSlices(values, indices, (ROWS, 3))], 0.5)
    return (islices.to_dense(s) ** 3).sum() + norm


TRANSFORMED: dict[str, Callable[..., Any]] = {
    "jit of grad": lambda v, i: jax.jit(jax.grad(_clipped))(v, i),
    "remat": lambda v, i: jax.jit(jax.grad(jax.checkpoint(_clipped)))(v, i),
    "scan": lambda v, i: jax.lax.scan(lambda c, x: (c, _clipped(v * x, i)), 0, jnp.arange(1.0, 4.0))[1],
    "vmap": lambda v, i: jax.vmap(jax.jit(_clipped))(jnp.stack([v, v[::-1]]), jnp.stack([i, i])),
}


@pytest.mark.repeats_where(lambda name: name != "jit of grad")
@pytest.mark.parametrize("name", TRANSFORMED)
def test_transformations_agree_with_xla(name: str) -> None:
    s = slices(30, (3,))
    got = TRANSFORMED[name](s.values, s.indices)
    jax.clear_caches()  # what is traced decides, and jit keeps what it has traced
    with islices.use_kernels(False):
        wanted = TRANSFORMED[name](s.values, s.indices)
    jax.clear_caches()
    np.testing.assert_array_equal(np.asarray(got), np.asarray(wanted))


def test_under_shard_map() -> None:
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("x",))
    p, s = jax.sharding.PartitionSpec("x"), slices(24, (3,))

    def local(values: Any, indices: Any) -> Any:
        return islices.norm(IndexedSlices(values, indices, (ROWS, 3))).reshape(1)

    got = jax.jit(jax.shard_map(local, mesh=mesh, in_specs=(p, p), out_specs=p))(s.values, s.indices)
    np.testing.assert_array_equal(np.asarray(got), np.asarray(jax.jit(local)(s.values, s.indices)))


# ---------------------------------------------------------------------- training
def train(table: Any, state: Any, ids: Any) -> Any:
    """A step on bags' gradient, clipped: rows by position, times a factor."""
    loss, grad = islices.value_and_grad(_loss)(table, ids)
    grad, norm = islices.clip_by_global_norm(grad, 0.1)
    table, state = OPTIMIZER.step(table, grad, state)
    return table, state, (loss, norm)


def _loss(table: Any, ids: Any) -> Any:
    return (islices.lookup(table, ids, combiner="mean", padding_idx=0) ** 2).sum()


OPTIMIZER = optim.adam(0.1)


def two_steps(dtype: str, width: int, batch: int, step: Callable[..., Any]) -> list[Any]:
    rng = np.random.default_rng(8)
    table = islices.Table(jnp.asarray(rng.normal(size=(ROWS, width)), dtype))
    state, outs = OPTIMIZER.init(table), []
    for _ in range(2):
        table, state, told = step(table, state, jnp.asarray(rng.integers(0, ROWS, (batch, 5)), np.int32))
        outs.append(told)
    return [np.asarray(x).astype(np.float64) for x in jax.tree_util.tree_leaves((table.weights, state, outs))]


def check_equal(got: list[Any], wanted: list[Any]) -> None:
    for x, y in zip(got, wanted, strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.repeats_where(lambda dtype: dtype == "bfloat16")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_steps_on_clipped_bags_have_the_bits_of_xlas(dtype: str) -> None:
    got = two_steps(dtype, 3, 6, jax.jit(train, donate_argnums=(0, 1)))
    with islices.use_kernels(False):
        wanted = two_steps(dtype, 3, 6, jax.jit(lambda *x: train(*x)))
    check_equal(got, wanted)


def test_a_clipped_step_writes_no_product() -> None:
    table = islices.Table(jnp.ones((ROWS, 3)))
    program = jax.jit(train).lower(table, OPTIMIZER.init(table), jnp.ones((7, 5), np.int32)).compile().as_text()
    assert "f32[35,3]" not in program.split("islices_groups")[-1], "the bags' rows are neither expanded nor scaled"
    assert program.count('"islices_groups_int32_int32"') == 1, "the norm and the step share the groups"


def test_bits_do_not_depend_on_the_number_of_threads() -> None:
    before, width = islices.get_num_threads(), 128
    batch = handlers.SHARED // width // 5 * 4
    step, found = jax.jit(train), []
    try:
        for n in (1, 2, 4):
            islices.set_num_threads(n)
            found.append(two_steps("float32", width, batch, step))
    finally:
        islices.set_num_threads(before)
    for other in found[1:]:
        check_equal(other, found[0])
    with ThreadPoolExecutor(4) as pool:
        for other in pool.map(lambda _: two_steps("float32", width, batch, step), range(4)):
            check_equal(other, found[0])
