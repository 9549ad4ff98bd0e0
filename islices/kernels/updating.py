"""Update a table's rows in place, by a scatter (add, multiply and so on) or by one step of an optimizer.

Each row belongs to one thread, which reads the row, changes it with all of the row's slots, and writes it. A step sums
a row's slots immediately before the rule reads the sum, and never stores the sums of all rows together. The rules are
the functions of `islices.optim.rules`, compiled with numba's operators. SPEC clauses 15 and 16. May import: `numba`,
`numpy`, this folder, `islices.optim.formulas`, `islices.optim.operators`, `islices.optim.rules`,
`islices.core.row_operators`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

import numpy as np
from numba.np.unsafe import ndarray

from islices.core.row_operators import OPERATORS
from islices.kernels.compiling import (
    INTEGER,
    ONE,
    PLACES,
    ZERO,
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

#: how many rows ahead a row is prefetched, and how many of its cache lines
AHEAD, LINES = 4, 4
#: the types of order, starts and ids
_GROUPS = (PLACES,) * 3
#: converts the numbers of an array to a tuple; a tuple stays in registers
as_tuple: Any = ndarray.to_fixed_tuple
#: (the function that makes a kernel, the parts of a formula that determine the code, the dtypes, the options) -> the
#: kernel
_made: dict[tuple[Any, ...], Kernel] = {}


# ---------------------------------------------------------------------- scatter
@cache
def scatter_kernel(dtype: str, op: str) -> Kernel:
    """Return the kernel that scatters into a table of a dtype with the operator named `op`."""
    form, operator = FORMATS[dtype], OPERATORS[op]
    change, load, store, wide_type = inline(operator.element), form.load, form.store, form.wide
    half, last_only = form.half, operator.last

    def scatter_rows(values, order, starts, ids, table, first, last):
        """Apply values[order[starts[r]:starts[r + 1]]] to table[ids[r]], row by row, for first <= r < last.

        If `last_only` is True, apply only the last of these values.
        """
        width = np.uint64(values.shape[1])
        wide = np.empty((1, values.shape[1] if half else 0), wide_type)
        for r in range(first, last):
            row = ids[r]
            begin = starts[r + 1] - ONE if last_only else starts[r]
            if half:
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

    arguments = (matrix(form.stored, readonly=True), *_GROUPS, matrix(form.stored), INTEGER, INTEGER)
    return compile_kernel(scatter_rows, arguments)


# ---------------------------------------------------------------------- a step of an optimizer
def _per_formula(make: Callable[..., Kernel]) -> Callable[..., Kernel]:
    """Return `make` with a cache of its kernels. Formulas whose steps have the same code share a kernel, even if they
    compute scalars such as bias corrections differently."""

    @lru_cache(maxsize=256)  # each optimizer has a formula, and there may be many optimizers
    def kernel(formula: Formula, *dtypes: str, **options: bool) -> Kernel:
        states = tuple((spec.name, spec.per_row) for spec in formula.state)
        flags = (formula.squares, formula.decay, formula.raw, formula.maximize)
        key = (make, formula.rule, *formula.constants.items(), states, formula.names, *flags, *dtypes, *options.items())
        if key not in _made:
            _made[key] = make(formula, *dtypes, **options)
        return _made[key]

    return kernel


def _states(count: int) -> tuple[Any, Any, Any]:
    """Return functions that read, write and prefetch an element of each of `count` states.

    The length of a tuple is part of its compiled type, so each number of states needs separate functions.
    """
    some, two, three = count > 0, count > 1, count > 2

    def read(state, row, j):
        if three:
            held = (state[0][row, j], state[1][row, j], state[2][row, j])
        elif two:
            held = (state[0][row, j], state[1][row, j])  # type: ignore[assignment]
        elif some:
            held = (state[0][row, j],)  # type: ignore[assignment]
        else:
            held = ()  # type: ignore[assignment]
        return held

    def put(state, row, j, new):
        if some:
            state[0][row, j] = new[1]
        if two:
            state[1][row, j] = new[2]
        if three:
            state[2][row, j] = new[3]

    def fetch(state, row, j):
        if some:
            prefetch(state[0], row, j)
        if two:
            prefetch(state[1], row, j)
        if three:
            prefetch(state[2], row, j)

    return inline(read), inline(put), inline(fetch)


def _element(formula: Formula, wide: str, gradient: str) -> tuple[Any, Any]:
    """Return two functions of one element: `follow` computes the gradient for the rule, and `change_element` applies
    the rule and any weight decay that is not coupled."""
    form, operators, ahead = FORMATS[gradient], number_operators(wide), formula.ahead()
    load, store, extra, maximize = form.load, form.store, len(ahead), formula.maximize
    rounded = form.half and not formula.raw
    coupled_decay, decoupled_decay, shrunk_decay = (formula.decay == x for x in ("coupled", "decoupled", "shrunk"))
    coupled, decoupled, shrunk = (inline(bind(x, operators)) for x in (rules.coupled, rules.decoupled, rules.shrunk))
    arguments = ("g", "q" if formula.squares else "unused", "w", *(spec.name for spec in formula.state), *ahead)
    rule = called(bind(formula.rule, operators, inline), arguments, formula.constants)

    def follow(g, w, n):
        """Return the gradient for the rule: the rounded sum, negated to maximize, plus coupled weight decay."""
        if rounded:
            g = load(store(g))
        if maximize:
            g = -g
        if coupled_decay:
            g = coupled(g, w, n[extra])
        return g

    def change_element(g, q, w, old, n):
        """Return an element's weight and states after the rule and any weight decay that is not coupled."""
        if decoupled_decay:
            w = decoupled(w, n[extra])
        if shrunk_decay:
            w = shrunk(w, n[extra], n[extra + 1])
        given = (g, q, w)
        return rule(*(given + old + n[:extra]))

    return inline(follow), inline(change_element)


