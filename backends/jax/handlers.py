"""The handlers that numba compiles for XLA, as templates: what each does with a frame.

One groups the slots; what sums, measures or steps rows takes the groups as operands, so that XLA, which runs equal
calls once, groups for a norm and a step together. Rows are shared among threads (`tasks`): those templates have a
frame, the number of a mapped call, a part and the number of parts as arguments. A handler raises nothing, and its
sizes are those of the operands. May import: `numba`, `numpy`, this folder, `islices.kernels`.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np
from numba import carray

from islices.backends.jax.frames import (
    DATA,
    attribute,
    axis,
    data,
    huge,
    introduced,
    operand,
    operands,
    rank,
    result,
    size,
    word,
)
from islices.backends.jax.tasks import add_atomically, num_threads
from islices.kernels.squares import BLOCK
from islices.kernels.totals import LIMBS

__all__ = [
    "STATES",
    "bins_of_all",
    "bins_of_rows",
    "clear",
    "cut",
    "give",
    "group_named",
    "groups",
    "huge_sums",
    "in_parts",
    "members",
    "nothing",
    "places",
    "read_bags",
    "scaled",
    "state",
    "step",
    "sum_rows",
    "total",
    "zero_sums",
]

#: Elements that are worth a second thread, and the least for a part; parts for each thread.
SHARED, LEAST, PARTS = 1 << 19, 1 << 16, 4


# ---------------------------------------------------------------------- groups
def group_named(indices: Any, rows: Any, ids: Any, order: Any, starts: Any, within: Any) -> Any:
    """How many rows have slots: their numbers are first in ids, the rest of which holds rows. order and starts as
    `islices.kernels.grouping` has them, what names no row last. within, as indices, is memory to work in."""
    n = len(indices)
    for i in range(n):
        within[i] = indices[i] if 0 <= indices[i] < rows else rows
    count = group(within, order, starts, ids)
    named = count - 1 if ids[count - 1] == rows else count
    for i in range(named, n):
        ids[i] = rows
    return named


# The leading axes of indices are mapped ones: a call for each.
def groups(frame: Any) -> Any:
    """(indices, positions if MOVED; rows, then how many values there are if MOVED) to (order, starts, ids, named) and
    memory: see `islices.backends.jax.grouping.groups_on_host`."""
    if introduced(frame):
        return 0
    rows, n = attribute(frame, 0), axis(operand(frame, 0), rank(operand(frame, 0)) - 1)
    calls = size(operand(frame, 0), 0) // n
    indices = carray(data(operand(frame, 0)), (calls, n), INDEX)
    order, starts = carray(data(result(frame, 0)), (calls, n), U64), carray(data(result(frame, 1)), (calls, n + 1), U64)
    ids, named = carray(data(result(frame, 2)), (calls, n), INDEX), carray(data(result(frame, 3)), calls, I64)
    within = carray(data(result(frame, 4)), n, INDEX)
    for c in range(calls):
        named[c] = group(indices[c], rows, ids[c], order[c], starts[c], within)
    if MOVED:
        positions, last = carray(data(operand(frame, 1)), (calls, n), PLACE), attribute(frame, 1) - 1
        for c in range(calls):
            for k in range(n):
                order[c, k] = min(max(positions[c, order[c, k]], 0), last)
    return 0


def places(frame: Any) -> Any:
    """(order, starts, named) to the place of each slot's row: see `islices.backends.jax.grouping.group`."""
    if introduced(frame):
        return 0
    calls = size(operand(frame, 2), 0)
    n = size(operand(frame, 0), 0) // calls
    order = carray(data(operand(frame, 0)), (calls, n), U64)
    starts = carray(data(operand(frame, 1)), (calls, n + 1), U64)
    named, places = carray(data(operand(frame, 2)), calls, I64), carray(data(result(frame, 0)), (calls, n), I32)
    for c in range(calls):
        for r in range(named[c]):
            for k in range(starts[c, r], starts[c, r + 1]):
                places[c, order[c, k]] = r
        for k in range(starts[c, named[c]], n):
            places[c, order[c, k]] = named[c]
    return 0


