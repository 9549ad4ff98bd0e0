"""Define the operations that compiled handlers run, as templates for numba. Each call of a template computes one part
of an operation on the buffers of a frame.

One operation groups the slots by row or bag. The operations that sum rows or bags, compute norms of sparse gradients or
take optimizer steps get these groups as operands. XLA runs equal calls only once, so a norm and a step share the
groups. Templates do not raise errors, and read the sizes of arrays from the buffers. `groups`, `sums`, `step`, `bins`
and `total` return the name under which XLA knows an operation.

May import: `numpy`, this folder, `islices.kernels`, `islices.optim.formulas`.
"""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

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

I64, U64, F64 = np.int64, np.uint64, np.float64
#: The position of the number of operands in a call frame.
OPERANDS = 7


@cache
def available() -> bool:
    """Return True if XLA accepts the handlers. If XLA rejects the handlers, which are for one version of XLA's API,
    warn and return False."""
    try:
        groups("int32")
    except (RuntimeError, TypeError, ValueError) as error:
        warnings.warn(f"islices computes without compiled kernels in jitted code: {error}", stacklevel=2)
        return False
    return True


@cache
def groups(index: str, place: str | None = None) -> str:
    """Return XLA's name for the operation that groups slots by row. `index` is the dtype of the indices. `place` is the
    dtype of the positions, or None if there are no positions."""
    group, index_type, place_type = group_kernel(np.dtype(np.int64)), np.dtype(index), np.dtype(place or index)
    moved = place is not None

    def groups(frame, part, parts):
        """Compute (order, starts, named, ids, memory). The operands are the indices and, if `place` is not None, the
        positions of the slots' values. The attributes are the number of parts, `rows`, and the number of values.

        `order` contains the positions of the slots' values in a stable order by index. `starts` contains, for each row
        that has slots, the place in `order` where these slots begin. One more entry of `starts` is the place where the
        slots of the last row end. `named` is the number of rows that have slots. `ids` contains the numbers of these
        rows, and `rows` in all remaining entries. `memory` is a scratch buffer.
        """
        indices, within, rows = (
            vector(operand(frame, 0), index_type),
            vector(result(frame, 4), I64),
            attribute(frame, 1),
        )
        order, starts = vector(result(frame, 0), U64), vector(result(frame, 1), U64)
        named, ids = vector(result(frame, 2), I64), vector(result(frame, 3), I64)
        for i in range(len(indices)):
            within[i] = indices[i] if 0 <= indices[i] < rows else rows
        count = group(within, order, starts, ids)
        named[0] = count - 1 if ids[count - 1] == rows else count
        for i in range(named[0], len(ids)):
            ids[i] = rows
        if moved:
            positions, last = vector(operand(frame, 1), place_type), attribute(frame, 2) - 1
            for i in range(len(order)):
                order[i] = min(max(positions[order[i]], 0), last)

    return target(groups)


# ---------------------------------------------------------------------- rows; operands begin with values and groups
@inline
def cut(starts, named, part, parts, multiple):
    """Divide the rows that have slots into parts with about the same number of slots. Return the position of the first
    row of part number `part`, rounded down to a multiple of `multiple`. If `part` equals `parts`, return `named`."""
    wanted = starts[named] * np.uint64(part) // np.uint64(parts)
    first, last = np.int64(0), np.int64(named)
    while first < last:
        middle = (first + last) // np.int64(2)
        if starts[middle] < wanted:
            first = middle + np.int64(1)
        else:
            last = middle
    return named if part == parts else first // multiple * multiple


@inline
def groups_of(frame, k, part, parts, multiple):
    """Return (order, starts, number of rows with slots, first row of `part`, first row of the next part). The operands
    k, k + 1 and k + 2 contain the first three."""
    order, starts = vector(operand(frame, k), U64), vector(operand(frame, k + 1), U64)
    named = vector(operand(frame, k + 2), I64)[0]
    first, last = cut(starts, named, part, parts, multiple), cut(starts, named, part + 1, parts, multiple)
    return order, starts, named, first, last


