"""Run a formula over the inputs of a trajectory, in a chosen type of numbers.

May import: `numpy`, this folder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from decimal import localcontext
from functools import cached_property, partial
from typing import Any

import numpy as np

from islices.conformance.formulas.bounded import CONTEXT, Real
from islices.conformance.formulas.formula import Formula
from islices.conformance.formulas.inputs import Bags, Gradient, Rows, inputs
from islices.conformance.formulas.numbers import BoundedNumbers, Numbers

Array = np.ndarray[Any, Any]
State = dict[str, Array]
Stepped = tuple[Array, State]
#: (options, t, squares of duplicates) -> the `Numbers` of a step
Making = Callable[..., Numbers]
_sum = np.frompyfunc(lambda x, y: x + y, 2, 1)
#: In grade 1, an implementation computes scalars in float64; in grade 2, in float32.
GRADES = (1, 2)
_value = np.frompyfunc(lambda x: float(x.value), 1, 1)
#: 0 for an error of 0; otherwise the error plus the rounding of the value to float64. The files contain float64 values.
_bound = np.frompyfunc(lambda x: x.error and x.error + 2.0**-52 * abs(float(x.value)), 1, 1)


@dataclass(frozen=True)
class Expected:
    """The expected value of an array after a step, and its bound for each grade."""

    value: Array
    bounds: tuple[Array, ...]


@dataclass(frozen=True)
class Trajectory:
    """A sequence of steps of one formula. The trajectory has the options of the formula and the name of the inputs. The
    inputs are the initial weights, and the gradients or lookups of the steps."""

    formula: Formula
    name: str
    given: Mapping[str, Any]
    inputs: str
    #: the learning rate of step t is lr * rates[(t - 1) % len(rates)]
    rates: tuple[float, ...] = field(default=(1.0,))

    def options(self, t: int) -> dict[str, Any]:
        h = {**self.formula.options, **self.given}
        return {**h, "lr": h["lr"] * self.rates[(t - 1) % len(self.rates)]} if "lr" in h else h

    @cached_property
    def expected(self) -> dict[int, dict[str, Expected]]:
        """Return the expected arrays at the checkpoints, as {step: {name of the result or of a state: Expected}}. The
        name of the result is `Formula.gives`, for example "weights"."""
        graded = [bounded_steps(self, grade) for grade in GRADES]
        found: dict[int, dict[str, Expected]] = {}
        for t in inputs(self.inputs).checkpoints:
            each = [{self.formula.gives: w, **state} for w, state in (steps[t - 1] for steps in graded)]
            found[t] = {
                name: Expected(
                    np.asarray(_value(x), np.float64),
                    tuple(rounded_up(np.asarray(_bound(one[name]), np.float64)) for one in each),
                )
                for name, x in each[0].items()
            }
        return found


def rounded_up(x: Array) -> Array:
    """Round float64 numbers up to float32 numbers whose lower 16 bits are zeros. The vector files store bounds in this
    form."""
    with np.errstate(over="ignore"):
        single = x.astype(np.float32)
    single = np.where(single.astype(np.float64) < x, np.nextafter(single, np.float32(np.inf)), single)
    bits = single.view(np.uint32)
    upper = (bits + np.where(bits & 0xFFFF, 0x10000, 0)).astype(np.uint32) >> 16 << 16
    return upper.view(np.float32).astype(np.float64)


def initial_state(formula: Formula, h: Mapping[str, Any], shape: tuple[int, ...], *, unused: bool = False) -> State:
    """Return the initial float32 arrays of the state for weights of the given shape. Arrays with one number per row
    have one column. `unused` adds the arrays that the options do not use."""
    own = (shape[0], 1) if h.get("per_row") else shape
    begin = formula.begins(h) if unused else formula.initial(h)
    return {name: np.full(own, start, np.float32) for name, start in begin.items()}


def steps(formula: Formula, trajectory: Trajectory, making: Making, lift: Callable[[Any], Any]) -> Iterator[Stepped]:
    """Yield (result, state) after each step. `formula.gives` is the name of the result, for example "weights" if the
    result is the new weights."""
    made = inputs(trajectory.inputs)
    w = lift(made.weights)
    h = formula.hyper(trajectory.options(1))
    state = {name: lift(x) for name, x in initial_state(formula, h, w.shape).items()}
    counted = 0
    for t, g in enumerate(made.gradients, 1):
        h = formula.hyper(trajectory.options(t))
        counted += formula.counts_empty or not isinstance(g, Rows) or len(g.indices) > 0
        found, state = step(formula, h, counted, w, g, state, making, lift)
        w = found if formula.gives == "weights" else w
        yield found, state


def step(
    formula: Formula, h: Mapping[str, Any], t: int, w: Array, g: Gradient, state: State,
    making: Making, lift: Callable[[Any], Any],
) -> Stepped:  # fmt: skip
    """Return (result, state) of one step, without changing the arguments."""
    if isinstance(g, Bags):
        return formula.rule(making(h, t), g.lifted(lift), w, state)
    if not isinstance(g, Rows):
        return formula.rule(making(h, t), lift(g), w, state)
    named, total, squares = _summed(formula, g, w.shape[1], lift)
    if formula.gradients == "touched":
        rows: Any = named
    else:
        rows = slice(None)
        full = lift(np.zeros(w.shape, np.float32))
        total, squares = (_placed(full, named, x) for x in (total, squares))
    numbers = making(h, t, squares if formula.duplicates == "raw" else None)
    if not len(named) and formula.gradients == "touched":
        return w, state
    moved, moved_state = formula.rule(numbers, total, w[rows], {name: x[rows] for name, x in state.items()})
    return _written(w, rows, moved), {
        name: _written(x, rows, moved_state.get(name, x[rows])) for name, x in state.items()
    }


def _written(x: Array, rows: Any, moved: Array) -> Array:
    """Return a copy of x in which the given rows have the values `moved`. If `moved` is wider because of a mistake, the
    columns of the copy are repeated to the same width."""
    found = x.copy() if x.shape[1] == moved.shape[1] else np.repeat(x, moved.shape[1], axis=1)
    found[rows] = moved
    return found


def _placed(full: Array, rows: Array, x: Array) -> Array:
    found = full.copy()
    found[rows] = x
    return found


def _summed(formula: Formula, g: Rows, width: int, lift: Callable[[Any], Any]) -> tuple[Array, Array, Array]:
    """Return the distinct rows of a gradient, the sum of each row's slices, and the sum of the squares of each row's
    slices. If the formula's `duplicates` is "last", the last slice of a row takes the place of the sum."""
    named, places = g.summed()
    values = lift(g.values)
    total = lift(np.zeros((len(named), width), np.float32))
    squares = total.copy()
    for place, value in zip(places, values, strict=True):
        last = formula.duplicates == "last"
        total[place] = value if last else _sum(total[place], value)
        squares[place] = _sum(squares[place], value * value)
    return named, total, squares


# ---------------------------------------------------------------------- the two kinds of numbers
_lift = np.frompyfunc(lambda x: Real.of(float(x)), 1, 1)
_rounded = np.frompyfunc(lambda x: x.rounded(), 1, 1)


def bounded_steps(trajectory: Trajectory, grade: int) -> list[Stepped]:
    """Return a list with (result, state) after each step, as arrays of `Real`."""

    def stored(*arguments: Any) -> Any:
        """Apply the rule, and close all open sums in its results."""
        w, state = trajectory.formula.rule(*arguments)
        return _rounded(w), {name: _rounded(x) for name, x in state.items()}

    formula = replace(trajectory.formula, rule=stored)
    making = partial(BoundedNumbers, grade=grade)
    with localcontext(CONTEXT), np.errstate(invalid="ignore"):  # math.fsum subtracts an infinity from itself
        return list(steps(formula, trajectory, making, _lift))


def plain_steps(trajectory: Trajectory, formula: Formula) -> Iterator[Stepped]:
    """Yield (result, state) after each step in float64. `formula` is the formula of the trajectory or a mutant of
    it."""
    lift = partial(np.asarray, dtype=np.float64)
    with np.errstate(all="ignore"):
        yield from steps(formula, trajectory, Numbers, lift)
