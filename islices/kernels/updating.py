"""Rows of a table changed in place: slices added, multiplied ... in order, and one step of an optimizer.

A row is read, changed and written by one thread, all its contributions at once: the gradient's sum is made where the
rule then finds it, and never stored. A rule is that of a record of `islices.optim`, on compiled operators.
SPEC clauses 15 and 16. May import: `numba`, `numpy`, this folder, `islices.optim.formulas`, `islices.optim.operators`,
`islices.optim.rules`, `islices.core.row_operators`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any, NamedTuple, cast

import numpy as np
from numba.np.unsafe import ndarray

from islices.core.row_operators import OPERATORS
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
from islices.kernels.folding import add_up, term_of
from islices.kernels.halves import FORMATS
from islices.optim import rules
from islices.optim.formulas import Formula
from islices.optim.operators import bind, number_operators

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
    arguments = (matrix(form.stored, readonly=True), *_GROUPS, matrix(form.stored), INTEGER, INTEGER)
    return compile_kernel(
        _scatter, arguments, change=inline(operator.element), load=form.load, store=form.store, WIDE=form.wide,
        HALF=form.stored is np.uint16, LAST_ONLY=operator.last,
    )  # fmt: skip


#: The types of order, starts and ids.
_GROUPS = (vector(np.uint64, readonly=True),) * 3


# ---------------------------------------------------------------------- a step of an optimizer
def _step(
    values: Any, order: Any, starts: Any, ids: Any, table: Any, state: Any, numbers: Any, first: Any, last: Any
) -> None:
    """table[ids[r]] and the same row of each state after a step on rows order[starts[r]:starts[r + 1]] of values; if
    SCALED, on these times the number behind the rule's."""
    width = np.uint64(values.shape[1])
    n = as_tuple(numbers, COUNT)
    factor = numbers[COUNT] if SCALED else WIDE(1)
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
            add(values, order, starts[r], starts[r + 1], factor, sums, zero)
        if RAW:
            for j in range(width):
                squares[zero, j] = 0.0
            for k in range(starts[r], starts[r + 1]):
                p = order[k]
                for j in range(width):
                    x = term(values[p, j], factor)
                    squares[zero, j] += x * x
        for j in range(width):
            g = followed(sums[zero, j], read(table[row, j]), n)
            sums[zero, j] = g
            if MEAN:
                squares[zero, j] = g * g
        mean = row_mean(squares, width) if MEAN else WIDE(0)
        held = states(state, row, zero) if PER_ROW else ()
        for j in range(width):
            g = sums[zero, j]
            q = squares[zero, j] if RAW else (mean if MEAN else g * g)
            old = held if PER_ROW else states(state, row, j)
            new = changed(g, q, read(table[row, j]), old, n)
            table[row, j] = write(new[0])
            put(state, row, zero if PER_ROW else j, new)  # the same for all of a row


def _rest(values: Any, skip: Any, table: Any, state: Any, numbers: Any, width: Any, first: Any, last: Any) -> None:
    """Rows first <= r < last of table and state after a step, but those of skip (ascending), on rows of values or on 0.

    All arrays are flat, (1, rows * width): a run of rows is one loop, which vectorizes.
    """
    n = as_tuple(numbers, COUNT)
    zero, one = np.uint64(0), np.uint64(1)
    k, end = zero, np.uint64(len(skip))
    while k < end:  # the first of skip that is not below first
        middle = (k + end) // np.uint64(2)
        if skip[middle] < np.uint64(first):
            k = middle + one
        else:
            end = middle
    row, beyond = np.uint64(first), np.uint64(last)
    while row < beyond:
        stop = min(skip[k], beyond) if k < np.uint64(len(skip)) else beyond
        for i in range(row * np.uint64(width), stop * np.uint64(width)):
            v = load(values[zero, i]) if DENSE else WIDE(0)
            g = followed(v, read(table[zero, i]), n)
            new = changed(g, v * v if RAW else g * g, read(table[zero, i]), states(state, zero, i), n)
            table[zero, i] = write(new[0])
            put(state, zero, i, new)
        row = stop + one
        k += one


def _followed(g: Any, w: Any, n: Any) -> Any:
    """The gradient that the rule is given: a sum rounded, its sign, the weights' decay."""
    if ROUNDED:
        g = load(store(g))
    if MAXIMIZE:
        g = -g
    if COUPLED:
        g = coupled(g, w, n[EXTRA])
    return g


def _changed(g: Any, q: Any, w: Any, old: Any, n: Any) -> Any:
    """An element's weight and state by the rule."""
    if DECOUPLED:
        w = decoupled(w, n[EXTRA])
    if SHRUNK:
        w = shrunk(w, n[EXTRA], n[EXTRA + 1])
    given = (g, q, w)
    return rule(*(given + old + n[:EXTRA]))


