"""Compare value_and_grad(sparse=...) on plain arrays with jax.value_and_grad."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from errors import each_raises
from numpy.testing import assert_allclose, assert_array_equal
from suite_runs import run_code

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402
from jax import lax  # noqa: E402

import islices  # noqa: E402
from islices import IndexedSlices  # noqa: E402

ROWS, WIDTH = 11, 4
RNG = np.random.default_rng(0)
W = jnp.asarray(RNG.normal(size=(ROWS, WIDTH)), jnp.float32)
V = jnp.asarray(RNG.normal(size=(7, WIDTH)), jnp.float32)
MIX = jnp.asarray(RNG.normal(size=(WIDTH, WIDTH)), jnp.float32)
PARAMS = {"table": W, "second": V, "mix": MIX}
IDS = jnp.asarray([[1, 5, 5], [0, 10, 1]])
#: ids, some of which are negative or out of range
WILD = jnp.asarray([[1, -1, 5], [-11, 11, 40], [-12, 5, -40]])
EVERY = [lambda f: f, jax.jit]


def of_tables(path: str) -> bool:
    return "table" in path or "second" in path


def dense(tree: Any) -> Any:
    return jax.tree.map(
        lambda x: islices.to_dense(x) if isinstance(x, IndexedSlices) else x,
        tree,
        is_leaf=lambda x: isinstance(x, IndexedSlices),
    )


def check(
    loss: Callable[..., Any],
    params: Any,
    *args: Any,
    sparse: Any = of_tables,
    tolerance: float = 1e-5,
    wraps: Any = EVERY,
) -> Any:
    """Compare the loss and the gradients of value_and_grad with those of jax.value_and_grad, once under each function
    of `wraps`. Return the gradients of the first comparison."""
    results = []
    for wrap in wraps:
        value, want = wrap(jax.value_and_grad(loss))(params, *args)
        got, grads = wrap(islices.value_and_grad(loss, sparse=sparse))(params, *args)
        assert got.dtype == value.dtype
        assert_array_equal(got, value)
        for a, b in zip(jax.tree.leaves(dense(grads)), jax.tree.leaves(want), strict=True):
            assert a.dtype == b.dtype
            a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
            assert_allclose(a, b, rtol=tolerance, atol=tolerance, err_msg=str(wrap))
        results.append(grads)
    return results[0]


def out(rows: Any) -> Any:
    """Return a loss with a different weight for each element of `rows`."""
    return (jnp.sin(rows) * jnp.arange(1.0, rows.size + 1, dtype=rows.dtype).reshape(rows.shape)).sum()


def taken(mode: str | None, **how: Any) -> Callable[[Any, Any], Any]:
    return lambda p, ids: out(jnp.nan_to_num(jnp.take(p["table"], ids, axis=0, mode=mode, **how)))


def got(mode: str, **how: Any) -> Callable[[Any, Any], Any]:
    return lambda p, ids: out(jnp.nan_to_num(p["table"].at[ids].get(mode=mode, **how)))


def carried(p: Any, ids: Any) -> Any:
    def body(c: Any, i: Any) -> Any:
        rows = p["table"][i] @ p["mix"]
        return c / 2 + rows.sum(), jnp.tanh(rows)

    return (lambda c, ys: c + out(ys))(*lax.scan(body, 0.0, ids, reverse=True))


@jax.jit
def compiled(w: Any, ids: Any) -> tuple[Any, Any]:
    return w, jnp.sin(w[ids])


@jax.custom_jvp
def doubled(x: Any) -> Any:
    return x


doubled.defjvp(lambda primals, tangents: (primals[0], 2 * tangents[0]))

READS: dict[str, Callable[[Any, Any], Any]] = {
    "indexing": lambda p, ids: out(p["table"][ids] @ p["mix"]),
    "take": taken(None),
    "take, fill 0.3": taken("fill", fill_value=0.3),
    "get, fill, no wrapping": got("fill", wrap_negative_indices=False),
    "dynamic_slice": lambda p, ids: out(lax.dynamic_slice(p["table"], (ids[0, 1], ids[0, 0]), (3, WIDTH))),
    "vmap of dynamic_index": lambda p, ids: out(
        jax.vmap(lambda i: lax.dynamic_index_in_dim(p["table"], i, 0, keepdims=False), out_axes=1)(ids[0])
    ),
    "vmap, fill": lambda p, ids: out(
        jax.vmap(lambda i: jnp.nan_to_num(p["table"].at[i].get(mode="fill")), in_axes=1)(ids)
    ),
    "cast": lambda p, ids: out(p["table"].astype(jnp.float16)[ids].astype(jnp.float32)),
    "rows stopped": lambda p, ids: out(lax.stop_gradient(p["table"][ids])),
    "scan": carried,
    "cond": lambda p, ids: lax.cond(ids[0, 0] > 3, lambda: out(p["table"][ids]), lambda: out(p["second"][ids % 7])),
    "a table out of jit": lambda p, ids: (lambda w, rows: out(rows) + out(w[ids[0]]))(*compiled(p["table"], ids)),
    "switch before the first": lambda p, ids: lax.switch(
        ids[0, 0] - 2, [lambda: out(p["table"][ids]), lambda: out(p["second"][ids % 7])]
    ),
    "carried as it is": lambda p, ids: lax.fori_loop(
        0, 2, lambda k, c: (c[0], c[1] + out(c[0][ids + k])), (p["table"], jnp.float32(0))
    )[1],
    "stopped after": lambda p, ids: out(p["table"][ids]) * lax.stop_gradient(jnp.tanh(p["table"]).sum()),
    "other use, unused": lambda p, ids: (p["table"] * 2, out(p["table"][ids]))[1],
}


@pytest.mark.parametrize("name", READS)
def test_reads_have_jaxs_gradients(name: str) -> None:
    wraps = EVERY if name in ("take", "scan", "cond", "switch before the first") else EVERY[1:]
    grads = check(READS[name], PARAMS, IDS, tolerance=0.01 if name == "cast" else 1e-5, wraps=wraps)
    assert isinstance(grads["table"], IndexedSlices)
    assert not isinstance(grads["mix"], IndexedSlices)


@pytest.mark.parametrize("name", [name for name in READS if "take" in name or "get" in name or "dynamic" in name])
def test_ids_without_a_row_have_jaxs_meaning(name: str) -> None:
    grads = check(READS[name], PARAMS, WILD, wraps=EVERY[:1])
    assert grads["table"].values.shape[0] <= WILD.size
    assert not grads["table"].padded


def test_slices_are_stored_in_order_and_padded_where_traced() -> None:
    def loss(w: Any, ids: Any) -> Any:
        return jnp.take(w, ids, axis=0, mode="fill", fill_value=0).sum()

    step = islices.value_and_grad(loss, sparse=True)
    ids = jnp.asarray([5, 40, 5, -1])
    _, g = step(W, ids)
    assert (g.indices.tolist(), g.padded, g.coalesced, g.dense_shape) == ([5, 5, 10], False, False, (ROWS, WIDTH))
    _, g = jax.jit(step)(W, ids)
    assert (g.indices.tolist(), g.padded) == ([5, ROWS, 5, 10], True)
    assert not g.values[1].any()


# ---------------------------------------------------------------------- other uses
@jax.custom_vjp
def clipped(w: Any, ids: Any) -> Any:
    return w[ids]


clipped.defvjp(lambda w, ids: (w[ids], (w, ids)), lambda kept, g: (jnp.ones_like(kept[0]), None))

OTHERS: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "filled after a cast": (
        lambda p, ids: out(p["table"].astype("float16").at[ids].get(mode="fill", fill_value=0.3).astype("float32")),
        "gather",
    ),
    "tied": (lambda p, ids: out(p["table"][ids] @ p["table"].T), "transpose"),
    "penalty": (lambda p, ids: out(p["table"][ids]) + jnp.sum(p["table"] ** 2), "integer_pow|square"),
    "cond mapped": (
        lambda p, ids: out(jax.vmap(lambda i: lax.cond(i > 1, lambda: p["table"][i], lambda: p["table"][2]))(ids[0])),
        "broadcast_in_dim",
    ),
    "along axis 1": (lambda p, ids: out(jnp.take(p["table"], ids % 4, axis=1)), "gather"),
    "carried": (lambda p, ids: out(lax.fori_loop(0, 2, lambda k, w: w * 2, p["table"])[ids]), "scan"),
    "out of cond": (lambda p, ids: out(lax.cond(ids[0, 0] > 0, lambda: W, lambda: p["table"])[ids]), "cond"),
    "in scan": (lambda p, ids: lax.scan(lambda c, i: (c + p["table"].sum(), None), 0.0, ids)[0], "reduce_sum"),
    "custom_jvp": (lambda p, ids: out(doubled(p["table"])[ids]), "custom_jvp_call"),
    "custom_vjp": (lambda p, ids: out(clipped(p["table"], ids)), "custom_vjp_call"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_uses_raise_by_name_and_are_dense_with_auto(name: str) -> None:
    loss, primitive = OTHERS[name]
    with pytest.raises(TypeError, match=rf"\['table'\].* used by ({primitive}).* at .*test_gathers.py:\d+"):
        islices.value_and_grad(loss, sparse=of_tables)(PARAMS, IDS)
    assert not isinstance(check(loss, PARAMS, IDS, sparse="auto", wraps=[jax.jit])["table"], IndexedSlices)


MESHES = """
import jax, jax.numpy as jnp, numpy as np, islices
from jax import lax
from jax.sharding import AxisType, PartitionSpec as P
w, mix = jnp.sin(jnp.arange(48.0)).reshape(12, 4), jnp.cos(jnp.arange(16.0)).reshape(4, 4)
ids = jnp.array([1, -2, 5, 5, 11, 0, 7, 1])

