"""The operators that rules use, and `bind`, which connects a rule to the operators of a backend or of numba.

A rule (`islices.optim.rules`) is plain Python code that uses ``+``, ``-`` and the functions below. `bind` makes a
function with the same code object; in this function, the operators' names stand for other operators. So NumPy, each
framework, a trace and a compiled kernel run the same formula. The operators below are placeholders, except `lerp` and
`sign`, which call the other operators. SPEC clause 16.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache
from types import FunctionType
from typing import Any, NoReturn

import numpy as np

from islices.optim.formulas import Rule

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


def _unbound() -> NoReturn:
    raise TypeError("an operator of a rule was called without operators: array_rule(rule, backend) gives them")


def mul(a: Any, b: Any) -> Any:
    """Return the rounded product of a and b. The product is never fused with a following addition."""
    _unbound()


def div(a: Any, b: Any) -> Any:
    """Return the correctly rounded quotient a / b."""
    _unbound()


def sqrt(x: Any) -> Any:
    """Return the correctly rounded square root of x."""
    _unbound()


def where(mask: Any, a: Any, b: Any) -> Any:
    """Return a where `mask` is true, else b."""
    _unbound()


def less_equal(a: Any, b: Any) -> Any:
    """Return a <= b."""
    _unbound()


def minimum(a: Any, b: Any) -> Any:
    """Return the smaller of a and b, or NaN if either is NaN."""
    _unbound()


def maximum(a: Any, b: Any) -> Any:
    """Return the larger of a and b, or NaN if either is NaN."""
    _unbound()


def absolute(x: Any) -> Any:
    """Return the absolute value of x."""
    _unbound()


def power(x: Any, exponent: Any, one: Any) -> Any:
    """Return x^exponent for 0 <= exponent < 256, computed with rounded square roots and products.

    `islices.optim.row_steps.array_power` describes the algorithm.
    """
    _unbound()


def lerp(a: Any, b: Any, weight: Any, half: Any, one: Any) -> Any:
    """Return a + weight (b - a), or b + (weight - 1) (b - a) for a weight of at least 0.5, like torch's lerp_."""
    far = less_equal(half, weight)
    return where(far, b, a) + mul(where(far, weight - one, weight), b - a)


def sign(x: Any, zero: Any, one: Any) -> Any:
    """Return 1 if x is above 0, -1 if x is below 0, and x if x is zero or NaN."""
    return where(less_equal(zero, x), where(less_equal(x, zero), x, one), where(less_equal(x, zero), -one, x))


def row_mean(x: Any) -> Any:
    """Return the mean over each row, one number per row (SPEC clause 19). Kernels do not support this operator."""
    _unbound()


def bind(rule: Rule, operators: Mapping[str, Any], wrap: Callable[[Any], Any] = lambda x: x) -> Rule:
    """Return a rule with the same code but other operators.

    The functions that the rule calls get the same operators, and are then passed to `wrap`.
    """
    if not isinstance(rule, FunctionType) or rule.__closure__:
        raise TypeError(f"rule: got {rule!r}; accepted is a plain function without a closure")
    scope = dict(operators)
    for name in rule.__code__.co_names:
        if name not in operators and name in rule.__globals__:
            x = rule.__globals__[name]
            scope[name] = wrap(bind(x, operators, wrap)) if isinstance(x, FunctionType) else x
    return FunctionType(rule.__code__, scope, rule.__name__, rule.__defaults__)


#: The operators that kernels support.
ELEMENTWISE = ("absolute", "div", "less_equal", "maximum", "minimum", "mul", "power", "sqrt", "where")


def is_elementwise(rule: Any) -> bool:
    """Return True if a rule uses only elementwise operators, so that kernels and array operations give the same bits.

    Return False for a rule that reads numbers from its code or its module, because numba computes with such numbers in
    float64.
    """
    code = rule.__code__
    if any(isinstance(x, (int, float)) and not isinstance(x, bool) for x in code.co_consts):
        return False
    called = [rule.__globals__.get(name) for name in code.co_names if name not in ELEMENTWISE]
    return all(isinstance(x, FunctionType) and x is not row_mean and is_elementwise(x) for x in called)


def _number_power(x: Any, exponent: Any, one: Any, count: Any) -> Any:
    """Return x^exponent for one number x, using the first `count` binary digits of the exponent's fraction."""
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
    """Return a dict of operators on single numbers of a dtype, compiled with numba (``pip install "islices[fast]"``).

    Results have the same bits as on arrays, because numba contracts operations only with its option fastmath. Raise
    ImportError without numba.
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
