"""Define primitives that consist of several TensorFlow operations, such as sums and maxima of segments, membership of
ids, and reads that check ids.

May import: `tensorflow`, `numpy`, `islices.backend`, this folder.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from islices.backend import Array, Slots
from islices.backends.tensorflow.host_calls import compiled_by_xla, kernels_here


def number(segments: Array) -> Array:
    """Return the largest segment number plus one, or 0 if there are no segments."""
    return tf.reduce_max(tf.concat([[-1], tf.cast(segments, tf.int64)], 0)) + 1


def in_range(indices: Array, rows: int | None) -> Array:
    mask = tf.greater_equal(indices, 0)
    if rows is None or rows > tf.as_dtype(indices.dtype).max:
        return mask
    return tf.logical_and(mask, tf.less(indices, rows))


def isin(indices: Array, rows: Array) -> Array:
    indices, rows = tf.cast(indices, tf.int64), tf.cast(rows, tf.int64)
    if tuple(rows.shape) == (1,):
        return tf.equal(indices, rows)
    # prepend a number lower than any index, so that each index has an entry that is not above it
    ascending = tf.concat([[tf.int64.min], tf.sort(rows)], 0)
    return tf.equal(tf.gather(ascending, searchsorted(ascending, indices, right=True) - 1), indices)


def searchsorted(ordered: Array, queries: Array, *, right: bool) -> Array:
    bound = tf.raw_ops.UpperBound if right else tf.raw_ops.LowerBound
    ordered, queries = tf.cast(ordered, tf.int64), tf.cast(queries, tf.int64)
    return bound(sorted_inputs=ordered[None], values=queries[None], out_type=tf.int64)[0]


def sums_in_place(values: Array, indices: Array, rows: int | None) -> tuple[Array, Array]:
    """Sum duplicates without changing the number of slots. Return (sums, ids), sorted by id. The first slot of each row
    contains the sum, and its other slots contain zeros.

    XLA needs this function, because it has no operation whose result length depends on values. Slots out of range also
    become zeros (SPEC clause 2).
    """
    order = tf.argsort(indices, stable=True)
    ids, values = tf.gather(indices, order), tf.gather(values, order)
    first = tf.concat([tf.ones_like(ids[:1], tf.bool), ids[1:] != ids[:-1]], 0)
    place = tf.cumsum(tf.cast(first, tf.int32)) - 1
    wide = tf.float32 if values.dtype.size == 2 else values.dtype  # SPEC clause 3
    sums = tf.cast(tf.math.unsorted_segment_sum(tf.cast(values, wide), place, tf.shape(ids)[0]), values.dtype)
    holds = tf.reshape(first & in_range(ids, rows), [-1] + [1] * (len(values.shape) - 1))
    return tf.where(holds, tf.gather(sums, place), tf.zeros((), values.dtype)), ids


def refuse_xla(operation: str) -> None:
    """Raise ValueError if XLA compiles the graph. XLA does not support an operation whose result has a length that
    depends on values."""
    if compiled_by_xla():
        raise ValueError(
            f"jit_compile: got True around {operation}; accepted is False, since shapes are fixed in XLA "
            "(norm, global_norm, clip_by_norm, clip_by_global_norm, and operations that keep all slots run there)"
        )


def in_table(values: Array, ids: Array, rows: int | Array) -> tuple[Array, Array]:
    """Return the slots whose ids are in range. In eager code, ids have already been checked, so return all slots.

    Within XLA, return all slots too, but replace ids out of range by `rows`. The scatter ignores this id. XLA would pad
    a selection of slots, and the scatter would write the padding.
    """
    if tf.executing_eagerly():
        return values, ids
    wide = tf.cast(ids, tf.int64)
    valid = tf.logical_and(wide >= 0, wide < rows)
    if compiled_by_xla():
        return values, tf.where(valid, wide, tf.cast(rows, tf.int64))
    slots = tf.where(valid)[:, 0]
    return tf.gather(values, slots), tf.gather(ids, slots)


def slots_in_place(x: Slots) -> Slots:
    """Return slots whose norm is the norm that `x` has after duplicates are summed. The new slots contain each row's
    sum once, and otherwise zeros. A dense leaf stays unchanged."""
    if x.indices is None:
        return x
    values = x.values if x.positions is None else tf.gather(x.values, x.positions)
    return Slots(sums_in_place(values, x.indices, x.rows)[0])


def segment_max(values: Array, segments: Array, count: int | None, *, least: float | None = None) -> Array:
    count = number(segments) if count is None else count
    highest = tf.math.unsorted_segment_max(values, segments, count)
    if not values.dtype.is_floating:
        return highest
    # TensorFlow's maximum starts from the lowest finite number, and whether it returns NaN depends on the position of
    # the NaN
    lowest = tf.constant(-np.inf if least is None else least, values.dtype)
    rank = tf.where(values > lowest, 1, tf.where(tf.math.is_nan(values), 2, 0))
    top = tf.math.unsorted_segment_max(rank, segments, count)
    # take NaN only from NaN values, so that check_numerics finds no other NaN
    nan = tf.math.unsorted_segment_sum(tf.where(rank == 2, values, tf.zeros_like(values)), segments, count)
    return tf.where(top == 2, nan, tf.where(top == 1, highest, lowest))


def fold_rows(op: str, rows: Array, values: Array, segments: Array) -> Array:
    """Multiply or divide each row by the values of its segment, one value after the other. Step k of the loop applies
    the k-th value of each segment."""
    if rows_hold_nothing(values):
        return rows
    segments = tf.cast(segments, tf.int64)
    n = tf.size(segments, tf.int64)
    order = tf.argsort(segments, stable=True)
    ordered, places = tf.gather(segments, order), tf.range(n)
    first = tf.math.unsorted_segment_min(places, ordered, tf.shape(rows, tf.int64)[0])
    layer = tf.gather(places - tf.gather(first, ordered), tf.math.invert_permutation(order))

    def step(k: Array, out: Array) -> tuple[Array, Array]:
        slots = tf.where(tf.equal(layer, k))[:, 0]
        at, change = tf.gather(segments, slots), tf.gather(values, slots)
        old = tf.gather(out, at)
        return k + 1, tf.tensor_scatter_nd_update(out, at[:, None], old * change if op == "mul" else old / change)

    layers = tf.reduce_max(tf.concat([[-1], layer], 0)) + 1
    return tf.while_loop(lambda k, _: k < layers, step, (tf.constant(0, tf.int64), rows))[1]


def read_checked(table: Array, ids: Array) -> Array:
    """Return ``table[ids]``. An id out of range gets zeros. The shape of `ids` may be unknown."""
    rows, row_shape = table.shape[0], tuple(table.shape)[1:]
    if rows == 0:
        return tf.zeros(tf.concat([tf.shape(ids), np.array(row_shape, np.int32)], 0), table.dtype)
    valid = in_range(ids, rows)
    found = tf.gather(table, tf.where(valid, ids, tf.zeros_like(ids)))

    def masked() -> Array:
        column = tf.reshape(valid, tf.concat([tf.shape(valid), np.ones(len(row_shape), np.int32)], 0))
        return tf.where(column, found, tf.zeros_like(found))

    return unless_all(valid, found, masked)


def unless_all(mask: Array, arrays: Any, otherwise: Callable[[], Any]) -> Any:
    """Return the arrays if a traced mask is True everywhere, else the result of `otherwise`.

    Usually the mask is True everywhere, and nothing is copied. If kernels cannot run, return the result of `otherwise`
    for every mask.
    """
    if kernels_here() is None:
        return otherwise()
    return tf.cond(tf.reduce_all(mask), lambda: arrays, otherwise)


def scatter(values: Array, ids: Array, shape: Sequence[Any]) -> Array:
    """Make an array of zeros, add each ``values[k]`` to row ``ids[k]``, and return the array. On CPUs, the order of the
    additions is the order of k. `shape`, the shape of this array, may contain tensors."""
    if rows_hold_nothing(values):
        return tf.zeros(shape, values.dtype)
    return tf.scatter_nd(tf.cast(ids, tf.int64)[:, None], values, tf.convert_to_tensor(shape, tf.int64))


def rows_hold_nothing(values: Array) -> bool:
    """Return True if rows have no elements. TensorFlow's scatter operations raise errors for empty rows."""
    return 0 in tuple(values.shape)[1:]