def _types(formula: Formula, table: str, gradient: str, *between: Any) -> tuple[Any, ...]:
    form, states = FORMATS[table], tuple_of(matrix(FORMATS[table].wide), len(formula.state))
    values, numbers = matrix(FORMATS[gradient].stored, readonly=True), vector(form.wide, readonly=True)
    return (values, *between, matrix(form.stored), states, numbers)


@_per_formula
def step_kernel(formula: Formula, table: str, gradient: str, *, scaled: bool = False) -> Kernel:
    """Return the kernel of an optimizer's step on the rows that slices contain, for the dtypes of the table and the
    gradient.

    If `scaled` is True, the kernel first multiplies `values` by the last element of its argument `numbers`.
    """
    form, wide_type = FORMATS[table], FORMATS[table].wide.type
    read, write, line = form.load, form.store, 64 // form.stored.itemsize
    add, term = add_up(gradient, scaled=scaled), term_of(gradient, scaled=scaled)
    states, put, fetch_states = _states(len(formula.state))
    followed, changed = _element(formula, form.wide.name, gradient)
    count, per_row = len(formula.names), any(spec.per_row for spec in formula.state)
    raw, mean_of_rows = formula.raw and bool(formula.squares), formula.squares == "row" and not formula.raw

    def mean_of_row(x, width):
        """Return the mean of x[0] and overwrite x. The sum is computed by halves as in
        `islices.norms.exact.row_sums`."""
        m, two = width, np.uint64(2)
        rest = x[0, 0] - x[0, 0]
        some = False
        while m > ONE:
            half = m // two
            if m % two == ONE:
                rest = rest + x[0, m - ONE] if some else x[0, m - ONE]
                some = True
            for j in range(half):
                x[0, j] = x[0, j] + x[0, half + j]
            m = half
        total = x[0, 0] + rest if some else x[0, 0]
        return total / wide_type(width)

    row_mean = inline(mean_of_row)

    def step(values, order, starts, ids, table, state, numbers, first, last):
        """Update table[ids[r]] and the states' rows ids[r] by an optimizer's step, for first <= r < last.

        The gradient of a row is the sum of the rows of values at order[starts[r]:starts[r + 1]]. If `scaled` is True,
        these rows are first multiplied by the number that follows the rule's numbers.
        """
        width = np.uint64(values.shape[1])
        n = as_tuple(numbers, count)
        factor = numbers[count] if scaled else wide_type(1)
        sums = np.empty((1, np.int64(width)), wide_type)
        squares = np.empty((1, np.int64(width) if raw or mean_of_rows else 0), wide_type)
        for r in range(first, last):
            row = ids[r]
            if r + AHEAD < last:
                later = ids[r + AHEAD]
                for j in range(ZERO, min(width, np.uint64(LINES * line)), np.uint64(line)):
                    prefetch(table, later, j)
                    fetch_states(state, later, j)
            if starts[r] == starts[r + 1]:
                sums[:] = 0.0
            else:
                add(values, order, starts[r], starts[r + 1], factor, sums, ZERO)
            if raw:
                squares[:] = 0.0
                for k in range(starts[r], starts[r + 1]):
                    p = order[k]
                    for j in range(width):
                        x = term(values[p, j], factor)
                        squares[0, j] += x * x
            for j in range(width):
                g = followed(sums[0, j], read(table[row, j]), n)
                sums[0, j] = g
                if mean_of_rows:
                    squares[0, j] = g * g
            mean = row_mean(squares, width) if mean_of_rows else wide_type(0)
            held = states(state, row, ZERO) if per_row else ()
            for j in range(width):
                g = sums[0, j]
                q = squares[0, j] if raw else (mean if mean_of_rows else g * g)
                old = held if per_row else states(state, row, j)
                new = changed(g, q, read(table[row, j]), old, n)
                table[row, j] = write(new[0])
                put(state, row, ZERO if per_row else j, new)  # a state per row is equal for all elements

    return compile_kernel(step, (*_types(formula, table, gradient, *_GROUPS), INTEGER, INTEGER))


