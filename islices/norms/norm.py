"""Compute norms of gradients and of their rows, and find the rows with the largest norms.

`islices.norms.exact` or a compiled kernel computes the sums; this module chooses the terms of the sums and rounds the
norms. SPEC clauses 7 and 8.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np

from islices import kernels
from islices.backend import FLOATS, Array, Backend, Host, Slots
from islices.core import modes
from islices.core.arguments import is_real, show, whole_number
from islices.core.conversion import accept, coalesce_slices, counted, map_accepted, without_padding
from islices.core.deferred import native_look
from islices.core.host import quiet
from islices.core.linear import as_float
from islices.core.registry import describe, get_backend
from islices.core.slices import IndexedSlices, parts, shape_with_rows
from islices.core.slots import SlotValues, arrays_of, expand, known_factor, slices_of, slots_in, slots_of
from islices.core.trees import flatten
from islices.norms import derivatives
from islices.norms.derivatives import Layout, Member
from islices.norms.exact import Matrices, Matrix, array_row_norms, as_rows, exact_norms

T = TypeVar("T")
#: the supported orders of norms
EXACT = (1.0, 2.0, float("inf"))
#: (values, indices, positions) of a leaf, or (values, order, starts): see `_stored` and `_grouped`
Stored: TypeAlias = tuple[Host, Host | None, Host | None]


def norm(x: Any, ord: float = 2) -> Any:
    """Return the norm of a gradient, which is the norm of the vector of all its elements.

    Parameters
    ----------
    x : sparse gradient or dense array
        The dtype must be floating.
    ord : float
        The order of the norm: 1, 2 or inf.

    Returns
    -------
    0-d array of x's framework
        The dtype is float64 for float64 input, else float32. For MXNet, whose NDArray has no 0-d arithmetic, the
        shape is (1,).

    Raises
    ------
    ValueError
        ord is not 1, 2 or inf.
    TypeError
        x contains integers, or is neither a sparse gradient nor an array. Or ord is not a real number.

    Notes
    -----
    The function sums duplicates first. For orders 1 and 2, the exact sum of the norm's terms is rounded to float64. So
    the result does not depend on the order of the terms. For order 2, the root is computed in float64. The norm is then
    rounded to the result's dtype. The norm is differentiable wherever the framework differentiates; the gradient at
    norm 0 is 0. SPEC clause 7.

    Examples
    --------
    >>> import numpy as np
    >>> from islices import IndexedSlices
    >>> s = IndexedSlices(np.array([[3.0, 0.0], [0.0, 8.0], [3.0, 0.0]]), np.array([1, 2, 1]), (4, 2))
    >>> float(norm(s))
    10.0
    """
    return total_norm([accept(x)], check_order(ord, "ord")).given


def check_order(ord: Any, argument: str) -> float:
    """Return the order of a norm as a float; raise TypeError or ValueError for anything other than 1, 2 or inf."""
    if not is_real(ord):
        raise TypeError(f"{argument}: got {describe(ord)}; accepted is a real number: 1, 2 or inf")
    if ord not in EXACT:
        raise ValueError(f"{argument}: got {show(ord)}; accepted is 1, 2 or inf")
    return as_float(ord)


class Leaf(NamedTuple):
    """A leaf of a tree: the object that the user passed, and the result of `accept` for this object."""

    given: Any
    accepted: Any


def accept_leaves(tree: Any, argument: str) -> list[Leaf | None]:
    """Return the leaves of a tree in order, accepted as `Leaf`; a leaf that is None stays None."""
    leaves: list[Leaf | None] = []
    for x in flatten(tree, argument):
        leaves.append(None if x is None else Leaf(x, accept(x, argument)))
    return leaves


def of_one_framework(leaves: Sequence[Leaf | None]) -> list[Any]:
    """Return the accepted leaves without None; raise TypeError if they belong to different frameworks."""
    accepted, backends = [], []
    for leaf in filter(None, leaves):
        accepted.append(leaf.accepted)
        backends.append(
            leaf.accepted.backend if isinstance(leaf.accepted, IndexedSlices) else get_backend(leaf.accepted)
        )
    if len(backends) > 1:
        check_one_framework(backends, "tree")
    return accepted


def check_one_framework(backends: Sequence[Backend], argument: str) -> None:
    """Raise TypeError if the leaves of an argument have different backends."""
    names = {B.name for B in backends}
    if len(names) > 1:
        raise TypeError(
            f"{argument}: got arrays of {' and '.join(sorted(names))}; accepted is one framework (see convert)"
        )


class Total(NamedTuple):
    """The norm of some leaves.

    Clipping functions compute factors from `exact`, gradients flow through `attached`, and the user gets `given`.
    """

    E: Backend  # the backend of `exact`: `islices.core.modes.HOST` if the norm is known, else the leaves' backend
    exact: Array  # the norm in float64, shape (1,), a constant in differentiation
    dtype: str  # the dtype of `given`, by clause 8
    given: Any  # the norm rounded to dtype, a 0-d array of the leaves' framework
    attached: Array | None = None  # `given` as a function of the leaves, shape (1,); None if no gradient is needed


class Seen(NamedTuple):
    """An accepted leaf of a floating dtype, with properties of its arrays."""

    leaf: Any
    B: Backend
    values: Array
    dtype: str
    views: list[Host] | None  # host views of the leaf's arrays, if the host may compute on them now


def look_at(leaf: Any) -> Seen:
    """Return an accepted leaf as `Seen`. Raise TypeError for integer values, whose norm is not defined."""
    sparse = isinstance(leaf, IndexedSlices)
    B = leaf.backend if sparse else get_backend(leaf)
    known = native_look(leaf) if sparse else None
    arrays = (leaf.values,) if known else arrays_of(leaf) if sparse else (leaf,)
    look = modes.look_at(B, arrays, known)
    if look.dtypes[0] not in FLOATS:
        check_float(B, arrays[0])
    return Seen(leaf, B, arrays[0], look.dtypes[0], look.views)


def total_norm(leaves: Sequence[Any], ord: float = 2.0, *, raw: bool = False) -> Total:
    """Return the norm of all accepted leaves together. If `raw` is True, duplicates are not summed.

    Without leaves, the norm is 0.
    """
    if not leaves:
        exact = np.zeros(1)
        return Total(modes.HOST, exact, "float32", norm_out(modes.HOST, exact, "float32"))
    found, attach = [], False
    for leaf in leaves:
        seen = look_at(leaf)
        # an array that the host may compute on is not traced and has no recorded operations
        attach = attach or (seen.views is None and derivatives.requests(seen.B, seen.values))
        found.append(seen)
    if attach:
        found = [look_at(derivatives.constant(seen.B, seen.leaf)) for seen in found]
    B, values = found[0].B, found[0].values
    E, exact, dtype = norm_of(found, ord, raw=raw)
    given = norm_out(E, exact, dtype, B, values)
    if not attach:
        return Total(E, exact, dtype, given)
    with B.scope():
        members = [derivatives.of_leaf(leaf, raw=raw) for leaf in leaves]
        attached = derivatives.attach_norms(B, B.reshape(given, (1,)), members, ord)
        return Total(E, exact, dtype, B.reshape(attached, B.shape(given)), attached)


def norm_of(found: Sequence[Seen], ord: float, *, raw: bool) -> tuple[Backend, Array, str]:
    """Return (E, norm, dtype). The norm of all leaves together is a float64 array of the backend E, with shape (1,).

    `dtype` is the dtype of the norm that the user gets. If `raw` is True, duplicates are not summed.
    """
    dtype = "float32"
    for seen in found:
        dtype = "float64" if seen.dtype == "float64" else dtype
    compiled = _kernels_on(found, ord)
    if compiled:
        stored = []
        for seen in found:
            stored.append(_stored(seen, raw))
        exact: float | None = None
        if len(stored) == 1 and stored[0][2] is None:
            exact = compiled.norm_of_few(*stored[0][:2], int(ord))
        if exact is None and (grouped := _grouped(compiled, stored)) is not None:
            exact = norm_of_stored(compiled, grouped, int(ord))
        if exact is not None:
            return modes.HOST, np.array((exact,)), dtype
    traced = None if compiled or ord == EXACT[2] else _by_traced_kernel(found, int(ord), raw)
    return *(traced or exact_norms(as_matrices(found, raw=raw), ord)), dtype


def _kernels_on(found: Sequence[Seen], ord: float) -> Any:
    """Return `islices.kernels.operations` if kernels compute the norm of these leaves on the host, else None."""
    work = 0
    for seen in found:
        if seen.views is None or ord == EXACT[2]:
            return None
        work += seen.views[0].size
    return kernels.active(work)


def norm_of_stored(compiled: Any, leaves: Sequence[Stored], ord: int) -> float:
    """Return the float64 norm of host leaves; `leaves` are the result of `_grouped`."""
    exact: float | None = compiled.rounded(compiled.limbs(leaves, ord), ord)
    if exact is not None:
        return exact
    sums = (values if order is None else compiled.fold(values, order, starts) for values, order, starts in leaves)
    return float(exact_norms([Matrix(modes.HOST, as_rows(modes.HOST, x, 1)) for x in sums], ord)[1][0])


def _by_traced_kernel(found: Sequence[Seen], ord: int, raw: bool) -> tuple[Backend, Array] | None:
    """Return (backend, norm) if any leaf is traced and the backend's `traced_norm` computes the norm, else None."""
    B = next((seen.B for seen in found if modes.is_traced(seen.B, seen.values)), None)
    if B is None:
        return None

    def otherwise(leaves: Sequence[Slots]) -> Array:
        summed = (x.values if x.indices is None else coalesce_slices(slices_of(B, x)).values for x in leaves)
        return exact_norms([Matrix(B, as_rows(B, values, 1)) for values in summed], ord)[1]

    with B.scope():
        exact = B.traced_norm([_slots(seen, raw) for seen in found], ord, otherwise)
    return None if exact is None else (B, exact)


