"""The operations that compiled handlers run, as templates: a part of each, on a frame's buffers.

One operation groups the slots. Those that sum, measure or step rows take the groups as operands, so that XLA, which
runs equal calls once, groups for a norm and a step together. A part raises nothing, and its sizes are those of the
buffers.

May import: `numpy`, this folder, `islices.kernels`, `islices.optim.formulas`.
"""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any, cast

import numpy as np

from islices.backends.jax.host_calls.frames import DATA, add, attribute, matrix, operand, result, target, vector, words
from islices.kernels import squares, totals
from islices.kernels.compiling import inline
from islices.kernels.folding import fold_kernel
from islices.kernels.grouping import group_kernel
from islices.kernels.halves import FORMATS
from islices.kernels.squares import BLOCK
from islices.kernels.totals import LIMBS
from islices.kernels.updating import step_kernel
from islices.optim.formulas import Formula

__all__ = ["available", "bins", "bins_shape", "groups", "step", "sums", "total"]


def _groups(frame: Any, part: Any, parts: Any) -> None:
    """(indices, positions if MOVED; rows, values) to (order, starts, named, ids) and memory: where the slots' values
    lie, sorted by index and stably; where each row's begin; how many rows have slots; which, then `rows`."""
    indices, within, rows = vector(operand(frame, 0), INDEX), vector(result(frame, 4), I64), attribute(frame, 1)
    order, starts = vector(result(frame, 0), U64), vector(result(frame, 1), U64)
    named, ids = vector(result(frame, 2), I64), vector(result(frame, 3), I64)
    for i in range(len(indices)):
        within[i] = indices[i] if 0 <= indices[i] < rows else rows
    count = group(within, order, starts, ids)
    named[0] = count - 1 if ids[count - 1] == rows else count
    for i in range(named[0], len(ids)):
        ids[i] = rows
    if MOVED:
        positions, last = vector(operand(frame, 1), PLACE), attribute(frame, 2) - 1
        for i in range(len(order)):
            order[i] = min(max(positions[order[i]], 0), last)


# ---------------------------------------------------------------------- rows; operands begin with values and groups
def _cut(starts: Any, named: Any, part: Any, parts: Any, multiple: Any) -> Any:
    """Return the first row of a part, a multiple, where all parts have about as many slots."""
    wanted = starts[named] * np.uint64(part) // np.uint64(parts)
    first, last = np.int64(0), np.int64(named)
    while first < last:
        middle = (first + last) // np.int64(2)
        if starts[middle] < wanted:
            first = middle + np.int64(1)
        else:
            last = middle
    return named if part == parts else first // multiple * multiple


