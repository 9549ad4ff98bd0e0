"""From the gradient of looked-up rows to the gradient of the table: padding, masks, frequency.

SPEC clause 12.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from islices import modes
from islices.arguments import LARGEST, check_flag, show, whole_number
from islices.backend import INTEGERS, Array, Backend
from islices.native import map_leaves
from islices.registry import describe, find_backend, get_backend
from islices.rows import drop_rows
from islices.shapes import same_shape, size_of
from islices.slices import IndexedSlices, check_indices, check_values_dtype

__all__ = [
    "check_count",
    "check_ids",
    "check_mask",
    "check_upstream",
    "counting",
    "drop_padding",
    "embedding_grad",
    "empty_slices",
    "first_axis",
    "flat_slices",
    "resolve_padding_idx",
    "scale_by_frequency",
    "table_gradient",
]


#: What a mask may be of.
MASKS = ("bool", *INTEGERS, "uint8")


def embedding_grad(
    upstream: Array,
    ids: Array,
    num_rows: int,
    *,
    padding_idx: int | None = None,
    mask: Array | None = None,
    scale_by_freq: bool = False,
) -> IndexedSlices:
    """The gradient of a table whose rows ids were looked up, one slice an occurrence.

    Parameters
    ----------
    upstream : float array, shape (*ids.shape, *row_shape)
        The gradient that arrives at the looked-up rows.
    ids : int32 or int64 array of any shape
        Of the same framework, or NumPy.
    num_rows : int
        Rows of the table.
    padding_idx : int, optional
        The row that gets no gradient; negative counts from the end.
    mask : boolean array of ids' shape, optional
        Where False, upstream counts as zero, NaN included; the slice stays, as zeros.
    scale_by_freq : bool
        Divide each contribution by how often its index occurs in ids (padding not counted).

    Returns
    -------
    IndexedSlices
        In order of occurrence, uncoalesced. Without the padding's slices (under jax.jit they become padding slots).
        Where nothing had to change, it shares upstream's and ids' memory.

    Raises
    ------
    TypeError, ValueError, IndexError
        dtypes, shapes or ids that do not fit. SPEC clauses 2 and 12.

    Examples
    --------
    >>> import numpy as np
    >>> g = embedding_grad(np.ones((2, 3, 1)), np.array([[1, 2, 0], [1, 0, 0]]), 4, padding_idx=0)
    >>> g.indices.tolist(), g.dense_shape
    ([1, 2, 1], (4, 1))
    """
    scale_by_freq = check_flag(scale_by_freq, "scale_by_freq")
    B, ids = check_upstream(upstream, ids)
    num_rows = check_count(num_rows)
    padding = resolve_padding_idx(padding_idx, num_rows)
    return table_gradient(flat_slices(B, upstream, ids, num_rows, mask=mask), padding, scale_by_freq)


def table_gradient(s: IndexedSlices, padding: int | None, scale_by_freq: bool) -> IndexedSlices:
    """The slices of a lookup without those of the padding, divided by their frequency.

    In traced code, where ids were not checked, slices out of range go with them.
    """
    if padding is not None or modes.is_traced(s.backend, s.indices):
        s = _rows_that_count(s, padding)
    return scale_by_frequency(s) if scale_by_freq else s


def _rows_that_count(s: IndexedSlices, padding: int | None) -> IndexedSlices:
    B, rows = s.backend, s.dense_shape[0]
    values, indices = modes.run(_select_counting, B, (s.values, s.indices), padding=padding, rows=rows)
    padded = modes.keeps_slots(B, values, indices)
    return IndexedSlices._trusted(B, values, indices, s.dense_shape, padded=padded)


def _select_counting(
    B: Backend, values: Array, indices: Array, *, padding: int | None, rows: int
) -> tuple[Array, Array]:
    return B.select(values, indices, counting(B, indices, padding, rows), rows)


def counting(B: Backend, indices: Array, padding: int | None, rows: int | None) -> Array:
    """The mask of the indices that get a gradient: rows, and not the padding's."""
    if padding is None:
        return B.in_range(indices, rows)
    if not B.is_traced(indices):
        return B.logical_not(B.equal(indices, padding))
    # a padding index becomes one that is no row
    nowhere = B.asarray(np.full(1, -1, B.dtype(indices)), indices)
    return B.in_range(B.where(B.equal(indices, padding), nowhere, indices), rows)