def _slots(seen: Seen, raw: bool) -> Slots:
    """Return the slots of a leaf for a norm. If duplicates must be summed, the slots have indices, and no factor."""
    leaf = seen.leaf
    if not isinstance(leaf, IndexedSlices):
        return Slots(seen.values)
    if raw or leaf.coalesced:
        return Slots(counted(leaf, raw=raw).values)
    slots = slots_of(leaf)
    return slots if slots.factor is None else Slots(expand(seen.B, slots), slots.indices, slots.rows)


def as_matrices(found: Sequence[Seen], *, raw: bool) -> Matrices:
    """Return each leaf's numbers as a matrix of one row, for `islices.norms.exact`. Sum duplicates unless `raw` is
    True."""
    flat = []
    traced = any(seen.views is None and modes.is_traced(seen.B, seen.values) for seen in found)
    for seen in found:
        B, leaf = seen.B, seen.leaf
        if seen.views is not None and not traced:  # these sums are internal: they stay on the host
            B, leaf = modes.HOST, _over(leaf, seen.views)
        if isinstance(leaf, IndexedSlices):
            leaf = counted(leaf, raw=raw).values
        flat.append(Matrix(B, as_rows(B, leaf, 1)))
    return flat


def _over(leaf: Any, views: list[Host]) -> Any:
    """Return the leaf with host views in place of the leaf's arrays; for a dense leaf return its view."""
    if not isinstance(leaf, IndexedSlices):
        return views[0]
    values: Any = views[0]
    slots = slots_in(leaf)
    if slots is not None:
        positions, factor = views[2] if len(views) > 2 else None, known_factor(leaf.backend, slots)
        values = SlotValues(slots._replace(values=views[0], indices=views[1], positions=positions, factor=factor))
    return IndexedSlices._trusted(
        modes.HOST, values, views[1], leaf.dense_shape, coalesced=leaf.coalesced, padded=leaf.padded
    )


