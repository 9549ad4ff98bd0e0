"""Compiled kernels inside jitted JAX programs on CPU: the bits, the transformations, and what happens without them."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="jax is not installed")
pytest.importorskip("numba", reason="numba is not installed")
import jax.numpy as jnp  # noqa: E402
from jax import export  # noqa: E402

import islices  # noqa: E402
from islices import IndexedSlices, optim  # noqa: E402
from islices.backends.jax import frames, grouping, host_calls  # noqa: E402
from islices.kernels.compiling import compile_callback, inline  # noqa: E402

ROWS = 40
RNG = np.random.default_rng(5)
SUM = "islices_sum_rows_float32"
Coalesce = Callable[[Any, Any], IndexedSlices]


@pytest.fixture(params=[False, True], ids=["x32", "x64"])
def x64(request: Any) -> Iterator[bool]:
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", request.param)
    yield request.param
    jax.config.update("jax_enable_x64", before)


@pytest.fixture
def wide() -> Iterator[None]:
    with islices.get_backend("jax").wide_types():
        yield


def slices(n: int, shape: tuple[int, ...], dtype: str = "float32", index: str = "int32") -> tuple[Any, Any]:
    """Values and indices, one in ten of which names no row."""
    values = RNG.integers(-9, 9, (n, *shape)) if dtype.startswith("int") else RNG.normal(size=(n, *shape))
    return jnp.asarray(values, dtype), jnp.asarray(RNG.integers(-2, ROWS + 2, n), index)


def coalesce(values: Any, indices: Any) -> IndexedSlices:
    shape = (ROWS, *values.shape[1:])
    return islices.coalesce(IndexedSlices(values, indices, shape))  # type: ignore[no-any-return]


def loss(values: Any, indices: Any) -> Any:
    return (coalesce(values, indices).values ** 3).sum()


def text(fn: Callable[..., Any], *args: Any) -> str:
    return str(jax.jit(lambda *a: jax.tree_util.tree_leaves(fn(*a))).lower(*args).as_text())


def numbers(x: Any) -> list[np.ndarray]:
    leaves = [np.asarray(leaf) for leaf in jax.tree_util.tree_leaves(x)]
    return [x if x.dtype.kind in "iu" else x.astype(np.float64) for x in leaves]


def check_equal(got: Any, wanted: Any) -> None:
    assert jax.tree_util.tree_structure(got) == jax.tree_util.tree_structure(wanted)
    for x, y in zip(numbers(got), numbers(wanted), strict=True):
        np.testing.assert_array_equal(x, y)


# ---------------------------------------------------------------------- the bits
@pytest.mark.repeats_where(
    lambda dtype, index: (dtype, index) not in (("float32", "int32"), ("bfloat16", "int32"), ("int64", "int64"))
)
@pytest.mark.parametrize("index", ["int32", "int64"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "int32", "int64"])
def test_sums_are_those_of_eager_code(wide: None, dtype: str, index: str) -> None:
    for n, shape in ((1, (3,)), (70, ()), (300, (2, 3)), (70, (2, 1, 4)), (0, (3,)), (70, (0,))):
        values, indices = slices(n, shape, dtype, index)
        got = jax.jit(coalesce)(values, indices)
        keep = np.flatnonzero((np.asarray(indices) >= 0) & (np.asarray(indices) < ROWS))
        eager = coalesce(values[keep], indices[keep])
        named = len(eager.indices)
        assert (got.values.shape, got.indices.shape) == (values.shape, indices.shape)
        assert (got.values.dtype, got.indices.dtype) == (values.dtype, indices.dtype)
        check_equal([got.values[:named], got.indices[:named]], [eager.values, eager.indices])
        assert (np.asarray(got.indices[named:]) == ROWS).all()
        assert not numbers(got.values)[0][named:].any(), "spare slots hold zeros"


def test_the_kernel_is_what_runs(x64: bool) -> None:
    values, indices = slices(20, (3,))
    assert SUM in text(coalesce, values, indices)
    assert "islices_groups_int32" in text(islices.scale_by_frequency, IndexedSlices(values, indices % ROWS, (ROWS, 3)))


def test_large_sums_in_huge_pages() -> None:
    n, width = 1 << 14, 80  # 5 MiB, more than is asked for in pages of 4 KiB
    values, indices = slices(n, (width,))
    got = jax.jit(coalesce)(values, indices)
    with islices.use_kernels(False):
        check_equal(got, jax.jit(lambda v, i: coalesce(v, i))(values, indices))


def test_int64_indices_over_a_vast_table(wide: None) -> None:
    indices = jnp.asarray([2**40, 5, 2**62, 2**40, -1, 2**63 - 1, 5], np.int64)
    values = jnp.arange(1.0, 8.0, dtype=np.float32)
    for rows, ids, sums in ((2**41, [5, 2**40], [9.0, 5.0]), (2**63 - 2, [5, 2**40, 2**62], [9.0, 5.0, 3.0])):
        got = jax.jit(lambda v, i, rows=rows: islices.coalesce(IndexedSlices(v, i, (rows,))))(values, indices)
        assert np.asarray(got.indices).tolist() == [*ids, *[rows] * (7 - len(ids))]
        assert np.asarray(got.values).tolist() == [*sums, *[0.0] * (7 - len(ids))]


# ---------------------------------------------------------------------- transformations
def _hessian_times(values: Any, indices: Any) -> Any:
    return jax.jvp(lambda v: jax.grad(loss)(v, indices), (values,), (jnp.cos(values),))


def _mapped(axes: tuple[int | None, int | None], fn: Callable[..., Any]) -> Callable[..., Any]:
    def run(values: Any, indices: Any) -> Any:
        some = [jnp.stack([x, x[::-1], x + 1]) if a == 0 else x for x, a in zip((values, indices), axes, strict=True)]
        return jax.vmap(fn, axes)(*some)

    return run


TRANSFORMED: dict[str, Callable[..., Any]] = {
    "jit": jax.jit(coalesce),
    "jit of grad": jax.jit(jax.grad(loss)),
    "grad of jit": jax.grad(jax.jit(loss)),
    "jvp of jit": lambda v, i: jax.jvp(lambda v: jax.jit(coalesce)(v, i), (v,), (jnp.sin(v),))[1].values,
    "linearize": lambda v, i: jax.linearize(jax.jit(lambda v: coalesce(v, i % ROWS)), v)[1](jnp.sin(v)).values,
    "forward over reverse": jax.jit(_hessian_times),
    "reverse over reverse": jax.grad(lambda v, i: (jax.jit(jax.grad(loss))(v, i) ** 2).sum()),
    "remat": jax.jit(jax.grad(jax.checkpoint(loss))),
    "scan": jax.jit(lambda v, i: jax.lax.scan(lambda c, x: (c, coalesce(v * x, i)), 0, jnp.arange(3.0))[1]),
    "vmap of jit": _mapped((0, 0), jax.jit(coalesce)),
    "jit of vmap": jax.jit(_mapped((0, 0), coalesce)),
    "vmap of the values": _mapped((0, None), jax.jit(coalesce)),
    "vmap of the indices": _mapped((None, 0), jax.jit(coalesce)),
    "vmap of vmap": _mapped((0, None), _mapped((0, 0), jax.jit(coalesce))),
    "vmap of grad": _mapped((0, 0), jax.jit(jax.grad(loss))),
    "grad of vmap": jax.grad(lambda v, i: _mapped((0, 0), jax.jit(loss))(v, i).sum()),
}


@pytest.mark.repeats_where(
    lambda x64, name: x64 or name in ("jvp of jit", "linearize", "remat", "vmap of vmap", "vmap of grad", "grad of jit")
)
@pytest.mark.parametrize("name", TRANSFORMED)
def test_transformations_agree_with_xla(x64: bool, name: str) -> None:
    values, indices = slices(30, (3,))
    got = TRANSFORMED[name](values, indices)
    jax.clear_caches()  # what is traced decides, and jit keeps what it has traced
    with islices.use_kernels(False):
        wanted = TRANSFORMED[name](values, indices)
    jax.clear_caches()
    check_equal(got, wanted)


def test_donated_arguments() -> None:
    values, indices = slices(50, (4,))
    wanted = jax.jit(coalesce)(values, indices)
    donated = jax.jit(lambda v, i: jax.tree_util.tree_leaves(coalesce(v, i))[:2], donate_argnums=(0, 1))
    check_equal(donated(values + 0, indices + 0), [wanted.values, wanted.indices])


def test_under_shard_map() -> None:
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("x",))
    p = jax.sharding.PartitionSpec("x")
    values, indices = slices(24, (3,))

    def local(values: Any, indices: Any) -> Any:
        return coalesce(values, indices).values

    sharded = jax.shard_map(local, mesh=mesh, in_specs=(p, p), out_specs=p)
    check_equal(jax.jit(sharded)(values, indices), jax.jit(local)(values, indices))
    check_equal(jax.grad(lambda v: (sharded(v, indices) ** 3).sum())(values), jax.jit(jax.grad(loss))(values, indices))


def test_sharded_arrays_on_two_devices() -> None:
    done = run("""
        import os
        os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
        import jax, jax.numpy as jnp, numpy as np, islices
        from jax.sharding import NamedSharding, PartitionSpec as P
        mesh = jax.sharding.Mesh(np.array(jax.devices()), ("x",))
        values = jnp.asarray(np.random.default_rng(0).normal(size=(64, 3)), jnp.float32)
        indices = jnp.asarray(np.random.default_rng(1).integers(0, 9, 64), jnp.int32)
        f = jax.jit(lambda v, i: jax.tree_util.tree_leaves(islices.coalesce(islices.IndexedSlices(v, i, (9, 3))))[:2])
        wanted = f(values, indices)
        got = f(*(jax.device_put(x, NamedSharding(mesh, P("x"))) for x in (values, indices)))
        for x, y in zip(got, wanted):
            np.testing.assert_array_equal(x, y)
        shard = jax.shard_map(f, mesh=mesh, in_specs=(P("x"), P("x")), out_specs=P("x"))
        sums, ids = jax.jit(shard)(values, indices)
        for k in range(2):
            half = slice(32 * k, 32 * (k + 1))
            np.testing.assert_array_equal(sums[half], f(values[half], indices[half])[0])
        print("equal")
    """)
    assert done.stdout.strip() == "equal", done.stderr[-3000:]


def test_eight_threads_at_once() -> None:
    f = jax.jit(lambda v, i: jax.tree_util.tree_leaves(coalesce(v, i)))
    inputs = [slices(2000, (8,)) for _ in range(8)]
    wanted = [f(*x) for x in inputs]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(5):
            for got, expected in zip(pool.map(lambda x: f(*x), inputs), wanted, strict=True):
                check_equal(got, expected)


# ---------------------------------------------------------------------- steps of optimizers
OPTIMIZERS: dict[str, Callable[..., Any]] = {
    "sgd": lambda **k: optim.sgd(0.1, weight_decay=0.1, **k),
    "momentum": lambda **k: optim.sgd(0.1, momentum=0.9, **k),
    "rowwise_adagrad": lambda **k: optim.rowwise_adagrad(0.1, **k),
    "rmsprop": lambda **k: optim.rmsprop(0.1, momentum=0.5, centered=True, **k),
    "adamw": lambda **k: optim.adamw(0.1, **k),
    "ftrl": lambda **k: optim.ftrl(0.1, l1=0.01, **k),
    "mxnet": lambda **k: optim.adam(semantics="mxnet", **k),
}


def two_steps(optimizer: Any, dtype: str, shape: tuple[int, ...], *, compiled: bool, apply: bool | None = None) -> Any:
    rng = np.random.default_rng(3)
    table = jnp.asarray(rng.normal(size=(ROWS, *shape)), dtype)
    indices = jnp.asarray(rng.integers(-2, ROWS + 2, 60), np.int32)
    values = jnp.asarray(rng.normal(size=(60, *shape)), dtype)

    def step(table: Any, state: Any, flag: Any) -> Any:
        taken = {} if apply is None else {"apply": flag}
        return optimizer.step(table, IndexedSlices(values * 1, indices * 1, table.shape), state, **taken)

    with islices.use_kernels(compiled):
        run, state = jax.jit(step, donate_argnums=(0, 1)), optimizer.init(table)
        for _ in range(2):
            table, state = run(table, state, jnp.asarray(apply is not False))
    return table, state


@pytest.mark.repeats  # one at a time: under vmap, of a step that may not be taken, and in the suite's mode traced
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.one_in(3)
def test_steps_have_the_bits_of_xlas(name: str) -> None:
    for dtype, shape, frozen in (("float32", (3,), None), ("bfloat16", (), None), ("float32", (2, 2), [1, 5])):
        optimizer = OPTIMIZERS[name](frozen=frozen)
        check_equal(*(two_steps(optimizer, dtype, shape, compiled=on) for on in (True, False)))


@pytest.mark.parametrize("taken", [True, False])
def test_steps_that_may_not_be_taken(taken: bool) -> None:
    optimizer = OPTIMIZERS["adamw"]()
    got, state = two_steps(optimizer, "float32", (3,), compiled=True, apply=taken)
    check_equal((got, state), two_steps(optimizer, "float32", (3,), compiled=False, apply=taken))
    assert state["step"].tolist() == [2 * taken]


@pytest.mark.repeats_where(lambda name: name != "ftrl")
@pytest.mark.parametrize("name", ["adagrad", "adam", "ftrl", "nadam", "rowwise_adagrad"])
def test_steps_under_vmap(name: str) -> None:
    """A number that the mapped calls share, such as one step count's, divides as it does in a single call."""
    optimizer = getattr(optim, name)(0.1)
    tables = jnp.asarray(RNG.normal(size=(2, ROWS, 3)), np.float32)
    states = {**jax.vmap(optimizer.init)(tables), "step": jnp.full(1, 2, np.int32)}
    axes = {key: None if key == "step" else 0 for key in states}
    values, indices = slices(30, (3,))

    def step(table: Any, state: Any) -> Any:
        return optimizer.step(table, IndexedSlices(values * 1, indices * 1, table.shape), state)

    got = jax.jit(jax.vmap(step, (0, axes)))(tables, states)
    for k in range(2):
        one = {key: x if axes[key] is None else x[k] for key, x in states.items()}
        check_equal(jax.tree_util.tree_map(lambda x, k=k: x[k], got), jax.jit(step)(tables[k], one))


