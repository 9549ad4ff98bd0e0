"""Group slots with equal indices by a stable radix sort of (index, position) pairs packed into 64-bit numbers.

For indices of a given number of bits, the cost is proportional to the number of slots. Grouping needs at most 24 bytes
of memory per slot, including the result, and small tables of counts. SPEC clauses 3 and 4. May import: `numpy`,
`islices.kernels.compiling`.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from islices.kernels.compiling import ONE, PLACES, ZERO, Kernel, compile_kernel, inline, vector

#: the largest number of bits that one pass sorts by; the pass's table of counts fits the first-level cache
DIGIT = 11
#: the type of order, starts and other arrays of positions
WRITTEN = vector(np.uint64)


def _group(indices, order, starts, ids):
    """Group indices and return the number of distinct indices.

    If an index is negative or too large to pack, write nothing and return -1. The arrays are `indices` (n,), `order`
    (n,) uint64, `starts` (n + 1,) uint64 and `ids` (n,) with the dtype of `indices`. `order` gets the positions, sorted
    by index and then by position. `starts` gets the position in `order` where the run of each distinct index begins,
    and then n. `ids` gets the distinct indices, in ascending order.
    """
    n = len(indices)
    if n == 0:
        starts[0] = 0
        return 0
    lowest = highest = indices[0]
    ascending = True
    for i in range(1, n):
        x = indices[i]
        ascending &= indices[i - 1] <= x
        lowest, highest = min(lowest, x), max(highest, x)
    bits = 1
    while bits < 63 and (np.int64(highest) >> bits) > 0:
        bits += 1
    shift = 0
    while (n >> shift) > 0:
        shift += 1
    if lowest < 0 or bits + shift > 64:
        return -1
    passes = 0 if ascending else (bits + min(DIGIT, shift) - 1) // min(DIGIT, shift)
    # the last pass must write into order, because starts is overwritten after the sort
    source, target = (order, starts) if passes % 2 == 0 else (starts, order)
    by = np.uint64(shift)
    for i in range(n):
        source[i] = (np.uint64(indices[i]) << by) | np.uint64(i)
    if passes > 0:
        _sort(source, target, n, shift, passes, (bits + passes - 1) // passes)
    mask = (ONE << by) - ONE
    count = ZERO
    last = ~ZERO  # differs from every index, since an index has at most 63 bits
    for i in range(n):
        x = order[i]
        index = x >> by
        if index != last:
            ids[count] = index
            starts[count] = i
            count += ONE
        last = index
        order[i] = x & mask
    starts[count] = n
    return np.int64(count)


def _sort_by_digits(source, target, n, shift, passes, width):
    """Sort the first n numbers of `source` stably by their bits above the lowest `shift` bits.

    Each pass reads one of `source` and `target` and writes the other. So the result is in `target` if `passes` is odd,
    else in `source`.
    """
    size = 1 << width
    mask = np.uint64(size - 1)
    counts = np.zeros((passes, size), np.uint64)
    for i in range(n):
        x = source[i] >> np.uint64(shift)
        for k in range(passes):
            counts[k, (x >> np.uint64(k * width)) & mask] += ONE
    for k in range(passes):
        places = counts[k]
        total = ZERO
        for d in range(size):
            total, places[d] = total + places[d], total
        by = np.uint64(shift + k * width)
        for i in range(n):
            x = source[i]
            digit = (x >> by) & mask
            place = places[digit]
            places[digit] = place + ONE
            target[place] = x
        source, target = target, source


_sort = inline(_sort_by_digits)


@cache
def group_kernel(dtype: np.dtype[Any]) -> Kernel:
    """Return `_group` compiled for int32 or int64 indices."""
    return compile_kernel(_group, (vector(dtype, readonly=True), WRITTEN, WRITTEN, vector(dtype)))


def _placed(positions, order, places):
    """Write positions[order] to `places`."""
    for i in range(np.uint64(len(order))):
        places[i] = positions[order[i]]


@cache
def placed_kernel(dtype: np.dtype[Any]) -> Kernel:
    """Return `_placed` compiled for int32 or int64 positions."""
    return compile_kernel(_placed, (vector(dtype, readonly=True), PLACES, WRITTEN))


def _runs(segments, starts, named):
    """Return the number of distinct values in ascending `segments`, and write these values to `named`.

    `starts` gets the position where each run of equal values begins, and then the length of `segments`.
    """
    count = ZERO
    for i in range(np.uint64(len(segments))):
        if i == ZERO or segments[i] != segments[i - ONE]:
            named[count] = segments[i]
            starts[count] = i
            count += ONE
    starts[count] = len(segments)
    return np.int64(count)


@cache
def runs_kernel(dtype: np.dtype[Any]) -> Kernel:
    """Return `_runs` compiled for int32 or int64 segments."""
    return compile_kernel(_runs, (vector(dtype, readonly=True), WRITTEN, WRITTEN))


def _bounds(indices):
    lowest = highest = indices[0]
    ascending = True
    for i in range(ONE, np.uint64(len(indices))):
        lowest, highest = min(lowest, indices[i]), max(highest, indices[i])
        ascending &= indices[i - ONE] < indices[i]
    return lowest, highest, ascending


@cache
def bounds_kernel(dtype: np.dtype[Any]) -> Kernel:
    """Return the compiled function that maps indices to (smallest, largest, True if they strictly ascend)."""
    return compile_kernel(_bounds, (vector(dtype, readonly=True),))