def _stored(seen: Seen, raw: bool) -> Stored:
    """Return (values, indices, positions) of a leaf on the host, without padding.

    `indices` is None if no duplicates are to be summed. `positions` is None if slot k has the row k of `values`.
    """
    leaf, views = seen.leaf, seen.views
    assert views is not None, "the host may compute on it"
    if len(views) == 1:
        return views[0], None, None
    slots = slots_in(leaf)
    if leaf.padded or (slots is not None and (raw or slots.factor is not None)):
        s = without_padding(_over(leaf, views))
        views = [s.values, s.indices]
    if raw or leaf.coalesced:
        return views[0], None, None
    return views[0], views[1], views[2] if len(views) > 2 else None


def _grouped(compiled: Any, stored: Sequence[Stored]) -> list[Stored] | None:
    """Return (values, order, starts) of each leaf on the host, for kernels that sum duplicates (see
    `islices.kernels.operations.group`).

    `order` and `starts` are None if no duplicates are to be summed. Return None if kernels cannot group the indices of
    every leaf.
    """
    named = []
    for _, indices, _ in stored:
        if indices is not None:
            named.append(indices)
    groups = compiled.group_kept(named)
    if None in groups:
        return None
    remaining = iter(groups)
    leaves: list[Stored] = []
    for values, indices, positions in stored:
        if indices is None:
            leaves.append((values, None, None))
            continue
        one = next(remaining)
        order, _, starts = one if positions is None else compiled.placed(one, positions)
        leaves.append((values, order, starts))
    return leaves


