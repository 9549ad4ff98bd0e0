"""What is JAX's own: 32-bit types by default, slices as a pytree through jit, tracers beside concrete leaves."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="jax is not installed")
import jax.numpy as jnp  # noqa: E402
from jax.flatten_util import ravel_pytree  # noqa: E402

import islices  # noqa: E402
from islices import IndexedSlices, optim  # noqa: E402

VALUES = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], np.float32)
IDS = np.array([4, 1, 4], np.int32)


def make(**flags: Any) -> IndexedSlices:
    return IndexedSlices(jnp.asarray(VALUES), jnp.asarray(IDS), (6, 2), **flags)


def dense_of(s: Any) -> np.ndarray:
    return np.asarray(islices.to_dense(s))


# ---------------------------------------------------------------------- 32-bit types
@pytest.mark.parametrize("bad", [2**31, 2**32, 2**32 + 1, 2**40, 2**62])
def test_int64_ids_never_wrap(bad: int) -> None:
    ids = np.array([1, bad, 2], np.int64)
    for call in (
        lambda: IndexedSlices(jnp.asarray(VALUES), ids, (2**63 - 1, 2)),
        lambda: islices.embedding_grad(jnp.asarray(VALUES), ids, 2**62),
        lambda: islices.convert(IndexedSlices(VALUES, ids, (2**63 - 1, 2)), "jax"),
        lambda: islices.get_backend("jax").asarray(ids),
    ):
        with pytest.raises(IndexError, match=rf"{bad}.*position 1|position 1.*{bad}"):
            call()


def test_int64_ids_that_fit_become_int32() -> None:
    ids = np.array([2**31 - 1, 0, 7], np.int64)
    s = IndexedSlices(jnp.asarray(VALUES), ids, (2**31, 2))
    assert s.indices.dtype == jnp.int32
    assert np.asarray(s.indices).tolist() == ids.tolist()
    assert np.asarray(islices.coalesce(s).indices).tolist() == [0, 7, 2**31 - 1]


def test_int64_ids_stay_int64_with_x64() -> None:
    with islices.get_backend("jax").wide_types():
        s = IndexedSlices(jnp.asarray(VALUES), np.array([2**40, 0, 7], np.int64), (2**41, 2))
        assert s.indices.dtype == jnp.int64
        assert np.asarray(islices.coalesce(s).indices).tolist() == [0, 7, 2**40]


def test_float64_is_refused_naming_the_setting() -> None:
    wide = IndexedSlices(VALUES.astype(np.float64), IDS, (6, 2))
    for call in (lambda: islices.convert(wide, "jax"), lambda: islices.get_backend("jax").asarray(wide.values)):
        with pytest.raises(TypeError, match="jax_enable_x64"):
            call()


def test_float64_is_kept_with_x64() -> None:
    with islices.get_backend("jax").wide_types():
        s = islices.convert(IndexedSlices(VALUES.astype(np.float64), IDS, (6, 2)), "jax")
        assert s.values.dtype == jnp.float64
        assert islices.norm(s).dtype == jnp.float64
    assert not jax.config.jax_enable_x64


def test_the_setting_stays_as_it_was() -> None:
    before = jax.config.jax_enable_x64
    islices.clip_by_global_norm([make()], 1.0)
    jax.jit(lambda s: islices.norm(s))(make())
    assert jax.config.jax_enable_x64 == before
    assert jnp.asarray(np.ones(1)).dtype == (jnp.float64 if before else jnp.float32)


# ---------------------------------------------------------------------- a pytree
def test_flattening_keeps_the_arrays_and_everything_else_is_structure() -> None:
    s = islices.coalesce(make())
    leaves, treedef = jax.tree_util.tree_flatten(s)
    assert [leaf.shape for leaf in leaves] == [(2, 2), (2,), ()]
    back = jax.tree_util.tree_unflatten(treedef, leaves)
    assert (back.dense_shape, back.coalesced, back.padded) == ((6, 2), True, False)
    assert back.values is s.values
    assert jax.tree_util.tree_structure(make()) == jax.tree_util.tree_structure(make())
    assert jax.tree_util.tree_structure(make()) != treedef, "coalesced is part of the structure"


def test_tree_map_may_put_anything_in_place_of_the_arrays() -> None:
    shapes = jax.tree_util.tree_map(lambda x: x.shape, make())
    assert (shapes.values, shapes.indices) == ((3, 2), (3,))
    abstract = jax.eval_shape(islices.coalesce, make())
    assert (abstract.values.shape, abstract.padded, abstract.coalesced) == ((3, 2), True, True)


#: What computes with row numbers as with gradients.
ARITHMETIC: dict[str, Any] = {
    "a sum": lambda a, b: jax.tree.map(jnp.add, a, b),
    "a difference": lambda a, b: jax.tree.map(jnp.subtract, a, b),
    "a product": lambda a, b: jax.tree.map(jnp.multiply, a, b),
    "twice": lambda a, b: jax.tree.map(lambda x: x * 2, a),
    "negated": lambda a, b: jax.tree.map(jnp.negative, a),
    "half": lambda a, b: jax.tree.map(lambda x: x / 2, a),
    "signs": lambda a, b: jax.tree.map(jnp.sign, a),
    "ones": lambda a, b: jax.tree.map(jnp.ones_like, a),
    "psum": lambda a, b: _over_axis(lambda g: jax.lax.psum(g, "d"), a),
    "accumulation": lambda a, b: jax.lax.scan(
        lambda c, _: (jax.tree.map(jnp.add, c, a), None), jax.tree.map(jnp.zeros_like, a), None, 3
    )[0],
}
#: What gives a gradient again, and which.
COPIES: dict[str, Any] = {
    "zeros": (lambda a, b: jax.tree.map(jnp.zeros_like, a), lambda x, y: 0 * x),
    "zeros and a gradient": (
        lambda a, b: jax.tree.map(jnp.add, jax.tree.map(jnp.zeros_like, a), a),
        lambda x, y: x,
    ),
    "a selection": (lambda a, b: jax.tree.map(partial(jnp.where, False), a, b), lambda x, y: y),
    "a cast": (
        lambda a, b: jax.tree.map(lambda x: x.astype(jnp.bfloat16) if x.dtype == jnp.float32 else x, a),
        lambda x, y: x,
    ),
    "joined slots": (lambda a, b: jax.tree.map(lambda *x: jnp.concatenate(x), a, b), lambda x, y: x + y),
    "slots in another order": (lambda a, b: jax.tree.map(lambda x: x[::-1], a), lambda x, y: x),
    "a carry": (lambda a, b: jax.lax.scan(lambda c, _: (c * 2, None), a, None, 2)[0], lambda x, y: 4 * x),
    "vmap": (
        lambda a, b: jax.tree.map(
            lambda x: x[1], jax.vmap(lambda g: g * 2)(jax.tree.map(lambda *x: jnp.stack(x), a, b))
        ),
        lambda x, y: 2 * y,
    ),
    "gathered": (lambda a, b: _over_axis(lambda g: jax.lax.all_gather(g, "d", tiled=True), a), lambda x, y: x),
    "one vector": (lambda a, b: (lambda flat, back: back(flat))(*ravel_pytree(a)), lambda x, y: x),
}


def _over_axis(fn: Any, *args: Any) -> Any:
    """fn over two mapped calls that have the same gradient; of a gathered one, the first half of the slots."""
    out = jax.vmap(fn, axis_name="d")(*(jax.tree.map(lambda x: jnp.stack([x, x]), x) for x in args))
    return jax.tree.map(lambda x: x[0][:3], out)


@pytest.mark.repeats_where(lambda name: name not in ("a sum", "a difference", "negated", "half", "psum"))
@pytest.mark.parametrize("name", ARITHMETIC)
def test_arithmetic_over_leaves_never_passes(name: str) -> None:
    fn, pair = ARITHMETIC[name], (make(), IndexedSlices(jnp.asarray(VALUES), jnp.asarray([3, 1, 2]), (6, 2)))
    optimizer, table = optim.sgd(1.0), jnp.zeros((6, 2))
    changed, state = fn(*pair), optimizer.init(table)
    for use in (lambda g: g.values, lambda g: g.indices, islices.norm, lambda g: optimizer.step(table, g, state)):
        with pytest.raises(ValueError, match=r"islices\.add\(g1, g2\)"):
            use(changed)
    assert "IndexedSlices" in repr(changed)
    if name == "half":  # seen while tracing
        with pytest.raises(ValueError, match=r"islices\.add\(g1, g2\)"):
            jax.jit(lambda a, b: fn(a, b).values)(*pair)
        return
    stepped, norm = jax.jit(lambda a, b: (optimizer.step(table, fn(a, b), state)[0], islices.norm(fn(a, b))))(*pair)
    assert jnp.isnan(stepped).any()
    assert jnp.isnan(norm)


@pytest.mark.repeats_where(lambda name: name in ("a cast", "slots in another order", "gathered", "one vector"))
@pytest.mark.parametrize("name", COPIES)
def test_what_moves_leaves_unchanged_gives_a_gradient(name: str) -> None:
    pair = make(), IndexedSlices(jnp.asarray(VALUES), jnp.asarray([3, 1, 2]), (6, 2))
    fn, meaning = COPIES[name]
    expected = meaning(*map(dense_of, pair))
    for run in (fn, jax.jit(fn)):
        np.testing.assert_array_equal(dense_of(run(*pair)).astype(np.float32), expected)


def test_coalesced_slots_stay_together() -> None:
    a = islices.coalesce(make())
    with pytest.raises(ValueError, match="concatenate"):
        jax.tree.map(lambda *x: jnp.concatenate(x), a, a)
    assert jnp.isnan(jax.jit(lambda a: islices.norm(jax.tree.map(jnp.add, a, a)))(a))
    np.testing.assert_array_equal(dense_of(jax.jit(lambda a: a)(a)), dense_of(a))


def test_guards_are_donated_and_named_like_other_leaves() -> None:
    s = make()
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_flatten_with_path(s)[0]]
    assert paths == [".values", ".indices", ".guard"]
    again = jax.jit(lambda s: s * 2, donate_argnums=0)(jax.jit(lambda s: s)(s))
    np.testing.assert_array_equal(dense_of(again), dense_of(s * 2))
    assert dense_of(jax.device_get(again)).tolist() == dense_of(again).tolist()
    with pytest.raises(ValueError, match=r"islices\.add\(g1, g2\)"):
        islices.norm(jax.device_get(jax.tree.map(jnp.add, s, s)))


def test_integers_that_were_added_are_large() -> None:
    s = IndexedSlices(jnp.ones((2, 1), jnp.int32), jnp.asarray([1, 2]), (6, 1))
    out = jax.jit(lambda s: islices.to_dense(jax.tree.map(jnp.add, s, s)))(s)
    assert int(out.max()) > 10**6


def test_representations_of_trees_of_shapes() -> None:
    s, table = make(), islices.Table(jnp.ones((5, 2)), padding_idx=1)
    g = islices.per_sample(jnp.ones((2, 3, 2)), jnp.zeros((2, 3), jnp.int32), 5)
    assert repr(jax.tree.map(jnp.shape, table)) == "Table((5, 2), padding_idx=1)"
    assert repr(jax.tree.map(jnp.shape, s)) == "IndexedSlices((3, 2), (3,), (6, 2))"
    assert repr(jax.tree.map(jnp.shape, g)) == "PerSample((6, 2), (6,), (6,), (2, 5, 2))"
    for x in (s, table, g):
        assert "ShapeDtypeStruct" in repr(jax.eval_shape(lambda x: x, x))
        assert "None" in repr(jax.tree.map(lambda x: None, x))


def test_through_jit_in_and_out() -> None:
    @jax.jit
    def step(s: IndexedSlices) -> tuple[IndexedSlices, Any]:
        (clipped,), norm = islices.clip_by_global_norm([islices.coalesce(s)], 5.0)
        return clipped, norm

    out, norm = step(make())
    assert isinstance(out, IndexedSlices)
    assert (out.padded, out.coalesced, out.dense_shape) == (True, True, (6, 2))
    assert np.asarray(out.indices).tolist() == [1, 4, 6], "the spare slot holds the number of rows"
    assert not np.asarray(out.values)[2].any()
    (expected,), eager_norm = islices.clip_by_global_norm([islices.coalesce(make())], 5.0)
    assert float(norm) == float(eager_norm)
    np.testing.assert_allclose(dense_of(out), dense_of(expected), rtol=2e-7)
    # eager code goes on with what jit left
    assert np.asarray(islices.coalesce(out).indices).tolist() == [1, 4]
    assert float(islices.norm(out)) == pytest.approx(5.0, rel=1e-6)


def test_jit_compiles_once_for_one_structure() -> None:
    traces = []

    @jax.jit
    def double(s: IndexedSlices) -> IndexedSlices:
        traces.append(s.dense_shape)
        return s * 2

    double(make())
    out = double(IndexedSlices(jnp.asarray(VALUES * 2), jnp.asarray(IDS[::-1].copy()), (6, 2)))
    assert len(traces) == 1
    np.testing.assert_array_equal(np.asarray(out.values), VALUES * 4)
    double(islices.coalesce(make()))
    assert len(traces) == 2, "another n and another flag"


def test_eager_code_refuses_the_sentinel_where_it_was_not_announced() -> None:
    with pytest.raises(IndexError, match="padded=True"):
        IndexedSlices(jnp.asarray(VALUES), jnp.asarray([1, 6, 2], jnp.int32), (6, 2))


def test_what_is_out_of_range_contributes_nothing_under_jit() -> None:
    @jax.jit
    def densify(values: Any, ids: Any) -> Any:
        return islices.to_dense(IndexedSlices(values, ids, (6, 2)))

    out = np.asarray(densify(jnp.asarray(VALUES), jnp.asarray([-1, 1, 9], jnp.int32)))
    expected = np.zeros((6, 2), np.float32)
    expected[1] = VALUES[1]
    np.testing.assert_array_equal(out, expected)


def test_a_bcoo_goes_through_jit_as_itself() -> None:
    from jax.experimental import sparse

    native = islices.to_native(make())
    out, norm = jax.jit(lambda g: islices.clip_by_global_norm(g, 1.0))(native)
    assert isinstance(out, sparse.BCOO)
    np.testing.assert_allclose(dense_of(out), dense_of(islices.clip_by_norm(make(), 1.0)), rtol=3e-7)
    assert float(norm) == float(islices.norm(make()))


# ---------------------------------------------------------------------- transformations
def test_grad_of_the_values_through_to_dense() -> None:
    weights = jnp.arange(12.0, dtype=jnp.float32).reshape(6, 2)

    def loss(values: Any) -> Any:
        return (islices.to_dense(IndexedSlices(values, jnp.asarray(IDS), (6, 2))) * weights).sum()

    for fn in (jax.grad(loss), jax.jit(jax.grad(loss))):
        np.testing.assert_array_equal(np.asarray(fn(jnp.asarray(VALUES))), np.asarray(weights)[IDS])


def test_grad_with_respect_to_slices_gives_slices() -> None:
    def loss(s: IndexedSlices) -> Any:
        return (islices.to_dense(s * 3.0) ** 2).sum()

    grads = jax.grad(loss, allow_int=True)(make())
    assert isinstance(grads, IndexedSlices)
    np.testing.assert_allclose(np.asarray(grads.values), 18 * dense_of(make())[IDS], rtol=1e-6)


def test_vmap_over_the_values_densifies_each() -> None:
    batch = jnp.stack([jnp.asarray(VALUES), 2 * jnp.asarray(VALUES)])

    def densify(values: Any) -> Any:
        return islices.to_dense(IndexedSlices(values, jnp.asarray(IDS), (6, 2)))

    out = np.asarray(jax.vmap(densify)(batch))
    np.testing.assert_array_equal(out, np.stack([dense_of(make()), 2 * dense_of(make())]))


def test_vmap_over_the_indices_too() -> None:
    ids = jnp.asarray([[4, 1, 4], [0, 0, 5]], jnp.int32)
    out = np.asarray(jax.vmap(lambda i: islices.to_dense(IndexedSlices(jnp.asarray(VALUES), i, (6, 2))))(ids))
    for k in range(2):
        expected = islices.to_dense(IndexedSlices(VALUES, np.asarray(ids[k]), (6, 2)))
        np.testing.assert_array_equal(out[k], expected)


def test_vmap_of_norms() -> None:
    batch = jnp.stack([jnp.asarray(VALUES), 2 * jnp.asarray(VALUES)])
    out = jax.vmap(lambda v: islices.norm(IndexedSlices(v, jnp.asarray(IDS), (6, 2))))(batch)
    expected = float(islices.norm(make()))
    np.testing.assert_array_equal(np.asarray(out), np.float32([expected, 2 * expected]))


def test_scan_carries_slices() -> None:
    def step(carry: Any, factor: Any) -> tuple[Any, Any]:
        return islices.scale(carry, factor), islices.norm(carry)

    out, norms = jax.lax.scan(step, make(), jnp.asarray([2.0, 0.5, 4.0], jnp.float32))
    np.testing.assert_array_equal(np.asarray(out.values), VALUES * 4)
    first = float(islices.norm(make()))
    np.testing.assert_array_equal(np.asarray(norms), np.float32([first, 2 * first, first]))


def test_what_needs_values_raises_clearly_under_jit() -> None:
    @jax.jit
    def from_dense(x: Any) -> Any:
        return islices.from_dense(x)

    with pytest.raises(ValueError, match="indices: must be given while tracing"):
        from_dense(jnp.ones((3, 2)))
    with pytest.raises(ValueError, match="'raise' under a trace"):
        jax.jit(lambda s: islices.clip_by_norm(s, 1.0, nonfinite="raise"))(make())


# ---------------------------------------------------------------------- concrete beside traced
@pytest.mark.parametrize("traced_first", [True, False])
def test_a_concrete_leaf_beside_a_traced_one(traced_first: bool) -> None:
    concrete, x = make(), jnp.asarray([3.0, -4.0], jnp.float32)

    @jax.jit
    def step(dense: Any) -> Any:
        tree = [dense, concrete] if traced_first else [concrete, dense]
        return islices.clip_by_global_norm(tree, 2.0)

    tree, norm = step(x)
    clipped, dense = (tree[1], tree[0]) if traced_first else tree
    (want, want_dense), want_norm = islices.clip_by_global_norm([concrete, x], 2.0)
    assert float(norm) == float(want_norm)
    np.testing.assert_allclose(dense_of(clipped), dense_of(want), rtol=3e-7)
    np.testing.assert_allclose(np.asarray(dense), np.asarray(want_dense), rtol=3e-7)


def test_concrete_slices_inside_jit_compute_on_constants() -> None:
    concrete = make()
    out = jax.jit(lambda c: islices.to_dense(concrete) * c)(2.0)
    np.testing.assert_array_equal(np.asarray(out), 2 * dense_of(concrete))


def test_traced_values_with_concrete_indices() -> None:
    ids = jnp.asarray(IDS)
    out = jax.jit(lambda v: islices.coalesce(IndexedSlices(v, ids, (6, 2))))(jnp.asarray(VALUES))
    np.testing.assert_array_equal(dense_of(out), dense_of(make()))
