"""Test compiled kernels inside jitted JAX programs on CPU: bits, transformations, and programs that use no kernels."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from comparing import assert_same
from suite_runs import run_code

jax = pytest.importorskip("jax")
pytest.importorskip("numba")
import jax.numpy as jnp  # noqa: E402
from jax import export  # noqa: E402

import islices  # noqa: E402
from islices import IndexedSlices, Table, optim  # noqa: E402
from islices.backends.jax.host_calls import frames, parts, row_calls  # noqa: E402

ROWS = 40
RNG = np.random.default_rng(5)
CALL = "@islices_"
OPTIMIZER = optim.adam(0.1)


def slices(n: int, width: int = 3) -> tuple[Any, Any]:
    """Return (values, indices) in which about one index in ten is out of range."""
    values = jnp.asarray(RNG.normal(size=(n, width)), jnp.float32)
    return values, jnp.asarray(RNG.integers(-2, ROWS + 2, n), jnp.int32)


def coalesce(values: Any, indices: Any) -> IndexedSlices:
    return islices.coalesce(IndexedSlices(values, indices, (ROWS, *values.shape[1:])))  # type: ignore[no-any-return]


def loss(values: Any, indices: Any) -> Any:
    return (coalesce(values, indices).values ** 3).sum()


def clipped(values: Any, indices: Any) -> Any:
    (s,), norm = islices.clip_by_global_norm([IndexedSlices(values, indices, (ROWS, 3))], 0.5)
    return (islices.to_dense(s) ** 3).sum() + norm


def bags(table: Any, ids: Any) -> Any:
    return (islices.lookup(table, ids, combiner="mean", padding_idx=0) ** 3).sum()


def train(table: Any, state: Any, ids: Any) -> Any:
    """Take one training step with a clipped gradient. The gradient of `bags` stores one row per bag, and slots refer to
    these rows by position."""
    value, grad = islices.value_and_grad(bags)(table, ids)
    grad, norm = islices.clip_by_global_norm(grad, 0.1)
    table, state = OPTIMIZER.step(table, grad, state)
    return table, state, (value, norm)


def two_steps(width: int, batch: int, step: Callable[..., Any]) -> Any:
    rng = np.random.default_rng(8)
    table = Table(jnp.asarray(rng.normal(size=(ROWS, width)), jnp.float32))
    state, outs = OPTIMIZER.init(table), []
    for _ in range(2):
        table, state, reported = step(table, state, jnp.asarray(rng.integers(0, ROWS, (batch, 5)), np.int32))
        outs.append(reported)
    return table.weights, state, outs


def text(fn: Callable[..., Any], *args: Any) -> str:
    return str(jax.jit(lambda *a: jax.tree_util.tree_leaves(fn(*a))).lower(*args).as_text())


def check_equal(got: Any, wanted: Any) -> None:
    assert jax.tree_util.tree_structure(got) == jax.tree_util.tree_structure(wanted)
    assert_same(jax.tree_util.tree_leaves(got), jax.tree_util.tree_leaves(wanted))


def check_as_xla(fn: Callable[..., Any], *args: Any) -> None:
    """Check that `fn` gives the same bits with compiled kernels as with XLA's operations."""
    got = fn(*args)
    jax.clear_caches()  # tracing chooses between kernels and operations, and jit keeps traced programs
    with islices.config.use_kernels(False):
        check_equal(got, fn(*args))
    jax.clear_caches()


# ---------------------------------------------------------------------- the bits
def test_the_kernel_is_what_runs() -> None:
    values, indices = slices(20)
    s, table = IndexedSlices(values, indices % ROWS, (ROWS, 3)), jnp.ones((ROWS, 3))
    for fn, args in (
        (coalesce, (values, indices)),
        (islices.global_norm, ([s, jnp.ones(5)],)),
        (bags, (table, jnp.ones((7, 5), np.int32))),
        (lambda v: OPTIMIZER.step(table, IndexedSlices(v, s.indices, (ROWS, 3)), OPTIMIZER.init(table)), (values,)),
    ):
        assert CALL in text(fn, *args)
        with islices.config.use_kernels(False):
            assert CALL not in text(fn, *args)
        with islices.config.execution("framework"):
            assert CALL not in text(fn, *args)


