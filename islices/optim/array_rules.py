"""The operators of rules on arrays of a backend. SPEC clause 16."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, lru_cache, partial
from typing import Any

import numpy as np

from islices.backend import Array, Backend
from islices.core.shapes import size_of
from islices.norms.exact import row_sums
from islices.optim.operators import bind


@lru_cache(maxsize=256)
def array_rule(rule: Callable[..., Any], B: Backend) -> Callable[..., Any]:
    """Return the rule on arrays of a backend."""
    return bind(rule, array_operators(B))


@cache
def array_operators(B: Backend) -> Mapping[str, Any]:
    """Return the operators on arrays of a backend."""
    return {
        "absolute": B.abs, "div": B.div, "less_equal": B.less_equal, "maximum": B.maximum, "minimum": B.minimum,
        "mul": B.round_product, "power": partial(array_power, B), "row_mean": partial(_row_mean, B), "sqrt": B.sqrt,
        "where": B.where,
    }  # fmt: skip


def _row_mean(B: Backend, x: Array) -> Array:
    width = size_of(B.shape(x)[1:]) or 1
    return B.as_column(B.div(row_sums(B, x), B.asarray(np.full(1, width, B.dtype(x)), x)), x)


#: Binary digits of an exponent that count: of its whole part, and of its fraction by the type it is rounded to.
WHOLE = 8
FRACTION = {"float32": 32, "float64": 64}


def array_power(B: Backend, x: Array, exponent: Array, one: Array) -> Array:
    """x^exponent, both of one type, the exponent and one of shape (1, ..., 1) (SPEC clause 16).

    No framework's pow is correctly rounded; roots and products are. From the last digit of the fraction to the first:
    ``r = sqrt(r)``, times sqrt(x) where the digit is 1, so that each root halves the error so far. Then the whole part.
    """
    whole, fraction = _digits(B, exponent, one)
    result, root = one, B.sqrt(x)
    for digit in reversed(fraction):
        result = B.sqrt(result) if result is not one else one
        result = _chosen(B, digit, B.round_product(root, result), result)
    for digit in whole:
        result = _chosen(B, digit, B.round_product(x, result), result)
        x = B.round_product(x, x)
    return result


def _chosen(B: Backend, digit: Any, a: Array, b: Array) -> Array:
    return (a if digit else b) if isinstance(digit, bool) else B.where(digit, a, b)


def _digits(B: Backend, exponent: Array, one: Array) -> tuple[list[Any], list[Any]]:
    """(digits of the whole part, the units first; of the fraction, halves first): bools, or traced masks."""
    count = FRACTION[B.dtype(exponent)]
    if not B.is_traced(exponent):
        number = float(B.to_numpy(exponent).item())
        whole, part = int(number), int((number % 1.0) * 2.0**count)
        last = max((k for k in range(count) if part >> (count - 1 - k) & 1), default=-1)
        fraction = [bool(part >> (count - 1 - k) & 1) for k in range(last + 1)]
        return [bool(whole >> k & 1) for k in range(whole.bit_length())], fraction
    powers = [one]
    for _ in range(WHOLE - 1):
        powers.append(powers[-1] + powers[-1])
    masks = []
    for value in reversed(powers):
        masks.append(B.less_equal(value, exponent))
        exponent = B.where(masks[-1], exponent - value, exponent)
    fraction = []
    for _ in range(count):
        exponent = exponent + exponent
        fraction.append(B.less_equal(one, exponent))
        exponent = B.where(fraction[-1], exponent - one, exponent)
    return masks[::-1], fraction
