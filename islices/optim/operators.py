"""The operators that rules are written in, and what gives a rule its own: a backend's on arrays, numba's on numbers.

A rule (`islices.optim.rules`) is plain Python over ``+ - `` and the names below. `bind` makes a function of the same
code object that finds other operators under these names: one formula, run by NumPy, by each framework, under a trace,
and compiled. The names here only stand for them. SPEC clause 16.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from types import FunctionType
from typing import Any, NoReturn

from islices.backend import Backend

__all__ = [
    "absolute",
    "array_operators",
    "bind",
    "div",
    "less_equal",
    "maximum",
    "minimum",
    "mul",
    "number_operators",
    "sqrt",
    "where",
]


def _unbound(*args: Any) -> NoReturn:
    raise TypeError("a rule was called without operators: bind(rule, array_operators(backend))")


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


def bind(rule: Callable[..., Any], operators: Mapping[str, Any]) -> Callable[..., Any]:
    """The rule, its code object unchanged, on other operators."""
    if not isinstance(rule, FunctionType) or rule.__closure__:
        raise TypeError(f"rule: got {rule!r}; accepted is a plain function without a closure")
    return FunctionType(rule.__code__, dict(operators), rule.__name__)


@cache
def array_operators(B: Backend) -> Mapping[str, Any]:
    """The operators on arrays of a backend."""
    return {
        "absolute": B.abs, "div": B.div, "less_equal": B.less_equal, "maximum": B.maximum, "minimum": B.minimum,
        "mul": B.round_product, "sqrt": B.sqrt, "where": B.where,
    }  # fmt: skip


@cache
def number_operators() -> Mapping[str, Any]:
    """The operators on numbers, compiled by numba (``pip install "islices[fast]"``), for a rule inside a compiled loop.

    Bits equal those on arrays: numba contracts nothing unless it is told to.
    """
    try:
        import numba
    except ImportError as error:
        raise ImportError('compiled rules need numba: pip install "islices[fast]"') from error
    import math

    inline = numba.njit(inline="always", error_model="numpy")
    return {
        "absolute": inline(lambda x: abs(x)),
        "div": inline(lambda a, b: a / b),
        "less_equal": inline(lambda a, b: a <= b),
        "maximum": inline(lambda a, b: a if a >= b or a != a else b),
        "minimum": inline(lambda a, b: a if a <= b or a != a else b),
        "mul": inline(lambda a, b: a * b),
        "sqrt": inline(lambda x: math.sqrt(x)),
        "where": inline(lambda mask, a, b: a if mask else b),
    }
