"""The operators that rules are written in, and what gives a rule its own: a backend's on arrays, numba's on numbers.

A rule (`islices.optim.rules`) is plain Python over ``+ - `` and the names below. `bind` makes a function of the same
code object that finds other operators under these names: one formula, run by NumPy, by each framework, under a trace,
and compiled. The names here only stand for them; `lerp` and `sign` are written in the others. SPEC clause 16.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache
from types import FunctionType
from typing import Any, NoReturn

import numpy as np

__all__ = [
    "absolute",
    "bind",
    "div",
    "is_elementwise",
    "lerp",
    "less_equal",
    "maximum",
    "minimum",
    "mul",
    "number_operators",
    "power",
    "row_mean",
    "sign",
    "sqrt",
    "where",
]


def _unbound(*args: Any) -> NoReturn:
    raise TypeError("a rule was called without operators: array_rule(rule, backend)")


def mul(a: Any, b: Any) -> Any:
    """The rounded product: never one operation with an addition that follows."""
    _unbound(a, b)


def div(a: Any, b: Any) -> Any:
    """The correctly rounded quotient."""
    _unbound(a, b)


def sqrt(x: Any) -> Any:
    """The correctly rounded root."""
    _unbound(x)


def where(mask: Any, a: Any, b: Any) -> Any:
    """a where mask, else b."""
    _unbound(mask, a, b)


def less_equal(a: Any, b: Any) -> Any:
    """a <= b."""
    _unbound(a, b)


def minimum(a: Any, b: Any) -> Any:
    """The smaller, NaN if one is."""
    _unbound(a, b)


def maximum(a: Any, b: Any) -> Any:
    """The larger, NaN if one is."""
    _unbound(a, b)


def absolute(x: Any) -> Any:
    """The size of x."""
    _unbound(x)


def power(x: Any, exponent: Any, one: Any) -> Any:
    """x^exponent for 0 <= exponent < 256, by correctly rounded roots and products (`islices.optim.row_steps`)."""
    _unbound(x, exponent, one)


def lerp(a: Any, b: Any, weight: Any, half: Any, one: Any) -> Any:
    """a + weight (b - a) as torch's lerp_ forms it: with a weight from a half on it starts at b."""
    far = less_equal(half, weight)
    return where(far, b, a) + mul(where(far, weight - one, weight), b - a)


def sign(x: Any, zero: Any, one: Any) -> Any:
    """1 or -1 as x is above or below 0. Zeros and NaN are their own signs."""
    return where(less_equal(zero, x), where(less_equal(x, zero), x, one), where(less_equal(x, zero), -one, x))


def row_mean(x: Any) -> Any:
    """The mean over each row, one number per row (SPEC clause 19). Kernels do not have it."""
    _unbound(x)


def bind(
    rule: Callable[..., Any], operators: Mapping[str, Any], wrap: Callable[[Any], Any] = lambda x: x
) -> Callable[..., Any]:
    """Return the rule, its code object unchanged, on other operators; and so the functions that it calls, wrapped."""
    if not isinstance(rule, FunctionType) or rule.__closure__:
        raise TypeError(f"rule: got {rule!r}; accepted is a plain function without a closure")
    scope = dict(operators)
    for name in rule.__code__.co_names:
        if name not in operators and name in rule.__globals__:
            x = rule.__globals__[name]
            scope[name] = wrap(bind(x, operators, wrap)) if isinstance(x, FunctionType) else x
    return FunctionType(rule.__code__, scope, rule.__name__, rule.__defaults__)


#: Operators that kernels have.
ELEMENTWISE = ("absolute", "div", "less_equal", "maximum", "minimum", "mul", "power", "sqrt", "where")


def is_elementwise(rule: Any) -> bool:
    """Whether a rule consists of operators of elements, so that a kernel computes its bits.

    Numbers in its code or its module do not count: numba computes with them in float64.
    """
    code = rule.__code__
    if any(isinstance(x, (int, float)) and not isinstance(x, bool) for x in code.co_consts):
        return False
    called = [rule.__globals__.get(name) for name in code.co_names if name not in ELEMENTWISE]
    return all(isinstance(x, FunctionType) and x is not row_mean and is_elementwise(x) for x in called)


def _number_power(x: Any, exponent: Any, one: Any, count: Any) -> Any:
    """`power` of one number."""
    whole = np.uint64(exponent)
    scale = one + one
    for _ in range(5 if count == 32 else 6):
        scale = scale * scale
    part = np.uint64((exponent - whole) * scale)
    result, root = one, math.sqrt(x)
    for _ in range(count):
        result = math.sqrt(result)
        if part & np.uint64(1):
            result = root * result
        part = part >> np.uint64(1)
    while whole > np.uint64(0):
        if whole & np.uint64(1):
            result = x * result
        x = x * x
        whole = whole >> np.uint64(1)
    return result


@cache
def number_operators(wide: str) -> Mapping[str, Any]:
    """The operators on numbers of a type, compiled by numba (``pip install "islices[fast]"``), for a rule in a loop.

    Bits equal those on arrays: numba contracts nothing unless it is told to.
    """
    try:
        import numba
    except ImportError as error:
        raise ImportError('compiled rules need numba: pip install "islices[fast]"') from error
    inline = numba.njit(inline="always", error_model="numpy")
    raised = numba.njit(error_model="numpy")(_number_power)
    by_type = {
        "float32": lambda x, exponent, one: raised(x, exponent, one, 32),
        "float64": lambda x, exponent, one: raised(x, exponent, one, 64),
    }
    return {
        "absolute": inline(lambda x: abs(x)),
        "div": inline(lambda a, b: a / b),
        "less_equal": inline(lambda a, b: a <= b),
        "maximum": inline(lambda a, b: a if a >= b or a != a else b),
        "minimum": inline(lambda a, b: a if a <= b or a != a else b),
        "mul": inline(lambda a, b: a * b),
        "power": inline(by_type[wide]),
        "sqrt": inline(lambda x: math.sqrt(x)),
        "where": inline(lambda mask, a, b: a if mask else b),
    }
