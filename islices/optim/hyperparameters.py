"""Check hyperparameters, and compute their values at a step. SPEC clause 16.

Most hyperparameters, like the learning rate, are a number, an array of one number, or a function of the number of
completed steps. Flags are bools. The hyperparameters that a record lists as `fixed`, like initial_accumulator, must be
numbers. May import: the core below `islices.optim.optimizer`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Mapping
from types import FunctionType
from typing import Any, NamedTuple, TypeAlias, cast

from islices.backend import FLOATS, INTEGERS, Array, Backend
from islices.core import modes
from islices.core.arguments import check_flag, is_real, show
from islices.core.linear import as_float, number_of
from islices.core.registry import describe, find_array_backend
from islices.core.shapes import size_of

#: The name of a hyperparameter -> the user's value, or the default of the preset.
Hyper = Mapping[str, Any]
#: A number, an array of one number, or a function that returns either for a number of completed steps.
Scheduled = float | Array | Callable[[Any], Any]
#: The argument for a hyperparameter; None means the default of the semantics.
Setting: TypeAlias = Scheduled | None


class Accepted(NamedTuple):
    """The accepted values of a hyperparameter, given by a text for error messages and a function that checks a
    value."""

    accepted: str
    holds: Callable[[float], bool]


#: The name of a hyperparameter -> its accepted values, where they differ from the common ones.
Limits: TypeAlias = Mapping[str, Accepted]

FINITE = Accepted("a finite number >= 0", lambda x: 0 <= x < math.inf)
BELOW_ONE = Accepted("0 <= value < 1", lambda x: 0 <= x < 1)
#: The common limits by name. The limit of a hyperparameter that is not listed is `FINITE`.
LIMITS: Limits = {"beta1": BELOW_ONE, "beta2": BELOW_ONE, "rho": BELOW_ONE}


class Schedule:
    """A schedule of the library, which is a callable that gets the number of completed steps."""


def is_on(x: Any) -> bool:
    """Return True if a hyperparameter affects the formula: it is a nonzero number, an array or a schedule."""
    return not is_real(x) or bool(x != 0)


def decays(h: Hyper, kind: str = "coupled") -> str:
    """Return `kind`, the kind of weight decay, or "" if there is no weight decay."""
    return kind if is_on(h["weight_decay"]) else ""


def refuse_scheduled(h: Hyper, owner: str, *names: str) -> None:
    """Raise ValueError if one of the named hyperparameters is an array or a schedule, not a number."""
    for name in names:
        if not is_real(h[name]):
            raise ValueError(f"{name}: got {describe(h[name])}; {owner} has a number")


# ---------------------------------------------------------------------- when an optimizer is made
def check_hyper(h: Hyper, defaults: Hyper, fixed: Container[str], limits: Limits) -> None:
    """Raise TypeError for a hyperparameter of a wrong type, and ValueError for a number out of range."""
    for name, value in h.items():
        if isinstance(defaults[name], bool):
            check_flag(value, name)
        elif not _is_number(value, fixed=name in fixed):
            came = "none" if value is None else describe(value)
            accepted = "a real number" if name in fixed else "a number, an array of one, or a function of the step"
            raise TypeError(f"{name}: got {came}; accepted is {accepted}")
    for name, value in h.items():
        if not isinstance(defaults[name], bool) and is_real(value):
            check_range(name, value, limits)


def _is_number(value: Any, *, fixed: bool) -> bool:
    """Return True if `value` is a number or, unless `fixed` is True, an array of one number or a function of the
    step."""
    if is_real(value) or fixed:
        return is_real(value)
    backend = find_array_backend(value)
    return callable(value) if backend is None else _is_one(backend, value)


def _is_one(backend: Backend, x: Array) -> bool:
    """Return True if `x` is an array of exactly one number, which is not a bool."""
    return backend.dtype(x) in (*FLOATS, *INTEGERS) and size_of(backend.shape(x)) == 1


def check_range(name: str, value: Any, limits: Limits) -> float:
    """Return a hyperparameter's value as a float; raise ValueError if it is outside the optimizer's limits."""
    limit, number = limits.get(name) or LIMITS.get(name, FINITE), as_float(value)
    if not limit.holds(number):
        raise ValueError(f"{name}: got {show(value)}; accepted is {limit.accepted}")
    return number


# ---------------------------------------------------------------------- at a step
def at_step(E: Backend, name: str, value: Scheduled, count: Array, limits: Limits) -> Any:
    """Return a hyperparameter's value after `count` steps.

    The value is a Python float if E is the host, else a float or an array of one number. A number is checked against
    `limits` if they contain the name, else against the common limits. If E is not the host, the number in an array
    of E is not checked.
    """
    function = isinstance(value, (FunctionType, Schedule))
    if function or (callable(value) and find_array_backend(value) is None):  # some frameworks' arrays are callable
        value = cast("Callable[[Any], Any]", value)(int(count[0]) if E is modes.HOST else E.reshape(count, ()))
    if is_real(value):
        return check_range(name, as_float(value), limits)
    backend = find_array_backend(value)
    if backend is None or not _is_one(backend, value):
        accepted = "a number, or a function of the step that returns one"
        raise TypeError(f"{name}: got {describe(value)}; accepted is {accepted}")
    if E is not modes.HOST and backend is E:
        return value
    if modes.is_traced(backend, value):
        raise TypeError(f"{name}: got a traced array for a state that is not; accepted is a step count traced with it")
    return check_range(name, number_of(backend, value), limits)


def known_hyper(h: Hyper, count: Array, limits: Limits) -> dict[str, Any]:
    """Return all hyperparameters after a known count of steps, as numbers and flags.

    Only values of arrays and schedules are checked against `limits`; numbers were checked when the optimizer was made.
    """
    known = {}
    for name, value in h.items():
        if type(value) not in (float, bool) and not is_real(value):
            value = at_step(modes.HOST, name, value, count, limits)
        known[name] = value
    return known