def test_a_step_leaves_a_table_that_is_not_donated() -> None:
    optimizer, table = optim.adagrad(0.1), jnp.ones((ROWS, 3))
    values, indices = slices(30, (3,))
    state = optimizer.init(table)
    step = jax.jit(lambda t, s, v, i: optimizer.step(t, IndexedSlices(v, i, t.shape), s))
    first = step(table, state, values, indices)
    assert (np.asarray(table) == 1).all()
    assert not np.asarray(state["accumulator"]).any()
    check_equal(step(table, state, values, indices), first)


# ---------------------------------------------------------------------- without the kernels
def test_choosing_while_tracing() -> None:
    values, indices = slices(20, (3,))
    with islices.use_kernels(False):
        assert SUM not in text(coalesce, values, indices)
    with islices.execution("framework"):
        assert SUM not in text(coalesce, values, indices)
    assert SUM in text(coalesce, values, indices)


def test_other_platforms_get_xlas_operations(x64: bool) -> None:
    values, indices = slices(20, (3,))
    for fn in (coalesce, jax.grad(loss), _mapped((0, 0), coalesce)):
        traced = jax.jit(lambda v, i, fn=fn: jax.tree_util.tree_leaves(fn(v, i))).trace(values, indices)
        lowered = traced.lower(lowering_platforms=("cuda",)).as_text()
        assert "islices_" not in lowered
        assert "stablehlo.sort" in lowered


