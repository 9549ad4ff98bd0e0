"""Rows of a table changed in place: slices added, multiplied ... in order, and one step of an optimizer.

A row is read, changed and written by one thread, all its contributions at once: the gradient's sum is made where the
rule then finds it, and never stored. A rule is the code object of `islices.optim.rules`, on compiled operators.
SPEC clauses 15 and 16. May import: `numba`, `numpy`, this folder, `islices.optim.formulas`, `islices.optim.operators`,
`islices.optim.rules`, `islices.row_operators`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any, cast

import numpy as np
from numba.np.unsafe import ndarray

from islices.kernels.compiling import (
    INTEGER,
    Kernel,
    called,
    compile_kernel,
    inline,
    matrix,
    prefetch,
    tuple_of,
    vector,
)
from islices.kernels.folding import add_up
from islices.kernels.halves import FORMATS
from islices.optim import rules
from islices.optim.formulas import Formula
from islices.optim.operators import bind, number_operators
from islices.row_operators import OPERATORS

__all__ = ["scatter_kernel", "step_kernel"]

#: Rows whose memory is asked for in advance, and cache lines of each.
AHEAD, LINES = 4, 4


# ---------------------------------------------------------------------- scatter
def _scatter(values: Any, order: Any, starts: Any, ids: Any, table: Any, first: Any, last: Any) -> None:
    """table[ids[r]] changed by rows order[starts[r]:starts[r + 1]] of values, in order, first <= r < last."""
    width = np.uint64(values.shape[1])
    wide = np.empty((1, values.shape[1] if HALF else 0), WIDE)
    for r in range(first, last):
        row = np.uint64(ids[r])
        begin = starts[r + 1] - np.uint64(1) if LAST_ONLY else starts[r]
        if HALF:
            for j in range(width):
                wide[0, j] = load(table[row, j])
            for k in range(begin, starts[r + 1]):
                p = order[k]
                for j in range(width):
                    wide[0, j] = change(wide[0, j], load(values[p, j]))
            for j in range(width):
                table[row, j] = store(wide[0, j])
        else:
            for k in range(begin, starts[r + 1]):
                p = order[k]
                for j in range(width):
                    table[row, j] = change(table[row, j], values[p, j])


@cache
def scatter_kernel(dtype: str, op: str) -> Kernel:
    """The compiled `_scatter` for a table of a dtype and an operator by name."""
    form, operator = FORMATS[dtype], OPERATORS[op]
    arguments = (matrix(form.stored, readonly=True), *_groups("uint64"), matrix(form.stored), INTEGER, INTEGER)
    return compile_kernel(
        _scatter, arguments, change=inline(operator.element), load=form.load, store=form.store, WIDE=form.wide,
        HALF=form.stored is np.uint16, LAST_ONLY=operator.last,
    )  # fmt: skip


def _groups(index: str) -> tuple[Any, ...]:
    """The types of order, starts and ids."""
    places = vector(np.uint64, readonly=True)
    return places, places, vector(np.dtype(index), readonly=True)


# ---------------------------------------------------------------------- a step of an optimizer
def _step(
    values: Any, order: Any, starts: Any, ids: Any, table: Any, state: Any, numbers: Any, first: Any, last: Any
) -> None:
    """table[ids[r]] and the same row of each state after a step on rows order[starts[r]:starts[r + 1]] of values."""
    width = np.uint64(values.shape[1])
    n = as_tuple(numbers, COUNT)
    sums = np.empty((1, np.int64(width)), WIDE)
    squares = np.empty((1, np.int64(width) if RAW or MEAN else 0), WIDE)
    zero = np.uint64(0)
    for r in range(first, last):
        row = np.uint64(ids[r])
        if r + AHEAD < last:
            later = np.uint64(ids[r + AHEAD])
            for j in range(zero, min(width, np.uint64(LINES * LINE)), np.uint64(LINE)):
                prefetch(table, later, j)
                fetch_states(state, later, j)
        if starts[r] == starts[r + 1]:
            for j in range(width):
                sums[zero, j] = 0.0
        else:
            add(values, order, starts[r], starts[r + 1], sums, zero)
        if RAW:
            for j in range(width):
                squares[zero, j] = 0.0
            for k in range(starts[r], starts[r + 1]):
                p = order[k]
                for j in range(width):
                    squares[zero, j] += load(values[p, j]) * load(values[p, j])
        for j in range(width):
            g = sums[zero, j]
            if ROUNDED:
                g = load(store(g))
            if MAXIMIZE:
                g = -g
            if COUPLED:
                g = coupled(g, read(table[row, j]), n[EXTRA])
            sums[zero, j] = g
            if MEAN:
                squares[zero, j] = g * g
        mean = row_mean(squares, width) if MEAN else WIDE(0)
        held = states(state, row, zero) if PER_ROW else ()
        for j in range(width):
            g = sums[zero, j]
            w = read(table[row, j])
            if DECOUPLED:
                w = decoupled(w, n[EXTRA])
            old = held if PER_ROW else states(state, row, j)
            if RAW:
                new = rule(*((g, squares[zero, j], w) + old + n[:EXTRA]))  # noqa: RUF005
            elif MEAN:
                new = rule(*((g, mean, w) + old + n[:EXTRA]))  # noqa: RUF005
            elif SQUARES:
                new = rule(*((g, g * g, w) + old + n[:EXTRA]))  # noqa: RUF005
            else:
                new = rule(*((g, w) + old + n[:EXTRA]))  # noqa: RUF005
            table[row, j] = write(new[0])
            put(state, row, zero if PER_ROW else j, new)  # the same for all of a row


def _row_mean(x: Any, width: Any) -> Any:
    """The mean of x[0], whose sum is taken by halves as `islices.exact_norms.row_sums` does; x is overwritten."""
    zero, one, two = np.uint64(0), np.uint64(1), np.uint64(2)
    m = width
    rest = x[zero, zero] - x[zero, zero]
    some = False
    while m > one:
        half = m // two
        if m % two == one:
            rest = rest + x[zero, m - one] if some else x[zero, m - one]
            some = True
        for j in range(half):
            x[zero, j] = x[zero, j] + x[zero, half + j]
        m = half
    total = x[zero, zero] + rest if some else x[zero, zero]
    return total / WIDE(width)


#: The numbers of an array as a tuple, which stays in registers.
as_tuple: Any = ndarray.to_fixed_tuple
# what the functions above leave open
add = change = load = store = read = write = coupled = decoupled = row_mean = rule = cast(Any, None)
fetch_states = states = put = cast(Any, None)
HALF = LAST_ONLY = RAW = MEAN = SQUARES = ROUNDED = MAXIMIZE = COUPLED = DECOUPLED = PER_ROW = False
COUNT = EXTRA = 0
LINE = 16
WIDE: Any = np.float32


def _read_none(state: Any, row: Any, j: Any) -> Any:
    return ()


def _read_one(state: Any, row: Any, j: Any) -> Any:
    return (state[0][row, j],)


def _read_two(state: Any, row: Any, j: Any) -> Any:
    return (state[0][row, j], state[1][row, j])


def _read_three(state: Any, row: Any, j: Any) -> Any:
    return (state[0][row, j], state[1][row, j], state[2][row, j])


def _fetch_none(state: Any, row: Any, j: Any) -> None:
    return


def _fetch_one(state: Any, row: Any, j: Any) -> None:
    prefetch(state[0], row, j)


def _fetch_two(state: Any, row: Any, j: Any) -> None:
    prefetch(state[0], row, j)
    prefetch(state[1], row, j)


def _fetch_three(state: Any, row: Any, j: Any) -> None:
    prefetch(state[0], row, j)
    prefetch(state[1], row, j)
    prefetch(state[2], row, j)


def _write_none(state: Any, row: Any, j: Any, new: Any) -> None:
    return


def _write_one(state: Any, row: Any, j: Any, new: Any) -> None:
    state[0][row, j] = new[1]


def _write_two(state: Any, row: Any, j: Any, new: Any) -> None:
    state[0][row, j] = new[1]
    state[1][row, j] = new[2]


def _write_three(state: Any, row: Any, j: Any, new: Any) -> None:
    state[0][row, j] = new[1]
    state[1][row, j] = new[2]
    state[2][row, j] = new[3]


#: The states of a row's element, read and written, by their number: a tuple's length belongs to its type.
_STATES: tuple[tuple[Callable[..., Any], ...], ...] = (
    (_read_none, _write_none, _fetch_none), (_read_one, _write_one, _fetch_one), (_read_two, _write_two, _fetch_two),
    (_read_three, _write_three, _fetch_three),
)  # fmt: skip


@lru_cache(maxsize=256)  # a formula belongs to one optimizer: there may come many
def step_kernel(formula: Formula, table: str, gradient: str, index: str = "uint64") -> Kernel:
    """The compiled `_step` of a formula for dtypes of the table, the gradient's values and the rows' numbers: the same
    for all formulas that differ in their numbers alone."""
    per_row = tuple(spec.per_row for spec in formula.state)
    flags = (formula.squares, formula.decay, formula.raw, formula.maximize)
    return _step_kernel(formula.rule, len(formula.names), per_row, *flags, table, gradient, index)


@cache
def _step_kernel(
    rule: Callable[..., Any], numbers: int, per_row: tuple[bool, ...], squares: str, decay: str, raw: bool,
    maximize: bool, table: str, gradient: str, index: str,
) -> Kernel:  # fmt: skip
    form, of_gradient = FORMATS[table], FORMATS[gradient]
    wide = form.wide
    operators = number_operators(np.dtype(wide).name)
    reads, writes, fetches = _STATES[len(per_row)]
    arguments = (
        matrix(of_gradient.stored, readonly=True), *_groups(index), matrix(form.stored),
        tuple_of(matrix(wide), len(per_row)), vector(wide, readonly=True), INTEGER, INTEGER,
    )  # fmt: skip
    return compile_kernel(
        _step, arguments, add=add_up(gradient), load=of_gradient.load, store=of_gradient.store,
        read=form.load, write=form.store, row_mean=inline(_row_mean, WIDE=np.dtype(wide).type),
        rule=called(bind(rule, operators)), coupled=inline(bind(rules.coupled, operators)),
        decoupled=inline(bind(rules.decoupled, operators)), states=inline(reads), put=inline(writes),
        fetch_states=inline(fetches), LINE=64 // np.dtype(form.stored).itemsize, WIDE=np.dtype(wide).type,
        RAW=raw and bool(squares), MEAN=squares == "row" and not raw, SQUARES=bool(squares),
        ROUNDED=of_gradient.stored is np.uint16 and not raw, MAXIMIZE=maximize,
        COUPLED=decay == "coupled", DECOUPLED=decay == "decoupled", PER_ROW=any(per_row),
        COUNT=numbers, EXTRA=numbers - bool(decay),
    )  # fmt: skip
