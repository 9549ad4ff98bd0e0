"""Compute with numbers that have a bound on the error of float32 evaluations of the same formula. See SPEC clause 28.

A `Real` is a number of 64 decimal digits and a bound on its distance from every admissible evaluation in float32. A sum
stays open until another operation needs the sum: further terms extend the same sum. So the bound of a sum is valid for
every order of the additions. Bounds are float64 numbers. Multiplying by `SLACK` rounds bounds upwards, and also covers
the error of the 64 digits.

The proofs below have the same numbers as the bounds in clause 28, and use the symbols of the clause.

1. A term goes through at most n - 1 additions in any binary tree. Each addition multiplies the term by 1 + e, |e| <= u.
   So the computed sum is sum X_i (1 + e_i) with |e_i| <= r(n-1), plus at most n - 1 flushed results (Higham 2002,
   section 4.2). Contraction replaces a rounded product by its exact value, which bound 2 admits with e = f = 0.
2. |XY - xy| <= P, and one rounding acts on a result of size at most |xy| + P. In any order, a product of k factors has
   k - 1 roundings. The terms y X_i also cover the product of y and the computed sum. If another term is added, that
   form has n + 1 roundings: n - 1 of the sum, one of the product, one of the addition. As a term of a sum of n + 1
   terms, y X_i has n + 1 roundings too: one of the product, and n of the sum.
3. Let C be the computed c. W (1 - C)(1 + e)(1 + e') goes through at most n - 2 additions, so W and C W have n roundings
   each. Bound 1 includes n - 1 of these roundings. The nth rounding of W is r(1) s(w), because (1 + r(1))(1 + r(n-1)) =
   1 + r(n). The nth rounding of C W is the rounding of the product c w; this form does not compute that product. Only
   the product by W can be flushed, because 1 - C is 0 or far above d, and the bound of c w includes its d. The product
   by C changes C W by d |W|, which is less than the 2^-40 of r(1) s(w) that `SLACK` adds.
4. |X/Y - x/y| = |X - x - (x/y)(Y - y)| / |Y| <= P.

May import: `numpy`.
"""

from __future__ import annotations

import math
from decimal import Context, Decimal
from typing import Any

import numpy as np

#: 64 digits are 212 bits; the exponents exceed by far those of any product of float32 numbers.
CONTEXT = Context(prec=64)
#: Half the distance from 1 to the next float32: the largest relative error of one rounding.
U = 2.0**-24
#: The smallest normal float32, which bounds the error of a result that is flushed to zero.
TINY = 2.0**-126
LARGEST = float(np.finfo(np.float32).max)
#: The factor that rounds a bound upwards. A bound needs at most 32 float64 operations, each with a relative error of at
#: most 2^-53. Sums and products of positive numbers do not cancel; quotients and roots have separate allowances for
#: their differences.
SLACK = 1.0 + 2.0**-40
ZERO = Decimal(0)


def roundings(count: int) -> float:
    """Return an upper bound of (1 + U)^count - 1."""
    return count * U * (1.0 + count * U)