def test_int64_indices_over_a_vast_table() -> None:
    with islices.get_backend("jax").wide_types():
        indices, rows = jnp.asarray([2**40, 5, 2**62, 2**40, -1, 2**63 - 1, 5], np.int64), 2**63 - 2
        values = jnp.arange(1.0, 8.0, dtype=np.float32)
        got = jax.jit(lambda v, i: islices.coalesce(IndexedSlices(v, i, (rows,))))(values, indices)
        assert np.asarray(got.indices).tolist() == [5, 2**40, 2**62, *[rows] * 4]
        assert np.asarray(got.values).tolist() == [9.0, 5.0, 3.0, 0, 0, 0, 0]


# ---------------------------------------------------------------------- transformations
def _mapped(axes: tuple[int | None, int | None], fn: Callable[..., Any]) -> Callable[..., Any]:
    def run(values: Any, indices: Any) -> Any:
        some = [jnp.stack([x, x[::-1], x + 1]) if a == 0 else x for x, a in zip((values, indices), axes, strict=True)]
        return jax.vmap(fn, axes)(*some)

    return run


TRANSFORMED: dict[str, Callable[..., Any]] = {
    "forward over reverse": jax.jit(
        lambda v, i: jax.jvp(lambda v: jax.grad(loss)(v, i), (v,), (jnp.cos(v),)),
    ),
    "reverse over reverse": jax.grad(lambda v, i: (jax.jit(jax.grad(loss))(v, i) ** 2).sum()),
    "scan": jax.jit(lambda v, i: jax.lax.scan(lambda c, x: (c, coalesce(v * x, i)), 0, jnp.arange(3.0))[1]),
    "vmap": _mapped((0, 0), jax.jit(coalesce)),
    "vmap of the values": _mapped((0, None), jax.jit(coalesce)),
    "grad of vmap": jax.grad(lambda v, i: _mapped((0, 0), jax.jit(loss))(v, i).sum()),
    "vmap of a clip": _mapped((0, None), jax.jit(clipped)),
    "grad of bags": jax.jit(jax.grad(lambda v, i: bags(v, i.reshape(6, 5)))),
    "vmap of bags": _mapped((None, 0), jax.jit(lambda v, i: bags(v, i.reshape(6, 5)))),
}


@pytest.mark.parametrize("name", TRANSFORMED)
def test_transformations_agree_with_xla(name: str) -> None:
    check_as_xla(TRANSFORMED[name], *slices(30))


@pytest.mark.outside
def test_sharded_arrays_on_two_devices() -> None:
    run_code("""
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
    """)


# ---------------------------------------------------------------------- steps of optimizers
def test_steps_on_clipped_bags_have_the_bits_of_xlas() -> None:
    check_as_xla(lambda: two_steps(3, 6, jax.jit(train, donate_argnums=(0, 1))))


def test_a_clipped_step_writes_no_product() -> None:
    table = Table(jnp.ones((ROWS, 3)))
    program = jax.jit(train).lower(table, OPTIMIZER.init(table), jnp.ones((7, 5), np.int32)).compile().as_text()
    assert "f32[35,3]" not in program, "the bags' rows are neither expanded nor scaled"
    for name, count in (
        ("groups", 2),
        ("sums", 1),
        ("bins", 2),
        ("total", 2),
        ("step", 1),
    ):  # the norm sums exactly, in bins
        assert program.count(f'custom_call_target="islices_{name}') == count, "the norm and the step share the groups"


def test_bits_do_not_depend_on_threads() -> None:
    before, width = islices.config.get_num_threads(), 128
    batch = row_calls.SHARED // width // 5 * 4
    step, found = jax.jit(train), []
    try:
        for n in (1, 4):
            islices.config.set_num_threads(n)
            found.append(two_steps(width, batch, step))
    finally:
        islices.config.set_num_threads(before)
    check_equal(found[1], found[0])
    with ThreadPoolExecutor(4) as pool:
        for other in pool.map(lambda _: two_steps(width, batch, step), range(4)):
            check_equal(other, found[0])


def test_a_step_that_is_not_taken_leaves_a_table_that_is_not_donated() -> None:
    table, given = jnp.ones((ROWS, 3)), slices(30)
    state = OPTIMIZER.init(table)
    step = jax.jit(lambda flag, v, i: OPTIMIZER.step(table, IndexedSlices(v, i, table.shape), state, apply=flag))
    check_equal(step(False, *given), (table, state))
    check_as_xla(step, True, *given)
    assert (np.asarray(table) == 1).all()
    assert not np.asarray(state["m"]).any()