def members(frame: Any) -> Any:
    """(ids, segments, which count if KEPT; bags, rows) to (order, starts, named, numbers) and memory: the rows that the
    members of bags name, those of a bag together; where each one's begin; how many bags have some, and which."""
    if introduced(frame):
        return 0
    bags, rows, n = attribute(frame, 0), attribute(frame, 1), size(operand(frame, 0), 0)
    ids, segments = carray(data(operand(frame, 0)), n, INDEX), carray(data(operand(frame, 1)), n, PLACE)
    order, starts = carray(data(result(frame, 0)), n, U64), carray(data(result(frame, 1)), n + 1, U64)
    numbers, within = carray(data(result(frame, 3)), n, U64), carray(data(result(frame, 4)), n, I64)
    kept = carray(data(operand(frame, 2 if KEPT else 0)), n, MASK)
    count, ascending = 0, True
    for k in range(n):
        counts = kept[k] != 0 if KEPT else True
        if counts and 0 <= segments[k] < bags and 0 <= ids[k] < rows:
            order[count], within[count] = ids[k], segments[k]
            ascending &= count == 0 or within[count - 1] <= within[count]
            count += 1
    named = carray(data(result(frame, 2)), 1, I64)
    if ascending:
        named[0] = runs(within[:count], starts, numbers)
    else:
        places = carray(data(result(frame, 5)), n, U64)
        named[0] = group(within[:count], places[:count], starts[: count + 1], numbers.view(I64)[:count])
        for k in range(count):
            within[k] = order[places[k]]
        for k in range(count):
            order[k] = within[k]
    return 0