def check_upstream(upstream: Any, ids: Any) -> tuple[Backend, Array]:
    """(backend, ids as its array), or TypeError."""
    B = find_backend(upstream)
    if B is None or not B.is_array(upstream):
        raise TypeError(f"upstream: got {describe(upstream)}; accepted is a dense array")
    check_values_dtype(B, upstream, "upstream")
    return B, check_ids(B, ids, upstream)


def flat_slices(B: Backend, upstream: Array, ids: Array, num_rows: int, *, mask: Array | None = None) -> IndexedSlices:
    """One slice for each of the ids, in order: upstream (*ids.shape, *row_shape) at them, zeros where mask is False."""
    ids_shape, shape = B.shape(ids), B.shape(upstream)
    if not same_shape(shape[: len(ids_shape)], ids_shape):
        raise ValueError(f"upstream: got shape {shape}; accepted is {ids_shape} (of ids) followed by the row's shape")
    row_shape = shape[len(ids_shape) :]
    if None in row_shape:
        raise ValueError(f"upstream: got rows of unknown shape {row_shape}; accepted is a shape known while tracing")
    n = size_of(ids_shape)
    with B.scope():
        values, indices = B.reshape(upstream, (n, *row_shape)), B.reshape(ids, (n,))
        keep = check_mask(B, mask, ids, upstream)
        keep = None if keep is None else B.reshape(keep, (n,))
    if keep is not None:
        values = modes.run(_zero_where_false, B, (values, keep))
    if not B.is_traced(indices):  # JAX knows the ids of a traced function now, if at all
        check_indices(B, indices, num_rows, argument="ids")
    return IndexedSlices._trusted(B, values, indices, (num_rows, *row_shape))


def empty_slices(B: Backend, weights: Array) -> IndexedSlices:
    """The gradient of a table that nothing was looked up in."""
    shape = B.shape(weights)
    with B.scope():
        values = B.zeros((0, *shape[1:]), B.dtype(weights), weights)  # type: ignore[arg-type]
        return IndexedSlices._trusted(B, values, B.asarray(np.empty(0, np.int64), weights), shape, coalesced=True)


def first_axis(B: Backend, ids: Array) -> Array:
    """The first position of each of the ids, flattened: int32, shape (n,)."""
    shape = B.shape(ids)
    with B.scope():
        number = B.astype(B.arange(ids), "int32")
        if len(shape) == 1:
            return number
        return B.reshape(B.as_column(number, ids) + B.astype(B.zeros_like(ids), "int32"), (size_of(shape),))


def check_ids(B: Backend, ids: Any, like: Array) -> Array:
    """ids as integers of the backend."""
    if isinstance(ids, np.ndarray) and not B.is_array(ids):
        if ids.dtype.name not in INTEGERS:
            raise TypeError(f"ids: got {describe(ids)}; accepted dtypes are int32 and int64")
        with B.scope():
            return B.asarray(ids, like)
    if not B.is_array(ids) or B.dtype(ids) not in INTEGERS:
        raise TypeError(f"ids: got {describe(ids)}; accepted is an int32 or int64 array of {B.name} or NumPy")
    return ids


def check_count(rows: Any, argument: str = "num_rows") -> int:
    """A number of rows as an int."""
    count = whole_number(rows)
    if count is None:
        raise TypeError(f"{argument}: got {describe(rows)}; accepted is an int >= 0")
    if not 0 <= count <= LARGEST:
        raise ValueError(f"{argument}: got {show(count)}; accepted is 0 <= {argument} < 2^63")
    return count


def check_mask(B: Backend, mask: Any, ids: Array, like: Array) -> Array | None:
    """mask as integers 0 and 1 of the backend, of ids' shape; None stays None."""
    if mask is None:
        return None
    if not B.is_array(mask):
        if not isinstance(mask, np.ndarray):
            raise TypeError(f"mask: got {describe(mask)}; accepted is a boolean array of {B.name} or NumPy")
        if mask.dtype.name not in MASKS:
            raise TypeError(f"mask: got {describe(mask)}; accepted is a boolean array of {B.name} or NumPy")
        mask = B.asarray(mask.astype(np.int32) if mask.dtype == bool else mask, like)
    given, wanted = B.shape(mask), B.shape(ids)
    if not same_shape(given, wanted):
        raise ValueError(f"mask: got shape {given}; accepted is ids' shape {wanted}")
    if B.dtype(mask) not in MASKS:
        raise TypeError(f"mask: got {describe(mask)}; accepted is a boolean array of {B.name} or NumPy")
    with B.scope():
        return B.astype(mask, "int32")


