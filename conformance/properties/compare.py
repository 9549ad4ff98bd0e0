"""Compare the results of a law. Each function returns a line that describes the difference, or "" if the law holds.
Printed counterexamples call these functions through `running.again`.

May import: `numpy`, `islices.conformance.data`, `islices.conformance.execute`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from islices.conformance.data import arrays_of
from islices.conformance.execute import difference, read


def same_bits(got: Any, expected: Any) -> str:
    """Check that both results have the same bits. NaN equals NaN, and -0 equals +0."""
    return difference(read(got), read(expected), path="got")


def ulps_apart(got: Any, expected: Any, ulps: int) -> str:
    """Check that each element of `got` differs from the same element of `expected` by at most `ulps` units in the last
    place."""

    def near(g: float, e: float, dtype: str) -> bool:
        return g == e or abs(g - e) <= ulps * _ulp(max(abs(g), abs(e)), dtype)

    return _elements(got, expected, near, f"{ulps} ulp")


def at_most(got: Any, bound: float) -> str:
    """Check that no element of `got` is NaN or larger than `bound`."""
    return _elements(got, bound, lambda g, b, dtype: g <= b, "the bound")


def within(got: Any, expected: Any, bound: Any) -> str:
    """Check that |got - expected| is at most `bound` in each element.

    If an element of the bound is not finite, any element of `got` passes there, because intermediate sums may overflow.
    """
    numbers = iter(_flat(bound))

    def near(g: float, e: float, dtype: str) -> bool:
        limit = next(numbers)[0]
        return not math.isfinite(limit) or g == e or abs(g - e) <= limit

    return _elements(got, expected, near, "the bound on rounding")


def _ulp(x: float, dtype: str) -> float:
    if not math.isfinite(x):
        return 0.0
    if dtype == "bfloat16":
        return _ulp(x, "float32") * 2**16
    return float(np.spacing(np.array(x, dtype)))


def _elements(got: Any, expected: Any, holds: Any, subject: str) -> str:
    gots = _flat(got)
    wanted = [(expected, "")] * len(gots) if isinstance(expected, float) else _flat(expected)
    if len(gots) != len(wanted):
        return f"got {len(gots)} elements, expected {len(wanted)}"
    for k, ((g, dtype), (e, _)) in enumerate(zip(gots, wanted, strict=True)):
        if not holds(g, e, dtype) and not (g != g and e != e):
            return f"got: element {k}: got {g!r}, expected {e!r}, further apart than {subject}"
    return ""


def _flat(x: Any) -> list[tuple[Any, str]]:
    """Return all elements of the arrays as (number, dtype)."""
    return [(v, array.dtype) for array in arrays_of(read(x)) for v in array.data]