def _sums(frame: Any, part: Any, parts: Any) -> None:
    """(..., ids) to (sums, then zeros; ids as indices); of BAGS to the sums, each in the row of its id, and zeros."""
    values, order = matrix(operand(frame, 0), VALUES), vector(operand(frame, 1), U64)
    starts, named = vector(operand(frame, 2), U64), vector(operand(frame, 3), I64)[0]
    ids, sums = vector(operand(frame, 4), U64), matrix(result(frame, 0), VALUES)
    first, last = cut(starts, named, part, parts, 1), cut(starts, named, part + 1, parts, 1)
    if BAGS:
        fold(values, order, starts, ids, sums, first, last)
        done = np.int64(ids[first - 1]) + 1 if first > 0 else 0
        for r in range(first, last):
            sums[done : np.int64(ids[r])] = 0
            done = np.int64(ids[r]) + 1
        if part + 1 == parts:
            sums[done:] = 0
    else:
        fold(values, order, starts, ids[:0], sums, first, last)
        spare, n, found = len(sums) - named, len(ids), vector(result(frame, 1), INDEX)
        sums[named + spare * part // parts : named + spare * (part + 1) // parts] = 0
        for i in range(n * part // parts, n * (part + 1) // parts):
            found[i] = ids[i]


def _step(frame: Any, part: Any, parts: Any) -> None:
    """(..., ids, numbers, table, *states) to (table, *states) in the same place."""
    values, order, starts = (
        matrix(operand(frame, 0), VALUES),
        vector(operand(frame, 1), U64),
        vector(operand(frame, 2), U64),
    )
    named, ids = vector(operand(frame, 3), I64)[0], vector(operand(frame, 4), U64)
    numbers, table = vector(operand(frame, 5), WIDE), matrix(result(frame, 0), TABLE)
    first, last = cut(starts, named, part, parts, 1), cut(starts, named, part + 1, parts, 1)
    change(values, order, starts, ids, table, states(frame), numbers, first, last)


#: States by their number: a tuple's length belongs to its type.
_STATES = (
    lambda frame: (),
    lambda frame: (matrix(result(frame, 1), WIDE),),
    lambda frame: (matrix(result(frame, 1), WIDE), matrix(result(frame, 2), WIDE)),
    lambda frame: (matrix(result(frame, 1), WIDE), matrix(result(frame, 2), WIDE), matrix(result(frame, 3), WIDE)),
)


# ---------------------------------------------------------------------- norms
def _bins(frame: Any, part: Any, parts: Any) -> None:
    """(zeros, values), or of ROWS (zeros, values, order, starts, named), to the zeros: the bins of the terms of the
    values, or of their rows' sums, which are kept nowhere."""
    own = np.zeros((COUNT, 4), I64)
    if ROWS:
        values, order, starts = (
            matrix(operand(frame, 1), VALUES),
            vector(operand(frame, 2), U64),
            vector(operand(frame, 3), U64),
        )
        named, block = vector(operand(frame, 4), I64)[0], max(1, BLOCK // values.shape[1])
        first, last = cut(starts, named, part, parts, block), cut(starts, named, part + 1, parts, block)
        measure(values, order, starts, first, last, own)
    else:
        flat = vector(operand(frame, 1), VALUES)
        blocks = (len(flat) + BLOCK - 1) // BLOCK
        first, last = blocks * part // parts * BLOCK, min(blocks * (part + 1) // parts * BLOCK, len(flat))
        measure(flat.reshape((1, len(flat))), first, last, own)
    for k in range(COUNT):
        for j in range(4):
            if own[k, j]:
                add(words(result(frame, 0))[DATA], 4 * k + j, own[k, j])


def _total(frame: Any, part: Any, parts: Any) -> None:
    """Bins of several leaves to the norm that they hold together, shape (1,); -1 if undecided."""
    limbs = np.zeros(LIMBS + 3, I64)
    for k in range(words(frame)[OPERANDS]):
        add_bins(matrix(operand(frame, k), I64), ORD, limbs)
    vector(result(frame, 0), F64)[0] = rounded(limbs, ORD)


# what the functions above leave open
add_bins = change = cut = fold = group = measure = rounded = states = cast(Any, None)
BAGS = MOVED = ROWS = False
COUNT = ORD = 0
VALUES = INDEX = TABLE = PLACE = cast(Any, None)
WIDE: Any = None
I64, U64, F64 = np.int64, np.uint64, np.float64
OPERANDS = 7


# ---------------------------------------------------------------------- the names by which XLA calls them
@cache
def groups(index: str, place: str | None = None) -> str:
    group = group_kernel(np.dtype(np.int64))
    return target(_groups, group=group, INDEX=np.dtype(index), PLACE=np.dtype(place or index), MOVED=place is not None)


@cache
def sums(dtype: str, index: str = "") -> str:
    stored, cut_at = np.dtype(FORMATS[dtype].stored), inline(_cut)
    index_type = np.dtype(index or np.int64)
    return target(_sums, fold=fold_kernel(dtype), cut=cut_at, VALUES=stored, INDEX=index_type, BAGS=not index)


@cache
def bins(dtype: str, ord: int, *, rows: bool, exact: bool) -> str:
    measure, stored = squares.rows_kernel if rows else squares.dense_kernel, np.dtype(FORMATS[dtype].stored)
    count = bins_shape(dtype, exact=exact)[0]
    return target(_bins, measure=measure(dtype, ord, exact), cut=inline(_cut), VALUES=stored, COUNT=count, ROWS=rows)


def bins_shape(dtype: str, *, exact: bool) -> tuple[int, int]:
    return totals.EXACT if exact else squares.BINS["float64" if dtype == "float64" else "float32"], 4


@cache
def total(ord: int, *, exact: bool) -> str:
    add_bins = totals.add_exact_kernel() if exact else totals.add_bins_kernel()
    return target(_total, add_bins=add_bins, rounded=totals.round_kernel(), ORD=ord)


def step(formula: Formula, table: str, gradient: str, *, scaled: bool) -> str:
    form, states = FORMATS[table], inline(_STATES[len(formula.state)], WIDE=np.dtype(FORMATS[table].wide))
    return target(
        _step, change=step_kernel(formula, table, gradient, scaled=scaled), states=states, cut=inline(_cut),
        WIDE=np.dtype(form.wide), VALUES=np.dtype(FORMATS[gradient].stored), TABLE=np.dtype(form.stored),
    )  # fmt: skip


@cache
def available() -> bool:
    """Whether XLA takes the handlers: it refuses those that are written to another version of its API."""
    try:
        groups("int32")
    except (RuntimeError, TypeError, ValueError) as error:
        warnings.warn(f"islices computes without compiled kernels in jitted code: {error}", stacklevel=2)
        return False
    return True
