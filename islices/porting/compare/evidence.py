"""Whether two sides agree once something has been explained, and how much that says.

**Bound.** Where an explanation multiplies, divides or sums, both sides have rounded on different ways. A row of m slots
is a sum of m terms (m - 1 additions), each of which has been through at most a reciprocal, a product, a mean's
division, a factor of clipping and a cast on either side: at most 8 roundings of half an eps of the sum of |terms| each.
On both sides together that is less than (m + 8) eps sum |terms|, to first order. Where no side's slots are known, m is
1 and the sum of |terms| is taken to be the largest |value| of the row: elements that are small by cancellation prove
nothing then. Integers do not round: their bound is 0.

**Slack.** Two models whose layers are computed in another order, or by other functions, hand different gradients to the
rows before anything is summed. That is relative to what a tensor's elements are sums of, not to each element: with
slack s every element may be s times its tensor's largest |value| further off (`SLACKS`).

**Evidence.** An element that differed by D and agrees within the bound r would do so by chance once in about D / r
random pairs: it is worth log2(D / r) bits, at most the precision of its type. Elements with the same pair of values
count once, and one of few digits, as counts are, is worth these and six bits more. What was read off the data (a
factor, a row, a permutation) costs what it could have explained. An explanation needs `ENOUGH` bits from at least two
elements: by chance one in 2^40 random pairs has that, and where all elements are within rounding anyway there is no
evidence for anything.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from islices.porting.compare.rows import PRECISION, Rows, extent
from islices.porting.compare.stored import Array, dot

__all__ = [
    "ANY", "ENOUGH", "MOST_SLACK", "NONE", "PRECISION", "SLACKS", "Evidence", "Factors", "Interval", "Paired", "Rows",
    "Told", "agrees", "bounds", "paired", "part_of",
]  # fmt: skip

#: Bits of evidence below which nothing counts as a cause.
ENOUGH = 40.0
#: Bits of a number's sign and exponent.
SIZES = 6.0
#: Roundings beside the additions of a row's slots.
ROUNDINGS = 8
#: Elements that are looked at first, and elements whose evidence is counted (the rest in proportion).
FEW, SAMPLE = 256, 1 << 14
#: What is tried one after the other, in eps of the narrower type, but no more than `MOST_SLACK`. Models of three layers
#: in two frameworks, or in float32 and float64, were up to 2^6.3 eps apart, in float16 and bfloat16 up to 2^-4.6.
SLACKS, MOST_SLACK = (8, 256), 2.0**-4


# ---------------------------------------------------------------------- which element stands beside which
@dataclass(frozen=True, eq=False)
class Paired:
    """The elements of two sides that answer one another, flat, and what `bounds` makes of them."""

    x: Array
    y: Array
    x_terms: Array
    y_terms: Array
    k: Array  # roundings of each element
    eps: float
    precision: int
    slack: float = 0.0
    tops: tuple[float, float] = (0.0, 0.0)  # of each side's tensor


def paired(x: Rows, y: Rows, slack: float = 0.0, *, some: bool = False) -> Paired | None:
    """Element beside element; None where the rows' shapes or, for two sparse sides, the rows themselves differ.

    some: slack is a part of the largest |value| of these rows, which are looked at first and hold the largest that
    there is but for what changes have made of others; else of that of the whole tensor.
    """
    tops = (0.0, 0.0)
    if slack:
        tops = (extent(x.values)[0], extent(y.values)[0]) if some else (x.top, y.top)
    if x.values.shape[1:] != y.values.shape[1:]:
        return None
    if not np.array_equal(x.ids, y.ids):
        if x.sparse and y.sparse:
            return None
        ids = np.union1d(x.ids, y.ids)
        x, y = _spread(x, ids), _spread(y, ids)
    m = np.maximum(_counts(x), _counts(y)).astype(np.float64)
    width = math.prod(x.values.shape[1:])
    known = x.terms is not None or y.terms is not None
    return Paired(
        x.values.reshape(-1), y.values.reshape(-1), _terms(x, known), _terms(y, known), np.repeat(m + ROUNDINGS, width),
        max(x.eps, y.eps), min(PRECISION[x.dtype], PRECISION[y.dtype]), slack, tops,
    )  # fmt: skip


def _counts(x: Rows) -> Array:
    return np.ones(len(x.ids), np.int64) if x.counts is None else x.counts


def _terms(x: Rows, known: bool) -> Array:
    """The sum of |terms| of each element, flat; known: of some side they are, so that |values| do for the other."""
    if x.terms is not None or known:
        return np.abs(x.values if x.terms is None else x.terms).reshape(-1)
    flat = np.abs(x.values.reshape(len(x.ids), math.prod(x.values.shape[1:])))
    return np.repeat(flat.max(axis=1, initial=0.0), flat.shape[1])


def _spread(x: Rows, ids: Array) -> Rows:
    """x on more rows, the new ones zeros."""
    place = np.searchsorted(ids, x.ids)

    def onto(part: Array | None, fill: float) -> Any:
        if part is None:
            return None
        out = np.full((len(ids), *part.shape[1:]), fill, part.dtype)
        out[place] = part
        return out

    return replace(x, ids=ids, values=onto(x.values, 0.0), terms=onto(x.terms, 0.0), counts=onto(x.counts, 1))


def bounds(p: Paired, factor: float = 1.0) -> Array:
    """How far x and factor * y may be apart by rounding, and by the slack."""
    with np.errstate(over="ignore", invalid="ignore"):
        terms = np.multiply(p.y_terms, abs(factor))
        result: Array = np.multiply(p.k, p.eps)
        result *= np.maximum(p.x_terms, terms, out=terms)
    if p.slack:
        result += p.slack * max(p.tops[0], abs(factor) * p.tops[1])
    return result


# ---------------------------------------------------------------------- agreement
@dataclass(frozen=True)
class Evidence:
    """bits of evidence from so many distinct elements."""

    bits: float
    elements: int

    def __add__(self, other: Evidence) -> Evidence:
        return Evidence(self.bits + other.bits, self.elements + other.elements)

    def less(self, cost: float) -> Evidence:
        return Evidence(self.bits - cost, self.elements)

    @property
    def enough(self) -> bool:
        """Whether it makes a cause."""
        return self.bits >= ENOUGH and self.elements >= 2


NONE = Evidence(0.0, 0)


def agrees(p: Paired, *, exact: bool, factor: float = 1.0) -> bool:
    """Whether x is factor * y: to the bit, or within the bound; some elements are looked at first."""
    n = len(p.x)
    if n > 4 * FEW:
        few = np.linspace(0, n - 1, FEW).astype(np.int64)
        if not _agrees(part_of(p, few), exact, factor):
            return False
    return _agrees(p, exact, factor)


def part_of(p: Paired, at: Array) -> Paired:
    """Some elements: a mask, or their places."""
    return replace(p, x=p.x[at], y=p.y[at], x_terms=p.x_terms[at], y_terms=p.y_terms[at], k=p.k[at])


def _agrees(p: Paired, exact: bool, factor: float) -> bool:
    with np.errstate(invalid="ignore", over="ignore"):
        y = p.y if factor == 1.0 else p.y * factor
        same = p.x == y
        if not exact:
            same |= np.abs(p.x - y) <= bounds(p, factor)
    same |= (p.x != p.x) & (y != y)
    return bool(same.all())


class Told:
    """Elements that an explanation has something to say of, thinned evenly as blocks of them come."""

    def __init__(self) -> None:
        self.count = self._kept = 0
        self._stride = 1
        self.precision = 0  # of the narrower type
        self._parts: list[tuple[Paired, Array]] = []

    def add(self, p: Paired, was: Array) -> None:
        """Elements that were `was` (flat, >= 0) apart before; those that were not, or are no numbers, tell nothing."""
        self.precision = p.precision
        told = np.flatnonzero((was > 0) & np.isfinite(p.y) & np.isfinite(p.x))
        first = -self.count % self._stride
        self.count += len(told)
        self._keep(part_of(p, some := told[first :: self._stride]), was[some])
        if self._kept > 16 * SAMPLE and len(self._parts) > 1:
            while self._kept > 2 * SAMPLE:
                p, was = self._joined()
                self._parts, self._kept, self._stride = [], 0, 2 * self._stride
                self._keep(part_of(p, np.arange(0, len(p.x), 2)), was[::2])

    def _keep(self, p: Paired, was: Array) -> None:
        if len(was):
            self._parts.append((p, was))
            self._kept += len(was)

    def _joined(self) -> tuple[Paired, Array]:
        if len(self._parts) > 1:
            pairs = [p for p, _ in self._parts]
            arrays: dict[str, Any] = {
                n: np.concatenate([getattr(p, n) for p in pairs]) for n in ("x", "y", "x_terms", "y_terms", "k")
            }
            self._parts = [(replace(pairs[0], **arrays), np.concatenate([was for _, was in self._parts]))]
        return self._parts[0]

    def evidence(self, *, exact: bool, factor: float = 1.0, scale: float = 1.0) -> Evidence:
        """What it says that x is factor * y, where elements were scale * was apart before."""
        if not self.count:
            return NONE
        q, was = self._joined()
        if len(was) > SAMPLE:
            some = np.linspace(0, len(was) - 1, SAMPLE).astype(np.int64)
            q, was = part_of(q, some), was[some]
        finest = 0.25 * q.eps * np.abs(q.x) if q.eps else np.full(len(was), 0.5)  # half the spacing, or less
        limit = finest if exact else np.maximum(bounds(q, factor), finest)
        was = was * scale
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            bits = np.clip(np.nan_to_num(np.log2(was / limit), posinf=q.precision), 0.0, q.precision)
        bits = np.minimum(bits, _digits(q.x))
        _, first = np.unique(np.stack([q.x, was]), axis=1, return_index=True)
        bits = bits[first]
        share = self.count / len(was) if len(first) > SAMPLE // 2 else 1.0
        return Evidence(float(bits.sum()) * share, int((bits > 0).sum()))


def _digits(x: Array) -> Array:
    """What a number can say at most: its significant bits, sign and exponent. Counts and powers of two are often equal
    by chance. Of zeros there is one: what has become zero says all that it was."""
    mantissa = np.ldexp(np.abs(np.frexp(x)[0]), 53).astype(np.int64)
    lowest = mantissa & -mantissa
    return np.where(x == 0, np.inf, 53.0 - np.log2(np.maximum(lowest, 1)) + SIZES)


# ---------------------------------------------------------------------- a constant factor
@dataclass(frozen=True)
class Interval:
    """The factors c for which x = c * y within the bound on rounding, all elements together; fit: by least squares."""

    low: float
    high: float
    fit: float = 0.0

    def __and__(self, other: Interval) -> Interval:
        return Interval(max(self.low, other.low), min(self.high, other.high))

    @property
    def empty(self) -> bool:
        return not self.low <= self.high

    @property
    def middle(self) -> float:
        if math.isinf(self.low) or math.isinf(self.high):
            return 1.0
        return 0.5 * (self.low + self.high)

    def apart(self, factor: float) -> float:
        """How far a factor is from the best fit, relatively; 0 where any factor would do."""
        return abs(factor / self.fit - 1.0) if self.fit else 0.0

    def holds(self, factor: float, tolerance: float) -> bool:
        """Whether a factor, known up to a relative tolerance, lies within."""
        return self.low <= factor * (1 + tolerance) and factor * (1 - tolerance) <= self.high


ANY = Interval(-math.inf, math.inf)


class Factors:
    """The positive factors that make y into x, narrowed block by block.

    Parameters
    ----------
    guess : float, optional
        About the factor, which the bound asks for; else that of the first block, which is then all there is.
    top : float
        The size of y, by which products are kept from overflow.
    """

    def __init__(self, guess: float | None = None, top: float = 0.0) -> None:
        self.guess, self._top = guess, top
        self._low, self._high = -math.inf, math.inf
        self._xy = self._yy = 0.0
        self._zeros = True

    def narrow(self, p: Paired) -> bool:
        """Take in some elements; whether factors are left."""
        finite = np.isfinite(p.x) & np.isfinite(p.y)
        if not finite.all():
            a, b = p.x[~finite], p.y[~finite]
            if not ((a == b) | ((a != a) & (b != b))).all():
                return False
            p = part_of(p, np.flatnonzero(finite))
        with np.errstate(over="ignore", invalid="ignore"):
            top = self._top or max(np.abs(p.y).max(initial=0.0), 1e-300)
            y = p.y / top
            square, product = dot(y, y), dot(p.x / top, y)
        if square == 0 and not p.x.any():
            return True
        self._zeros = False
        self._xy, self._yy = self._xy + product, self._yy + square
        guess = self.guess if self.guess is not None else product / square if square else 0.0
        if not 0 < guess < math.inf:
            return False
        slack = bounds(p, guess)
        x, y, some = p.x, p.y, p.y != 0
        if not some.all():
            if (np.abs(x[~some]) > slack[~some]).any():
                return False
            x, y, slack = x[some], y[some], slack[some]
        with np.errstate(over="ignore", invalid="ignore"):
            size = np.abs(y)
            ratio, width = x / y, np.divide(slack, size, out=slack)
            self._low = max(self._low, float(np.subtract(ratio, width, out=size).max(initial=-math.inf)))
            self._high = min(self._high, float(np.add(ratio, width, out=width).min(initial=math.inf)))
        return self._low <= self._high and self._high > 0

    @property
    def interval(self) -> Interval:
        """What is left; `ANY` where both sides are zeros."""
        return ANY if self._zeros or not self._yy else Interval(self._low, self._high, self._xy / self._yy)