# ---------------------------------------------------------------------- rows, in parts
# Operands begin with (values, order, starts, named): of all, and of norms of dense arrays, values alone.
def in_parts(frame: Any) -> Any:
    """The handler of the operations below, each of which is a part of its task."""
    if introduced(frame):
        return 0
    prepare(frame)
    calls, elements = 1, size(operand(frame, 0), 0)
    if GROUPED:
        calls = size(operand(frame, 3), 0)
        elements = (size(operand(frame, 1), 0) // calls) * size(operand(frame, 0), rank(operand(frame, 1)))
    parts = min(num_threads() * PARTS, elements // LEAST) if elements >= SHARED else 1
    for c in range(calls):
        run_parts(frame, c, parts)
    return 0


def nothing(frame: Any) -> None:
    pass


def huge_sums(frame: Any) -> None:
    huge(result(frame, 0), ITEMSIZE)


def cut(starts: Any, named: Any, part: Any, parts: Any, multiple: Any) -> Any:
    """The row where a part begins, a multiple of multiple: parts have about as many slots each."""
    wanted = starts[named] * np.uint64(part) // np.uint64(parts)
    first, last = np.int64(0), np.int64(named)
    while first < last:
        middle = (first + last) // np.int64(2)
        if starts[middle] < wanted:
            first = middle + np.int64(1)
        else:
            last = middle
    return named if part == parts else first // multiple * multiple


def sum_rows(frame: Any, call: Any, part: Any, parts: Any) -> None:
    """To (sums), of the rows that have slots, then zeros: see `islices.backends.jax.grouping.sum_rows`."""
    calls, width = size(operand(frame, 3), 0), size(operand(frame, 0), rank(operand(frame, 1)))
    n, m = size(operand(frame, 1), 0) // calls, size(operand(frame, 0), 0) // (calls * width)
    values = carray(data(operand(frame, 0)), (calls, m, width), VALUES)[call]
    order = carray(data(operand(frame, 1)), (calls, n), U64)[call]
    starts = carray(data(operand(frame, 2)), (calls, n + 1), U64)[call]
    named = carray(data(operand(frame, 3)), calls, I64)[call]
    sums = carray(data(result(frame, 0)), (calls, n, width), VALUES)[call]
    first, last = cut(starts, named, part, parts, 1), cut(starts, named, part + 1, parts, 1)
    fold(values, order, starts, starts[:0], sums, first, last)
    spare = n - named
    sums[named + spare * part // parts : named + spare * (part + 1) // parts] = 0


def zero_sums(frame: Any) -> None:
    """Zeros for bags without members."""
    huge_sums(frame)
    if carray(data(operand(frame, 3)), 1, I64)[0] < axis(result(frame, 0), 0):
        carray(data(result(frame, 0)), size(result(frame, 0), 0), VALUES)[:] = 0


def read_bags(frame: Any, call: Any, part: Any, parts: Any) -> None:
    """(table, order, starts, named, numbers), as `members` gives them, to (bags): see `islices.backends.jax.bags`."""
    n, width = size(operand(frame, 1), 0), size(operand(frame, 0), 1)
    table = carray(data(operand(frame, 0)), (axis(operand(frame, 0), 0), width), VALUES)
    order, starts = carray(data(operand(frame, 1)), n, U64), carray(data(operand(frame, 2)), n + 1, U64)
    named, numbers = carray(data(operand(frame, 3)), 1, I64)[0], carray(data(operand(frame, 4)), n, U64)
    out = carray(data(result(frame, 0)), (axis(result(frame, 0), 0), width), VALUES)
    first, last = cut(starts, named, part, parts, 1), cut(starts, named, part + 1, parts, 1)
    fold(table, order, starts, numbers, out, first, last)


def step(frame: Any, call: Any, part: Any, parts: Any) -> None:
    """(..., ids, numbers, table, *states) to (table, *states) in the same place: see
    `islices.backends.jax.stepping.step`."""
    n, width = size(operand(frame, 1), 0), size(operand(frame, 0), 1)
    values = carray(data(operand(frame, 0)), (size(operand(frame, 0), 0) // width, width), VALUES)
    order, starts = carray(data(operand(frame, 1)), n, U64), carray(data(operand(frame, 2)), n + 1, U64)
    named, ids = carray(data(operand(frame, 3)), 1, I64)[0], carray(data(operand(frame, 4)), n, INDEX)
    numbers = carray(data(operand(frame, 5)), size(operand(frame, 5), 0), WIDE)
    rows = size(result(frame, 0), 0) // width
    table = carray(data(result(frame, 0)), (rows, width), TABLE)
    first, last = cut(starts, named, part, parts, 1), cut(starts, named, part + 1, parts, 1)
    change(values, order, starts, ids, table, states(frame, rows), numbers, first, last)


def state(frame: Any, rows: Any, k: Any) -> Any:
    return carray(data(result(frame, k)), (rows, size(result(frame, k), 1)), WIDE)


#: Handlers' states by their number: a tuple's length belongs to its type.
STATES = (
    lambda frame, rows: (),
    lambda frame, rows: (state(frame, rows, 1),),
    lambda frame, rows: (state(frame, rows, 1), state(frame, rows, 2)),
    lambda frame, rows: (state(frame, rows, 1), state(frame, rows, 2), state(frame, rows, 3)),
)


# ---------------------------------------------------------------------- norms
def bins_of_rows(frame: Any, call: Any, part: Any, parts: Any) -> None:
    """To the bins of the terms of the rows' sums, which are kept nowhere."""
    n, width = size(operand(frame, 1), 0), size(operand(frame, 0), 1)
    values = carray(data(operand(frame, 0)), (size(operand(frame, 0), 0) // width, width), VALUES)
    order, starts = carray(data(operand(frame, 1)), n, U64), carray(data(operand(frame, 2)), n + 1, U64)
    named, block = carray(data(operand(frame, 3)), 1, I64)[0], max(1, BLOCK // width)
    own = np.zeros((COUNT, 4), I64)
    first, last = cut(starts, named, part, parts, block), cut(starts, named, part + 1, parts, block)
    measure(values, order, starts, first, last, own)
    give(frame, own)


def bins_of_all(frame: Any, call: Any, part: Any, parts: Any) -> None:
    """values to the bins of their terms."""
    count = size(operand(frame, 0), 0)
    blocks, own = (count + BLOCK - 1) // BLOCK, np.zeros((COUNT, 4), I64)
    first, last = blocks * part // parts * BLOCK, min(blocks * (part + 1) // parts * BLOCK, count)
    measure(carray(data(operand(frame, 0)), (1, count), VALUES), first, last, own)
    give(frame, own)


def clear(frame: Any) -> None:
    carray(data(result(frame, 0)), (COUNT, 4), I64)[:] = 0


def give(frame: Any, own: Any) -> None:
    """A part's bins to those of all parts."""
    bins = word(result(frame, 0), DATA)
    for k in range(COUNT):
        for j in range(4):
            if own[k, j]:
                add_atomically(bins, 4 * k + j, own[k, j])


def scaled(frame: Any) -> Any:
    """(values, one or two numbers) to values times or over them: see `islices.backends.jax.scaling`."""
    if introduced(frame):
        return 0
    n, last = size(operand(frame, 0), 0), operands(frame) - 1
    c, d = carray(data(operand(frame, 1)), 1, WIDE)[0], carray(data(operand(frame, last)), 1, WIDE)[0]
    scale(carray(data(operand(frame, 0)), n, VALUES), c, d, carray(data(result(frame, 0)), n, VALUES), 0, n)
    return 0


def total(frame: Any) -> Any:
    """(*bins; ord) to the norm that they hold together, shape (1,); -1 if undecided."""
    if introduced(frame):
        return 0
    limbs, ord = np.zeros(LIMBS + 3, I64), attribute(frame, 0)
    for k in range(operands(frame)):
        add_bins(carray(data(operand(frame, k)), (axis(operand(frame, k), 0), 4), I64), ord, limbs)
    carray(data(result(frame, 0)), 1, F64)[0] = rounded(limbs, ord)
    return 0


# what the functions above leave open
add_bins = change = fold = group = measure = prepare = rounded = run_parts = runs = scale = states = cast(Any, None)
GROUPED = KEPT = MOVED = False
COUNT = ITEMSIZE = 0
VALUES = INDEX = TABLE = WIDE = PLACE = MASK = np.int32
I32, I64, U64, F64 = np.int32, np.int64, np.uint64, np.float64
