"""Look up rows of a table, either single rows or bags of rows, which are reduced to one row each.

SPEC clauses 2, 12 and 19. `islices.embedding.layouts` finds the bags; `islices.embedding.bags` reduces the bags and
computes the gradient of the reduction.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from islices.backend import Array, Backend, Reader, Source
from islices.core import modes
from islices.core.arguments import show
from islices.core.registry import describe, find_array_backend
from islices.core.shapes import COMMON_NDIM, same_shape, size_of
from islices.embedding.bags import COMBINERS, LINEAR, BagMembers, Combiner, read_bags, reduce_bags
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

#: the names of the combiners, for messages
_NAMES = ", ".join(map(repr, COMBINERS))


class LookupOptions(NamedTuple):
    """The hashable options of a lookup that the lookup's gradient needs in addition to the ids."""

    padding_idx: int | None = None
    scale_by_freq: bool = False
    #: True if ids have offsets or are ragged; then two extra arrays are the sample of each id, and an array with one
    #: entry per sample. These two arrays come first, or follow the two arrays of `combiner`
    at_offsets: bool = False
    #: True if ids may be absent; then the last extra array is 0 for each absent id
    absent: bool = False
    #: the reduction of bags, if the lookup reads bags without their rows; then the first two extra arrays are the bag
    #: of each id, and an array with one entry per bag
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
    """Look up rows of a table, or bags of rows; each bag is reduced to one row.

    Parameters
    ----------
    table : Table, or float array of shape (rows, *row_shape)
        For a plain array, the framework computes the gradient as usual.
    ids : integer array of any shape, or ragged
        An array of the table's framework or of NumPy; int8, int16, uint8, uint16 and uint32 are converted to int32 or
        int64. MXNet's ids may be floats that are whole numbers. Ragged ids are a tf.RaggedTensor, or a torch nested
        tensor of layout=torch.jagged. With a combiner, ids may be a tf.SparseTensor (bags along its last axis). Ids may
        also be a pair of 1-D arrays (values, lengths): the ids row after row, and the number of ids in each row. Values
        after the last row are absent, but must be in range.
    padding_idx : int, optional
        The row that gets no gradient and is not a member of a bag; a negative number counts from the end. If the Table
        has a padding_idx, this number is the default, and any other number raises ValueError.
    mask : boolean array of ids' shape, optional
        Where mask is False, the row does not count in its bag, and its gradient is zero, even if the row contains NaN.
        Without a combiner the result still contains the row. For ragged ids the mask has the shape of the ids' values
        or, unless the ids are a pair, the same ragged form.
    combiner : {"sum", "mean", "sqrtn", "max"}, optional
        The reduction of bags. The bags lie along the last axis of ids (two dimensions or more), start at offsets, or
        are the innermost rows of ragged ids. mean divides by the number of members, or with weights by the sum of the
        weights. sqrtn divides by the square root of the number of members, or with weights by the root of the sum of
        the squared weights. A bag without members gives zeros and no gradient. The gradient of max goes to the first of
        equal members.
    weights : array of the table's dtype and ids' shape, optional
        A factor for each member. The factors get a gradient too. "max" accepts no weights. For ragged ids, weights may
        have the forms that mask may have.
    offsets : int32 or int64 array, shape (bags,), optional
        The start of each bag in ids, ascending from 0; ids then has one dimension.
    invalid : {"raise", "drop"}
        The treatment of negative ids. With "drop" a negative id is absent: its row reads as zeros, is not a member of a
        bag, and gets no gradient.

    Returns
    -------
    array of the table's framework and dtype
        Rows have shape (*ids.shape, *row_shape); bags have shape (*ids.shape[:-1], *row_shape) or (bags, *row_shape).
        Without a combiner, the rows of ragged ids are ragged in the same form, and the rows of a pair are a pair (rows,
        lengths). For bags of ids with several ragged dimensions, the result is a tf.RaggedTensor.

    Raises
    ------
    TypeError, ValueError, IndexError
        dtypes, shapes, ids or options do not fit. SPEC clauses 2, 12 and 19. In traced code, an id out of range cannot
        raise an error. The id's row reads as zeros, gets no gradient, and is not a member of a bag.

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
    elif weights is not None and combiner not in LINEAR:
        accepted = ", ".join(map(repr, LINEAR))
        raise ValueError(f"weights: got some with combiner={combiner!r}, which has none; accepted with {accepted}")
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
    """A lookup with checked ids and options. The mask has not been checked yet."""

    B: Backend
    source: Source
    ids: Array
    options: LookupOptions
    mask: Any
    samples: tuple[Array, ...]  # the extra arrays that `LookupOptions.at_offsets` describes
    present: Array | None  # int32, with the shape of ids: 0 for an absent id, else 1; None if no id can be absent


def lookup_source(table: Any, padding_idx: Any) -> tuple[Backend, Source, LookupOptions]:
    """Return (backend, source, options) for a Table or an array, or raise TypeError or ValueError."""
    scale_by_freq = False
    if isinstance(table, Table):
        B, source, own, scale_by_freq = table.backend, table._source, table.padding_idx, table.scale_by_freq
    else:
        owner = find_array_backend(table)
        if owner is None or owner.dtype(table) not in owner.float_dtypes:
            raise TypeError(f"table: got {describe(table)}; accepted is a Table or a dense float array")
        if not owner.shape(table):
            raise ValueError("table: got a 0-d array; accepted is shape (rows, *row_shape)")
        B, source, own = owner, Source(table), None
    padding = resolve_padding_idx(padding_idx, B.shape(source.weights)[0])
    if own is not None and padding not in (None, own):
        raise ValueError(f"padding_idx: got {padding_idx}; accepted is the table's own, {own}")
    return B, source, LookupOptions(own if padding is None else padding, scale_by_freq)


def _read(request: _Request, bags: tuple[Reader, str, tuple[Array, ...]] | None = None) -> Array:
    """Return the table's rows at the ids, or bags of these rows. For an absent id, the row is arbitrary.

    `bags`, if not None, is (a function that reads bags, the combiner, (the segments, the bags) of a `BagLayout`).
    """
    B, source, ids, options, _, extras, present = request
    weights = source.weights
    if present is not None:
        with B.scope():
            if B.shape(weights)[0] == 0:  # the table has no rows, so all ids are absent
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
        padding = None if source.watched else options.padding_idx  # a watched table's padding is dropped later
        keep = members(B, ids, check_mask(B, mask, ids, rows), padding, None, in_range=True)
        if keep is not None:  # where keep is 0, no gradient flows to the row
            rows = B.where(B.equal(B.as_column(keep, rows), 0), B.stop_gradient(rows), rows)
    return rows if present is None else modes.run(zeros_where_false, B, (rows, present))


# ---------------------------------------------------------------------- bags
def _lookup_bags(request: _Request, layout: BagLayout, combiner: str, weights: Any) -> Array:
    B, source, ids, options, mask, _, present = request
    weights = _check_weights(B, weights, ids, source.weights)
    count, *row_shape = B.shape(source.weights)
    # True if bags can be read without copying their rows
    reads_bags = weights is None and combiner in LINEAR
    if source.recorder is None:  # then only if no gradient is being recorded
        reads_bags = reads_bags and not B.records_gradient(source.weights)
    else:  # no masks: a masked member gets zeros, and not its bag's gradient
        reads_bags = reads_bags and mask is None and hasattr(source.recorder, "bags")
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
    """Return an int32 array with the shape of ids: 1 for an id that counts in its bag, else 0. Return None if nothing
    can exclude an id.

    Traced ids that are out of range do not count, unless `in_range` is True.
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
