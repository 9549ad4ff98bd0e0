"""Lookups under JAX's transformations: each against jax.grad of the dense ``W[ids]``, eagerly and under jit."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="jax is not installed")
import jax.numpy as jnp  # noqa: E402
from jax import lax  # noqa: E402

import islices  # noqa: E402
from islices import IndexedSlices, Table, lookup, value_and_grad  # noqa: E402
from islices.backends.jax import plans  # noqa: E402
from islices.backends.jax.lookups import RECORDER, attach  # noqa: E402

RNG = np.random.default_rng(7)
W = jnp.asarray(RNG.normal(size=(10, 3)).astype(np.float32))
V = jnp.asarray(RNG.normal(size=(6, 3)).astype(np.float32))
D = jnp.asarray([1.0, -2.0, 0.5], jnp.float32)
IDS = jnp.asarray([[1, 2], [2, 9]])
B = islices.get_backend("jax")

Look = Callable[[Any, Any], Any]


def dense_look(w: Any, ids: Any) -> Any:
    return w[jnp.asarray(ids)]


def one_loss(look: Look, t: Any, d: Any, ids: Any = IDS) -> Any:
    return (jnp.sin(look(t, ids)) * d).sum()


def make_scan(look: Look) -> Any:
    def fn(t: Any, d: Any) -> Any:
        def body(carry: Any, k: Any) -> Any:
            return carry + 0.1 * (look(t, k) * carry).sum(), look(t, IDS + k % 2 * 0).sum()

        carry, ys = lax.scan(body, d.sum(), jnp.arange(4))
        return carry * ys.sum()

    return fn


def make_branches(look: Look, taken: bool) -> Any:
    def fn(t: Any, d: Any) -> Any:
        sign = 1.0 if taken else -1.0
        first = lax.cond(
            (d * d).sum() * sign > 0, lambda: one_loss(look, t, d), lambda: (look(t, jnp.asarray(4)) * d)[0]
        )
        return first + look(t, jnp.asarray([0, 5])).sum()

    return fn


def make_scanned_branches(look: Look) -> Any:
    def fn(t: Any, d: Any) -> Any:
        def body(carry: Any, k: Any) -> Any:
            more = lax.cond(k % 2 == 0, lambda: (look(t, k) * d).sum(), lambda: jnp.float32(1.0))
            return carry * 1.5 + more, None

        return lax.scan(body, d[0], jnp.arange(5))[0]

    return fn


def make_closed_over(look: Look) -> Any:
    def fn(t: Any, d: Any) -> Any:
        return jax.jit(lambda x: one_loss(look, t, x))(d) + look(t, jnp.asarray(3)).sum()

    return fn


def make_gradient_penalty(look: Look) -> Any:
    def fn(t: Any, d: Any) -> Any:
        return (jax.grad(lambda x: one_loss(look, t, x))(d) ** 2).sum()

    return fn


def make_remat_policy(look: Look) -> Any:
    return jax.checkpoint(lambda t, d: one_loss(look, t, d), policy=jax.checkpoint_policies.dots_saveable)


CASES: dict[str, Callable[[Look], Any]] = {
    "plain": lambda look: lambda t, d: one_loss(look, t, d),
    "twice": lambda look: lambda t, d: one_loss(look, t, d) + (look(t, IDS[0]) ** 2).sum(),
    "a scalar": lambda look: lambda t, d: (look(t, jnp.asarray(3)) * d).sum(),
    "empty": lambda look: lambda t, d: one_loss(look, t, d, jnp.zeros((2, 0), jnp.int32)) + d.sum(),
    "four axes": lambda look: lambda t, d: one_loss(look, t, d, jnp.arange(8).reshape(2, 1, 2, 2)),
    "unused lookup": lambda look: lambda t, d: (look(t, IDS), d.sum())[1],
    "unused table": lambda look: lambda t, d: d.sum(),
    "inner jit": lambda look: jax.jit(lambda t, d: one_loss(look, t, d)),
    "inner jit, closed over": make_closed_over,
    "jit in jit": lambda look: jax.jit(lambda t, d: jax.jit(lambda u: one_loss(look, u, d))(t) * 2),
    "remat": lambda look: jax.checkpoint(lambda t, d: one_loss(look, t, d)),
    "remat with a policy": make_remat_policy,
    "jit of remat": lambda look: jax.jit(jax.checkpoint(lambda t, d: one_loss(look, t, d))),
    "cond, taken": lambda look: make_branches(look, True),
    "cond, not taken": lambda look: make_branches(look, False),
    "cond in jit, taken": lambda look: jax.jit(make_branches(look, True)),
    "cond in jit, not taken": lambda look: jax.jit(make_branches(look, False)),
    "scan": make_scan,
    "scan in jit": lambda look: jax.jit(make_scan(look)),
    "cond in scan": make_scanned_branches,
    "scan in remat": lambda look: jax.checkpoint(make_scan(look)),
    "fori_loop": lambda look: lambda t, d: lax.fori_loop(0, 3, lambda k, x: x * (look(t, k) * d).sum(), 1.0),
    "vmap": lambda look: lambda t, d: jax.vmap(lambda i: (look(t, i) * d).sum() ** 2)(IDS).sum(),
    "vmap of vmap": lambda look: lambda t, d: jax.vmap(jax.vmap(lambda i: (look(t, i) * d).sum() ** 2))(IDS).sum(),
    "vmap over the last axis": lambda look: (
        lambda t, d: jax.vmap(lambda i: (look(t, i)[0] * d).sum() ** 3, 1)(IDS).sum()
    ),
    "vmap of jit": lambda look: lambda t, d: jax.vmap(jax.jit(lambda i: (look(t, i) * d).sum() ** 2))(IDS).sum(),
    "jit of vmap": lambda look: jax.jit(lambda t, d: jax.vmap(lambda i: (look(t, i) * d).sum() ** 2)(IDS).sum()),
    "vmap of where": lambda look: (
        lambda t, d: jax.vmap(lambda i: jnp.where(i[0] > 1, (look(t, i) * d).sum(), 0.0))(IDS).sum()
    ),
    "carried unchanged": lambda look: lambda t, d: lax.scan(lambda c, k: (c, look(c, k)), t, IDS)[1].sum() + d.sum(),
    "gradient penalty": make_gradient_penalty,
    "dropout": lambda look: (
        lambda t, d: (look(t, IDS) * jax.random.bernoulli(jax.random.key(0), 0.5, (2, 2, 3)) * d).sum()
    ),
    "relu": lambda look: lambda t, d: (jax.nn.relu(look(t, IDS)) * d).sum(),
}


def dense_of(grad: Any) -> np.ndarray:
    return np.asarray(islices.to_dense(grad))


# each case once: compiled as a whole, or as it is where it compiles a part itself
@pytest.mark.repeats_where(lambda case, outer: (outer == "jit") == ("jit" in case))
@pytest.mark.parametrize("outer", ["eager", "jit"])
@pytest.mark.parametrize("case", CASES)
def test_against_dense(case: str, outer: str) -> None:
    fn = value_and_grad(CASES[case](lookup), (0, 1))
    fn = jax.jit(fn) if outer == "jit" else fn
    value, (grad, d_dense) = fn(Table(W), D)
    want, (want_grad, want_d) = jax.value_and_grad(CASES[case](dense_look), (0, 1))(W, D)
    assert isinstance(grad, IndexedSlices)
    np.testing.assert_allclose(value, want, rtol=2e-6)
    np.testing.assert_allclose(dense_of(grad), want_grad, rtol=2e-5, atol=1e-6)
    np.testing.assert_allclose(d_dense, want_d, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("ids_dtype", ["int32", "int64"])
def test_dtypes(dtype: str, ids_dtype: str) -> None:
    with B.wide_types():
        table, ids = Table(jnp.asarray(W, dtype)), jnp.asarray(IDS, ids_dtype)
        value, grad = value_and_grad(lambda t: (lookup(t, ids) * 2).sum())(table)
        assert (B.dtype(value), B.dtype(grad.values), B.dtype(grad.indices)) == (dtype, dtype, ids_dtype)
        np.testing.assert_array_equal(np.asarray(grad.values, np.float32), np.full((4, 3), 2.0))


def test_one_slice_an_occurrence_in_order() -> None:
    _, (first, second) = value_and_grad(
        lambda t, u: (lookup(t, IDS) * lookup(u, IDS % 6)).sum() + lookup(t, jnp.asarray([7])).sum(), (0, 1)
    )(Table(W), Table(V))
    assert np.asarray(first.indices).tolist() == [1, 2, 2, 9, 7]
    assert np.asarray(second.indices).tolist() == [1, 2, 2, 3]
    np.testing.assert_array_equal(first.values[:4], V[IDS.reshape(-1) % 6])
    np.testing.assert_array_equal(second.values, W[IDS.reshape(-1)])


# ---------------------------------------------------------------------- branches and loops
def test_a_branch_not_taken_leaves_no_slices_where_that_is_known() -> None:
    fn = make_branches(lookup, False)
    for run in (fn, jax.jit(fn)):
        _, grad = value_and_grad(run)(Table(W), D)
        assert np.asarray(grad.indices).tolist() == [4, 0, 5]
    _, grad = value_and_grad(make_scanned_branches(lookup))(Table(W), D)
    assert np.asarray(grad.indices).tolist() == [0, 2, 4]


def test_a_branch_not_taken_under_jit_holds_the_sentinel() -> None:
    _, grad = jax.jit(value_and_grad(make_branches(lookup, False)))(Table(W), D)
    assert grad.padded
    assert sorted(np.asarray(grad.indices).tolist()) == [0, 4, 5, 10, 10, 10, 10]


def test_python_branches_on_values_say_what_to_do() -> None:
    with pytest.raises(jax.errors.TracerBoolConversionError) as caught:
        value_and_grad(lambda t: lookup(t, IDS).sum() if lookup(t, IDS).sum() > 0 else 0.0)(Table(W))
    assert any("as jax.jit does" in note for note in caught.value.__notes__)


# ---------------------------------------------------------------------- outer transformations
def test_vmap_around_gives_each_its_gradient() -> None:
    def one(ids: Any) -> Any:
        return value_and_grad(lambda t, d: one_loss(lookup, t, d, ids), (0, 1))(Table(W), D)

    value, (grad, d_dense) = jax.vmap(one)(IDS)
    for k in range(2):
        want, (want_grad, want_d) = jax.value_and_grad(lambda w, d, k=k: one_loss(dense_look, w, d, IDS[k]), (0, 1))(
            W, D
        )
        np.testing.assert_allclose(value[k], want, rtol=1e-6)
        np.testing.assert_allclose(d_dense[k], want_d, rtol=1e-5)
        np.testing.assert_allclose(dense_of(jax.tree.map(lambda x, k=k: x[k], grad)), want_grad, rtol=1e-5)


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit, jax.checkpoint], ids=["plain", "jit", "remat"])
def test_value_and_grad_of_value_and_grad(wrap: Any) -> None:
    def outer(taking: Any, look: Look) -> Any:
        def fn(t: Any, d: Any) -> Any:
            value, d_dense = taking(wrap(lambda u, x: one_loss(look, u, x) ** 2), 1)(t, d)
            return value + (d_dense**2).sum()

        return fn

    value, (grad, d_dense) = value_and_grad(outer(value_and_grad, lookup), (0, 1))(Table(W), D)
    want, (want_grad, want_d) = jax.value_and_grad(outer(jax.value_and_grad, dense_look), (0, 1))(W, D)
    np.testing.assert_allclose(value, want, rtol=1e-5)
    np.testing.assert_allclose(dense_of(grad), want_grad, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(d_dense, want_d, rtol=1e-4)


def test_the_gradient_of_a_table_differentiated_again() -> None:
    def fn(t: Any) -> Any:  # the inner gradient is 3 r^2 at each row, so fn's is 36 r^3
        _, grad = value_and_grad(lambda u: (lookup(u, IDS) ** 3).sum())(t)
        return (grad.values**2).sum()

    want = np.zeros((10, 3), np.float32)
    np.add.at(want, np.asarray(IDS).reshape(-1), 36 * np.asarray(W)[np.asarray(IDS).reshape(-1)] ** 3)
    _, grad = value_and_grad(fn)(Table(W))
    np.testing.assert_allclose(dense_of(grad), want, rtol=1e-4)
    around = jax.grad(fn)(Table(W))
    assert isinstance(around, Table)
    np.testing.assert_allclose(around.weights, want, rtol=1e-4)


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["plain", "jit"])
def test_a_plain_array_whose_table_is_differentiated_within(wrap: Any) -> None:
    def fn(w: Any) -> Any:
        value, grad = value_and_grad(lambda u: (lookup(u, IDS, padding_idx=2) ** 3).sum())(Table(w))
        return value + (grad.values**2).sum()

    _, grad = value_and_grad(wrap(fn), sparse=True)(W)
    assert isinstance(grad, IndexedSlices)
    np.testing.assert_allclose(dense_of(grad), jax.grad(fn)(W), rtol=1e-5)


def test_hessian_around() -> None:
    def fn(d: Any) -> Any:
        return value_and_grad(lambda t: (lookup(t, IDS) * d).sum() ** 2)(Table(W))[0]

    np.testing.assert_allclose(jax.hessian(fn)(D), jax.hessian(lambda d: (W[IDS] * d).sum() ** 2)(D), rtol=1e-5)


def test_jax_grad_within_is_dense() -> None:
    def fn(t: Any, d: Any) -> Any:
        inner = jax.grad(lambda u: (lookup(u, IDS) * d).sum())(t)
        return (jax.tree.leaves(inner)[0] ** 2).sum()

    value, d_dense = value_and_grad(fn, 1)(Table(W), D)
    counts = np.bincount(np.asarray(IDS).reshape(-1), minlength=10).astype(np.float32)
    assert float(value) == pytest.approx((counts**2).sum() * float((D**2).sum()))
    np.testing.assert_allclose(d_dense, 2 * (counts**2).sum() * D, rtol=1e-6)


def test_a_training_loop_in_scan() -> None:
    def step(weights: Any, ids: Any) -> Any:
        value, grad = value_and_grad(lambda t: (lookup(t, ids) ** 2).sum())(Table(weights))
        return weights - 0.1 * islices.to_dense(grad), value

    def dense_step(weights: Any, ids: Any) -> Any:
        value, grad = jax.value_and_grad(lambda w: (w[ids] ** 2).sum())(weights)
        return weights - 0.1 * grad, value

    for got, want in zip(lax.scan(step, W, IDS), lax.scan(dense_step, W, IDS), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5)


# ---------------------------------------------------------------------- bags
@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn", "max"])
@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit, jax.checkpoint], ids=["plain", "jit", "remat"])
def test_bags_under_transformations(combiner: str, wrap: Any) -> None:
    def fn(t: Any, d: Any) -> Any:
        return (lookup(t, IDS, combiner=combiner) * d).sum()

    def dense(w: Any, d: Any) -> Any:
        rows = w[IDS]
        reduced = {
            "sum": rows.sum(1), "mean": rows.mean(1), "sqrtn": rows.sum(1) / np.sqrt(2), "max": rows.max(1)
        }  # fmt: skip
        return (reduced[combiner] * d).sum()

    value, (grad, d_dense) = value_and_grad(wrap(fn), (0, 1))(Table(W), D)
    want, (want_grad, want_d) = jax.value_and_grad(dense, (0, 1))(W, D)
    np.testing.assert_allclose(value, want, rtol=1e-5)
    np.testing.assert_allclose(dense_of(grad), want_grad, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(d_dense, want_d, rtol=1e-5)


def test_bags_in_vmap_and_scan() -> None:
    def fn(t: Any, d: Any) -> Any:
        mapped = jax.vmap(lambda i: (lookup(t, i[None], combiner="mean") * d).sum() ** 2)(IDS).sum()
        scanned = lax.scan(lambda c, i: (c + (lookup(t, i[None], combiner="sum") * d).sum() ** 2, None), 0.0, IDS)[0]
        return mapped + scanned

    def dense(w: Any, d: Any) -> Any:
        return ((w[IDS].mean(1) * d).sum(1) ** 2).sum() + ((w[IDS].sum(1) * d).sum(1) ** 2).sum()

    for run in (value_and_grad(fn), jax.jit(value_and_grad(fn))):
        value, grad = run(Table(W), D)
        np.testing.assert_allclose(value, dense(W, D), rtol=1e-5)
        np.testing.assert_allclose(dense_of(grad), jax.grad(dense)(W, D), rtol=1e-5, atol=1e-6)


# ---------------------------------------------------------------------- refusals
def carried_both(pair: Any) -> Any:
    return lax.scan(lambda c, ids: (c[::-1], lookup(c[0], ids).sum()), pair, IDS)[1].sum()


def chosen(pair: Any) -> Any:
    t, u = pair
    return lookup(lax.cond(lookup(t, IDS).sum() > 0, lambda: t, lambda: u), IDS).sum()


@jax.custom_vjp
def own_gradient(t: Any) -> Any:
    return lookup(t, IDS).sum()


own_gradient.defvjp(lambda t: (own_gradient(t), t), lambda t, g: (t,))

REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "arithmetic": (lambda t: jnp.sin(jax.tree.leaves(t)[0]).sum(), "by sin"),
    "arithmetic in jit": (jax.jit(lambda t: jnp.sin(jax.tree.leaves(t)[0]).sum()), "by sin"),
    "while": (lambda t: lax.while_loop(lambda x: x < 3, lambda x: x + lookup(t, IDS).sum(), 0.0), "by while"),
    "custom_vjp": (own_gradient, "by custom_vjp_call"),
    "mapped by a condition": (
        lambda t: jax.vmap(lambda i: lax.cond(i[0] > 1, lambda: lookup(t, i).sum(), lambda: jnp.float32(0)))(IDS).sum(),
        "predicate is mapped",
    ),
    "mapped": (
        lambda t: jax.vmap(lambda x: lookup(jax.tree.unflatten(jax.tree.structure(t), [x]), IDS[0, 0]).sum())(
            jax.tree.leaves(t)[0][None]
        ).sum(),
        "mapped by jax.vmap",
    ),
    "integer loss": (lambda t: jnp.asarray(1, jnp.int32), "int32"),
    "no number": (lambda t: "loss", "str"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    fn, text = REFUSED[case]
    with pytest.raises(TypeError, match=text):
        value_and_grad(fn)(Table(W))
    value, _ = value_and_grad(lambda t: lookup(t, IDS).sum())(Table(W))
    assert float(value) == pytest.approx(float(W[IDS].sum()), rel=1e-5), "nothing is left behind"


@pytest.mark.parametrize(("fn", "text"), [(carried_both, r"by scan \(.* carries"), (chosen, r"by cond \(as a")])
def test_tables_that_change_places_are_refused(fn: Any, text: str) -> None:
    with pytest.raises(TypeError, match=text):
        value_and_grad(fn)((Table(W), Table(W + 1)))


def test_many_numbers_are_no_loss() -> None:
    with pytest.raises(ValueError, match=r"\(2, 2, 3\)"):
        value_and_grad(lambda t: lookup(t, IDS))(Table(W))


def test_errors_of_fn_pass_through() -> None:
    def fn(t: Any) -> Any:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        value_and_grad(fn)(Table(W))


def test_ids_out_of_range() -> None:
    bad = jnp.asarray([1, -1, 10])
    with pytest.raises(IndexError, match=r"-1"):
        value_and_grad(lambda t: lookup(t, bad).sum())(Table(W))
    value, grad = jax.jit(value_and_grad(lambda t, i: lookup(t, i).sum()))(Table(W), bad)
    assert float(value) == pytest.approx(float(W[1].sum()), rel=1e-6)
    want = np.zeros((10, 3), np.float32)
    want[1] = 1
    np.testing.assert_array_equal(dense_of(grad), want)


# ---------------------------------------------------------------------- what fn returns
def test_aux_of_every_kind() -> None:
    def fn(t: Any) -> Any:
        rows = lookup(t, IDS)
        return rows.sum(), {"rows": rows, "table": t, "text": "as it is", "none": None, "number": 3}

    (_, aux), _ = value_and_grad(fn, has_aux=True)(Table(W, padding_idx=2))
    np.testing.assert_array_equal(aux["rows"], W[IDS])
    assert (aux["text"], aux["none"], aux["number"], aux["table"].padding_idx) == ("as it is", None, 3, 2)
    assert aux["table"].weights is W, "the caller's own array, not watched any more"


def test_no_tracer_is_kept() -> None:
    with jax.checking_leaks():
        value_and_grad(lambda t, d: (one_loss(lookup, t, d), t), (0, 1), has_aux=True)(Table(W), D)


def test_a_table_is_a_pytree() -> None:
    table = Table(W, padding_idx=1, scale_by_freq=True)
    back = jax.jit(lambda t: t)(table)
    assert isinstance(back, Table)
    assert (back.padding_idx, back.scale_by_freq, back.shape) == (1, True, (10, 3))
    np.testing.assert_array_equal(jax.jit(lookup)(table, IDS), W[IDS])
    (path, leaf), *_ = jax.tree_util.tree_flatten_with_path(table)[0]
    assert (jax.tree_util.keystr(path), leaf is W) == (".weights", True)


def test_gradients_per_sample_are_pytrees() -> None:
    run = value_and_grad(lambda t, ids: (lookup(t, ids) ** 2).reshape(len(ids), -1).sum(1), per_sample=True)
    _, eager = run(Table(W), IDS)
    _, traced = jax.jit(run)(Table(W), IDS)
    np.testing.assert_allclose(traced.norms(), eager.norms(), rtol=1e-6)
    for g in (eager, traced):
        with pytest.raises(ValueError, match=r"islices\.add\(g1, g2\)"):
            jax.tree.map(jnp.add, g, g).norms()
        assert np.isnan(jax.jit(lambda g: jax.tree.map(jnp.negative, g).norms())(g)).any()
        assert not np.asarray(jax.jit(lambda g: jax.tree.map(jnp.zeros_like, g).norms())(g)).any()


def test_gradients_per_sample_of_tied_tables_are_pytrees() -> None:
    run = value_and_grad(lambda t, ids: (lookup(t, ids) @ t.weights.T).sum((1, 2)), per_sample=True)
    g = run(Table(W), IDS)[1]
    assert g.products
    np.testing.assert_array_equal(jax.jit(lambda g: g)(g).norms(), g.norms())
    with pytest.raises(ValueError, match=r"islices\.add\(g1, g2\)"):
        jax.tree.map(jnp.add, g, g).norms()
    assert np.isnan(jax.jit(lambda g: jax.tree.map(jnp.add, g, g).norms())(g)).all()


# ---------------------------------------------------------------------- cost
def test_an_eager_step_compiles_once() -> None:
    inner = jax.jit(lambda t, d: one_loss(lookup, t, d))
    traced = []

    def fn(t: Any, d: Any) -> Any:
        traced.append(0)
        return inner(t, d)

    run = value_and_grad(fn, (0, 1))
    table, sizes = Table(W), []
    for _ in range(3):
        run(table, D)
        sizes.append(plans._jitted.cache_info().misses)
    assert len(traced) == 3
    assert len(set(sizes)) == 1, "the rewritten inner function is found again"


def test_nothing_of_a_tables_size_is_in_the_program() -> None:
    rows = 1_000_003
    table = Table(jnp.zeros((rows, 4)))
    text = str(jax.make_jaxpr(value_and_grad(lambda t, d: (lookup(t, IDS) * d).sum(), (0, 1)))(table, jnp.ones(4)))
    made = [line for line in text.splitlines() if f"[{rows},4] =" in line and "islices_hidden" not in line]
    assert f"[{rows},4]" in text
    assert made == [], "the table comes in, and no operation makes another"


def test_threads_do_not_disturb_each_other() -> None:
    want, failures = jax.grad(lambda w: one_loss(dense_look, w, D))(W), []

    def work() -> None:
        for _ in range(5):
            _, grad = value_and_grad(lambda t: one_loss(lookup, t, D))(Table(W))
            if not np.allclose(dense_of(grad), want, rtol=1e-5):
                failures.append(dense_of(grad))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert failures == []


# ---------------------------------------------------------------------- primitives
@pytest.mark.parametrize("ids", [[0, 9, -1, 10, -10, 2**31 - 1], [], [[3], [-2]]])
@pytest.mark.parametrize("dtype", ["int8", "int32"])
def test_the_primitive_reads_zeros_out_of_range(ids: list[Any], dtype: str) -> None:
    numbers = np.asarray(ids, np.int64).clip(np.iinfo(dtype).min, np.iinfo(dtype).max).astype(dtype)
    valid = (numbers >= 0) & (numbers < 10)
    want = np.asarray(W)[np.where(valid, numbers, 0)] * valid[..., None]
    for run in (RECORDER.lookup, jax.jit(RECORDER.lookup, static_argnums=(2, 3))):
        np.testing.assert_array_equal(run(W, jnp.asarray(numbers), (), None), want)


def test_the_primitive_on_a_table_without_rows() -> None:
    out = RECORDER.lookup(jnp.zeros((0, 3)), jnp.asarray([0, 1]), (), None)
    np.testing.assert_array_equal(out, np.zeros((2, 3)))


def test_attach_sends_the_gradient_to_both() -> None:
    rows = jnp.asarray([-0.0, 1.0])
    assert np.signbit(attach(rows, jnp.zeros(2)))[0], "the rows' own bits"
    for got in jax.grad(lambda r, d: (attach(r, d) * jnp.asarray([2.0, 3.0])).sum(), (0, 1))(rows, jnp.zeros(2)):
        np.testing.assert_array_equal(got, [2.0, 3.0])
    mapped = jax.vmap(attach, (1, None))(jnp.eye(3)[:, :2], jnp.zeros(3))
    np.testing.assert_array_equal(mapped, np.eye(3)[:2])


@pytest.mark.parametrize("right", [False, True])
def test_searchsorted(right: bool) -> None:
    for ordered in ([0, 2, 2, 5], []):
        for queries in ([2, 0, 9, -1], []):
            args = jnp.asarray(ordered, jnp.int32), jnp.asarray(queries, jnp.int32)
            want = np.searchsorted(*map(np.asarray, args), side="right" if right else "left")
            for run in (B.searchsorted, jax.jit(B.searchsorted, static_argnames="right")):
                np.testing.assert_array_equal(run(*args, right=right), want)


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("combiner", ["mean", "sqrtn", "max"])
@pytest.mark.parametrize("size", [2, 3])
def test_as_many_bags_mapped_as_members(size: int, combiner: str, wrap: Any) -> None:
    ids = np.arange(size * size).reshape(size, size) % 10
    got = wrap(jax.vmap(lambda i: lookup(Table(W), i[None], combiner=combiner)[0]))(jnp.asarray(ids))
    want = np.asarray(lookup(Table(W), jnp.asarray(ids), combiner=combiner))
    np.testing.assert_array_equal(np.asarray(got), want)


@pytest.mark.parametrize("dtype", ["int32", "int8", "uint32", "float32"])
@pytest.mark.parametrize("members", [2, 3])
def test_segment_sum_mapped_with_constant_segments(members: int, dtype: str) -> None:
    """The zeros that the sums start from must not become one array with the segments (`segments.fold`)."""

    def sums(x: Any) -> Any:
        with B.scope():
            return B.segment_sum(x, jnp.zeros(members, jnp.int32), 1)

    high = 100 if dtype == "float32" else np.iinfo(dtype).max  # integers wrap around
    values = np.asarray([[high, high - 1, 7][:members]] * members, dtype)
    values[0] //= 3
    got = jax.jit(jax.vmap(sums))(jnp.asarray(values))
    assert got.dtype == dtype
    np.testing.assert_array_equal(np.asarray(got), values.sum(1, keepdims=True, dtype=dtype))


@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_segment_max(dtype: str) -> None:
    values = np.array([[1, -5], [3, -7], [-4, 2]], dtype)
    least = -np.inf if dtype == "float32" else np.iinfo(dtype).min
    want = np.array([[3, -5], [least, least], [-4, 2]], dtype)
    segments = jnp.asarray([0, 0, 2], jnp.int32)
    for run in (B.segment_max, jax.jit(B.segment_max, static_argnums=2)):
        np.testing.assert_array_equal(run(jnp.asarray(values), segments, 3), want)
    if dtype == "float32":
        values[0, 0] = np.nan
        for order in ([0, 1, 2], [1, 0, 2]):
            assert np.isnan(B.segment_max(jnp.asarray(values[order]), segments, 3)[0, 0])


def test_set_rows() -> None:
    values = jnp.ones((2, 3), jnp.float32)
    want = np.array(W)
    want[[8, 1]] = 1
    before = np.array(W)
    for run in (B.set_rows, jax.jit(B.set_rows)):
        np.testing.assert_array_equal(run(W, jnp.asarray([8, 1]), values), want)
    np.testing.assert_array_equal(W, before)


def test_stop_gradient_shares_memory() -> None:
    assert B.stop_gradient(W) is W


def test_custom_gradient_is_used_and_differentiable_again() -> None:
    f = B.custom_gradient(lambda x, k: x**2, lambda kept, up: (3 * up * kept[0], None))
    k = jnp.asarray([1, 2])
    x = jnp.asarray([2.0, 5.0])
    np.testing.assert_array_equal(f(x, k), [4.0, 25.0])
    for run in (lambda g: g, jax.jit):
        np.testing.assert_array_equal(run(jax.grad(lambda y: f(y, k).sum()))(x), [6.0, 15.0])
        second = jax.grad(lambda y: jax.grad(lambda z: f(z, k).sum())(y).sum())
        np.testing.assert_array_equal(run(second)(x), [3.0, 3.0])
    np.testing.assert_array_equal(jax.vmap(jax.grad(lambda y: f(y, k[0])))(x), [6.0, 15.0])


def test_per_sample_gradients() -> None:
    data = jnp.asarray([[1.0, 2.0, 3.0], [0.0, -1.0, 4.0]])
    (got,) = B.per_sample_gradients(lambda v, x: ((x[0] * v[0]) ** 2).sum(), [D], [data])
    np.testing.assert_allclose(got, 2 * data**2 * D, rtol=1e-6)


# ---------------------------------------------------------------------- models
def test_flatten_tree() -> None:
    assert B.flatten_tree(W, lambda x: False) is None
    assert B.flatten_tree("text", lambda x: False) is None
    tree = jax.tree_util.Partial(max, W, table := Table(V))
    leaves, back = B.flatten_tree(tree, lambda x: isinstance(x, Table))  # type: ignore[misc]
    assert leaves[0] is W
    assert leaves[1] is table
    assert back([1, 2]).args == (1, 2)


def test_flax_embed_takes_no_table() -> None:
    nn = pytest.importorskip("flax.linen", reason="flax is not installed")
    model = nn.Embed(10, 3)
    for run in (value_and_grad, jax.jit):
        with pytest.raises(TypeError, match="sparse="):
            run(lambda t: model.apply({"params": {"embedding": t}}, IDS).sum())(Table(W))
    with pytest.raises(TypeError, match="sparse="):
        B.capture(model, [])


def test_a_table_is_the_same_pytree_while_it_is_differentiated() -> None:
    structure, seen = jax.tree.structure(Table(W, padding_idx=1)), []

    def fn(t: Any) -> Any:
        seen.append(jax.tree.structure(t))
        empty = jax.tree.map(lambda x: None, t)  # as equinox.partition makes it
        t = jax.tree.map(lambda x, y: y if x is None else x, empty, t, is_leaf=lambda x: x is None)
        return (lookup(t, IDS) ** 2).sum()

    evaluate = jax.jit(fn)  # traced once: for evaluation, for gradients of both kinds
    evaluate(Table(W, padding_idx=1))
    _, g = value_and_grad(evaluate)(Table(W, padding_idx=1))
    assert set(seen) == {structure}
    assert np.asarray(g.indices).tolist() == [2, 2, 9]
    np.testing.assert_allclose(dense_of(g), jax.grad(evaluate)(Table(W, padding_idx=1)).weights, rtol=1e-6)


def test_equinox_embedding() -> None:
    eqx = pytest.importorskip("equinox", reason="equinox is not installed")

    def loss(layer: Any) -> Any:
        return (jax.vmap(jax.vmap(layer))(IDS) ** 2 * D).sum()

    layer = eqx.nn.Embedding(weight=W)
    sparse = eqx.tree_at(lambda m: m.weight, layer, Table(W))
    for run in (value_and_grad(loss), jax.jit(value_and_grad(loss))):
        _, grads = run(sparse)
        np.testing.assert_allclose(dense_of(grads.weight), jax.grad(loss)(layer).weight, rtol=1e-5)


# ---------------------------------------------------------------------- ids made within, 32-bit mode, rounds
@pytest.mark.parametrize("combiner", [None, "sum", "max"])
def test_ids_that_are_constants_of_fn(combiner: str | None) -> None:
    def look(t: Any) -> Any:
        return lookup(t, jnp.array([[1, 1]]), combiner=combiner).sum()

    def looped(t: Any) -> Any:
        return lax.scan(lambda c, _: (c + look(t), None), 0.0, length=2)[0]

    for fn in (look, jax.jit(look), jax.checkpoint(look), looped):
        _, g = value_and_grad(fn)(Table(W))
        assert set(np.asarray(g.indices).tolist()) == {1}


def test_per_sample_under_jit_without_64_bit_types() -> None:
    up, ids = jnp.ones((2, 3, 2)), jnp.asarray([[1, 1, 4], [0, 9, 2]], jnp.int32)
    samples = jax.jit(lambda u, i: islices.per_sample(u, i, 5))(up, ids)  # 9 is no row
    assert np.asarray(jax.jit(lambda u, i: islices.per_sample(u, i, 5).to_dense())(up, ids)).sum() == 10
    np.testing.assert_allclose(jax.jit(lambda s: s.norms())(samples), [np.sqrt(10), 2], rtol=1e-6)


def test_out_of_range_ids_leave_a_trace_marked() -> None:
    up, ids = jnp.ones((3, 2)), jnp.asarray([1, -1, 5])
    for g in (
        jax.jit(lambda u, i: islices.embedding_grad(u, i, 5))(up, ids),
        jax.jit(lambda w, i: value_and_grad(lambda t: lookup(t, i).sum())(Table(w))[1])(W[:5], ids),
    ):
        assert g.padded
        assert np.flatnonzero(np.asarray(islices.to_dense(g)).any(axis=1)).tolist() == [1]


def test_frequencies_are_not_those_of_all_rounds() -> None:
    table = Table(W, scale_by_freq=True)
    for fn in (
        lambda t: jax.vmap(lambda i: lookup(t, i).sum())(IDS).sum(),
        lambda t: lax.scan(lambda c, i: (c + lookup(t, i).sum(), None), 0.0, IDS)[0],
    ):
        with pytest.raises(NotImplementedError, match="scale_by_freq=True looked up within"):
            value_and_grad(fn)(table)


# ---------------------------------------------------------------------- rows of different length
@pytest.mark.repeats
def test_rows_by_lengths_in_jit_under_vmap_and_in_scan() -> None:
    weights = jnp.arange(12.0, dtype=jnp.float32).reshape(6, 2)
    values, lengths = jnp.array([[1, 2, -1, 3, 5], [0, -1, 4, 4, 1]]), jnp.array([[2, 0, 2], [1, 2, 1]])

    def bags(table: Any, values: Any, lengths: Any) -> Any:
        return lookup(table, (values, lengths), combiner="sum", invalid="drop")

    straight = jnp.stack([bags(weights, v, n) for v, n in zip(values, lengths, strict=True)])
    np.testing.assert_array_equal(straight[0], [[2 + 4, 3 + 5], [0, 0], [6, 7]])
    assert jnp.array_equal(jax.vmap(bags, (None, 0, 0))(weights, values, lengths), straight)

    def straight_loss(table: Any) -> Any:
        return sum((bags(table, v, n) ** 2).sum() for v, n in zip(values, lengths, strict=True))

    def mapped_loss(table: Any) -> Any:
        return (jax.vmap(bags, (None, 0, 0))(table, values, lengths) ** 2).sum()

    def scanned_loss(table: Any) -> Any:
        return jax.lax.scan(lambda c, x: (c + (bags(table, *x) ** 2).sum(), None), 0.0, (values, lengths))[0]

    table, expected = Table(weights), None
    for loss in (straight_loss, mapped_loss, scanned_loss):
        for wrap in (lambda f: f, jax.jit):
            value, g = wrap(islices.value_and_grad(loss))(table)
            assert float(value) == float(straight_loss(table))
            dense = islices.to_dense(g)
            expected = dense if expected is None else expected
            np.testing.assert_array_equal(dense, expected)
    np.testing.assert_array_equal(expected, jax.grad(straight_loss)(weights))


def test_absent_ids_in_a_branch_that_is_not_taken() -> None:
    table, ids = Table(jnp.ones((3, 2))), jnp.array([1, -1])

    def loss(table: Any, yes: Any) -> Any:
        read = lambda: lookup(table, ids, invalid="drop", max_norm=1.0).sum()  # noqa: E731
        return jax.lax.cond(yes, read, lambda: jnp.float32(0.0))

    for yes, kept in ((True, [1]), (False, [])):
        g = islices.value_and_grad(loss)(table, yes)[1]
        assert np.asarray(g.indices).tolist() == kept


def test_a_second_derivative_through_max_norm_is_refused() -> None:
    weights = jnp.arange(1.0, 7.0, dtype=jnp.float32).reshape(3, 2)

    def loss(w: Any) -> Any:
        return (lookup(w, jnp.array([1, 2]), max_norm=1.0) ** 3).sum()

    with pytest.raises(NotImplementedError, match="max_norm"):
        jax.grad(lambda w: jax.grad(loss)(w).sum())(weights)


@pytest.mark.parametrize("name", ["int8", "uint16", "uint32"])
def test_narrow_ids_are_widened(name: str) -> None:
    table, ids = jnp.arange(12.0).reshape(6, 2), jnp.array([4, 0], name)

    def indices(ids: Any) -> Any:
        return islices.value_and_grad(lambda t: islices.lookup(t, ids).sum())(islices.Table(table))[1].indices

    for got in (indices(ids), jax.jit(indices)(ids)):
        assert (got.dtype, got.tolist()) == (jnp.int32, [4, 0])


def test_ids_of_uint32_that_int32_does_not_hold_are_out_of_range() -> None:
    table, ids = jnp.ones((6, 2)), jnp.array([2**31 + 1], jnp.uint32)
    with pytest.raises(IndexError, match=str(2**31 + 1)):
        islices.lookup(table, ids)
    assert jax.jit(islices.lookup)(table, ids).tolist() == [[0.0, 0.0]]