mesh = jax.make_mesh((2, 2), ("d", "m"), axis_types=(AxisType.Auto,) * 2)

def whole(w, mix, i):
    return lax.pmean(jnp.sin(w[i] @ mix).sum(), ("d", "m"))

def by_rows(w, mix, i):  # each rank has six rows
    k = i % 12 - lax.axis_index("m") * 6
    here = (k >= 0) & (k < 6)
    rows = lax.psum(jnp.where(here[:, None], w[jnp.where(here, k, 0)], 0), "m")
    return lax.pmean(jnp.sin(rows @ mix).sum(), "d")

def out(w, mix, i):
    return lax.scan(lambda c, k: (c, jnp.sin(w[i + k] @ mix)), 0, jnp.arange(2))[1]

for f, table, index, result in [
    (whole, P(), P(("d", "m")), P()), (by_rows, P("m"), P("d"), P()), (out, P(), P("d"), P(None, "d"))
]:
    for checked in (True, False):
        if f is by_rows and not checked:
            continue
        def loss(p, ids):
            specs = (table, P(), index)
            mapped = jax.shard_map(f, mesh=mesh, in_specs=specs, out_specs=result, check_vma=checked)
            return mapped(p["w"], p["mix"], ids).sum()
        value, want = jax.jit(jax.value_and_grad(loss))({"w": w, "mix": mix}, ids)
        got, grads = jax.jit(islices.value_and_grad(loss, sparse={"w": True, "mix": False}))({"w": w, "mix": mix}, ids)
        assert got == value, (f, got, value)
        np.testing.assert_allclose(islices.to_dense(grads["w"]), want["w"], rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(grads["mix"], want["mix"], rtol=1e-5, atol=1e-5)
        assert grads["w"].values.shape[0] <= 32

mesh = jax.make_mesh((2, 2), ("d", "m"), axis_types=(AxisType.Explicit,) * 2)
with jax.set_mesh(mesh):
    w, ids = jax.device_put(w, P("m", None)), jax.device_put(ids, P("d"))
    step = lambda f: jax.jit(f(lambda w, i: jnp.sin(w.at[i].get(out_sharding=P("d", None))).sum()))
    value, want = step(jax.value_and_grad)(w, ids)
    got, g = step(lambda f: islices.value_and_grad(f, sparse=True))(w, ids)
    assert got == value
    np.testing.assert_allclose(np.asarray(islices.to_dense(g)), want, rtol=1e-5, atol=1e-5)

import optax, islices.backends.jax.optax as front
tx, params = front.on_rows(optax.sgd(0.1, 0.9)), {"w": np.asarray(w), "mix": np.asarray(mix)}
i = np.asarray(ids)
def step(p, state):  # a table keeps its sharding
    grads = islices.value_and_grad(lambda p: jnp.sin(p["w"][i] @ p["mix"]).sum(), sparse="auto")(p)[1]
    updates, state = tx.update(grads, state, p)
    return optax.apply_updates(p, updates)
want = jax.jit(step)(params, tx.init(params))
mesh = jax.make_mesh((4,), ("d",), axis_types=(AxisType.Auto,))
sharding = jax.sharding.NamedSharding(mesh, P("d", None))
params["w"] = jax.device_put(params["w"], sharding)
got = jax.jit(step)(params, tx.init(params))
assert got["w"].sharding.is_equivalent_to(sharding, 2)
jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6), got, want)
"""


@pytest.mark.outside
def test_explicit_meshes_and_sharded_tables() -> None:
    run_code(MESHES, XLA_FLAGS="--xla_force_host_platform_device_count=4")


def test_while_loops_raise() -> None:
    def loss(p: Any, ids: Any) -> Any:
        return lax.while_loop(lambda c: c < 3, lambda c: c + p["table"][ids[0, 0]].sum() ** 2 + 1, 0.0)

    with pytest.raises(TypeError, match=r"used by while .*no reverse-mode"):
        islices.value_and_grad(loss, sparse=of_tables)(PARAMS, IDS)


def test_auto_marks_tables_with_more_rows_than_are_read() -> None:
    grads = check(
        lambda p, ids: out(p["table"][ids]) + out(p["second"][ids % 7] @ p["mix"]),
        PARAMS,
        IDS,
        sparse="auto",
        wraps=EVERY[1:],
    )
    assert [isinstance(grads[k], IndexedSlices) for k in ("table", "second", "mix")] == [True, True, False]
    for sparse in ("auto", "always"):
        grads = check(
            lambda p, ids: out(p["second"][jnp.tile(ids % 7, 2)]), PARAMS, IDS, sparse=sparse, wraps=EVERY[1:]
        )
        assert isinstance(grads["second"], IndexedSlices) == (sparse == "always")


# ---------------------------------------------------------------------- arguments
def test_argnums_aux_and_ways_to_mark() -> None:
    def loss(w: Any, rest: Any, ids: Any, scale: float) -> Any:
        return scale * out(w[ids] @ rest["mix"]), {
            "rows": w[ids],
            "table": w,
            "half": w.astype("float16"),
            "norm": jnp.linalg.norm(w),
            "text": "kept",
        }

    for sparse in ((True, {"mix": False}), "auto"):
        step = islices.value_and_grad(loss, (0, 1), has_aux=True, sparse=sparse)
        (value, aux), (g, other) = step(W, {"mix": MIX}, IDS, scale=2.0)
        (want, _), (whole, plain) = jax.value_and_grad(lambda *a: (loss(*a, scale=2.0)[0], 0), (0, 1), has_aux=True)(
            W, {"mix": MIX}, IDS
        )
        assert value == want
        assert_allclose(islices.to_dense(g), whole, rtol=1e-5, atol=1e-5)
        assert_allclose(other["mix"], plain["mix"], rtol=1e-5, atol=1e-5)
        assert_array_equal(aux["rows"], W[IDS])
        assert_array_equal(aux["table"], W)
        assert_array_equal(aux["half"], W.astype("float16"))
        assert aux["norm"] == jnp.linalg.norm(W)
        assert aux["text"] == "kept"


def whole(loss: Any) -> Any:
    return lambda w: islices.to_dense(islices.value_and_grad(loss, sparse=True)(w)[1])


def sines(w: Any) -> Any:
    return (jnp.sin(w[IDS]) ** 2).sum()


def test_second_derivatives() -> None:
    def norm(transform: Any) -> Any:
        return lambda w: (transform(sines)(w) ** 2).sum()

    got = jax.jit(whole(norm(whole)))(W)
    assert_allclose(got, jax.jit(jax.grad(norm(jax.grad)))(W), rtol=1e-5, atol=1e-5)


def test_an_eager_step_compiles_once(caplog: Any) -> None:
    step = islices.value_and_grad(READS["a table out of jit"], sparse=of_tables)
    step(PARAMS, IDS)
    with jax.log_compiles():
        step(PARAMS, IDS)
    assert not [r for r in caplog.records if "Compiling" in r.getMessage()]


test_what_sparse_refuses = each_raises([
    (lambda: islices.value_and_grad(lambda p: out(p[0]), sparse=[False, True])([W, IDS]), TypeError,
     r"leaf '\[1\]', .*int32"),
    (lambda: islices.value_and_grad(carried, sparse=True)({"table": islices.Table(W)}, IDS), TypeError, "Table"),
    (lambda: islices.value_and_grad(carried, sparse=True)(np.ones((3, 2)), IDS), NotImplementedError, "lookup"),
    (lambda: islices.value_and_grad(lambda w: w[IDS], sparse=True)(W), ValueError, "one number"),
])  # fmt: skip


# ---------------------------------------------------------------------- per sample
def losses(p: Any, ids: Any, targets: Any) -> Any:
    rows = jnp.nan_to_num(jnp.take(p["table"], ids, axis=0))  # an id out of range reads NaN and has no slice
    return (jnp.tanh(rows @ p["mix"]).sum((1, 2)) - targets) ** 2


def test_per_sample_is_the_gradient_of_each_sample() -> None:
    rng = np.random.default_rng(0)
    params = {name: jnp.asarray(rng.normal(size=(n, 4)), jnp.float32) for name, n in (("table", 50), ("mix", 4))}
    ids, targets = jnp.array([[1, 2, 1], [3, -1, 60], [0, 0, 2]]), jnp.array([1.0, 2.0, 3.0])
    one = jax.grad(lambda p, i, t: losses(p, i[None], t[None])[0])
    expected = jax.vmap(one, (None, 0, 0))(params, ids, targets)
    step = jax.jit(islices.value_and_grad(losses, sparse=lambda path: "table" in path, per_sample=True))
    values, grads = step(params, ids, targets)
    assert_allclose(values, losses(params, ids, targets), rtol=1e-6)
    assert isinstance(grads["table"], islices.embedding.per_sample.PerSample)
    assert_allclose(grads["table"].to_dense(), expected["table"], rtol=1e-5, atol=1e-6)
    assert_allclose(grads["mix"], expected["mix"], rtol=1e-5, atol=1e-6)


# ---------------------------------------------------------------------- random programs
#: wide rows: XLA compiles a loop over less than 1024 bytes as one function, and may vectorize sums differently
LARGE = {
    "table": jnp.asarray(RNG.normal(size=(ROWS, 64)), jnp.float32),
    "second": jnp.asarray(RNG.normal(size=(7, 64)), jnp.float32),
    "mix": jnp.asarray(RNG.normal(size=(64, 64)) / 8, jnp.float32),
}


def random_program(seed: int) -> Callable[[Any, Any], Any]:
    """Return a loss that reads rows in random ways, under random transformations of JAX."""
    choose = random.Random(seed)

    def read() -> Callable[[Any, Any], Any]:
        table, mode = choose.choice(["table", "second"]), choose.choice(["fill", "clip", "promise_in_bounds"])
        cast, factor = choose.random() < 0.2, choose.uniform(0.5, 2)

        def rows(p: Any, ids: Any) -> Any:
            w = p[table].astype(jnp.float16) if cast else p[table]
            return factor * jnp.nan_to_num(w.at[ids].get(mode=mode)).astype(jnp.float32)

        kinds = [
            rows,
            lambda p, ids: jnp.nan_to_num(p[table][ids]) @ p["mix"],
            lambda p, ids: jax.vmap(lambda i: lax.dynamic_index_in_dim(p[table], i, 0, False))(ids.reshape(-1)),
            lambda p, ids: p[table][1:5:2] * factor + lax.stop_gradient(p[table]).sum(),
            lambda p, ids: p[table][jnp.argmax(p[table][:5] @ p["mix"][:, :3], axis=0)] * factor,
            lambda p, ids: lax.cond(ids[0, 0] > 0, lambda: p[table], lambda: p[table])[ids % 7],
        ]
        kind = choose.choice(kinds)
        return lambda p, ids: jnp.tanh(kind(p, ids)).sum()

    def program(depth: int) -> Callable[[Any, Any], Any]:
        if depth == 0:
            return read()
        f, g = program(depth - 1), program(choose.randrange(depth))
        bound = choose.randrange(-3, 8)
        wrappers: list[Callable[[Any, Any], Any]] = [
            lambda p, ids: f(p, ids) + g(p, ids + 1),
            lambda p, ids: jax.jit(f)(p, ids) * g(p, ids),
            lambda p, ids: jax.jit(lambda p, ids: (p, f(p, ids)))(p, ids)[1] + g(p, ids),
            lambda p, ids: jax.checkpoint(f)(p, ids),
            lambda p, ids: lax.cond(p["mix"].sum() > bound, lambda: f(p, ids), lambda: g(p, ids)),
            lambda p, ids: lax.scan(lambda c, k: (0.5 * c + f(p, ids + k), g(p, ids - k)), 0.0, jnp.arange(3))[0],
            lambda p, ids: lax.scan(lambda c, k: (c, f(p, ids + k)), 0.0, jnp.arange(2), reverse=True)[1].sum(),
            lambda p, ids: lax.fori_loop(0, 2, lambda k, c: (c[0], c[1] + f(c[0], ids + k)), (p, 0.0))[1],
            lambda p, ids: jax.vmap(lambda k: f(p, ids + k))(jnp.arange(3)).sum(),
            lambda p, ids: lax.map(lambda k: f(p, ids * k), jnp.arange(3)).sum(),
            lambda p, ids: doubled(jnp.sin(jax.nn.relu(f(p, ids)))),
        ]
        return choose.choice(wrappers)

    return program(choose.choice([1, 1, 1, 1, 2, 2, 3]))


def check_random(seed: int, wraps: Any = EVERY) -> None:
    ids = jnp.asarray(np.random.default_rng(seed).integers(-20, 20, (2, 3)), jnp.int32)
    sparse = {"table": True, "second": True, "mix": False}
    check(random_program(seed), LARGE, ids, sparse=sparse, tolerance=2e-2, wraps=wraps)


def test_a_random_program() -> None:
    check_random(0, [jax.jit])


@pytest.mark.soak
@pytest.mark.parametrize("block", range(20))
def test_many_random_programs(block: int) -> None:
    for seed in range(100 * block, 100 * block + 100):
        check_random(seed, EVERY if seed % 8 == 0 else [jax.jit])
        jax.clear_caches()
