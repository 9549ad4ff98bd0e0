"""Look rows up, one by one or in bags.

SPEC clauses 2, 12 and 19. `islices.embedding.layouts` finds the bags; `islices.embedding.bags` reduces them and
computes the gradient.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from islices.backend import Array, Backend, Reader, Source
from islices.core import modes
from islices.core.arguments import show
from islices.core.registry import describe, find_backend
from islices.core.shapes import COMMON_NDIM, same_shape, size_of
from islices.embedding.bags import COMBINERS, BagMembers, Combiner, read_bags, reduce_bags
from islices.embedding.ids import Invalid, check_ids, check_invalid, check_mask, check_range, flat_ids, spread
from islices.embedding.layouts import (
    BagLayout,
    accept_ragged,
    bags_at_offsets,
    bags_of_last_axis,
    values_of,
)
from islices.embedding.lookup_gradients import resolve_padding_idx, zeros_where_false
from islices.embedding.table import Table

#: the combiners in messages
_NAMES = ", ".join(map(repr, COMBINERS))


class LookupOptions(NamedTuple):
    """The hashable options of a lookup that its gradient needs in addition to the ids."""

    padding_idx: int | None = None
    scale_by_freq: bool = False
    #: the ids of all samples lie one after the other; the first extra arrays are the sample of each id, and an array
    #: with one entry per sample
    at_offsets: bool = False
    #: the last of the extra arrays is 0 for each absent id
    absent: bool = False
    #: the reduction of a lookup of bags: the first extra arrays are then the bag of each id, and an array with one
    #: entry per bag
    combiner: str | None = None


def lookup(
    table: Any,
    ids: Any,
    *,
    padding_idx: int | None = None,
    mask: Any = None,
    combiner: Combiner | None = None,
    weights: Any = None,
    offsets: Array | None = None,
    invalid: Invalid = "raise",
) -> Any:
    """Look up rows of a table, or bags of rows, each reduced to one row.

    Parameters
    ----------
    table : Table, or float array of shape (rows, *row_shape)
        A plain array gets the framework's gradient.
    ids : integer array of any shape, or ragged
        They belong to the same framework or to NumPy; int8 to uint32 count as int32 or int64. MXNet's ids may be
        floats that are whole numbers. Ragged ids are a tf.RaggedTensor, or a torch nested tensor of
        layout=torch.jagged. With a combiner they may be a tf.SparseTensor (bags along its last axis). They may also
        be a pair of 1-D arrays (values, lengths): the ids row after row, and the number of ids in each row. Values
        after the last row are ignored.
    padding_idx : int, optional
        The row that gets no gradient and is not a member of a bag; negative counts from the end. The default is that
        of the Table; a different one raises.
    mask : boolean array of ids' shape, optional
        False excludes the row from its bag, and from the gradient (even of a NaN). With ragged ids the mask has their
        form, or their values' shape.
    combiner : {"sum", "mean", "sqrtn", "max"}, optional
        The reduction of bags. The bags lie along the last axis of ids (two dimensions or more), start at offsets, or
        are the innermost rows of ragged ids. mean divides by the number of members (weighted: by the sum of their
        weights). sqrtn divides by the square root of that number (weighted: by the root of the sum of the squares).
        A bag without members gives zeros and no gradient. max sends the gradient to the first of equal members.
    weights : array of the table's dtype and ids' shape, optional
        A factor for each member; it gets a gradient too. Not with "max". With ragged ids it has the form of mask.
    offsets : int32 or int64 array, shape (bags,), optional
        The start of each bag in ids, which then has one dimension: ascending from 0.
    invalid : {"raise", "drop"}
        The treatment of negative ids: "drop" treats each as absent. Its row reads as zeros, is not a member of a bag,
        and has no gradient.

    Returns
    -------
    array of the table's framework and dtype
        (*ids.shape, *row_shape); bags: (*ids.shape[:-1], *row_shape), or (bags, *row_shape). Without a combiner, ragged
        ids give ragged rows of the same form: for a pair of arrays, a pair (rows, lengths). Bags of several ragged
        dimensions give a tf.RaggedTensor.

    Raises
    ------
    TypeError, ValueError, IndexError
        dtypes, shapes, ids or options do not fit. SPEC clauses 2, 12 and 19. In traced code an id out of range cannot
        raise. Its row reads as zeros, gets no gradient, and is not a member of a bag.

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
    >>> lookup(table, (np.array([0, 2, 1]), np.array([2, 0, 1])), combiner="sum").tolist()
    [[5.0], [0.0], [2.0]]
    >>> lookup(table, np.array([[0, -1], [-1, -1]]), combiner="mean", invalid="drop").tolist()
    [[1.0], [0.0]]
    """
    B, source, options = lookup_source(table, padding_idx)
    ragged = None if B.is_array(ids) else accept_ragged(B, ids, source.weights)
    if ragged is not None:
        if offsets is not None:
            raise ValueError(
                f"offsets: got {describe(offsets)} with ragged ids; accepted is None: ids say where bags lie"
            )
        ids = ragged.values
        mask, weights = values_of(B, mask, ragged, "mask"), values_of(B, weights, ragged, "weights")
    else:
        ids = check_ids(B, ids, source.weights)
    together = len(B.shape(ids)) + len(B.shape(source.weights)) - 1
    if together > COMMON_NDIM:
        raise ValueError(
            f"ids: got {describe(ids)}, whose rows would have {together} dimensions; accepted are {COMMON_NDIM} in all"
        )
    drop = check_invalid(invalid)
    check_range(B, ids, B.shape(source.weights)[0], absent=drop)
    samples: tuple[Array, ...] = ()
    layout = present = None
    if ragged is not None:
        present = ragged.layout.present
        with B.scope():
            samples = (spread(B, ragged.samples, ids), ragged.batch)
    if combiner is None:
        for name, given in (("weights", weights), ("offsets", offsets)):
            if given is not None:
                raise ValueError(f"{name}: got {describe(given)} without a combiner; accepted with {_NAMES}")
    elif not isinstance(combiner, str) or combiner not in COMBINERS:
        raise ValueError(f"combiner: got {show(combiner)}; accepted are {_NAMES}, or None for the rows themselves")
    elif weights is not None and combiner == "max":
        raise ValueError("weights: got some with combiner='max', which has none; accepted with 'sum', 'mean', 'sqrtn'")
    elif ragged is not None:
        layout, inner = ragged.layout, B.shape(ids)[1:]
        if inner:
            raise ValueError(
                f"ids: got ragged rows of arrays {inner} with a combiner; accepted are ragged rows of numbers"
            )
    elif offsets is not None:
        layout = bags_at_offsets(B, offsets, ids)
        samples = layout.segments, layout.bags
    else:
        layout = bags_of_last_axis(B, ids)
    if drop:
        with B.scope():
            named = B.astype(B.in_range(ids, None), "int32")
            present = named if present is None else named * present
    options = options._replace(at_offsets=bool(samples), absent=present is not None)
    request = _Request(B, source, ids, options, mask, samples, present)
    if layout is None or combiner is None:
        rows = _lookup_rows(request)
        return rows if ragged is None else ragged.with_rows(rows)
    bags = _lookup_bags(request, layout, combiner, weights)
    return bags if ragged is None else ragged.with_bags(bags)


class _Request(NamedTuple):
    """A lookup with arguments that fit together."""

    B: Backend
    source: Source
    ids: Array
    options: LookupOptions
    mask: Any
    samples: tuple[Array, ...]  # as `LookupOptions.at_offsets` says
    present: Array | None  # int32 of ids' shape: 1 for each id that is a row, 0 for absent ones; None if all are


def lookup_source(table: Any, padding_idx: Any) -> tuple[Backend, Source, LookupOptions]:
    """Return a Table or an array as (backend, source, options), or raise TypeError or ValueError."""
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


def _read(request: _Request, bags: tuple[Reader, str, tuple[Array, ...]] | None = None) -> Array:
    """Return the rows of ids, or bags of these rows. Absent ids read any row.

    bags is the reader of bags, the name of their reduction, and two arrays: the bag of each id, and one entry per bag.
    """
    B, source, ids, options, _, extras, present = request
    weights = source.weights
    if present is not None:
        with B.scope():
            if B.shape(weights)[0] == 0:  # the table has no row to read for absent ids
                return B.zeros((*B.shape(ids), *B.shape(weights)[1:]), B.dtype(weights), ids)  # type: ignore[arg-type]
            ids = B.where(B.equal(present, 0), B.zeros_like(ids), ids)
        extras = (*extras, present)
    if bags is not None:
        read, combiner, where = bags
        if source.recorder is None:
            return read(weights, ids)
        return source.recorder.bags(weights, ids, (*where, *extras), options._replace(combiner=combiner), read)
    if source.recorder is not None:
        return source.recorder.lookup(weights, ids, extras, options)
    with B.scope():
        return B.read_rows(weights, ids)


def _lookup_rows(request: _Request) -> Array:
    B, source, ids, options, mask, _, present = request
    rows = _read(request)
    with B.scope():
        passing = [check_mask(B, mask, ids, rows)]
        if options.padding_idx is not None and not source.watched:  # the gradient of a watched table drops these slices
            passing.append(B.astype(B.logical_not(B.equal(ids, options.padding_idx)), "int32"))
        for keep in passing:
            if keep is not None:  # where it is 0, a row passes no gradient
                rows = B.where(B.equal(B.as_column(keep, rows), 0), B.stop_gradient(rows), rows)
    return rows if present is None else modes.run(zeros_where_false, B, (rows, present))


# ---------------------------------------------------------------------- bags
def _lookup_bags(request: _Request, layout: BagLayout, combiner: str, weights: Any) -> Array:
    B, source, ids, options, mask, _, present = request
    weights = _check_weights(B, weights, ids, source.weights)
    count, *row_shape = B.shape(source.weights)
    reads_bags = weights is None and combiner != "max" and _reads_bags(request)
    mask = check_mask(B, mask, ids, source.weights)
    keep = members(B, ids, mask, options.padding_idx, count, present, in_range=reads_bags)
    keep, weights = flat_ids(B, keep), flat_ids(B, weights)

    def shaped(out: Array) -> Array:
        with B.scope():
            return B.reshape(out, (*layout.shape, *row_shape))

    def read(table: Array, ids: Array) -> Array:
        return shaped(read_bags(B, table, flat_ids(B, ids), BagMembers(layout.segments, layout.bags, combiner, keep)))

    if reads_bags:
        return _read(request, (read, combiner, (layout.segments, layout.bags)))
    rows = _read(request)
    with B.scope():
        rows = B.reshape(rows, (size_of(B.shape(ids)), *row_shape))
    return shaped(reduce_bags(B, rows, BagMembers(layout.segments, layout.bags, combiner, keep, weights)))


def _reads_bags(request: _Request) -> bool:
    """Return True if bags can be read without their rows, because no gradient is recorded or the recorder supports
    bags.

    A mask rules out a recorder, since masked members get zeros instead of their bag's gradient.
    """
    B, source = request[:2]
    if source.recorder is not None:
        return request.mask is None and hasattr(source.recorder, "bags")
    return not B.records_gradient(source.weights)


def members(
    B: Backend,
    ids: Array,
    mask: Array | None,
    padding_idx: int | None,
    rows: int | None,
    present: Array | None = None,
    *,
    in_range: bool = False,
) -> Array | None:
    """Return 1 for each id that counts in its bag and 0 for the others, as int32 of ids' shape. Return None if all
    count.

    If in_range is True, this does not check ids; traced ids may be out of range.
    """
    masks = [] if mask is None else [mask]
    with B.scope():
        if present is not None:
            masks.append(present)
        if padding_idx is not None:
            masks.append(B.astype(B.logical_not(B.equal(ids, padding_idx)), "int32"))
        if B.is_traced(ids) and not in_range:
            masks.append(B.astype(B.in_range(ids, rows), "int32"))
        for other in masks[1:]:
            masks[0] = masks[0] * other
    return masks[0] if masks else None


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


# ---------------------------------------------------------------------- table[ids]
Table._lookup = staticmethod(lookup)
