"""Check that two sides agree once a cause has been applied, and measure the evidence.

**Bound.** If an explanation multiplies, divides or sums, the two sides have rounded differently. A row of m slots is
a sum of m terms (m - 1 additions). On either side, a term may pass a reciprocal, a product, a mean's division, a
factor of clipping and a cast. These round at most 8 times, by half an eps of the sum of |terms| each. On both sides
together that is less than (m + 8) eps sum |terms|, to first order. If no side's slots are known, m is 1, and the
largest |value| of the row replaces the sum of |terms|. Then elements that are small because of cancellation prove
nothing. Integers do not round: their bound is 0.

**Slack.** Two models may compute their layers in different orders or by different functions. Then the rows get
different gradients before any sum. This difference is relative to the terms of a tensor's elements, not to each
element. With slack s, every element may be further off by s times its tensor's largest |value| (`SLACKS`).

**Evidence.** An element that differed by D and now agrees within the bound r would agree by chance in about one of D
/ r random pairs. So it gives log2(D / r) bits, at most the precision of its type. Elements with the same pair of
values count once. An element of few digits, like a count, gives the bits of these digits and six more. A number from
the data (a factor, a row, a permutation) costs as many bits as it could have explained. An explanation needs `ENOUGH`
bits from at least two elements. One in 2^40 random pairs has them by chance. If all elements are within rounding
before the change, there is no evidence for any cause.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from islices.porting.compare.rows import PRECISION, Rows
from islices.porting.compare.stored import Array, dot, placed

#: Bits of evidence below which nothing counts as a cause.
ENOUGH = 40.0
#: Bits of a number's sign and exponent.
SIZES = 6.0
#: Roundings in addition to the additions of a row's slots.
ROUNDINGS = 8
#: The number of elements to check first.
FEW = 256
#: Slacks to try in order, in eps of the narrower type, but no more than `MOST_SLACK`. Models of three layers in two
#: frameworks, or in float32 and float64, were up to 2^6.3 eps apart; in float16 and bfloat16 up to 2^-4.6.
SLACKS, MOST_SLACK = (8, 256), 2.0**-4


# ---------------------------------------------------------------------- corresponding elements
@dataclass(frozen=True, eq=False)
class Paired:
    """The flat, corresponding elements of two sides, and their `bounds`."""

    x: Array
    y: Array
    x_terms: Array
    y_terms: Array
    k: Array  # roundings of each element
    ids: Array  # of the rows
    eps: float
    precision: int
    slack: float
    tops: tuple[float, float]  # of each side's tensor

    def at(self, places: Array) -> Paired:
        """Return the elements that a mask or places select."""
        return replace(self, **{n: getattr(self, n)[places] for n in ("x", "y", "x_terms", "y_terms", "k")})


def paired(x: Rows, y: Rows, slack: float = 0.0, tops: tuple[float, float] | None = None) -> Paired | None:
    """Pair the elements. Return None if the rows' shapes differ, or the rows of two sparse sides.

    tops: the largest |value| of each side, if these rows may not contain it.
    """
    if x.values.shape[1:] != y.values.shape[1:]:
        return None
    if not x.meets(y):
        if x.sparse and y.sparse:
            return None
        ids = np.union1d(x.ids, y.ids)
        x, y = (replace(z, ids=ids, values=onto(ids, z, z.values), terms=onto(ids, z, z.terms),
                        counts=onto(ids, z, z.counts, 1)) for z in (x, y))  # fmt: skip
    counts = [np.ones(len(z.ids), np.int64) if z.counts is None else z.counts for z in (x, y)]
    k = np.repeat(np.maximum(*counts) + float(ROUNDINGS), x.flat.shape[1])
    known = x.terms is not None or y.terms is not None
    return Paired(
        x.values.reshape(-1), y.values.reshape(-1), _terms(x, known), _terms(y, known), k, x.ids, max(x.eps, y.eps),
        min(PRECISION[x.dtype], PRECISION[y.dtype]), slack, tops or (_top(x.values), _top(y.values)),
    )  # fmt: skip


def _top(values: Array) -> float:
    """Return the largest finite |value|."""
    sizes = np.abs(values)
    return float(sizes.max(initial=0.0, where=np.isfinite(sizes)))


def _terms(x: Rows, known: bool) -> Array:
    """Return the sum of |terms| of each element. If known, one side has terms, so |values| suffice for the other."""
    if x.terms is not None or known:
        return np.abs(x.values if x.terms is None else x.terms).reshape(-1)
    return np.repeat(np.abs(x.flat).max(axis=1, initial=0.0), x.flat.shape[1])


def onto(ids: Array, x: Rows, part: Array | None, fill: float = 0.0) -> Any:
    """Return x's values for the rows ids. Rows that x does not have get the fill value."""
    return None if part is None else placed(x.ids, part, ids, fill)


