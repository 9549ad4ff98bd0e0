"""The numbers of a step: learning rate, bias corrections, all that is computed once for every row. SPEC clause 16."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from inspect import signature
from typing import Any, NamedTuple

import numpy as np

from islices import modes
from islices.arguments import is_real
from islices.backend import Array, Backend
from islices.linear import as_float, wide_dtype
from islices.optim.formulas import Formula, Hyper, Numbers
from islices.registry import describe, find_backend
from islices.shapes import size_of

__all__ = ["LearningRate", "Plan", "plan_step"]

#: A number, an array of one, or a function of the number of steps taken before that returns either.
LearningRate = float | Array | Callable[[Any], Any]
#: What the count of steps, an int32, can hold.
LAST_STEP = 2**31 - 1


class Plan(NamedTuple):
    """What a step computes, beside arrays."""

    formula: Formula
    numbers: tuple[str, ...]  # the rule's numbers in the order they stand in their array
    maximize: bool = False


def plan_step(
    B: Backend, formula: Formula, hyper: Hyper, maximize: bool, step: Array, weights: Array
) -> tuple[Plan, Array]:
    """What is to be computed, and the rule's numbers of this step as one array of the wide type: of NumPy, if known."""
    traced = modes.is_traced(B, step)
    E, count = (B, step) if traced else (modes.HOST, B.to_numpy(step).copy())
    if not traced and not 0 <= count[0] < LAST_STEP:
        raise ValueError(f"state['step']: got {count[0]}; accepted is 0 <= step < {LAST_STEP}")
    lr = _rate(E, hyper["lr"], count)
    with E.scope():
        numbers = Numbers(E, count, _as_float64(E, lr, count), hyper)
        named = dict(formula.numbers(numbers))
        if formula.decay == "coupled":
            named["weight_decay"] = hyper["weight_decay"]
        elif formula.decay == "decoupled":
            decay = numbers.number(hyper["weight_decay"])
            named["keep"] = numbers.number(1.0) - E.round_product(numbers.lr, decay)
        named = {name: named[name] for name in _in_order(formula.rule, tuple(named))}
        wide = wide_dtype(B.dtype(weights))
        if traced:
            columns = [numbers.number(x) if is_real(x) else E.astype(x, "float64") for x in named.values()]
            array = E.astype(E.concat(columns), wide)
        else:  # the same, but one conversion for all
            array = np.array([as_float(x) if is_real(x) else x.item() for x in named.values()], wide)
    return Plan(formula, tuple(named), maximize), array


@cache
def _in_order(rule: Callable[..., Any], names: tuple[str, ...]) -> tuple[str, ...]:
    """The numbers in the order of the rule's parameters, behind them that of the decay, which is none."""
    own = [name for name in signature(rule).parameters if name in names]
    return (*own, *(name for name in names if name not in own))


def _rate(E: Backend, lr: LearningRate, count: Array) -> Any:
    """The learning rate of a step: a number, or an array of one."""
    value: Any = lr
    if callable(lr):
        value = lr(int(count[0]) if E is modes.HOST else E.reshape(count, ()))
    if is_real(value):
        return value
    backend = find_backend(value)
    if backend is None or not backend.is_array(value) or size_of(backend.shape(value)) != 1:
        raise TypeError(f"lr: got {describe(value)}; accepted is a number, or a function of the step that returns one")
    if E is modes.HOST and modes.is_traced(backend, value):
        raise TypeError("lr: got a traced array for a state that is not; accepted is a step count traced with it")
    return backend.to_numpy(value) if E is modes.HOST else value


def _as_float64(E: Backend, value: Any, count: Array) -> Array:
    """A number or an array of one as a float64 array of shape (1,)."""
    if is_real(value):
        number = np.array((as_float(value),))
        return number if E is modes.HOST else E.asarray(number, count)
    return E.astype(E.reshape(value, (1,)), "float64")