@_per_formula
def rest_kernel(formula: Formula, table: str, gradient: str) -> Kernel:
    """Return the kernel of an optimizer's step on all rows except some, for the dtypes of the table and the gradient.

    The gradient's dtype is "" if there is no gradient. The states have the table's size, and squares are elementwise.
    """
    form, given = FORMATS[table], gradient or table
    load, read, write, wide_type = FORMATS[given].load, form.load, form.store, form.wide.type
    states, put, _ = _states(len(formula.state))
    followed, changed = _element(formula, form.wide.name, given)
    count, raw, dense = len(formula.names), formula.raw and bool(formula.squares), bool(gradient)

    def rest(values, skip, table, state, numbers, width, first, last):
        """Update the rows first <= r < last of the table and the states, except the rows in `skip`, which ascend.

        The gradient is `values`, or 0 without a gradient. The table, the states and any gradient have the shape (1,
        rows * width), so that adjacent rows are updated in one loop, which the compiler can vectorize.
        """
        n = as_tuple(numbers, count)
        k, end = ZERO, np.uint64(len(skip))
        while k < end:  # find the first row in skip that is not below first
            middle = (k + end) // np.uint64(2)
            if skip[middle] < np.uint64(first):
                k = middle + ONE
            else:
                end = middle
        row, beyond = np.uint64(first), np.uint64(last)
        while row < beyond:
            stop = min(skip[k], beyond) if k < np.uint64(len(skip)) else beyond
            for i in range(row * np.uint64(width), stop * np.uint64(width)):
                v = load(values[0, i]) if dense else wide_type(0)
                g = followed(v, read(table[0, i]), n)
                new = changed(g, v * v if raw else g * g, read(table[0, i]), states(state, ZERO, i), n)
                table[0, i] = write(new[0])
                put(state, ZERO, i, new)
            row = stop + ONE
            k += ONE

    return compile_kernel(rest, (*_types(formula, table, given, _GROUPS[0]), INTEGER, INTEGER, INTEGER))