def test_what_other_platforms_run_has_the_same_bits() -> None:
    values, indices = slices(60, (3,))
    xla = jax.jit(lambda v, i: grouping._sum_rows_xla(v, i, rows=ROWS))
    with islices.get_backend("jax").scope():
        check_equal(xla(values, indices), jax.jit(lambda v, i: grouping.sum_rows(v, i, ROWS))(values, indices))


@pytest.mark.parametrize("name", ["coalesce", "norm", "step", "bags"])
def test_symbolic_numbers_of_slots_are_refused_clearly(name: str) -> None:
    (n,) = export.symbolic_shape("n")
    values, indices = jax.ShapeDtypeStruct((n, 3), np.float32), jax.ShapeDtypeStruct((n,), np.int32)
    table, optimizer = jnp.ones((ROWS, 3)), optim.sgd(0.1)
    state = optimizer.init(table)
    calls: dict[str, Callable[..., Any]] = {
        "coalesce": lambda v, i: coalesce(v, i).values,
        "norm": lambda v, i: islices.norm(IndexedSlices(v, i, (ROWS, 3))),
        "step": lambda v, i: optimizer.step(table, IndexedSlices(v, i, (ROWS, 3)), state)[0],
        "bags": lambda v, i: islices.lookup(table, i[:, None], combiner="sum"),
    }
    with pytest.raises(ValueError, match="got a symbolic number"):
        export.export(jax.jit(calls[name]))(values, indices)
    assert export.export(jax.jit(islices.lookup))(table, indices).out_avals[0].shape == (n, 3)


