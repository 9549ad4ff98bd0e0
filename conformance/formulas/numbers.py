"""Define the numbers and the array operations that rules use. `Numbers` computes in float64; `BoundedNumbers` computes
in 64 decimal digits, with bounds.

A rule computes elements of arrays only with methods of `Numbers`, Python's operators and abs(). So one rule serves two
purposes. With `BoundedNumbers` and arrays of `Real`, the rule computes the vectors; with `Numbers`, the rule computes a
float64 trajectory.

May import: `numpy`, this folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import numpy as np

from islices.conformance.formulas.bounded import Real, U, mean, roundings, scaled, shrink

#: A bound on the error of computing a scalar in float64, relative to the largest number in its formula.
DOUBLE = 2.0**-50


class Numbers:
    """The options of a trajectory at step t (counted from 1) as factors for arrays, and NumPy's operations in float64.

    ``h`` contains the options as plain values. The scalars `gain` (1 - beta) and `correction` (1 - beta^t) have
    separate methods, because their digits cancel: their errors differ between the grades of clause 28. A division by 0
    gives infinity or NaN.
    """

    def __init__(self, h: Mapping[str, Any], t: int, squares: Any = None) -> None:
        self.h = h
        self.t = t
        #: the sum of the squares of each row's slices, if the formula uses it
        self.squares = squares

    def __getitem__(self, name: str) -> Any:
        return self.number(self.h[name])

    def number(self, value: float, operations: int = 0) -> Any:
        """Return `value` as a scalar. `operations` is the number of operations that computed the value, all without
        cancellation."""
        return np.float64(value)

    def gain(self, name: str) -> Any:
        """Return 1 - beta, where beta is the option `name`."""
        return 1.0 - self.h[name]

    def correction(self, name: str, t: int | None = None) -> Any:
        """Return 1 - beta^t, where beta is the option `name`. By default, t is the current step."""
        return 1.0 - self.number(self.h[name] ** (self.t if t is None else t))

    def mean(self, name: str, old: Any, new: Any) -> Any:
        """Return beta old + (1 - beta) new, where beta is the option `name`."""
        return self.h[name] * old + (1.0 - self.h[name]) * new

    maximum: Any = staticmethod(np.maximum)
    sign: Any = staticmethod(np.sign)

    def sqrt(self, x: Any, *, positive: bool = True) -> Any:
        return np.sqrt(x)

    def largest(self, x: Any) -> Any:
        """Return, for each column, the index of the row with the largest element. If several elements are largest, the
        first of them counts."""
        return np.argmax(x, axis=0)

    def shrink(self, x: Any, threshold: Any) -> Any:
        """Return x moved towards 0 by the threshold, but not beyond 0."""
        return np.copysign(np.maximum(np.abs(x) - threshold, 0.0), x)

    def shared(self, factor: Any, total: Any) -> Any:
        """Return the factor times a sum. Implementations may multiply the sum or each of its terms."""
        return factor * total

    def scaled(self, x: Any, factor: Any, norm: Any, limit: Any) -> Any:
        """Return x times the factor if the norm exceeds the limit. Otherwise return x."""
        return np.where(norm > limit, x * factor, x)

    def off_by(self, x: Any, count: int) -> Any:
        """Return `x` with a bound that allows `count` more roundings. A number without a bound stays the same."""
        return x

    def square(self, g: Any) -> Any:
        return g * g if self.squares is None else self.squares

    def minimum(self, x: Any, y: Any) -> Any:
        return -self.maximum(-x, -y)

    def total(self, x: Any) -> Any:
        flat = x.reshape(-1)
        found = flat[0]
        for element in flat[1:]:
            found = found + element
        return found

    def row_sum(self, x: Any) -> Any:
        """Return the sum of each row, as a column."""
        total = x[:, :1]
        for column in range(1, x.shape[-1]):
            total = total + x[:, column : column + 1]
        return total

    def row_mean(self, x: Any) -> Any:
        """Return the mean of each row, as a column."""
        return self.row_sum(x) / self.number(float(x.shape[-1]))


_sqrt = np.frompyfunc(lambda x, positive: x.sqrt(positive=positive), 2, 1)
_value = np.frompyfunc(lambda x: x.value, 1, 1)
_mean = np.frompyfunc(mean, 4, 1)


def _elementwise(function: Any, arguments: int) -> Any:
    return staticmethod(np.frompyfunc(function, arguments, 1))


class BoundedNumbers(Numbers):
    """The options of a trajectory as `Real` scalars, and operations on arrays of `Real`. The bounds of
    grade 1 are for scalars computed in float64 and rounded to float32, those of grade 2 for scalars computed in
    float32."""

    def __init__(self, h: Mapping[str, Any], t: int, squares: Any = None, *, grade: int = 1) -> None:
        super().__init__(h, t, squares)
        self.grade = grade

    def number(self, value: float, operations: int = 0) -> Any:
        if not operations and float(np.float32(value)) == value:
            return Real(Decimal(float(value)))
        # one rounding for each operation, and one for its operand
        count = 1 + (2 * operations if self.grade == 2 else 0)
        return Real(Decimal(float(value)), (roundings(count) + DOUBLE) * abs(value))

    def formed(self, exact: Decimal, single: float) -> Real:
        """Return a scalar whose digits cancel, such as 1 - beta^t. `single` is the error of this scalar in grade 2
        before the last rounding."""
        off = DOUBLE * (1 + self.t) if self.grade == 1 else single
        size = abs(float(exact)) + off
        return Real(exact, (off + U * size) * (1.0 + U))

    def gain(self, name: str) -> Any:
        return self.formed(1 - Decimal(self.h[name]), U * self.h[name])

    def correction(self, name: str, t: int | None = None) -> Any:
        t = self.t if t is None else t
        power = Decimal(self.h[name]) ** t
        # the error of a product of t rounded factors, or of a pow that is accurate within 4 U
        relative = (2 * t + 4) * U
        return self.formed(1 - power, relative * (1.0 + relative) * float(power))

    def mean(self, name: str, old: Any, new: Any) -> Any:
        return _mean(self[name], self.gain(name), old, new)

    def sqrt(self, x: Any, *, positive: bool = True) -> Any:
        return _sqrt(x, positive)

    def largest(self, x: Any) -> Any:
        return np.argmax(_value(x), axis=0)  # only inputs are compared, and these are exact

    maximum = _elementwise(Real.maximum, 2)
    sign = _elementwise(Real.sign, 1)
    shrink = _elementwise(shrink, 2)
    shared = _elementwise(lambda factor, total: total.shared(factor), 2)
    scaled = _elementwise(scaled, 4)
    off_by = _elementwise(Real.off_by, 2)