def _zero_where_false(B: Backend, values: Array, mask: Array) -> Array:
    return B.where(B.equal(B.as_column(mask, values), 0), B.zeros_like(values), values)


def resolve_padding_idx(padding_idx: Any, num_rows: int | None) -> int | None:
    """padding_idx as a row number; negative counts from the end (SPEC clause 12)."""
    if padding_idx is None:
        return None
    p = None if isinstance(padding_idx, bool) else whole_number(padding_idx)
    if p is None:
        raise TypeError(f"padding_idx: got {describe(padding_idx)}; accepted is an int or None")
    if num_rows is None:
        if not 0 <= p <= LARGEST:
            raise ValueError(f"padding_idx: got {show(p)}; accepted is 0 <= p < 2^63 for an unknown number of rows")
        return p
    if not -num_rows <= p < num_rows:
        raise IndexError(f"padding_idx: got {show(p)}; accepted is -{num_rows} <= padding_idx < {num_rows}")
    return p % num_rows


def drop_padding(x: Any, padding_idx: int) -> Any:
    """A gradient without the padding row.

    Parameters
    ----------
    x : sparse gradient, dense array, None, or a list, tuple or dict of them
    padding_idx : int
        Negative counts from the end.

    Returns
    -------
    same type as x
        Sparse without those slices (under jax.jit they become padding slots), dense with zeros there.

    Raises
    ------
    IndexError
        padding_idx is no row. SPEC clause 12.

    Examples
    --------
    >>> import numpy as np
    >>> from islices import IndexedSlices
    >>> drop_padding(IndexedSlices(np.ones((2, 1)), np.array([0, 3]), (4, 1)), -1).indices.tolist()
    [0]
    """

    def one(leaf: Any) -> Any:
        rows = leaf.dense_shape[0] if isinstance(leaf, IndexedSlices) else _rows_of(leaf)
        p = resolve_padding_idx(padding_idx, rows)
        return leaf if p is None else drop_rows(leaf, [p])

    return map_leaves(one, x)


def _rows_of(dense: Array) -> int | None:
    shape = get_backend(dense).shape(dense)
    if not shape:
        raise ValueError("x: got a 0-d array; accepted is shape (rows, *row_shape)")
    return shape[0]


def scale_by_frequency(x: Any) -> Any:
    """Each stored slice divided by how often its index occurs in x.

    Parameters
    ----------
    x : sparse gradient, None, or a list, tuple or dict of them
        Uncoalesced, as `embedding_grad` gives it: coalesced rows all occur once.

    Returns
    -------
    same type as x

    Raises
    ------
    TypeError
        A dense array: how often a row occurred is no longer known. SPEC clause 12.

    Examples
    --------
    >>> import numpy as np
    >>> from islices import IndexedSlices
    >>> scale_by_frequency(IndexedSlices(np.ones(3), np.array([1, 0, 1]), (2,))).values.tolist()
    [0.5, 1.0, 0.5]
    """
    return map_leaves(_by_frequency, x)


def _by_frequency(leaf: Any) -> IndexedSlices:
    if not isinstance(leaf, IndexedSlices):
        raise TypeError(f"x: got {describe(leaf)}; accepted are sparse gradients (counts are not known for dense ones)")
    if leaf.backend.dtype(leaf.values) in INTEGERS:
        raise TypeError(f"x: got {describe(leaf.values)}; accepted is a floating dtype, since counts divide")
    if leaf.coalesced and not leaf.padded:
        return leaf
    rows = leaf.dense_shape[0]
    values = modes.run(_divide_by_counts, leaf.backend, (leaf.values, leaf.indices), rows=rows)
    return leaf.replace(values=values)


def _divide_by_counts(B: Backend, values: Array, indices: Array, *, rows: int | None) -> Array:
    dtype = B.dtype(values)
    ids, place = B.unique(indices, rows)
    ones = B.astype(B.equal(indices, indices), "int32")
    counts = B.take(B.segment_sum(ones, place, B.shape(ids)[0]), place)
    wide = B.widen(values)
    return B.astype(B.div(wide, B.astype(B.as_column(counts, wide), B.dtype(wide))), dtype)