@pytest.mark.outside
def test_an_exported_program_runs_where_there_are_no_kernels(tmp_path: Any) -> None:
    pytest.importorskip("flatbuffers", reason="jax.export needs flatbuffers to serialize")
    values, indices = slices(20, (3,))
    optimizer = optim.adam(0.1)

    def train(table: Any, state: Any, values: Any, indices: Any) -> Any:
        (grad,), norm = islices.clip_by_global_norm([IndexedSlices(values, indices, table.shape)], 1.0)
        table, state = optimizer.step(table, grad, state)
        return table, [state[k] for k in sorted(state)], norm, coalesce(values, indices).values

    table = jnp.ones((ROWS, 3))
    state = optimizer.init(table)
    names = sorted(state)

    def flat(table: Any, state: Any, values: Any, indices: Any) -> Any:
        return train(table, dict(zip(names, state, strict=True)), values, indices)

    given = (table, [state[k] for k in names], values, indices)
    exported = export.export(jax.jit(flat))(*given)
    assert "@islices" not in exported.mlir_module()
    (tmp_path / "program").write_bytes(exported.serialize())
    np.savez(tmp_path / "given", *jax.tree_util.tree_leaves(given))
    done = run(f"""
        import jax, numpy as np
        from jax import export
        program = export.deserialize(open({str(tmp_path / "program")!r}, "rb").read())
        given = np.load({str(tmp_path / "given.npz")!r})
        args = jax.tree_util.tree_unflatten(program.in_tree, [given[k] for k in given.files])[0]
        outs = jax.tree_util.tree_leaves(program.call(*args))
        np.savez({str(tmp_path / "outs")!r}, *outs)
    """)
    assert not done.returncode, done.stderr[-3000:]
    with np.load(tmp_path / "outs.npz") as outs:
        check_equal([outs[k] for k in outs.files], jax.tree_util.tree_leaves(jax.jit(flat)(*given)))


