"""Primitives of `Backend` on Python floats: for the one number that decides about a whole gradient, at no array's cost.

Python's float arithmetic is IEEE's in binary64, as that of NumPy's float64. May import: `islices.backend`.
"""

from __future__ import annotations

import math
from typing import Any

from islices.backend import Backend

__all__ = ["SCALARS"]


class _ScalarBackend(Backend):
    name = "floats"
    module = "builtins"

    def where(self, mask: Any, a: Any, b: Any) -> Any:
        return a if mask else b

    def minimum(self, a: Any, b: Any) -> Any:
        return a if a <= b or a != a else b

    def maximum(self, a: Any, b: Any) -> Any:
        return a if a >= b or a != a else b

    def less_equal(self, a: Any, b: Any) -> Any:
        return a <= b

    def isfinite(self, x: Any) -> Any:
        return math.isfinite(x)

    def div(self, a: Any, b: Any) -> Any:
        try:
            return a / b
        except ZeroDivisionError:
            return math.nan if a == 0 or a != a else math.copysign(math.inf, a) * math.copysign(1.0, b)


SCALARS = _ScalarBackend()
