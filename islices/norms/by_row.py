"""Norms of single rows, and the rows with the largest norms. SPEC clause 29."""

from __future__ import annotations

from functools import partial
from typing import Any, TypeVar

from islices.backend import Array, Backend
from islices.core import modes
from islices.core.arguments import show, whole_number
from islices.core.conversion import coalesce_slices, map_adopted
from islices.core.slices import IndexedSlices
from islices.norms import derivatives
from islices.norms.derivatives import Layout, Member
from islices.norms.exact import array_row_norms
from islices.norms.norm import check_float, check_order, norm_dtype, parts, rounded_norms

T = TypeVar("T")


def row_norms(x: Any, *, ord: float = 2.0) -> Any:
    """Return the norm of each row of a gradient, as a gradient of 0-d rows.

    Parameters
    ----------
    x : sparse gradient, dense array, None, or a list, tuple or dict of them
        Of floats. Duplicates are summed first.
    ord : {2, 1, inf}
        Order of the norm.

    Returns
    -------
    structure of x
        Of shape (rows,), float64 if x is, else float32. A sparse gradient gives coalesced slices that hold the norms of
        its rows; a dense array gives a dense array.

    Raises
    ------
    TypeError, ValueError
        x holds integers or is 0-d, or ord is another number (1 and inf also where a gradient is recorded).

    Notes
    -----
    Each norm is exact, rounded once. Differentiable of order 2. SPEC clause 29.

    Examples
    --------
    >>> import numpy as np
    >>> from islices import IndexedSlices
    >>> s = IndexedSlices(np.array([[3.0, 0.0], [6.0, 8.0], [0.0, 4.0]]), np.array([1, 2, 1]), (4, 2))
    >>> n = row_norms(s)
    >>> n.indices.tolist(), n.values.tolist(), n.dense_shape
    ([1, 2], [5.0, 10.0], (4,))
    """
    return map_adopted(partial(_row_norms, ord=check_order(ord, "ord")), x)


def _row_norms(leaf: Any, *, ord: float) -> Any:
    leaf = coalesce_slices(leaf)
    B, values = parts(leaf)
    check_float(B, values)
    if not B.shape(values):
        raise ValueError("x: got a 0-d array; accepted is shape (rows, *row_shape)")
    asked = derivatives.asks(B, values)
    known = derivatives.constant(B, values) if asked else values
    E, exact = array_row_norms(B, known, ord)
    norms = rounded_norms(B, E, exact, norm_dtype([leaf]), values)
    if asked:
        if ord != 2.0:
            raise ValueError(f"ord: got {show(ord)} where a gradient is recorded; accepted is 2 there")
        norms = derivatives.attach_norms(B, norms, [Member(Layout("rows"), values, ())])
    if not isinstance(leaf, IndexedSlices):
        return norms
    return IndexedSlices._trusted(
        B, norms, leaf.indices, leaf.dense_shape[:1], coalesced=leaf.coalesced, padded=leaf.padded
    )


def top_k_rows(x: T, k: int) -> T:
    """Return a gradient's k rows of largest norm.

    Parameters
    ----------
    x : sparse gradient, None, or a list, tuple or dict of them
        Of floats. Duplicates are summed first; each leaf keeps k rows of its own.
    k : int
        Not negative. A gradient of fewer rows keeps them all.

    Returns
    -------
    same type as x
        Coalesced. Under jax.jit a gradient of min(k, slots) slots.

    Raises
    ------
    TypeError, ValueError
        x is dense or holds integers, or k is no int or negative.

    Notes
    -----
    Norms are the exact 2-norms of `row_norms` in float64; a norm that is NaN counts as infinite. Of rows with equal
    norms those of lower index stay. SPEC clause 29.

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
    return map_adopted(partial(_top_k, k=count), x)


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
        if leaf.padded:  # slots that hold nothing come last
            size = E.where(B.in_range(leaf.indices, leaf.dense_shape[0]), size, -1.0)
        places = E.largest(size, k)
    if E is modes.HOST:
        places = B.asarray(places.astype(B.dtype(leaf.indices)), values)
    kept, indices = modes.run(_rows_at, B, (values, leaf.indices, places))
    return IndexedSlices._trusted(B, kept, indices, leaf.dense_shape, coalesced=True, padded=leaf.padded)


def _rows_at(B: Backend, values: Array, indices: Array, places: Array) -> tuple[Array, Array]:
    return B.take(values, places), B.take(indices, places)