@pytest.mark.outside
def test_a_program_from_the_compilation_cache(tmp_path: Any) -> None:
    script = f"""
        import jax
        for name, value in (
            ("jax_compilation_cache_dir", {str(tmp_path)!r}),
            ("jax_persistent_cache_min_compile_time_secs", 0),
            ("jax_persistent_cache_min_entry_size_bytes", 0),
        ):
            jax.config.update(name, value)
        import jax.numpy as jnp, islices
        f = jax.jit(lambda v, i: islices.coalesce(islices.IndexedSlices(v, i, (9, 1))))
        print(f(jnp.ones((3, 1)), jnp.asarray([4, 2, 4])).values.ravel().tolist())
    """
    assert [run(script).stdout.strip() for _ in range(2)] == ["[1.0, 2.0, 0.0]"] * 2


def _handler(frame: Any) -> Any:
    return 0 if introduced(frame) else 1


introduced: Any = None


def test_a_version_that_xla_does_not_speak_is_refused() -> None:
    stranger = inline(frames.introduced.py_func, VERSION=(9, 9))
    callback = compile_callback(_handler, frames.SIGNATURE, introduced=stranger)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert host_calls._registered("islices_test_stranger", callback) is None
    said = [str(w.message) for w in caught]
    assert any("islices computes without compiled kernels" in x and "9.9" in x for x in said), said


def run(script: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", textwrap.dedent(script)]
    return subprocess.run(command, text=True, capture_output=True, check=False, timeout=300)
