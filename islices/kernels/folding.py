"""Sum the rows with the same index, from left to right in order of occurrence (SPEC clause 3).

One thread computes each sum, in the memory of the result; sums of 16-bit rows are computed in a float32 buffer and
rounded once. May import: `numpy`, this folder.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from islices.kernels.compiling import (
    INTEGER,
    ONE,
    PLACES,
    ZERO,
    Kernel,
    compile_kernel,
    inline,
    matrix,
    prefetch,
    vector,
)
from islices.kernels.grouping import group_kernel
from islices.kernels.halves import FORMATS

#: how many slots ahead a row is prefetched, and how many of its cache lines: rows lie anywhere in memory, and without
#: prefetching a quarter of the time is spent waiting for them
AHEAD, LINES = 8, 4


@cache
def term_of(dtype: str, *, scaled: bool) -> Any:
    """Return the function with which other kernels read a stored number; see `term`."""
    form = FORMATS[dtype]
    load, store, half = form.load, form.store, form.half

    def term(x, factor):
        """Return a stored number in the dtype of sums.

        If `scaled` is True, first multiply the number by the factor, and round the product to the stored dtype.
        """
        y = load(x)
        if scaled:
            y = load(store(y * factor)) if half else y * factor
        return y

    return inline(term)


@cache
def add_up(dtype: str, *, scaled: bool = False) -> Any:
    """Return the function with which other kernels sum rows of values; see `add`."""
    line, term = 64 // FORMATS[dtype].stored.itemsize, term_of(dtype, scaled=scaled)

    def look_ahead(values, order, k):
        """Prefetch the first cache lines of the row order[k + AHEAD]. The processor loads the rest of the row
        itself."""
        later = k + np.uint64(AHEAD)
        if later < np.uint64(len(order)):
            row = order[later]
            for j in range(ZERO, min(np.uint64(values.shape[1]), np.uint64(LINES * line)), np.uint64(line)):
                prefetch(values, row, j)

    fetch = inline(look_ahead)

    def add(values, order, begin, end, factor, out, row):
        """Set out[row] to the sum of the rows of values at order[begin:end], added left to right.

        There is at least one row.
        """
        width = np.uint64(values.shape[1])  # unsigned like every index: numba checks signed indices at each step
        fetch(values, order, begin)
        p = order[begin]
        for j in range(width):
            out[row, j] = term(values[p, j], factor)
        k = begin + ONE
        while k + np.uint64(3) < end:  # four rows at a time: the sum is read and written once for all four
            for t in range(k, k + np.uint64(4)):
                fetch(values, order, t)
            p, q = order[k], order[k + ONE]
            r, s = order[k + np.uint64(2)], order[k + np.uint64(3)]
            for j in range(width):
                some = (out[row, j] + term(values[p, j], factor)) + term(values[q, j], factor)
                out[row, j] = (some + term(values[r, j], factor)) + term(values[s, j], factor)
            k += np.uint64(4)
        while k < end:
            fetch(values, order, k)
            p = order[k]
            for j in range(width):
                out[row, j] += term(values[p, j], factor)
            k += ONE

    return inline(add)


@cache
def fold_kernel(dtype: str) -> Kernel:
    """Return the kernel that sums rows of values of a dtype; see `fold`."""
    form = FORMATS[dtype]
    add, store, wide_type, half = add_up(dtype), form.store, form.wide, form.half

    def fold(values, order, starts, ids, out, first, last):
        """Set out[ids[r]] to the sum of the rows of values at order[starts[r]:starts[r + 1]], for first <= r < last.

        If `ids` is empty, set out[r] instead.
        """
        wide = np.empty((1, values.shape[1] if half else 0), wide_type)
        in_order = len(ids) == 0
        for r in range(np.uint64(first), np.uint64(last)):
            row = r if in_order else ids[r]
            if half:
                add(values, order, starts[r], starts[r + ONE], 1, wide, ZERO)
                for j in range(np.uint64(values.shape[1])):
                    out[row, j] = store(wide[0, j])
            else:
                add(values, order, starts[r], starts[r + ONE], 1, out, row)

    arguments = (matrix(form.stored, readonly=True), PLACES, PLACES, PLACES, matrix(form.stored), INTEGER, INTEGER)
    return compile_kernel(fold, arguments)


@cache
def sum_kernel(dtype: str, index: np.dtype[Any]) -> Kernel:
    """Return the kernel that groups int32 or int64 indices and sums values of a dtype; see `grouped_sum`."""
    stored, fold, group = FORMATS[dtype].stored, fold_kernel(dtype), group_kernel(index)

    def grouped_sum(values, indices, rows, sums, ids):
        """Return (count, at, first): the number of distinct indices, and the positions at which the results start in
        `sums` and `ids`.

        `count` is -1 if the indices cannot be grouped or an index is not below `rows`. The results start at addresses
        that are aligned as frameworks require.
        """
        n, width = values.shape
        order, starts = np.empty(n, np.uint64), np.empty(n + 1, np.uint64)
        at = -np.int64(sums.ctypes.data) % 64 // sums.itemsize
        first = -np.int64(ids.ctypes.data) % 64 // ids.itemsize
        count = group(indices, order, starts, ids[first : first + n])
        if count > 0 and ids[first + count - 1] >= rows:
            count = -1
        if count > 0:
            fold(values, order, starts, starts[:0], sums[at : at + n * width].reshape((n, width)), 0, count)
        return count, at, first

    given = (matrix(stored, readonly=True), vector(index, readonly=True), INTEGER)
    return compile_kernel(grouped_sum, (*given, vector(stored), vector(index)))
