"""Register IndexedSlices, Table and PerSample as JAX pytrees, so that jax.jit, jax.tree and other functions accept
them.

For JAX, all arrays of a pytree are leaves, even row numbers. So `jax.tree.map(jnp.add, a, b)` and `lax.psum` would add
row numbers. Gradients have another leaf, the guard, which detects this arithmetic: arithmetic changes the guard, and
copies do not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, tree_util

from islices.backend import Array, Backend, Source
from islices.backends.jax.host_views import Tracer
from islices.backends.jax.markers import RECORDER
from islices.backends.jax.precision import constant, scope
from islices.core.deferred import Deferred
from islices.core.registry import get_backend
from islices.core.slices import IndexedSlices
from islices.embedding.per_sample import PerSample
from islices.embedding.table import Table

#: The value of a guard is odd. So sums of 2 to 2^32 guards differ from a guard modulo 2^32. The same is true of a
#: guard's powers from the 2nd to the 2^30th. float32 can represent the value exactly.
GUARD = 0x9E377B

#: (an array of values, the arrays of integers that belong to it, such as row numbers)
Part = Sequence[Any]


class Leaves(Deferred):
    """The leaves of a pytree. Reads of parts run `check`, unless it is None, until it has returned once without an
    error. If the tree is flattened again, the result consists of the same leaves."""

    __slots__ = ("check", "leaves", "parts")

    def __init__(self, leaves: tuple[Any, ...], parts: Sequence[Any], check: Callable[[], None] | None = None) -> None:
        self.leaves, self.parts, self.check = leaves, parts, check

    def read(self, owner: Any, part: int) -> Any:
        if self.check is not None:
            self.check()
            self.check = None
        return self.parts[part]

    def held(self, owner: Any, part: int) -> Any:
        return self.parts[part]


def register() -> None:
    """Register the classes with JAX. Arrays are children, and all other attributes are static."""
    _register(IndexedSlices, ("values", "indices", "guard"), _slices_apart, _slices_together)
    _register(Table, ("weights",), _table_apart, _table_together)
    parts = ("values", "indices", "samples", "products", "guard")
    _register(PerSample, parts, _per_sample_apart, _per_sample_together)


def _owner(child: Any) -> Backend:
    """Return NumPy's backend if a child is a NumPy array, else JAX's backend. The type is not checked further, because
    JAX also uses placeholders as children."""
    return get_backend("numpy" if isinstance(child, np.ndarray) else "jax")  # jax.device_get returns NumPy arrays


def _slices_apart(s: IndexedSlices) -> tuple[tuple[Array, ...], tuple[Any, ...]]:
    # Uncoalesced slices have one guard per slot, which can be concatenated, cut and sharded like the values. The slots
    # of coalesced slices must stay in order, so these slices have a single guard.
    static = s.dense_shape, s.coalesced, s.padded
    if isinstance(s._values, Leaves):
        return s._values.leaves, static
    leaves, known = _guarded(s.backend, (s.values, s.indices), () if s.coalesced else s.indices.shape)
    if known is not None:
        object.__setattr__(s, "_values", known)
        object.__setattr__(s, "_indices", known)
    return leaves, static


def _slices_together(static: tuple[Any, ...], children: Iterable[Any]) -> IndexedSlices:
    shape, coalesced, padded = static
    *part, guard = leaves = tuple(children)
    arrays, owner = _received(leaves, [part], lambda: _intact(part, guard, shape[0])), _owner(leaves[0])
    return IndexedSlices._trusted(owner, arrays, arrays, shape, coalesced=coalesced, padded=padded)


def _table_apart(t: Table) -> tuple[tuple[Array], tuple[Any, ...]]:
    return (t._source.weights,), (t.padding_idx, t.scale_by_freq)


def _table_together(static: tuple[Any, ...], children: Iterable[Any]) -> Table:
    (weights,) = children
    recorder = RECORDER if isinstance(weights, Tracer) else None
    return Table._trusted(_owner(weights), Source(weights, recorder), *static)


def _per_sample_apart(g: PerSample) -> tuple[tuple[Any, ...], tuple[int, ...]]:
    if isinstance(g._parts, Leaves):
        return g._parts.leaves, g.dense_shape
    leaves, known = _guarded(g.backend, g._parts, ())
    if known is not None:
        object.__setattr__(g, "_parts", known)
    return leaves, g.dense_shape


def _per_sample_together(shape: tuple[int, ...], children: Iterable[Any]) -> PerSample:
    *slots, products, guard = leaves = tuple(children)
    parts = [slots, *((x,) for x in tree_util.tree_leaves(products))]

    def intact() -> Part:
        whole = tree_util.tree_map(lambda x: _intact((x,), guard)[0], products)
        return (*_intact(slots, guard, shape[1], shape[0]), whole)

    return PerSample._trusted(_owner(leaves[0]), _received(leaves, parts, intact), shape)


def _register(kind: type, names: Sequence[str], flatten: Callable[[Any], Any], unflatten: Callable[..., Any]) -> None:
    def flatten_with_keys(x: Any) -> tuple[Any, Any]:
        children, static = flatten(x)
        return zip(map(tree_util.GetAttrKey, names), children, strict=True), static

    tree_util.register_pytree_with_keys(kind, flatten_with_keys, unflatten, flatten)


# ---------------------------------------------------------------------- the guard
def _guarded(backend: Backend, arrays: Any, shape: Any) -> tuple[tuple[Any, ...], Leaves | None]:
    """Return (leaves, a `Leaves` or None). The leaves are the arrays and a guard of the given shape.

    If the arrays are concrete, the caller stores the `Leaves`, so that the tree has the same leaves when it is
    flattened again. If the arrays are traced, the second item is None.
    """
    values, indices = arrays[:2]
    if isinstance(values, Tracer) or isinstance(indices, Tracer):
        return (*arrays, lax.full_like(indices, GUARD, np.int32, shape)), None
    leaves = *arrays, backend.asarray(np.full(shape, GUARD, np.int32), values)
    return leaves, Leaves(leaves, arrays)


def _received(leaves: tuple[Any, ...], parts: Sequence[Part], intact: Callable[[], Part]) -> Leaves:
    """Return the `Leaves` of a tree that JAX unflattens. The last leaf is the guard of all parts.

    If this process knows the elements of all leaves, the leaves are checked when they are first read. The same is true
    if the leaves have dtypes or shapes that no gradient has, for example bool after a comparison. In all other cases,
    `intact` returns the parts.
    """
    guard, arrays = leaves[-1], [leaves[-1], *(x for part in parts for x in part)]
    if _are_arrays(*arrays) and (all(map(_is_known, arrays)) or not all(_is_of(part, guard) for part in parts)):
        return Leaves(leaves, leaves, lambda: _check(parts, guard))
    return Leaves(leaves, intact())


def _are_arrays(*leaves: Any) -> bool:
    """Return True if all leaves are arrays that a gradient can contain. JAX also makes trees of placeholders and of
    zero tangents."""
    return all(isinstance(x, (jax.Array, np.ndarray, np.generic)) and x.dtype != jax.dtypes.float0 for x in leaves)


def _is_known(x: Any) -> bool:
    """Return True if this process can read the elements of an array."""
    return not isinstance(x, Tracer) and getattr(x, "is_fully_addressable", True)


def _is_of(part: Part, guard: Any) -> bool:
    """Return True if a guard has a signed integer dtype, and if its shape and those of the part's integer arrays fit
    the values."""
    values, *integers = part
    return guard.dtype.kind == "i" and all(
        x.ndim <= values.ndim and all(a in (1, b) for a, b in zip(x.shape, values.shape, strict=False))
        for x in (*integers, guard)
    )


def _check(parts: Sequence[Part], guard: Any) -> None:
    """Raise ValueError if the guard or the shapes of the leaves show that arithmetic has changed the leaves."""
    if not all(_is_of(part, guard) for part in parts):
        _refuse()
    if isinstance(guard, jax.Array) and guard.is_deleted():
        return  # the gradient was donated, so any use of its arrays raises an error
    known = np.asarray(guard)
    if not (known == GUARD).all() and not all(_unchanged(*map(np.asarray, part), guard=known).all() for part in parts):
        _refuse()


def _intact(part: Part, guard: Any, *bounds: int | None) -> Part:
    """Return the arrays of a part. If arithmetic has changed a slot, its values become NaN, or a large number in
    integer dtypes, and its row numbers become valid.

    Each row number is then below its bound in `bounds` (None means no bound), so that no operation drops the slot with
    the NaN.
    """
    if not _are_arrays(*part, guard) or (_is_known(guard) and (np.asarray(guard) == GUARD).all()):
        return part
    values, *integers = part
    # integers have no NaN, so use a large number, whose sums do not wrap around to a small one
    bad = np.nan if jnp.issubdtype(values.dtype, jnp.floating) else np.iinfo(values.dtype).max >> 10
    with scope():
        values = jnp.where(_unchanged(*part, guard=guard), values, constant(bad, values.dtype))
        made = _equals(guard, GUARD)
        return values, *(
            jnp.where(_column(made, x), x, _within(x, bound)) for x, bound in zip(integers, bounds, strict=True)
        )


def _within(x: Any, bound: int | None) -> Any:
    last = np.iinfo(x.dtype).max if bound is None else min(max(bound - 1, 0), np.iinfo(x.dtype).max)
    return lax.clamp(constant(0, x.dtype), lax.abs(x), constant(last, x.dtype))


def _unchanged(values: Any, *integers: Any, guard: Any) -> Any:
    """Return a mask of the values that have not been changed. A value is unchanged if its guard has the original
    number. A value also counts as unchanged if the value, the row numbers and the guard are all 0, as in the result of
    jnp.zeros_like."""
    zero = _equals(values, 0)
    for x in (guard, *integers):
        zero &= _column(_equals(x, 0), values)
    return _column(_equals(guard, GUARD), values) | zero


def _equals(x: Any, number: int) -> Any:
    return x == (constant(number, x.dtype) if isinstance(x, Tracer) else number)


def _column(x: Any, like: Any) -> Any:
    """Append axes of length 1 to x, so that it has as many axes as `like`."""
    return x.reshape(*x.shape, *(1,) * (like.ndim - x.ndim))


def _refuse() -> NoReturn:
    raise ValueError(
        "gradient: got one whose arrays, row numbers included, jax.tree.map, lax.psum, optax.tree or the like has "
        "computed with; accepted are islices.add(g1, g2), islices.scale(g, c), islices.distributed.all_reduce, and "
        "islices.backends.jax.optax.on_rows(...) around transformations of optax"
    )