def bounds(p: Paired, factor: float = 1.0) -> Array:
    """Return the distance of x and factor * y that rounding and the slack allow."""
    with np.errstate(over="ignore", invalid="ignore"):
        result: Array = p.k * p.eps * np.maximum(p.x_terms, p.y_terms * abs(factor))
    if p.slack:
        result += p.slack * max(p.tops[0], abs(factor) * p.tops[1])
    return result


# ---------------------------------------------------------------------- agreement
def agrees(p: Paired, *, exact: bool, factor: float = 1.0, tolerance: float = 0.0) -> bool:
    """Return whether x is factor * y, to the bit or within the bound. Compare some elements first.

    tolerance: the relative tolerance of the factor.
    """
    n = len(p.x)
    if n > 4 * FEW:
        few = p.at(np.linspace(0, n - 1, FEW).astype(np.int64))
        if not agrees(few, exact=exact, factor=factor, tolerance=tolerance):
            return False
    with np.errstate(invalid="ignore", over="ignore"):
        y = p.y if factor == 1.0 else factor * p.y
        same = p.x == y
        if not exact:
            same |= np.abs(p.x - y) <= bounds(p, factor) + (tolerance * np.abs(y) if tolerance else 0.0)
    same |= (p.x != p.x) & (p.y != p.y)
    return bool(same.all())


class Evidence(NamedTuple):
    """Bits of evidence, and the number of distinct elements that gave them."""

    bits: float
    elements: int

    @classmethod
    def all(cls, found: Iterable[Evidence], cost: float) -> Evidence:
        """Return the evidence of several tensors together, minus the cost of numbers from the data."""
        bits, elements = zip((0.0, 0), *found, strict=True)
        return cls(sum(bits) - cost, sum(elements))

    @property
    def enough(self) -> bool:
        """Return True if the evidence suffices for a cause."""
        return self.bits >= ENOUGH and self.elements >= 2


def evidence(p: Paired, was: Array, *, exact: bool, factor: float = 1.0) -> Evidence:
    """Return the evidence that x is factor * y, if elements had the distances `was` (flat, >= 0) before."""
    counted = np.flatnonzero((was > 0) & np.isfinite(p.y) & np.isfinite(p.x))
    q, was = p.at(counted), was[counted]
    if not len(was):
        return Evidence(0.0, 0)
    finest = 0.25 * q.eps * np.abs(q.x) if q.eps else np.full(len(was), 0.5)  # half the spacing, or less
    limit = finest if exact else np.maximum(bounds(q, factor), finest)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        bits = np.clip(np.nan_to_num(np.log2(was / limit), posinf=q.precision), 0.0, q.precision)
    bits = np.minimum(bits, _digits(q.x))
    bits = bits[np.unique(q.x + 1j * was, return_index=True)[1]]
    return Evidence(float(bits.sum()), int((bits > 0).sum()))


def _digits(x: Array) -> Array:
    """Return the most evidence that a number can give: its significant bits, sign and exponent.

    Counts and powers of two are often equal by chance. There is only one zero, so a zero's evidence is not limited.
    """
    mantissa = np.ldexp(np.abs(np.frexp(x)[0]), 53).astype(np.int64)
    lowest = mantissa & -mantissa
    return np.where(x == 0, np.inf, 53.0 - np.log2(np.maximum(lowest, 1)) + SIZES)


# ---------------------------------------------------------------------- a constant factor
def fitted(pairs: Iterable[Paired | None]) -> float:
    """Return the factor c for which x is c * y, by least squares; 0 where zeros leave it open."""
    square = product = 0.0
    for p in pairs:
        if p is not None:
            with np.errstate(over="ignore", invalid="ignore"):
                finite = np.isfinite(p.x) & np.isfinite(p.y)
                x, y = (np.where(finite, z, 0.0) for z in (p.x, p.y))
                square, product = square + dot(y, y), product + dot(x, y)
    return product / square if square else 0.0
