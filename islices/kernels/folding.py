"""Sums of the rows that share an index, left to right in order of occurrence (SPEC clause 3).

A row is summed by one thread, in the place where it goes; 16-bit rows in float32, rounded once.
May import: `numpy`, this folder.
"""

from __future__ import annotations

from functools import cache
from typing import Any, cast

import numpy as np

from islices.kernels.compiling import INTEGER, Kernel, compile_kernel, inline, matrix, prefetch, vector
from islices.kernels.grouping import group_kernel
from islices.kernels.halves import FORMATS

#: Slots that memory is asked for in advance, and cache lines of each: rows lie anywhere, and waiting for one after the
#: other took a quarter of the time.
AHEAD, LINES = 8, 4


def _fetch(values: Any, order: Any, k: Any) -> None:
    """Ask for the beginning of the row that is read `AHEAD` slots after order[k]; the rest comes by itself."""
    later = k + np.uint64(AHEAD)
    if later < np.uint64(len(order)):
        row = order[later]
        for j in range(np.uint64(0), min(np.uint64(values.shape[1]), np.uint64(LINES * LINE)), np.uint64(LINE)):
            prefetch(values, row, j)


def _term(x: Any, factor: Any) -> Any:
    """A stored number in the type of sums; if SCALED, times the factor and rounded as if it were stored."""
    y = load(x)
    if SCALED:
        y = load(store(y * factor)) if HALF else y * factor
    return y


def _add_up(values: Any, order: Any, begin: Any, end: Any, factor: Any, out: Any, row: Any) -> None:
    """out[row] = the sum of the rows order[begin:end] of values, left to right; at least one."""
    width = np.uint64(values.shape[1])  # unsigned, as every index: numba looks for negative ones at each step else
    fetch(values, order, begin)
    p = order[begin]
    for j in range(width):
        out[row, j] = term(values[p, j], factor)
    k = begin + np.uint64(1)
    while k + np.uint64(3) < end:  # by fours: the sum is read and written once for all
        for t in range(k, k + np.uint64(4)):
            fetch(values, order, t)
        p, q = order[k], order[k + np.uint64(1)]
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
        k += np.uint64(1)


@cache
def term_of(dtype: str, *, scaled: bool) -> Any:
    """`_term` for values of a dtype, for other kernels to call."""
    form = FORMATS[dtype]
    return inline(_term, load=form.load, store=form.store, SCALED=scaled, HALF=form.stored is np.uint16)


@cache
def add_up(dtype: str, *, scaled: bool = False) -> Any:
    """`_add_up` for values of a dtype, for other kernels to call."""
    line = 64 // np.dtype(FORMATS[dtype].stored).itemsize
    return inline(_add_up, term=term_of(dtype, scaled=scaled), fetch=inline(_fetch, LINE=line))


def _fold(values: Any, order: Any, starts: Any, ids: Any, out: Any, first: Any, last: Any) -> None:
    """out[ids[r]] = the sum of the rows order[starts[r]:starts[r + 1]] of values, first <= r < last; no ids: out[r]."""
    wide = np.empty((1, values.shape[1] if HALF else 0), WIDE)
    in_order = len(ids) == 0
    for r in range(first, last):
        fold_row(values, order, starts, out, wide, np.uint64(r), np.uint64(r) if in_order else ids[r])


def _fold_row(values: Any, order: Any, starts: Any, out: Any, wide: Any, r: Any, row: Any) -> None:
    if HALF:
        add(values, order, starts[r], starts[r + np.uint64(1)], 1, wide, np.uint64(0))
        for j in range(np.uint64(values.shape[1])):
            out[row, j] = store(wide[0, j])
    else:
        add(values, order, starts[r], starts[r + np.uint64(1)], 1, out, row)


def _sum(values: Any, indices: Any, rows: Any, sums: Any, ids: Any) -> Any:
    """(how many rows the indices name, where in sums they begin, where in ids their numbers do); -1 for the first where
    `grouping` answers so, or an index is not below rows. sums and ids are flat, with room for as many rows as values
    has, from a multiple of 64 on."""
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


# what the functions above leave open
add = fetch = fold = fold_row = group = load = store = term = cast(Any, None)
HALF = SCALED = False
LINE = 16
WIDE: Any = np.float32


@cache
def fold_kernel(dtype: str) -> Kernel:
    """The compiled `_fold` for values of a dtype."""
    form, places = FORMATS[dtype], vector(np.uint64, readonly=True)
    half = form.stored is np.uint16
    row = inline(_fold_row, HALF=half, add=add_up(dtype), store=form.store)
    arguments = (matrix(form.stored, readonly=True), places, places, places, matrix(form.stored), INTEGER, INTEGER)
    return compile_kernel(_fold, arguments, fold_row=row, WIDE=form.wide, HALF=half)


@cache
def sum_kernel(dtype: str, index: np.dtype[Any]) -> Kernel:
    """The compiled `_sum` for values of a dtype and int32 or int64 indices."""
    stored = FORMATS[dtype].stored
    given = (matrix(stored, readonly=True), vector(index, readonly=True), INTEGER)
    arguments = (*given, vector(stored), vector(index))
    return compile_kernel(_sum, arguments, fold=fold_kernel(dtype), group=group_kernel(index))
