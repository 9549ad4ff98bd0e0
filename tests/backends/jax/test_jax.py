"""Test islices with features of JAX: 32-bit types by default, slices as a pytree, arithmetic on a pytree's leaves, and
gradients."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")
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
def test_int64_ids_never_wrap() -> None:
    bad = 2**32 + 1
    ids = np.array([1, bad, 2], np.int64)
    for call in (
        lambda: IndexedSlices(jnp.asarray(VALUES), ids, (2**63 - 1, 2)),
        lambda: islices.embedding_grad(jnp.asarray(VALUES), ids, 2**62),
        lambda: islices.convert(IndexedSlices(VALUES, ids, (2**63 - 1, 2)), "jax"),
        lambda: islices.get_backend("jax").asarray(ids),
    ):
        with pytest.raises(IndexError, match=rf"{bad}.*position 1|position 1.*{bad}"):
            call()


# ---------------------------------------------------------------------- a pytree
def test_astype_stores_the_types_that_convert_stores() -> None:
    with pytest.raises(TypeError, match=r"dtype: got 'float64', which jax cannot store.*jax_enable_x64"):
        make().astype("float64")
    assert make().astype("int64").values.dtype == jnp.int32
    with jax.enable_x64(True):
        assert make().astype("float64").values.dtype == jnp.float64


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


#: Functions that compute with row numbers as if they were gradients.
ARITHMETIC: dict[str, Any] = {
    "a sum": lambda a, b: jax.tree.map(jnp.add, a, b),
    "half": lambda a, b: jax.tree.map(lambda x: x / 2, a),
    "ones": lambda a, b: jax.tree.map(jnp.ones_like, a),
    "psum": lambda a, b: _over_axis(lambda g: jax.lax.psum(g, "d"), a),
    "accumulation": lambda a, b: jax.lax.scan(
        lambda c, _: (jax.tree.map(jnp.add, c, a), None), jax.tree.map(jnp.zeros_like, a), None, 3
    )[0],
}
#: Pairs of a function that returns a gradient, and a function that computes the expected dense gradient.
COPIES: dict[str, Any] = {
    "zeros and a gradient": (
        lambda a, b: jax.tree.map(jnp.add, jax.tree.map(jnp.zeros_like, a), a),
        lambda x, y: x,
    ),
    "a selection": (lambda a, b: jax.tree.map(partial(jnp.where, False), a, b), lambda x, y: y),
    "joined slots": (lambda a, b: jax.tree.map(lambda *x: jnp.concatenate(x), a, b), lambda x, y: x + y),
    "a carry": (lambda a, b: jax.lax.scan(lambda c, _: (c * 2, None), a, None, 2)[0], lambda x, y: 4 * x),
    "vmap": (
        lambda a, b: jax.tree.map(
            lambda x: x[1], jax.vmap(lambda g: g * 2)(jax.tree.map(lambda *x: jnp.stack(x), a, b))
        ),
        lambda x, y: 2 * y,
    ),
    "one vector": (lambda a, b: (lambda flat, back: back(flat))(*ravel_pytree(a)), lambda x, y: x),
}


def _over_axis(fn: Any, *args: Any) -> Any:
    """Map `fn` over an axis with two copies of the arguments, and return the first three slots of the first result."""
    out = jax.vmap(fn, axis_name="d")(*(jax.tree.map(lambda x: jnp.stack([x, x]), x) for x in args))
    return jax.tree.map(lambda x: x[0][:3], out)


@pytest.mark.parametrize("name", ARITHMETIC)
def test_arithmetic_over_leaves_never_passes(name: str) -> None:
    fn, pair = ARITHMETIC[name], (make(), IndexedSlices(jnp.asarray(VALUES), jnp.asarray([3, 1, 2]), (6, 2)))
    optimizer, table = optim.sgd(1.0), jnp.zeros((6, 2))
    changed, state = fn(*pair), optimizer.init(table)
    for use in (lambda g: g.values, lambda g: g.indices, islices.norm, lambda g: optimizer.step(table, g, state)):
        with pytest.raises(ValueError, match=r"islices\.add\(g1, g2\)"):
            use(changed)
    assert "IndexedSlices" in repr(changed)
    if name == "half":  # tracing raises
        with pytest.raises(ValueError, match=r"islices\.add\(g1, g2\)"):
            jax.jit(lambda a, b: fn(a, b).values)(*pair)
        return
    stepped, norm = jax.jit(lambda a, b: (optimizer.step(table, fn(a, b), state)[0], islices.norm(fn(a, b))))(*pair)
    assert jnp.isnan(stepped).any()
    assert jnp.isnan(norm)


@pytest.mark.parametrize("name", COPIES)
def test_what_moves_leaves_unchanged_gives_a_gradient(name: str) -> None:
    pair = make(), IndexedSlices(jnp.asarray(VALUES), jnp.asarray([3, 1, 2]), (6, 2))
    fn, meaning = COPIES[name]
    expected = meaning(*map(dense_of, pair))
    for run in (fn, jax.jit(fn)):
        np.testing.assert_array_equal(dense_of(run(*pair)).astype(np.float32), expected)


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


# ---------------------------------------------------------------------- transformations
def test_grad_with_respect_to_slices_gives_slices() -> None:
    def loss(s: IndexedSlices) -> Any:
        return (islices.to_dense(s * 3.0) ** 2).sum()

    grads = jax.grad(loss, allow_int=True)(make())
    assert isinstance(grads, IndexedSlices)
    np.testing.assert_allclose(grads.values, 18 * dense_of(make())[IDS], rtol=1e-6)