@cache
def sums(dtype: str, index: str = "") -> str:
    """Return XLA's name for the operation that sums the values of each row. `dtype` is the dtype of the values, and
    `index` the dtype of the indices. If `index` is empty, the operation sums bags."""
    fold, stored, index_type, bags = (
        fold_kernel(dtype),
        FORMATS[dtype].stored,
        np.dtype(index or I64),
        not index,
    )

    def sums(frame, part, parts):
        """Compute (sums, ids). `sums` contains first the sums of the rows that have slots, and then zeros. `ids` has
        the dtype of the indices.

        For bags, compute only the sums. Each sum is in the row of its bag, and all other rows are zeros.
        """
        order, starts, named, first, last = groups_of(frame, 1, part, parts, 1)
        values, ids, out = (
            matrix(operand(frame, 0), stored),
            vector(operand(frame, 4), U64),
            matrix(result(frame, 0), stored),
        )
        if bags:
            fold(values, order, starts, ids, out, first, last)
            done = np.int64(ids[first - 1]) + 1 if first > 0 else 0
            for r in range(first, last):
                out[done : np.int64(ids[r])] = 0
                done = np.int64(ids[r]) + 1
            if part + 1 == parts:
                out[done:] = 0
        else:
            fold(values, order, starts, ids[:0], out, first, last)
            spare, n, found = len(out) - named, len(ids), vector(result(frame, 1), index_type)
            out[named + spare * part // parts : named + spare * (part + 1) // parts] = 0
            for i in range(n * part // parts, n * (part + 1) // parts):
                found[i] = ids[i]

    return target(sums)


def _states(count: int, dtype: Any) -> Any:
    """Return a function that gets a frame, and returns a tuple of the optimizer's first `count` states. The states are
    the results after the table."""
    if count == 0:
        return inline(lambda frame: ())
    before = _states(count - 1, dtype)
    return inline(lambda frame: before(frame) + (matrix(result(frame, count), dtype),))  # noqa: RUF005  # for numba


def step(formula: Formula, table: str, gradient: str, *, scaled: bool) -> str:
    """Return XLA's name for the operation that takes an optimizer step. If `scaled` is True, the last element of the
    operand `numbers` is a factor of the gradient."""
    form, change = FORMATS[table], step_kernel(formula, table, gradient, scaled=scaled)
    wide, stored, stored_values = form.wide, form.stored, FORMATS[gradient].stored
    states = _states(len(formula.state), wide)

    def step(frame, part, parts):
        """Take an optimizer step that changes the table and the states in place. The operands are ``(values, order,
        starts, named, ids, numbers, table, *states)``."""
        order, starts, _, first, last = groups_of(frame, 1, part, parts, 1)
        values, ids = matrix(operand(frame, 0), stored_values), vector(operand(frame, 4), U64)
        numbers, table = vector(operand(frame, 5), wide), matrix(result(frame, 0), stored)
        change(values, order, starts, ids, table, states(frame), numbers, first, last)

    return target(step)


# ---------------------------------------------------------------------- norms
@cache
def bins(dtype: str, ord: int, *, rows: bool, exact: bool) -> str:
    """Return XLA's name for the operation that adds the terms of a norm to bins. If `rows` is True, the terms come from
    the sums of the rows, else from all values."""
    kernel: Any = squares.rows_kernel if rows else squares.dense_kernel
    measure, stored, (count, _) = (
        kernel(dtype, ord, exact=exact),
        FORMATS[dtype].stored,
        bins_shape(dtype, exact=exact),
    )

    def bins(frame, part, parts):
        """Add the terms of a norm to the bins. The operand `zeros` is the initial value of the bins.

        The operands are (zeros, values) or, if the terms come from sums of rows, (zeros, values, order, starts, named,
        ids).
        """
        own = np.zeros((count, 4), I64)
        if rows:
            values = matrix(operand(frame, 1), stored)
            order, starts, _, first, last = groups_of(frame, 2, part, parts, max(1, BLOCK // values.shape[1]))
            measure(values, order, starts, first, last, own)
        else:
            flat = vector(operand(frame, 1), stored)
            blocks = (len(flat) + BLOCK - 1) // BLOCK
            first, last = blocks * part // parts * BLOCK, min(blocks * (part + 1) // parts * BLOCK, len(flat))
            measure(flat.reshape((1, len(flat))), first, last, own)
        for k in range(count):
            for j in range(4):
                if own[k, j]:
                    add(words(result(frame, 0))[DATA], 4 * k + j, own[k, j])

    return target(bins)


def bins_shape(dtype: str, *, exact: bool) -> tuple[int, int]:
    return totals.EXACT if exact else squares.BINS["float64" if dtype == "float64" else "float32"], 4


@cache
def total(ord: int, *, exact: bool) -> str:
    """Return XLA's name for the operation that computes a norm from bins."""
    add_bins, rounded = totals.add_exact_kernel() if exact else totals.add_bins_kernel(), totals.round_kernel()

    def total(frame, part, parts):
        """Compute a norm of shape (1,) from the bins of all leaves. If the bins do not determine the last bit of
        the norm, the result is -1."""
        limbs = np.zeros(LIMBS + 3, I64)
        for k in range(words(frame)[OPERANDS]):
            add_bins(matrix(operand(frame, k), I64), ord, limbs)
        vector(result(frame, 0), F64)[0] = rounded(limbs, ord)

    return target(total)
