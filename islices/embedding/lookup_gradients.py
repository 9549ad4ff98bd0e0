"""Compute the gradient of a table from that of its looked-up rows or bags, with padding, masks and frequencies.

SPEC clause 12.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from islices.backend import INTEGERS, Array, Backend, Slots
from islices.core import modes
from islices.core.arguments import LARGEST, check_flag, show, whole_number
from islices.core.conversion import map_accepted
from islices.core.registry import describe, find_backend, loaded_backends
from islices.core.rows import drop_rows
from islices.core.shapes import same_shape, size_of
from islices.core.slices import IndexedSlices, check_values_dtype, shape_with_rows
from islices.core.slots import slices_of, slots_in
from islices.embedding.ids import Invalid, check_ids, check_invalid, check_mask, check_range, flat_ids, spread
from islices.embedding.layouts import accept_ragged, values_of

T = TypeVar("T")


def embedding_grad(
    upstream: Array,
    ids: Array,
    num_rows: int,
    *,
    padding_idx: int | None = None,
    mask: Array | None = None,
    scale_by_freq: bool = False,
    invalid: Invalid = "raise",
) -> IndexedSlices:
    """Return the gradient of a table from the gradient of its looked-up rows, one slice per occurrence.

    Parameters
    ----------
    upstream : float array, shape (*ids.shape, *row_shape)
        The gradient with respect to the looked-up rows. For ragged ids, upstream is ragged too, or is an array with one
        row per id.
    ids : int32 or int64 array of any shape, or ragged as in `lookup`
        The ids of the lookup, an array of upstream's framework or of NumPy.
    num_rows : int
        The number of rows of the table.
    padding_idx : int, optional
        The row that gets no gradient; a negative number counts from the end.
    mask : boolean array of ids' shape, optional
        Where mask is False, upstream counts as zero, even if it is NaN. The slice stays and contains zeros.
    scale_by_freq : bool
        If True, divide each slice by the number of times that its index occurs in ids. Padding does not count.
    invalid : {"raise", "drop"}
        With "drop", negative ids count as absent and get no slice.

    Returns
    -------
    IndexedSlices
        The slices are in order of occurrence, and are not coalesced. Slices of the padding row and of absent ids are
        left out; under jax.jit they become empty slots. Without padding_idx, mask, absent ids and scale_by_freq, the
        result may share memory with upstream and ids.

    Raises
    ------
    TypeError, ValueError, IndexError
        dtypes, shapes or ids do not fit. SPEC clauses 2 and 12.

    Examples
    --------
    >>> import numpy as np
    >>> g = embedding_grad(np.ones((2, 3, 1)), np.array([[1, 2, 0], [1, 0, 0]]), 4, padding_idx=0)
    >>> g.indices.tolist(), g.dense_shape
    ([1, 2, 1], (4, 1))
    """
    scale_by_freq = check_flag(scale_by_freq, "scale_by_freq")
    found = accept_upstream(upstream, ids, num_rows, padding_idx, mask, invalid)
    return table_gradient(found.slices, found.padding, scale_by_freq, absent=found.absent)


def table_gradient(
    s: IndexedSlices, padding: int | None, scale_by_freq: bool, *, absent: bool = False
) -> IndexedSlices:
    """Return a lookup's slices without padding and absent ids (-1).

    If `scale_by_freq` is True, divide each slice by the number of times that its index occurs in the remaining slices.
    """
    s, _ = slots_that_count(s, padding, absent)
    return scale_by_frequency(s) if scale_by_freq else s


def slots_that_count(
    s: IndexedSlices, padding: int | None, absent: bool, *more: Array
) -> tuple[IndexedSlices, Sequence[Array]]:
    """Return a lookup's slices without padding and absent ids (-1), and the corresponding elements of further arrays of
    shape (n,).

    In traced code, where ids were not checked, slices out of range are dropped too.
    """
    B, slots = s.backend, slots_in(s)
    if padding is None and not absent and not modes.is_traced(B, s.indices):
        return s, more
    held = s.values if slots is None else slots.positions
    held, indices, *others = modes.run(
        _select_counting, B, (held, s.indices, *more), padding=padding, rows=s.dense_shape[0], absent=absent
    )
    padded = modes.keeps_slots(B, held, indices)
    if slots is not None:
        return slices_of(B, slots._replace(indices=indices, positions=held), padded=padded), others
    return s._like(held, indices, padded=padded), others


def _select_counting(
    B: Backend, held: Array, indices: Array, *more: Array, padding: int | None, rows: int | None, absent: bool
) -> tuple[Array, ...]:
    keep = counting(B, indices, padding, rows, absent)
    # if slots cannot be removed, an empty slot has the sentinel index, and zeros in the other arrays
    return (*B.select(held, indices, keep, rows), *(B.select(x, indices, keep, rows)[0] for x in more))


def counting(B: Backend, indices: Array, padding: int | None, rows: int | None, absent: bool) -> Array:
    """Return the mask of the indices that get a gradient: indices in range, except padding.

    If there is padding, the indices are known and none is absent, the function assumes that all indices are in range.
    """
    if padding is None:
        return B.in_range(indices, rows)
    if not absent and not B.is_traced(indices):
        return B.logical_not(B.equal(indices, padding))
    # replace padding indices with an index out of range
    return B.in_range(B.where(B.equal(indices, padding), _nowhere(B, indices), indices), rows)


def _nowhere(B: Backend, like: Array) -> Array:
    """Return an array of shape (1,) and the dtype of `like` that contains -1, an index out of range."""
    return B.asarray(np.full(1, -1, B.dtype(like)), like)


class Upstream(NamedTuple):
    """The slices of an upstream gradient, with the ids of the lookup. For ragged ids, `ids` contains their values."""

    slices: IndexedSlices
    ids: Array
    padding: int | None
    #: (the sample of each id, an array with one entry per sample) if ids are ragged, else None
    samples: tuple[Array, Array] | None
    absent: bool  # True if ids may be absent


def accept_upstream(upstream: Any, ids: Any, num_rows: Any, padding_idx: Any, mask: Any, invalid: Any) -> Upstream:
    """Return the arguments of `embedding_grad` or `per_sample` as an `Upstream`.

    Raise TypeError, ValueError or IndexError if the arguments do not fit.
    """
    drop, samples, present = check_invalid(invalid), None, None
    B = find_backend(upstream) or next((B for B in loaded_backends() if B.take_ragged(upstream, "upstream")), None)
    ragged = None if B is None or B.is_array(ids) else accept_ragged(B, ids, upstream)
    if B is not None and ragged is not None:
        upstream, mask = values_of(B, upstream, ragged, "upstream"), values_of(B, mask, ragged, "mask")
    if B is None or not B.is_array(upstream):
        raise TypeError(f"upstream: got {describe(upstream)}; accepted is a dense array")
    check_values_dtype(B, upstream, "upstream")
    if ragged is None:
        ids = check_ids(B, ids, upstream)
    else:
        ids, present = ragged.values, ragged.layout.present
        with B.scope():
            samples = spread(B, ragged.samples, ids), ragged.batch
    rows = check_count(num_rows)
    padding = resolve_padding_idx(padding_idx, rows)
    s = flat_slices(B, upstream, ids, rows, mask=mask, present=present, absent=drop)
    return Upstream(s, ids, padding, samples, drop or present is not None)


def flat_slices(
    B: Backend,
    upstream: Array,
    ids: Array,
    num_rows: int,
    *,
    mask: Array | None = None,
    present: Array | None = None,
    absent: bool = False,
) -> IndexedSlices:
    """Return one slice for each id, in order, with the values of `upstream`, or zeros where mask is False.

    `upstream` has the shape (*ids.shape, *row_shape). If `absent` is True, negative ids are allowed and keep their
    slices. Ids for which `present` is 0 become -1.
    """
    ids_shape, shape = B.shape(ids), B.shape(upstream)
    if not same_shape(shape[: len(ids_shape)], ids_shape):
        raise ValueError(f"upstream: got shape {shape}; accepted is {ids_shape} (of ids) followed by the row's shape")
    row_shape = shape[len(ids_shape) :]
    if None in row_shape:
        raise ValueError(f"upstream: got rows of unknown shape {row_shape}; accepted is a shape known while tracing")
    with B.scope():
        values = B.reshape(upstream, (size_of(ids_shape), *row_shape))
    indices, keep = flat_ids(B, ids), check_mask(B, mask, ids, upstream)
    if keep is not None:
        values = modes.run(zeros_where_false, B, (values, flat_ids(B, keep)))
    check_range(B, indices, num_rows, absent=absent)  # after this point JAX may no longer know the ids
    indices = _where_present(B, indices, present)
    return IndexedSlices._trusted(B, values, indices, (num_rows, *row_shape))


def _where_present(B: Backend, indices: Array, present: Array | None) -> Array:
    """Return flat ids, with -1 where `present` is 0."""
    if present is None:
        return indices
    with B.scope():
        return B.where(B.equal(B.reshape(present, B.shape(indices)), 0), _nowhere(B, indices), indices)


def bag_slices(
    B: Backend, upstream: Array, ids: Array, segments: Array, num_rows: int, present: Array | None
) -> IndexedSlices:
    """Return one slice for each id, in order. The values of a slice are the row of `upstream` that belongs to the id's
    bag.

    `upstream` has the shape (number of bags, *row_shape). Ids for which `present` is 0 become -1.
    """
    indices = flat_ids(B, ids)
    check_range(B, indices, num_rows)
    slots = Slots(upstream, _where_present(B, indices, present), num_rows, positions=segments)
    s = slices_of(B, slots)
    # recorded values are computed now: the tape may have ended when they are read
    return s._like(s.values) if B.records_gradient(upstream) else s


def empty_slices(B: Backend, weights: Array) -> IndexedSlices:
    """Return the empty gradient of a table that no lookup reads."""
    shape = B.shape(weights)
    with B.scope():
        values = B.zeros((0, *shape[1:]), B.dtype(weights), weights)  # type: ignore[arg-type]
        return IndexedSlices._trusted(B, values, B.asarray(np.empty(0, np.int64), weights), shape, coalesced=True)


def check_count(rows: Any, argument: str = "num_rows") -> int:
    """Return a number of rows as an int, or raise TypeError or ValueError."""
    count = whole_number(rows)
    if count is None:
        raise TypeError(f"{argument}: got {describe(rows)}; accepted is an int >= 0")
    if not 0 <= count <= LARGEST:
        raise ValueError(f"{argument}: got {show(count)}; accepted is 0 <= {argument} < 2^63")
    return count


def zeros_where_false(B: Backend, values: Array, mask: Array) -> Array:
    """Return values with zeros where the mask is 0; the mask has the leading dimensions of values.

    This function is an operation (see `islices.core.modes`).
    """
    return B.where(B.equal(B.as_column(mask, values), 0), B.zeros_like(values), values)


def resolve_padding_idx(padding_idx: Any, num_rows: int | None) -> int | None:
    """Return padding_idx as a row number; a negative number counts from the end (SPEC clause 12). None stays None.

    Raise TypeError for an object that is neither None nor an int, and IndexError for a number out of range. If num_rows
    is None, a number below 0 or above int64 raises ValueError.
    """
    if padding_idx is None:
        return None
    p = whole_number(padding_idx)
    if p is None:
        raise TypeError(f"padding_idx: got {describe(padding_idx)}; accepted is an int or None")
    if num_rows is None:
        if not 0 <= p <= LARGEST:
            raise ValueError(f"padding_idx: got {show(p)}; accepted is 0 <= p < 2^63 for an unknown number of rows")
        return p
    if not -num_rows <= p < num_rows:
        raise IndexError(f"padding_idx: got {show(p)}; accepted is -{num_rows} <= padding_idx < {num_rows}")
    return p % num_rows


def drop_padding(x: T, padding_idx: int) -> T:
    """Return a gradient without the padding row.

    Parameters
    ----------
    x : sparse gradient, dense array, None, or a list, tuple or dict of them
    padding_idx : int
        A negative number counts from the end.

    Returns
    -------
    same type as x
        A sparse gradient loses the slices of this row (under jax.jit they become empty slots). A dense gradient gets
        zeros in this row.

    Raises
    ------
    IndexError
        padding_idx is not a row. SPEC clause 12.
    TypeError, ValueError
        padding_idx is not an int, or is negative or above int64 for an unknown number of rows. Or x is not accepted.

    Examples
    --------
    >>> import numpy as np
    >>> from islices import IndexedSlices
    >>> drop_padding(IndexedSlices(np.ones((2, 1)), np.array([0, 3]), (4, 1)), -1).indices.tolist()
    [0]
    """

    def one(leaf: Any) -> Any:
        p = resolve_padding_idx(padding_idx, shape_with_rows(leaf)[0])
        return leaf if p is None else drop_rows(leaf, [p])

    return map_accepted(one, x)


def scale_by_frequency(x: T) -> T:
    """Divide each slice of a gradient by the number of times that the slice's index occurs in that gradient.

    Parameters
    ----------
    x : sparse gradient, None, or a list, tuple or dict of them
        A gradient that is not coalesced, such as the result of `embedding_grad`. In a coalesced gradient, each row
        occurs once, so values stay unchanged.

    Returns
    -------
    same type as x

    Raises
    ------
    TypeError
        x contains integers, or a dense array, for which the number of occurrences is unknown. SPEC clause 12.

    Examples
    --------
    >>> import numpy as np
    >>> from islices import IndexedSlices
    >>> scale_by_frequency(IndexedSlices(np.ones(3), np.array([1, 0, 1]), (2,))).values.tolist()
    [0.5, 1.0, 0.5]
    """
    return map_accepted(_by_frequency, x)


def _by_frequency(leaf: Any) -> IndexedSlices:
    if not isinstance(leaf, IndexedSlices):
        raise TypeError(f"x: got {describe(leaf)}; accepted are sparse gradients (counts are not known for dense ones)")
    if leaf.backend.dtype(leaf.values) in INTEGERS:
        raise TypeError(f"x: got {describe(leaf.values)}; accepted is a floating dtype, since counts divide")
    if leaf.coalesced and not leaf.padded:
        return leaf
    rows = leaf.dense_shape[0]
    return leaf._like(modes.run(_divide_by_counts, leaf.backend, (leaf.values, leaf.indices), rows=rows))


def _divide_by_counts(B: Backend, values: Array, indices: Array, *, rows: int | None) -> Array:
    dtype = B.dtype(values)
    ids, place = B.unique(indices, rows)
    ones = B.astype(B.equal(indices, indices), "int32")
    counts = B.take(B.segment_sum(ones, place, B.shape(ids)[0]), place)
    wide = B.widen(values)
    return B.astype(B.div(wide, B.astype(B.as_column(counts, wide), B.dtype(wide))), dtype)