def _row_mean(x: Any, width: Any) -> Any:
    """The mean of x[0], whose sum is taken by halves as `islices.norms.exact.row_sums` does; x is overwritten."""
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
add = change = load = store = read = term = write = coupled = decoupled = shrunk = row_mean = rule = cast(Any, None)
fetch_states = states = put = followed = changed = cast(Any, None)
HALF = LAST_ONLY = RAW = MEAN = ROUNDED = MAXIMIZE = COUPLED = DECOUPLED = SHRUNK = PER_ROW = DENSE = SCALED = False
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
def step_kernel(formula: Formula, table: str, gradient: str, *, scaled: bool = False) -> Kernel:
    """The compiled `_step` of a formula for dtypes of the table, the gradient's values and the rows' numbers: the same
    for all formulas that differ in their numbers alone. scaled: the last of the numbers is a factor of the values."""
    return _step_kernel(_Parts.of(formula), table, gradient, scaled)


@lru_cache(maxsize=256)
def rest_kernel(formula: Formula, table: str, gradient: str) -> Kernel:
    """The compiled `_rest` of a formula whose state is as large as the table and whose squares are those of elements,
    for dtypes of the table and the gradient's values; "": rows without a gradient."""
    return _rest_kernel(_Parts.of(formula), table, gradient)


class _Parts(NamedTuple):
    """What of a formula belongs to its code."""

    rule: Callable[..., Any]
    constants: tuple[tuple[str, bool | None], ...]  # the rule's parameters that are absent, and its flags
    states: tuple[str, ...]
    numbers: tuple[str, ...]
    ahead: int  # numbers of the rule; those of the decay are behind them
    per_row: tuple[bool, ...]
    squares: str
    decay: str
    raw: bool
    maximize: bool

    @classmethod
    def of(cls, formula: Formula) -> _Parts:
        constants, states = tuple(formula.constants.items()), tuple(spec.name for spec in formula.state)
        per_row = tuple(spec.per_row for spec in formula.state)
        flags = (formula.squares, formula.decay, formula.raw, formula.maximize)
        return cls(formula.rule, constants, states, formula.names, len(formula.ahead()), per_row, *flags)

    def names(self, table: str, gradient: str) -> dict[str, Any]:
        """What templates leave open for these dtypes."""
        form, of_gradient = FORMATS[table], FORMATS[gradient]
        wide = np.dtype(form.wide).type
        operators = number_operators(np.dtype(wide).name)
        reads, writes, _ = _STATES[len(self.per_row)]
        extra = self.ahead
        arguments = ("g", "q" if self.squares else "unused", "w", *self.states, *self.numbers[:extra])
        rule = called(bind(self.rule, operators, inline), arguments, dict(self.constants))
        followed = inline(
            _followed, load=of_gradient.load, store=of_gradient.store, coupled=inline(bind(rules.coupled, operators)),
            ROUNDED=of_gradient.stored is np.uint16 and not self.raw, MAXIMIZE=self.maximize,
            COUPLED=self.decay == "coupled", EXTRA=extra,
        )  # fmt: skip
        changed = inline(
            _changed, rule=rule, decoupled=inline(bind(rules.decoupled, operators)),
            shrunk=inline(bind(rules.shrunk, operators)), DECOUPLED=self.decay == "decoupled",
            SHRUNK=self.decay == "shrunk", EXTRA=extra,
        )  # fmt: skip
        return {
            "load": of_gradient.load, "read": form.load, "write": form.store, "states": inline(reads),
            "put": inline(writes), "followed": followed, "changed": changed, "WIDE": wide,
            "RAW": self.raw and bool(self.squares), "COUNT": len(self.numbers),
        }  # fmt: skip


@cache
def _step_kernel(parts: _Parts, table: str, gradient: str, scaled: bool) -> Kernel:
    form = FORMATS[table]
    arguments = (
        matrix(FORMATS[gradient].stored, readonly=True), *_GROUPS, matrix(form.stored),
        tuple_of(matrix(form.wide), len(parts.per_row)), vector(form.wide, readonly=True), INTEGER, INTEGER,
    )  # fmt: skip
    return compile_kernel(
        _step, arguments, add=add_up(gradient, scaled=scaled), term=term_of(gradient, scaled=scaled),
        SCALED=scaled, row_mean=inline(_row_mean, WIDE=np.dtype(form.wide).type),
        fetch_states=inline(_STATES[len(parts.per_row)][2]), LINE=64 // np.dtype(form.stored).itemsize,
        MEAN=parts.squares == "row" and not parts.raw, PER_ROW=any(parts.per_row), **parts.names(table, gradient),
    )  # fmt: skip


@cache
def _rest_kernel(parts: _Parts, table: str, gradient: str) -> Kernel:
    form, given = FORMATS[table], gradient or table
    arguments = (
        matrix(FORMATS[given].stored, readonly=True), vector(np.uint64, readonly=True), matrix(form.stored),
        tuple_of(matrix(form.wide), len(parts.per_row)), vector(form.wide, readonly=True), INTEGER, INTEGER, INTEGER,
    )  # fmt: skip
    return compile_kernel(_rest, arguments, DENSE=bool(gradient), **parts.names(table, given))
