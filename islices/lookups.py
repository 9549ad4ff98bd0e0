"""Looking rows up, one by one or in bags.

SPEC clauses 2, 12 and 19. What bags are reduced to, and the gradient, is in `islices.bags`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from islices.arguments import show
from islices.backend import INTEGERS, Array, Backend, Source
from islices.bags import COMBINERS, reduce_bags
from islices.embedding import check_ids, check_mask, first_axis, resolve_padding_idx
from islices.registry import describe, find_backend
from islices.shapes import same_shape, size_of
from islices.slices import check_indices
from islices.table import Table

__all__ = [
    "BagLayout",
    "LookupOptions",
    "adopt_table",
    "bags_at_offsets",
    "bags_of_last_axis",
    "check_range",
    "flat_ids",
    "lookup",
    "members",
]

#: NumPy before 2 has no more; nor, therefore, has anybody here.
DIMENSIONS = 32


class LookupOptions(NamedTuple):
    """What of a lookup the gradient needs to know, beside the ids; hashable."""

    padding_idx: int | None = None
    scale_by_freq: bool = False
    #: the ids of all samples lie one after the other; the extra arrays are each one's sample and the samples' starts
    at_offsets: bool = False


def lookup(
    table: Any,
    ids: Array,
    *,
    padding_idx: int | None = None,
    mask: Array | None = None,
    combiner: str | None = None,
    weights: Array | None = None,
    offsets: Array | None = None,
) -> Array:
    """Rows of a table, or bags of rows reduced to one row each.

    Parameters
    ----------
    table : Table, or float array of shape (rows, *row_shape)
        With an array the gradient is the framework's own.
    ids : int32 or int64 array of any shape
        Of the same framework, or NumPy.
    padding_idx : int, optional
        The row that gets no gradient and is no member of a bag; negative counts from the end. A Table's own holds
        anyway, and another one raises.
    mask : boolean array of ids' shape, optional
        Where False, the row gets no gradient (not even a NaN's) and is no member of a bag.
    combiner : {"sum", "mean", "sqrtn", "max"}, optional
        Reduce bags: those along the last axis of ids (two dimensions or more), or those that start at offsets.
        mean divides by the number of members (weighted: by the sum of their weights), sqrtn by its root (weighted:
        by the root of the sum of the squares). A bag without members is zeros, and sends no gradient. max sends the
        gradient to the first of equal members.
    weights : array of the table's dtype and ids' shape, optional
        What each member is multiplied by; gets a gradient too. Not with "max".
    offsets : int32 or int64 array, shape (bags,), optional
        Where the bags start in ids, which then has one dimension: ascending from 0.

    Returns
    -------
    array of the table's framework and dtype
        (*ids.shape, *row_shape); bags: (*ids.shape[:-1], *row_shape), or (bags, *row_shape) with offsets.

    Raises
    ------
    TypeError, ValueError, IndexError
        dtypes, shapes, ids or options that do not fit. SPEC clauses 2, 12 and 19. In traced code an id out of range
        cannot be raised: its row reads as zeros, gets no gradient and is no member of a bag.

    Examples
    --------
    >>> import numpy as np
    >>> table = np.array([[1.0], [2.0], [4.0]])
    >>> lookup(table, np.array([[0, 2], [1, 1]])).tolist()
    [[[1.0], [4.0]], [[2.0], [2.0]]]
    >>> lookup(table, np.array([[0, 2], [1, 1]]), combiner="mean", padding_idx=0).tolist()
    [[4.0], [2.0]]
    >>> lookup(table, np.array([0, 2, 1]), combiner="sum", offsets=np.array([0, 2])).tolist()
    [[5.0], [2.0]]
    """
    B, source, options = adopt_table(table, padding_idx)
    ids = check_ids(B, ids, source.weights)
    together = len(B.shape(ids)) + len(B.shape(source.weights)) - 1
    if together > DIMENSIONS:
        raise ValueError(
            f"ids: got {describe(ids)}, whose rows would have {together} dimensions; accepted are {DIMENSIONS} in all"
        )
    check_range(B, ids, B.shape(source.weights)[0])
    if combiner is None:
        for name, given in (("weights", weights), ("offsets", offsets)):
            if given is not None:
                raise ValueError(f"{name}: got {describe(given)} without a combiner; accepted with {_names()}")
        return _lookup_rows(B, source, ids, options, mask)
    if not isinstance(combiner, str) or combiner not in COMBINERS:
        raise ValueError(f"combiner: got {show(combiner)}; accepted are {_names()}, or None for the rows themselves")
    if weights is not None and combiner == "max":
        raise ValueError("weights: got some with combiner='max', which has none; accepted with 'sum', 'mean', 'sqrtn'")
    return _lookup_bags(B, source, ids, options, mask, combiner, weights, offsets)


def _names() -> str:
    return ", ".join(map(repr, COMBINERS))


def check_range(B: Backend, ids: Array, rows: int | None) -> None:
    """Raise IndexError for one of the ids, of any shape, that is no row; in traced code nothing is known."""
    if not B.is_traced(ids):
        check_indices(B, flat_ids(B, ids), rows, argument="ids")


def flat_ids(B: Backend, ids: Array) -> Array:
    """ids in one dimension."""
    if len(B.shape(ids)) == 1:
        return ids
    with B.scope():
        return B.reshape(ids, (size_of(B.shape(ids)),))


def adopt_table(table: Any, padding_idx: Any) -> tuple[Backend, Source, LookupOptions]:
    """A Table or an array as (backend, source, options), or TypeError or ValueError."""
    scale_by_freq = False
    if isinstance(table, Table):
        B, source, own, scale_by_freq = table.backend, table._source, table.padding_idx, table.scale_by_freq
    else:
        owner = find_backend(table)
        if owner is None or not owner.is_array(table) or owner.dtype(table) not in owner.float_dtypes:
            raise TypeError(f"table: got {describe(table)}; accepted is a Table or a dense float array")
        if not owner.shape(table):
            raise ValueError("table: got a 0-d array; accepted is shape (rows, *row_shape)")
        B, source, own = owner, Source(table), None
    padding = resolve_padding_idx(padding_idx, B.shape(source.weights)[0])
    if own is not None and padding not in (None, own):
        raise ValueError(f"padding_idx: got {padding_idx}; accepted is the table's own, {own}")
    return B, source, LookupOptions(own if padding is None else padding, scale_by_freq)


def _read(B: Backend, source: Source, ids: Array, extras: tuple[Array, ...], options: LookupOptions) -> Array:
    if source.recorder is not None:
        return source.recorder.lookup(source.weights, ids, extras, options)
    with B.scope():
        return B.read_rows(source.weights, ids)


def _without_gradient(B: Backend, source: Source, ids: Array, options: LookupOptions) -> Array | None:
    """1 for each of the ids but the padding's; None if there is no padding, or the recorder drops its slices."""
    if options.padding_idx is None or source.recorder is not None:
        return None
    return B.logical_not(B.equal(ids, options.padding_idx))


def _lookup_rows(B: Backend, source: Source, ids: Array, options: LookupOptions, mask: Array | None) -> Array:
    rows = _read(B, source, ids, (), options)
    with B.scope():
        for keep in (check_mask(B, mask, ids, rows), _as_ints(B, _without_gradient(B, source, ids, options))):
            if keep is not None:
                rows = B.where(B.equal(B.as_column(keep, rows), 0), B.stop_gradient(rows), rows)
    return rows


def _as_ints(B: Backend, mask: Array | None) -> Array | None:
    return None if mask is None else B.astype(mask, "int32")


# ---------------------------------------------------------------------- bags
class BagLayout(NamedTuple):
    """Where bags lie in ids."""

    segments: Array  # the bag of each of the ids, flattened: int32, ascending
    bags: Array  # an array as long as there are bags
    shape: tuple[int | None, ...]  # of the bags
    n: int | None  # how many ids


def _lookup_bags(
    B: Backend,
    source: Source,
    ids: Array,
    options: LookupOptions,
    mask: Array | None,
    combiner: str,
    weights: Array | None,
    offsets: Array | None,
) -> Array:
    weights = _check_weights(B, weights, ids, source.weights)
    keep = members(B, ids, check_mask(B, mask, ids, source.weights), options.padding_idx, B.shape(source.weights)[0])
    layout = bags_of_last_axis(B, ids) if offsets is None else bags_at_offsets(B, offsets, ids)
    extras: tuple[Array, ...] = ()
    if offsets is not None:
        extras, options = (layout.segments, layout.bags), options._replace(at_offsets=True)
    row_shape = B.shape(source.weights)[1:]
    rows = _read(B, source, ids, extras, options)
    with B.scope():
        rows = B.reshape(rows, (layout.n, *row_shape))
        keep, weights = (None if x is None else B.reshape(x, (layout.n,)) for x in (keep, weights))
    out = reduce_bags(B, rows, layout.segments, layout.bags, combiner, keep=keep, weights=weights)
    with B.scope():
        return B.reshape(out, (*layout.shape, *row_shape))


def members(B: Backend, ids: Array, mask: Array | None, padding_idx: int | None, rows: int | None) -> Array | None:
    """1 where one of the ids counts in its bag, else 0, of ids' shape, as int32; None if all do."""
    masks = [] if mask is None else [mask]
    with B.scope():
        if padding_idx is not None:
            masks.append(B.astype(B.logical_not(B.equal(ids, padding_idx)), "int32"))
        if B.is_traced(ids):
            masks.append(B.astype(B.in_range(ids, rows), "int32"))
        if mask is not None:  # whatever stands for True
            masks[0] = B.astype(B.logical_not(B.equal(mask, 0)), "int32")
        for other in masks[1:]:
            masks[0] = masks[0] * other
    return masks[0] if masks else None


def bags_of_last_axis(B: Backend, ids: Array) -> BagLayout:
    """The bags along the last axis of ids (..., L)."""
    shape = B.shape(ids)
    if len(shape) < 2:
        raise ValueError(
            f"ids: got shape {shape} with a combiner; accepted are two dimensions or more (bags along the last one), "
            "or one dimension with offsets"
        )
    if len(shape) > 2 and None in shape[1:]:
        raise ValueError(f"ids: got shape {shape}; accepted for bags of three dimensions or more is a known shape")
    lead = shape[:-1]
    with B.scope():
        bags = ids if len(shape) == 2 else B.reshape(ids, (size_of(lead), shape[-1]))
    return BagLayout(first_axis(B, bags), bags, lead, size_of(shape))


def bags_at_offsets(B: Backend, offsets: Any, ids: Array) -> BagLayout:
    """The bags that start at offsets in ids (n,)."""
    offsets = _check_offsets(B, offsets, ids)
    with B.scope():
        places = B.searchsorted(offsets, B.astype(B.arange(ids), B.dtype(offsets)), right=True)
        segments = B.astype(places, "int32") - B.astype(B.equal(ids, ids), "int32")
    return BagLayout(segments, offsets, B.shape(offsets), B.shape(ids)[0])


def _check_offsets(B: Backend, offsets: Any, ids: Array) -> Array:
    if isinstance(offsets, np.ndarray) and not B.is_array(offsets):
        if offsets.dtype.name not in INTEGERS:
            raise TypeError(f"offsets: got {describe(offsets)}; accepted dtypes are int32 and int64")
        offsets = B.asarray(offsets, ids)
    if not B.is_array(offsets) or B.dtype(offsets) not in INTEGERS:
        raise TypeError(f"offsets: got {describe(offsets)}; accepted is an int32 or int64 array of {B.name} or NumPy")
    if len(B.shape(offsets)) != 1:
        raise ValueError(f"offsets: got shape {B.shape(offsets)}; accepted is one dimension (bags,)")
    if len(B.shape(ids)) != 1:
        raise ValueError(f"ids: got shape {B.shape(ids)} with offsets; accepted is one dimension (n,)")
    if not B.is_traced(offsets):
        starts, n = B.to_numpy(offsets), B.shape(ids)[0]
        if (len(starts) and starts[0] != 0) or (not len(starts) and n):
            raise ValueError(f"offsets: got {starts[:1].tolist()} first; accepted is 0, where the first bag starts")
        if (starts[1:] < starts[:-1]).any():
            at = int(np.argmax(starts[1:] < starts[:-1])) + 1
            raise ValueError(
                f"offsets: got {int(starts[at])} at position {at} after {int(starts[at - 1])}; accepted is ascending"
            )
        if len(starts) and n is not None and starts[-1] > n:
            raise ValueError(f"offsets: got {int(starts[-1])} last, with {n} ids; accepted is at most their number")
    return offsets


def _check_weights(B: Backend, weights: Any, ids: Array, table: Array) -> Array | None:
    if weights is None:
        return None
    if isinstance(weights, np.ndarray) and not B.is_array(weights) and weights.dtype.name == B.dtype(table):
        weights = B.asarray(weights, table)
    if not B.is_array(weights) or B.dtype(weights) != B.dtype(table):
        raise TypeError(f"weights: got {describe(weights)}; accepted is an array of the table's {B.dtype(table)}")
    given, wanted = B.shape(weights), B.shape(ids)
    if not same_shape(given, wanted):
        raise ValueError(f"weights: got shape {given}; accepted is ids' shape {wanted}")
    return weights
