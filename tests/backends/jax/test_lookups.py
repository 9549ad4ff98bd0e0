"""Test lookups under JAX's transformations. Many expected gradients come from JAX's gradients of the dense
``W[ids]``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from errors import each_raises
from numpy.testing import assert_allclose, assert_array_equal

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402
from jax import lax  # noqa: E402

import islices  # noqa: E402
from islices import IndexedSlices, Table, lookup, value_and_grad  # noqa: E402

RNG = np.random.default_rng(7)
W = jnp.asarray(RNG.normal(size=(10, 3)).astype(np.float32))
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


def branches(t: Any, d: Any) -> Any:
    """Return a loss with a `lax.cond` that always runs its second branch."""
    taken = lax.cond((d * d).sum() < 0, lambda: one_loss(lookup, t, d), lambda: (lookup(t, jnp.asarray(4)) * d)[0])
    return taken + lookup(t, jnp.asarray([0, 5])).sum()


def scanned_branches(t: Any, d: Any) -> Any:
    def body(carry: Any, k: Any) -> Any:
        more = lax.cond(k % 2 == 0, lambda: (lookup(t, k) * d).sum(), lambda: jnp.float32(1.0))
        return carry * 1.5 + more, None

    return lax.scan(body, d[0], jnp.arange(5))[0]


CASES: dict[str, Callable[[Look], Any]] = {
    "scan": make_scan,
    "carried unchanged": lambda look: lambda t, d: lax.scan(lambda c, k: (c, look(c, k)), t, IDS)[1].sum() + d.sum(),
}


def dense_of(grad: Any) -> np.ndarray:
    return np.asarray(islices.to_dense(grad))


@pytest.mark.parametrize("case", CASES)
def test_against_dense(case: str) -> None:
    fn = jax.jit(value_and_grad(CASES[case](lookup), (0, 1)))
    value, (grad, d_dense) = fn(Table(W), D)
    want, (want_grad, want_d) = jax.value_and_grad(CASES[case](dense_look), (0, 1))(W, D)
    assert isinstance(grad, IndexedSlices)
    assert_allclose(value, want, rtol=2e-6)
    assert_allclose(dense_of(grad), want_grad, rtol=2e-5, atol=1e-6)
    assert_allclose(d_dense, want_d, rtol=2e-5, atol=1e-6)


# ---------------------------------------------------------------------- branches and loops
def test_a_branch_not_taken_leaves_no_slices_where_that_is_known() -> None:
    for run in (branches, jax.jit(branches)):
        _, grad = value_and_grad(run)(Table(W), D)
        assert np.asarray(grad.indices).tolist() == [4, 0, 5]
    _, grad = value_and_grad(scanned_branches)(Table(W), D)
    assert np.asarray(grad.indices).tolist() == [0, 2, 4]


def test_a_branch_not_taken_under_jit_holds_the_sentinel() -> None:
    _, grad = jax.jit(value_and_grad(branches))(Table(W), D)
    assert grad.padded
    assert sorted(np.asarray(grad.indices).tolist()) == [0, 4, 5, 10, 10, 10, 10]


def test_python_branches_on_values_say_what_to_do() -> None:
    with pytest.raises(jax.errors.TracerBoolConversionError) as caught:
        value_and_grad(lambda t: lookup(t, IDS).sum() if lookup(t, IDS).sum() > 0 else 0.0)(Table(W))
    assert any("as jax.jit does" in note for note in caught.value.__notes__)


# ---------------------------------------------------------------------- transformations around value_and_grad


@pytest.mark.parametrize("wrap", [jax.jit, jax.checkpoint], ids=["jit", "remat"])
def test_value_and_grad_of_value_and_grad(wrap: Any) -> None:
    def outer(taking: Any, look: Look) -> Any:
        def fn(t: Any, d: Any) -> Any:
            value, d_dense = taking(wrap(lambda u, x: one_loss(look, u, x) ** 2), 1)(t, d)
            return value + (d_dense**2).sum()

        return fn

    value, (grad, d_dense) = value_and_grad(outer(value_and_grad, lookup), (0, 1))(Table(W), D)
    want, (want_grad, want_d) = jax.value_and_grad(outer(jax.value_and_grad, dense_look), (0, 1))(W, D)
    assert_allclose(value, want, rtol=1e-5)
    assert_allclose(dense_of(grad), want_grad, rtol=1e-4, atol=1e-5)
    assert_allclose(d_dense, want_d, rtol=1e-4)


def test_jax_grad_within_is_dense() -> None:
    def fn(t: Any, d: Any) -> Any:
        inner = jax.grad(lambda u: (lookup(u, IDS) * d).sum())(t)
        return (jax.tree.leaves(inner)[0] ** 2).sum()

    value, d_dense = value_and_grad(fn, 1)(Table(W), D)
    counts = np.bincount(np.asarray(IDS).reshape(-1), minlength=10).astype(np.float32)
    assert float(value) == pytest.approx((counts**2).sum() * float((D**2).sum()))
    assert_allclose(d_dense, 2 * (counts**2).sum() * D, rtol=1e-6)


# ---------------------------------------------------------------------- calls that raise
test_refused = each_raises(
    [
        (value_and_grad(jax.jit(lambda t: jnp.sin(jax.tree.leaves(t)[0]).sum())), TypeError, "by sin"),
        (
            value_and_grad(
                lambda t: jax.vmap(lambda i: lax.cond(i[0] > 1, lambda: lookup(t, i).sum(), lambda: jnp.float32(0)))(
                    IDS
                ).sum()
            ),
            TypeError,
            "predicate is mapped",
        ),
        (
            value_and_grad(
                lambda t: jax.vmap(lambda x: lookup(jax.tree.unflatten(jax.tree.structure(t), [x]), IDS[0, 0]).sum())(
                    jax.tree.leaves(t)[0][None]
                ).sum()
            ),
            TypeError,
            "mapped by jax.vmap",
        ),
    ],
    Table(W),
)


# ---------------------------------------------------------------------- results of fn
def test_aux_of_every_kind() -> None:
    def fn(t: Any) -> Any:
        rows = lookup(t, IDS)
        return rows.sum(), {"rows": rows, "table": t, "text": "as it is", "none": None, "number": 3}

    (_, aux), _ = value_and_grad(fn, has_aux=True)(Table(W, padding_idx=2))
    assert_array_equal(aux["rows"], W[IDS])
    assert (aux["text"], aux["none"], aux["number"], aux["table"].padding_idx) == ("as it is", None, 3, 2)
    assert aux["table"].weights is W, "the caller's own array, not watched any more"


def test_no_tracer_is_kept() -> None:
    with jax.checking_leaks():
        value_and_grad(lambda t, d: (one_loss(lookup, t, d), t), (0, 1), has_aux=True)(Table(W), D)


def test_gradients_per_sample_are_pytrees() -> None:
    run = value_and_grad(lambda t, ids: (lookup(t, ids) ** 2).reshape(len(ids), -1).sum(1), per_sample=True)
    _, eager = run(Table(W), IDS)
    _, traced = jax.jit(run)(Table(W), IDS)
    assert_allclose(traced.norms(), eager.norms(), rtol=1e-6)
    for g in (eager, traced):
        with pytest.raises(ValueError, match=r"islices\.add\(g1, g2\)"):
            jax.tree.map(jnp.add, g, g).norms()
    assert np.isnan(jax.jit(lambda g: jax.tree.map(jnp.negative, g).norms())(traced)).any()
    assert not np.asarray(jax.jit(lambda g: jax.tree.map(jnp.zeros_like, g).norms())(eager)).any()


# ---------------------------------------------------------------------- cost
def test_nothing_of_a_tables_size_is_in_the_program() -> None:
    rows = 1_000_003
    table = Table(jnp.zeros((rows, 4)))
    text = str(jax.make_jaxpr(value_and_grad(lambda t, d: (lookup(t, IDS) * d).sum(), (0, 1)))(table, jnp.ones(4)))
    made = [line for line in text.splitlines() if f"[{rows},4] =" in line and "islices_hidden" not in line]
    assert f"[{rows},4]" in text
    assert made == [], "the table comes in, and no operation makes another"


def test_segment_sum_mapped_with_constant_segments() -> None:
    """Check that XLA does not use one buffer both for the initial zeros of the sums and for the segments
    (`scatters.fold`)."""

    def sums(x: Any) -> Any:
        with B.scope():
            return B.segment_sum(x, jnp.zeros(2, jnp.int32), 1)

    values = jnp.asarray([[1, 2], [3, 4]], jnp.int32)
    assert_array_equal(jax.jit(jax.vmap(sums))(values), [[3], [7]])


# ---------------------------------------------------------------------- models


def test_a_table_is_the_same_pytree_while_it_is_differentiated() -> None:
    structure, seen = jax.tree.structure(Table(W, padding_idx=1)), []

    def fn(t: Any) -> Any:
        seen.append(jax.tree.structure(t))
        empty = jax.tree.map(lambda x: None, t)  # equinox.partition makes such a tree
        t = jax.tree.map(lambda x, y: y if x is None else x, empty, t, is_leaf=lambda x: x is None)
        return (lookup(t, IDS) ** 2).sum()

    evaluate = jax.jit(fn)  # traced once: the same trace serves the evaluation and both gradients
    evaluate(Table(W, padding_idx=1))
    _, g = value_and_grad(evaluate)(Table(W, padding_idx=1))
    assert set(seen) == {structure}
    assert np.asarray(g.indices).tolist() == [2, 2, 9]
    assert_allclose(dense_of(g), jax.grad(evaluate)(Table(W, padding_idx=1)).weights, rtol=1e-6)


# ---------------------------------------------------------------------- ids made inside fn, 32-bit mode, rounds
@pytest.mark.parametrize("combiner", [None, "max"])
def test_ids_that_are_constants_of_fn(combiner: str | None) -> None:
    def look(t: Any) -> Any:
        return lookup(t, jnp.array([[1, 1]]), combiner=combiner).sum()

    def looped(t: Any) -> Any:
        return lax.scan(lambda c, _: (c + look(t), None), 0.0, length=2)[0]

    for fn in (jax.jit(look), looped):
        _, g = value_and_grad(fn)(Table(W))
        assert set(np.asarray(g.indices).tolist()) == {1}


def test_frequencies_are_not_those_of_all_rounds() -> None:
    table = Table(W, scale_by_freq=True)
    for fn in (
        lambda t: jax.vmap(lambda i: lookup(t, i).sum())(IDS).sum(),
        lambda t: lax.scan(lambda c, i: (c + lookup(t, i).sum(), None), 0.0, IDS)[0],
    ):
        with pytest.raises(NotImplementedError, match="scale_by_freq=True looked up within"):
            value_and_grad(fn)(table)


def test_absent_ids_in_a_branch_that_is_not_taken() -> None:
    table, ids = Table(jnp.ones((3, 2))), jnp.array([1, -1])

    def loss(table: Any, yes: Any) -> Any:
        read = lambda: lookup(table, ids, invalid="drop").sum()  # noqa: E731
        return jax.lax.cond(yes, read, lambda: jnp.float32(0.0))

    for yes, kept in ((True, [1]), (False, [])):
        g = islices.value_and_grad(loss)(table, yes)[1]
        assert np.asarray(g.indices).tolist() == kept


def test_ids_of_uint32_that_int32_does_not_hold_are_out_of_range() -> None:
    table, ids = jnp.ones((6, 2)), jnp.array([2**31 + 1], jnp.uint32)
    with pytest.raises(IndexError, match=str(2**31 + 1)):
        islices.lookup(table, ids)
    assert jax.jit(islices.lookup)(table, ids).tolist() == [[0.0, 0.0]]
