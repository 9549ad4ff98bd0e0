"""Sums of the rows that share an index, left to right in order of occurrence (SPEC clause 3).

A row is summed by one thread, in the place where it goes; 16-bit rows in float32, rounded once. May import: numba,
NumPy, `islices.kernels.compiling` and `halves`.
"""

from __future__ import annotations

from functools import cache
from typing import Any, cast

import numpy as np

from islices.kernels.compiling import INTEGER, Kernel, compile_kernel, inline, matrix, vector
from islices.kernels.halves import FORMATS

__all__ = ["add_up", "fold_kernel"]


def _add_up(values: Any, order: Any, begin: Any, end: Any, out: Any, row: Any) -> None:
    """out[row] = the sum of the rows order[begin:end] of values, left to right; at least one."""
    width = np.uint64(values.shape[1])  # unsigned, as every index: numba looks for negative ones at each step else
    p = order[begin]
    for j in range(width):
        out[row, j] = load(values[p, j])
    k = begin + np.uint64(1)
    while k + np.uint64(3) < end:  # by fours: the sum is read and written once for all
        p, q = order[k], order[k + np.uint64(1)]
        r, s = order[k + np.uint64(2)], order[k + np.uint64(3)]
        for j in range(width):
            some = (out[row, j] + load(values[p, j])) + load(values[q, j])
            out[row, j] = (some + load(values[r, j])) + load(values[s, j])
        k += np.uint64(4)
    while k < end:
        p = order[k]
        for j in range(width):
            out[row, j] += load(values[p, j])
        k += np.uint64(1)


@cache
def add_up(dtype: str) -> Any:
    """`_add_up` for values of a dtype, for other kernels to call."""
    return inline(_add_up, load=FORMATS[dtype].load)


def _fold(values: Any, order: Any, starts: Any, out: Any, first: Any, last: Any) -> None:
    """out[r] = the sum of the rows order[starts[r]:starts[r + 1]] of values, first <= r < last."""
    wide = np.empty((1, values.shape[1] if HALF else 0), WIDE)
    for r in range(first, last):
        fold_row(values, order, starts, out, wide, np.uint64(r), np.uint64(r))


def _scatter_fold(values: Any, order: Any, starts: Any, ids: Any, out: Any, first: Any, last: Any) -> None:
    """The same, into out[ids[r]]."""
    wide = np.empty((1, values.shape[1] if HALF else 0), WIDE)
    for r in range(first, last):
        fold_row(values, order, starts, out, wide, np.uint64(r), np.uint64(ids[r]))


def _fold_row(values: Any, order: Any, starts: Any, out: Any, wide: Any, r: Any, row: Any) -> None:
    if HALF:
        add(values, order, starts[r], starts[r + np.uint64(1)], wide, np.uint64(0))
        for j in range(np.uint64(values.shape[1])):
            out[row, j] = store(wide[0, j])
    else:
        add(values, order, starts[r], starts[r + np.uint64(1)], out, row)


# what the functions above leave open
add = fold_row = load = store = cast(Any, None)
HALF = False
WIDE: Any = np.float32


@cache
def fold_kernel(dtype: str, index: str) -> Kernel:
    """The compiled `_fold` for values of a dtype; with a dtype of ids, the compiled `_scatter_fold`."""
    form, places = FORMATS[dtype], vector(np.uint64, readonly=True)
    half = form.stored is np.uint16
    row = inline(_fold_row, HALF=half, add=add_up(dtype), store=form.store)
    ids = (vector(np.dtype(index), readonly=True),) if index else ()
    arguments = (matrix(form.stored, readonly=True), places, places, *ids, matrix(form.stored), INTEGER, INTEGER)
    return compile_kernel(_scatter_fold if index else _fold, arguments, fold_row=row, WIDE=form.wide, HALF=half)
