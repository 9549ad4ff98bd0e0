"""The numbers of a step: learning rate, bias corrections, all that is computed once for every row. SPEC clause 16."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from inspect import signature
from typing import Any, NamedTuple

import numpy as np

from islices import modes
from islices.arguments import is_real
from islices.backend import Array, Backend
from islices.host import quiet
from islices.linear import as_float
from islices.optim.formulas import Formula, Numbers
from islices.optim.hyperparameters import Hyper, at_step, known_hyper

__all__ = ["Plan", "plan_step"]

#: What the count of steps, an int32, can hold.
LAST_STEP = 2**31 - 1


class Plan(NamedTuple):
    """What a step computes, beside arrays."""

    formula: Formula
    numbers: tuple[str, ...]  # the rule's numbers in the order they stand in their array
    maximize: bool = False


def plan_step(
    B: Backend, formula: Formula, hyper: Hyper, maximize: bool, step: Array, wide: str, traced: bool
) -> tuple[Plan, Array]:
    """What is to be computed, and the rule's numbers of this step as one array of the wide type: of NumPy, if known.
    traced: whether step, the count of them, is."""
    if traced:
        names, array = _traced_numbers(B, formula, hyper, step, wide)
    else:
        count = B.to_numpy(step)
        if not 0 <= count[0] < LAST_STEP:
            raise ValueError(f"state['step']: got {count[0]}; accepted is 0 <= step < {LAST_STEP}")
        names, array = _known_numbers(formula, tuple(known_hyper(hyper, count).items()), int(count[0]), wide)
    return Plan(formula, names, maximize), array


@lru_cache(maxsize=64)  # many parameters of one model take a step of the same numbers
def _known_numbers(
    formula: Formula, hyper: tuple[tuple[str, Any], ...], count: int, wide: str
) -> tuple[tuple[str, ...], Array]:
    h = dict(hyper)
    numbers = Numbers(modes.HOST, np.array((count,), np.int32), np.array((as_float(h["lr"]),)), h)
    with quiet():
        named, found = _named(formula, numbers), []
        for x in named.values():
            found.append(x.item() if isinstance(x, np.ndarray) else as_float(x))
        return tuple(named), np.array(found, wide)


def _traced_numbers(
    B: Backend, formula: Formula, hyper: Hyper, step: Array, wide: str
) -> tuple[tuple[str, ...], Array]:
    known = (str, bool, float, int, np.bool_)
    at = {name: x if isinstance(x, known) else at_step(B, name, x, step) for name, x in hyper.items()}
    with B.scope():
        h = {name: x if isinstance(x, known) else B.astype(B.reshape(x, (1,)), "float64") for name, x in at.items()}
        numbers = Numbers(B, step, _as_array(B, h["lr"], step), h)
        named = _named(formula, numbers)
        columns = [numbers.number(x) if is_real(x) else B.astype(x, "float64") for x in named.values()]
        return tuple(named), B.astype(B.concat(columns), wide)


def _named(formula: Formula, numbers: Numbers) -> dict[str, Any]:
    """The rule's numbers by name, in its order."""
    named = dict(formula.numbers(numbers))
    if formula.decay == "coupled":
        named["weight_decay"] = numbers.h["weight_decay"]
    elif formula.decay == "decoupled":
        decay = numbers.array_of(numbers.h["weight_decay"])
        named["keep"] = numbers.number(1.0) - numbers.E.round_product(numbers.lr, decay)
    names = _in_order(formula.rule, tuple(named))
    return dict(zip(names, map(named.__getitem__, names), strict=True))


@cache
def _in_order(rule: Callable[..., Any], names: tuple[str, ...]) -> tuple[str, ...]:
    """The numbers in the order of the rule's parameters, behind them that of the decay, which is none."""
    own = [name for name in signature(rule).parameters if name in names]
    return (*own, *(name for name in names if name not in own))


def _as_array(B: Backend, x: Any, count: Array) -> Array:
    """A number as a float64 array of shape (1,), an array as it is."""
    return B.asarray(np.array((as_float(x),)), count) if is_real(x) else x