class Real:
    """A number with a bound on the error of an admissible evaluation.

    The number is an open sum of ``count`` terms, and ``raw`` is the sum of the bounds of the terms. ``magnitude``
    bounds the sum of the absolute values of the terms; it is not used for a single term.
    """

    __slots__ = ("count", "magnitude", "raw", "value")

    def __init__(self, value: Decimal, raw: float = 0.0, count: int = 1, magnitude: float = 0.0) -> None:
        self.value = value
        self.raw = raw
        self.count = count
        self.magnitude = magnitude

    @staticmethod
    def of(value: float) -> Real:
        """Return an exact number, which has the same value in every evaluation."""
        return Real(Decimal(value))

    def __repr__(self) -> str:
        return f"Real({float(self.value)!r}, {self.error:.3g})"

    # ------------------------------------------------------------------ its bound
    @property
    def error(self) -> float:
        """Return the bound on the error, including the roundings of the open sum."""
        if self.count == 1:
            return self.raw
        added = self.count - 1
        found = (self.raw + roundings(added) * self.magnitude + added * TINY) * SLACK
        return found if self.magnitude < LARGEST else math.inf

    @property
    def exact_zero(self) -> bool:
        return self.value == ZERO and self.error == 0.0

    @property
    def size(self) -> float:
        """Return a bound on the absolute value in every admissible evaluation."""
        return (abs(float(self.value)) + self.error) * SLACK

    def rounded(self) -> Real:
        """Close the open sum: return a number of one term that includes the roundings of the sum."""
        return self if self.count == 1 else Real(self.value, self.error)

    # ------------------------------------------------------------------ sums
    def __neg__(self) -> Real:
        return Real(-self.value, self.raw, self.count, self.magnitude)

    def __add__(self, other: Any) -> Real:
        if not isinstance(other, Real):
            return NotImplemented
        if other.exact_zero:
            return self
        if self.exact_zero:
            return other
        terms = [(x.raw, x.magnitude if x.count > 1 else x.size) for x in (self, other)]
        raw, magnitude = (math.fsum(column) for column in zip(*terms, strict=True))
        return Real(self.value + other.value, raw, self.count + other.count, magnitude * SLACK)

    def __sub__(self, other: Any) -> Real:
        return self + (-other) if isinstance(other, Real) else NotImplemented

    # ------------------------------------------------------------------ products, quotients, roots
    def __mul__(self, other: Any) -> Real:
        if not isinstance(other, Real):
            return NotImplemented
        if self.exact_zero or other.exact_zero:
            return Real(ZERO)
        x, y, dx, dy = abs(float(self.value)), abs(float(other.value)), self.error, other.error
        propagated = _times(x, dy) + _times(y, dx) + _times(dx, dy)
        return _result(self.value * other.value, propagated, 1)

    def shared(self, factor: Real) -> Real:
        """Return the factor times this sum, as an open sum with the same number of terms. The bound allows both orders:
        an evaluation may multiply the sum, or each term before the sum."""
        if self.count == 1 or factor.exact_zero:
            return factor * self
        y = abs(float(factor.value))
        raw = _times(y + factor.error, self.raw) + _times(factor.error + U * (y + factor.error), self.magnitude)
        magnitude = self.magnitude * factor.size * (1.0 + U) * SLACK
        return Real(factor.value * self.value, (raw + self.count * TINY) * SLACK, self.count, magnitude)

    def __truediv__(self, other: Any) -> Real:
        if not isinstance(other, Real):
            return NotImplemented
        distance = abs(float(other.value)) - other.error * SLACK
        if not distance > 0.0:  # the divisor may be 0
            return Real(ZERO, math.inf)
        if self.exact_zero:
            return Real(ZERO)
        value = self.value / other.value
        propagated = (self.error + _times(abs(float(value)), other.error)) / distance
        return _result(value, propagated, 2)

    def sqrt(self, *, positive: bool = True) -> Real:
        """Return the square root. `positive` is True if no evaluation can make the number negative, as for a sum of
        squares."""
        if self.exact_zero:
            return self
        value, error = float(self.value), self.error
        if value < 0.0 or not (positive or value > error * SLACK) or math.isinf(error):
            return Real(ZERO, math.inf)
        root = math.sqrt(value)
        below = root - math.sqrt(max(value - error, 0.0))
        above = math.sqrt(value + error) - root
        by_slope = error / root if root else math.inf  # (sqrt(x + d) - sqrt(x)) <= d / sqrt(x), without cancellation
        return _result(self.value.sqrt(), min(max(below, above) + 2.0**-50 * root, by_slope), 2)

    # ------------------------------------------------------------------ operations without rounding
    def __abs__(self) -> Real:
        return Real(abs(self.value), self.error)

    def maximum(self, other: Real) -> Real:
        return Real(max(self.value, other.value), max(self.error, other.error))

    def sign(self) -> Real:
        """Return the sign: -1, 0 or 1. If the sign is uncertain, the bound allows all three."""
        if self.exact_zero:
            return self
        one = Decimal(1) if self.value >= ZERO else Decimal(-1)
        return Real(one, 0.0 if abs(float(self.value)) > self.error * SLACK else 2.0)

    def off_by(self, count: int) -> Real:
        """Return the number with a bound that allows `count` more roundings."""
        return Real(self.value, (self.error + roundings(count) * self.size) * SLACK)


def _times(x: float, y: float) -> float:
    """Return x times y. Return 0, not NaN, for 0 times infinity: if a bound must be infinite, another of its terms is
    infinite."""
    return x * y if x and y else 0.0


def _result(value: Decimal, propagated: float, count: int) -> Real:
    """Return the result of an operation with ``count`` roundings. ``propagated`` is the part of the error that comes
    from the operands."""
    size = (abs(float(value)) + propagated) * (1.0 + count * U)
    error = (propagated + roundings(count) * size + count * TINY) * SLACK
    return Real(value, error if size < LARGEST else math.inf)


def mean(beta: Real, gain: Real, old: Real, new: Real) -> Real:
    """Return beta old + gain new, where gain is 1 - beta.

    The bound covers three forms: beta old + gain new, old + gain (new - old) and, where gain >= 1/2, new - beta (new -
    old). In each form, the factors of old and new are at most b and c. In the second form, the factor of old is 1 minus
    the rounded gain. In the third form, the factor of new is 1 minus the rounded beta.
    """
    if old.exact_zero and new.exact_zero:
        return old
    value = beta.value * old.value + gain.value * new.value
    off = max(beta.error, gain.error)  # the error of either factor, if the evaluation computes it as 1 minus the other
    b, c = float(beta.value) + off, float(gain.value) + off
    propagated = b * old.error + c * new.error
    size = b * old.size + c * new.size
    both = old.size + new.size
    factors = [beta.error * old.size + gain.error * new.size, gain.error * both]
    steps = [roundings(1) * size, roundings(2) * c * both]
    if c >= 0.5:
        factors.append(beta.error * both)
        steps.append(roundings(2) * b * both)
    within = propagated + max(factors) + max(steps)
    error = (within + U * (size + within) + 3 * TINY) * SLACK
    return Real(value, error if both < LARGEST else math.inf)


def scaled(x: Real, factor: Real, norm: Real, limit: Real) -> Real:
    """Return x times the factor if the norm exceeds the limit. Otherwise return x. If the comparison is uncertain, the
    bound allows both results."""
    product, off = x * factor, (norm.error + limit.error) * SLACK
    more = float(norm.value - limit.value)
    if more > off:
        return product
    if more < -off:
        return x.rounded()
    return Real(x.value, (product.error + x.error + abs(float(product.value - x.value))) * SLACK)


def shrink(x: Real, threshold: Real) -> Real:
    """Return x moved towards 0 by the threshold, but not beyond 0. The function is continuous, so an uncertain
    comparison does not widen the bound."""
    rest = abs(x.value) - threshold.value
    error = x.error + threshold.error
    if float(rest) < -error * SLACK:
        return Real(ZERO)
    value = ZERO if rest <= ZERO else rest.copy_sign(x.value)
    return _result(value, error, 1)