def test_steps_under_vmap() -> None:
    """Check that two steps under vmap may share one step count. The second result has the bits of a step without
    vmap."""
    tables = jnp.asarray(RNG.normal(size=(2, ROWS, 3)), np.float32)
    states = {**jax.vmap(OPTIMIZER.init)(tables), "step": jnp.full(1, 2, np.int32)}
    axes = {key: None if key == "step" else 0 for key in states}
    values, indices = slices(30)

    def step(table: Any, state: Any) -> Any:
        return OPTIMIZER.step(table, IndexedSlices(values * 1, indices * 1, table.shape), state)

    got = jax.jit(jax.vmap(step, (0, axes)))(tables, states)
    one = {key: x if axes[key] is None else x[1] for key, x in states.items()}
    check_equal(jax.tree_util.tree_map(lambda x: x[1], got), jax.jit(step)(tables[1], one))


# ---------------------------------------------------------------------- without the kernels
def test_other_platforms_get_xlas_operations() -> None:
    values, indices = slices(20)
    for fn in (coalesce, jax.grad(loss), _mapped((0, 0), coalesce)):
        traced = jax.jit(lambda v, i, fn=fn: jax.tree_util.tree_leaves(fn(v, i))).trace(values, indices)
        lowered = traced.lower(lowering_platforms=("cuda",)).as_text()
        assert CALL not in lowered
        assert "stablehlo.sort" in lowered


@pytest.mark.parametrize("name", ["coalesce", "norm", "step", "bags"])
def test_symbolic_numbers_of_slots_are_refused_clearly(name: str) -> None:
    (n,) = export.symbolic_shape("n")
    values, indices = jax.ShapeDtypeStruct((n, 3), np.float32), jax.ShapeDtypeStruct((n,), np.int32)
    table = jnp.ones((ROWS, 3))
    calls: dict[str, Callable[..., Any]] = {
        "coalesce": lambda v, i: coalesce(v, i).values,
        "norm": lambda v, i: islices.norm(IndexedSlices(v, i, (ROWS, 3))),
        "step": lambda v, i: OPTIMIZER.step(table, IndexedSlices(v, i, (ROWS, 3)), OPTIMIZER.init(table))[0],
        "bags": lambda v, i: islices.lookup(table, i[:, None], combiner="sum"),
    }
    with pytest.raises(ValueError, match="got a symbolic number"):
        export.export(jax.jit(calls[name]))(values, indices)
    assert export.export(jax.jit(islices.lookup))(table, indices).out_avals[0].shape == (n, 3)


@pytest.mark.outside
def test_an_exported_program_runs_where_there_are_no_kernels(tmp_path: Any) -> None:
    pytest.importorskip("flatbuffers", reason="jax.export needs flatbuffers to serialize")
    table, ids = jnp.ones((ROWS, 3)), jnp.asarray(RNG.integers(0, ROWS, (6, 5)), np.int32)
    state = OPTIMIZER.init(table)
    names = sorted(state)

    def flat(table: Any, ids: Any, *state: Any) -> Any:
        return jax.tree_util.tree_leaves(train(Table(table), dict(zip(names, state, strict=True)), ids))

    given = (table, ids, *(state[k] for k in names))
    exported = export.export(jax.jit(flat))(*given)
    assert CALL not in exported.mlir_module()
    (tmp_path / "program").write_bytes(exported.serialize())
    np.savez(tmp_path / "given", *given)
    run_code(f"""
        import jax, numpy as np
        from jax import export
        program = export.deserialize(open({str(tmp_path / "program")!r}, "rb").read())
        given = np.load({str(tmp_path / "given.npz")!r})
        np.savez({str(tmp_path / "outs")!r}, *program.call(*(given[k] for k in given.files)))
    """)
    with np.load(tmp_path / "outs.npz") as outs:
        check_equal([outs[k] for k in outs.files], jax.jit(flat)(*given))


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
        print(f(jnp.ones((40_000, 1)), jnp.asarray([4, 2] * 20_000)).values[:3].ravel().tolist())
    """
    assert [run_code(script) for _ in range(2)] == ["[20000.0, 20000.0, 0.0]\n"] * 2


def test_a_version_that_xla_does_not_speak_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "VERSION", (9, 9))
    monkeypatch.setattr(frames, "_kept", {})
    for cached in (parts.groups, parts.available):
        cached.cache_clear()
    with pytest.warns(UserWarning, match=r"islices computes without compiled kernels.*9\.9"):
        assert CALL not in text(coalesce, *slices(20))
    for cached in (parts.groups, parts.available):
        cached.cache_clear()