def exact_sum(leaves: Sequence[Any], ord: float, *, raw: bool) -> tuple[Host, int] | None:
    """Return (sum of a norm's terms, number of terms). The sum is an array of limbs, which also contains the number of
    terms that may have dropped bits (`islices.kernels.totals`).

    Return None if kernels do not compute the sum.
    """
    found = [look_at(leaf) for leaf in leaves]
    compiled = _kernels_on(found, ord)
    stored = None if compiled is None else _grouped(compiled, [_stored(seen, raw) for seen in found])
    if compiled is None or stored is None:
        return None
    terms = 0
    for values, _, starts in stored:
        terms += values.size if starts is None else (len(starts) - 1) * (values.size // max(1, len(values)))
    return compiled.limbs(stored, int(ord)), terms


def check_float(B: Backend, values: Array) -> None:
    """Raise TypeError for integer values, whose norm is not defined."""
    if B.dtype(values) not in FLOATS:
        raise TypeError(f"x: got {describe(values)}; accepted is a floating dtype")


def norm_out(E: Backend, norm64: Array, dtype: str, B: Backend | None = None, like: Array = None) -> Any:
    """Return a float64 norm as the user gets it, a 0-d array of `dtype` on the device of `like`. MXNet's shape is (1,).

    If B is None (there are no leaves), return a 0-d NumPy array.
    """
    if E is not modes.HOST:
        with E.scope():
            return E.reshape(E.astype(norm64, dtype), ())
    number = norm64.item()
    if 1e-37 < number < 1e38:  # rounding to a normal number gives no warning
        rounded = np.array(number, dtype)
    else:
        with quiet():  # regardless of the caller's np.errstate
            rounded = norm64.astype(dtype).reshape(())
    if B is None or B.host_only:
        return rounded
    with B.scope():
        return B.scalar(rounded, like)


def rounded_norms(B: Backend, E: Backend, norms: Array, dtype: str, like: Array) -> Array:
    """Return float64 norms of the backend E as an array of B, rounded to this dtype."""
    with E.scope():
        rounded = E.astype(norms, dtype)
    return B.asarray(rounded, like) if E is modes.HOST else rounded


def norm_dtype(leaves: Sequence[Any]) -> str:
    """Return "float64" if a leaf has that dtype, else "float32" (SPEC clause 8)."""
    return "float64" if any(B.dtype(v) == "float64" for B, v in map(parts, leaves)) else "float32"


def row_norms(x: Any, *, ord: float = 2.0) -> Any:
    """Return the norm of each row of a gradient, as a gradient with one number per row.

    Parameters
    ----------
    x : sparse gradient, dense array, None, or a list, tuple or dict of them
        The dtype must be floating. The function sums duplicates first.
    ord : {2, 1, inf}
        The order of the norm.

    Returns
    -------
    structure of x
        The shape is (rows,). The dtype is float64 for float64 input, else float32. A sparse gradient becomes coalesced
        slices with the norms of its rows; a dense array becomes a dense array.

    Raises
    ------
    TypeError, ValueError
        x contains integers or is 0-d, or ord is not accepted. Or ord is not 2, and the framework records operations on
        x; in traced code, the error comes when the gradient is computed.

    Notes
    -----
    Each row's norm is computed as in `norm`. The norm of order 2 is differentiable. SPEC clause 7.

    Examples
    --------
    >>> import numpy as np
    >>> from islices import IndexedSlices
    >>> s = IndexedSlices(np.array([[3.0, 0.0], [6.0, 8.0], [0.0, 4.0]]), np.array([1, 2, 1]), (4, 2))
    >>> n = row_norms(s)
    >>> n.indices.tolist(), n.values.tolist(), n.dense_shape
    ([1, 2], [5.0, 10.0], (4,))
    """
    return map_accepted(partial(_row_norms, ord=check_order(ord, "ord")), x)


def _row_norms(leaf: Any, *, ord: float) -> Any:
    leaf = counted(leaf) if isinstance(leaf, IndexedSlices) else leaf
    B, values = parts(leaf)
    check_float(B, values)
    shape = shape_with_rows(leaf)
    E, exact = array_row_norms(B, derivatives.constant(B, values), ord)
    norms = rounded_norms(B, E, exact, norm_dtype([leaf]), values)
    if derivatives.requests(B, values):
        if ord == 2.0:
            norms = derivatives.attach_norms(B, norms, [Member(Layout(by_row=True), values)])
        else:
            reason = f"ord: got {show(ord)} where a gradient is recorded; accepted is 2 there"
            norms = derivatives.attach_refusal(B, norms, values, reason)
    if not isinstance(leaf, IndexedSlices):
        return norms
    return leaf._like(norms, dense_shape=shape[:1])


def top_k_rows(x: T, k: int) -> T:
    """Return the k rows of a gradient that have the largest norms.

    Parameters
    ----------
    x : sparse gradient, None, or a list, tuple or dict of them
        The dtype must be floating. Duplicates are summed first. In a tree, k rows of each leaf stay.
    k : int
        The number of rows to keep, at least 0. A gradient with fewer than k rows keeps all rows.

    Returns
    -------
    same type as x
        The result is coalesced. Under jax.jit the result has min(k, slots) slots.

    Raises
    ------
    TypeError, ValueError
        x is dense or contains integers, or k is not an int or is negative.

    Notes
    -----
    The function compares the rows' exact 2-norms in float64; a norm that is NaN counts as infinite. Among rows with
    equal norms, the rows with lower indices stay. SPEC clause 13.

    Examples
    --------
    >>> import numpy as np
    >>> from islices import IndexedSlices
    >>> s = IndexedSlices(np.array([[3.0], [-5.0], [1.0]]), np.array([4, 2, 0]), (6, 1))
    >>> top_k_rows(s, 2).indices.tolist()
    [2, 4]
    """
    count = whole_number(k)
    if count is None:
        raise TypeError(f"k: got {show(k)}; accepted is an int >= 0")
    if count < 0:
        raise ValueError(f"k: got {show(k)}; accepted is an int >= 0")
    return map_accepted(partial(_top_k, k=count), x)


def _top_k(leaf: Any, *, k: int) -> Any:
    if not isinstance(leaf, IndexedSlices):
        raise TypeError("x: got a dense array; accepted is a sparse gradient (from_dense makes one)")
    leaf = coalesce_slices(leaf)
    B, values = parts(leaf)
    check_float(B, values)
    slots = B.shape(values)[0]
    if slots is not None and slots <= k:
        return leaf
    E, norms = array_row_norms(B, derivatives.constant(B, values))
    with E.scope():
        size = E.where(E.isfinite(norms), norms, float("inf"))
        if leaf.padded:  # empty slots come last
            size = E.where(B.in_range(leaf.indices, leaf.dense_shape[0]), size, -1.0)
        places = E.largest(size, k)
    if E is modes.HOST:
        places = B.asarray(places.astype(B.dtype(leaf.indices)), values)
    kept, indices = modes.run(lambda B, v, i, at: (B.take(v, at), B.take(i, at)), B, (values, leaf.indices, places))
    return leaf._like(kept, indices)
