"""Make arrays whose sum of squares or absolute values is often at or near a midpoint of two float64 numbers, and
compute exact norms.

May import: `numpy`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

__all__ = ["exact_norm", "tied"]

Host = np.ndarray[Any, Any]
#: dtype -> (significant bits, exponent of the smallest number in use)
FORMS = {"float16": (11, -14), "float32": (24, -120), "float64": (53, -400)}
#: Sums are integer multiples of 2^-POINT.
POINT = 1200


def exact_norm(x: Host, ord: int) -> float:
    """Return the norm that SPEC clause 7 defines, computed with integers."""
    mantissas, exponents = np.frexp(np.abs(x.astype(np.float64)))
    sizes = [(int(m * 2.0**53), int(e) - 53) for m, e in zip(mantissas, exponents, strict=True) if m]
    lowest = min((e for _, e in sizes), default=0)
    number, exponent = _rounded(sum(m**ord << ord * (e - lowest) for m, e in sizes), 53)
    exponent += ord * lowest
    if ord == 1:
        return _scaled(number, exponent)
    odd = exponent & 1
    return _scaled(math.sqrt(number << odd), (exponent - odd) // 2)


def tied(rng: np.random.Generator, dtype: str, ord: int, width: int) -> Host:
    """Return an array of `width` numbers. Most arrays contain random numbers, numbers that bring the sum to a midpoint
    or near it, and zeros."""
    bits, least = FORMS[dtype]
    x = (np.abs(rng.standard_normal(int(rng.integers(1, width // 2)))) + 0.05).astype(dtype)
    if dtype == "float64" and rng.integers(3) == 0:  # equal numbers next to a power of two
        x = np.full(int(rng.integers(2, width)), 1.0 + int(rng.integers(-3, 4)) * 2.0**-53)
    total = sum(_fixed(float(v)) ** ord << POINT * (2 - ord) for v in x)
    number, exponent = _rounded(total, 53)
    missing = ((2 * number + 1) << exponent - 1) - total
    found = x.tolist()
    for _ in range(int(rng.integers(0, width - len(x) + 1))):
        root = math.isqrt(max(0, missing)) if ord == 2 else max(0, missing) >> POINT
        size = root.bit_length()
        if size - POINT <= least:
            break
        v = math.ldexp(root >> max(0, size - bits), max(0, size - bits) - POINT)
        found.append(v)
        missing -= _fixed(v) ** ord << POINT * (2 - ord)
    if len(found) < width and rng.integers(2):
        found.append(2.0**least)
    found += [0.0] * (width - len(found))
    scale = 2.0 ** int(rng.integers(-300, 300)) if dtype == "float64" else 1.0
    return (rng.permutation(found) * rng.choice([-scale, scale], width)).astype(dtype)


def _fixed(v: float) -> int:
    mantissa, exponent = math.frexp(abs(v))
    return int(mantissa * 2.0**53) << POINT + exponent - 53


def _rounded(number: int, bits: int) -> tuple[int, int]:
    """Round an integer to `bits` bits, ties to even, and return (the rounded mantissa, the exponent of 2)."""
    shift = max(0, number.bit_length() - bits)
    rest, half = number & ((1 << shift) - 1), 1 << shift >> 1
    number >>= shift
    return number + int(shift > 0 and (rest > half or (rest == half and number & 1 == 1))), shift


def _scaled(number: float, exponent: int) -> float:
    try:
        return math.ldexp(number, exponent)
    except OverflowError:
        return math.inf
