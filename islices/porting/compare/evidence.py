"""Check that two sides agree once a cause has been applied, and measure the evidence.

**Bound.** If an explanation multiplies, divides or sums, the two sides have rounded differently. A row of m slots is
a sum of m terms (m - 1 additions). On either side, a term may pass a reciprocal, a product, a mean's division, a
factor of clipping and a cast. These round at most 8 times, by half an eps of the sum of |terms| each. On both sides
together that is less than (m + 8) eps sum |terms|, to first order. If no side's slots are known, m is 1, and the
largest |value| of the row replaces the sum of |terms|. Then elements that are small because of cancellation prove
nothing. Integers do not round: their bound is 0. An infinity agrees only with itself.

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

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np

from islices.porting.compare.rows import PRECISION, Rows
from islices.porting.compare.stored import Array, dot, matrix

#: Bits of evidence below which nothing counts as a cause.
ENOUGH = 40.0
#: Bits of a number's sign and exponent.
SIZES = 6.0
#: Roundings in addition to the additions of a row's slots.
ROUNDINGS = 8
#: Bits of a number that no short decimal says.
FREE = 24.0
#: The number of elements to check first.
FEW = 256
#: Slacks to try in order, in eps of the narrower type, but no more than `MOST_SLACK`. Models of three layers in two
#: frameworks, or in float32 and float64, were up to 2^6.3 eps apart; in float16 and bfloat16 up to 2^-4.6.
SLACKS, MOST_SLACK = (8, 256), 2.0**-4


# ---------------------------------------------------------------------- corresponding elements
@dataclass(frozen=True, eq=False)
class Paired:
    """The flat, corresponding elements of two sides.

    bound: how far apart rounding and the slack may bring the elements. top: the largest |value| of both tensors.
    """

    x: Array
    y: Array
    bound: Array
    ids: Array  # of the rows
    eps: float
    precision: int
    top: float

    def at(self, places: Array) -> Paired:
        """Return the elements that a mask or places select."""
        return replace(self, x=self.x[places], y=self.y[places], bound=self.bound[places])


def paired(x: Rows, y: Rows, slack: float = 0.0, top: float | None = None) -> Paired | None:
    """Pair the elements. Return None if the rows' shapes differ, or the rows of two sparse sides.

    top: the largest |value| of both sides, if these rows may not contain it.
    """
    if x.row_shape != y.row_shape:
        return None
    if not x.meets(y):
        if x.sparse and y.sparse:
            return None
        ids = np.union1d(x.ids, y.ids)
        x, y = x.onto(ids), y.onto(ids)
    sizes = np.maximum(np.abs(x.flat), np.abs(y.flat))
    sizes[~np.isfinite(sizes)] = 0.0
    if top is None:
        top = float(sizes.max(initial=0.0))
    known = x.known or y.known
    terms = matrix(np.maximum(x.terms, y.terms)) if known else sizes.max(axis=1, keepdims=True, initial=0.0)
    eps = max(x.eps, y.eps)
    with np.errstate(over="ignore", invalid="ignore"):
        bound = (np.maximum(x.counts, y.counts) + ROUNDINGS)[:, None] * eps * terms + slack * top
    u, v, bound = (z.reshape(-1) for z in (x.values, y.values, np.broadcast_to(bound, sizes.shape)))
    return Paired(u, v, bound, x.ids, eps, min(PRECISION[x.dtype], PRECISION[y.dtype]), top)


# ---------------------------------------------------------------------- agreement
def agrees(p: Paired, *, exact: bool, tolerance: float = 0.0) -> bool:
    """Return whether x is y, to the bit or within the bound. Compare some elements first.

    tolerance: the relative tolerance of y.
    """
    n = len(p.x)
    if n > 4 * FEW and not agrees(p.at(np.linspace(0, n - 1, FEW).astype(np.int64)), exact=exact, tolerance=tolerance):
        return False
    with np.errstate(invalid="ignore", over="ignore"):
        same = (p.x == p.y) | ((p.x != p.x) & (p.y != p.y))
        if not exact:
            away = np.abs(p.x - p.y)
            same |= (away <= p.bound + tolerance * np.abs(p.y)) & (away < np.inf)
    return bool(same.all())


def evidence(p: Paired, was: Array, *, exact: bool) -> Array:
    """Return the bits of evidence that x is y, if elements had the distances `was` (flat, >= 0) before.

    There is one number for each distinct element with evidence.
    """
    counted = np.flatnonzero((was > 0) & np.isfinite(p.y) & np.isfinite(p.x))
    p, was = p.at(counted), was[counted]
    limit = 0.25 * p.eps * np.abs(p.x) if p.eps else np.full(len(was), 0.5)  # half the spacing, or less
    return bits_of(p.x, was, limit if exact else np.maximum(p.bound, limit), p.precision)


def bits_of(x: Array, was: Array, limit: Array, precision: int) -> Array:
    """Return the bits of evidence that distances `was` from x are now within the limit, if there are any."""
    with np.errstate(all="ignore"):
        bits = np.clip(np.nan_to_num(np.log2(was / limit), posinf=precision), 0.0, precision)
    bits = np.minimum(bits, _digits(x))[np.unique(x + 1j * was, return_index=True)[1]]
    some: Array = bits[bits > 0]
    return some


def enough(found: Iterable[Array], cost: float, elements: int = 2) -> float | None:
    """Return the bits of several tensors together, minus the cost of numbers from the data; None if they do not
    suffice for a cause."""
    bits = np.concatenate([np.zeros(0), *found])
    total = float(bits.sum()) - cost
    return total if total >= ENOUGH and len(bits) >= elements else None


def _digits(x: Array) -> Array:
    """Return the most evidence that a number can give: its significant bits, sign and exponent.

    Counts and powers of two are often equal by chance. There is only one zero, so a zero's evidence is not limited.
    """
    mantissa = np.ldexp(np.abs(np.frexp(x)[0]), 53).astype(np.int64)
    lowest = mantissa & -mantissa
    return np.where(x == 0, np.inf, 53.0 - np.log2(np.maximum(lowest, 1)) + SIZES)


# ---------------------------------------------------------------------- numbers from the data
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


def as_written(x: float, fits: Callable[[float], bool], most: int = 4) -> tuple[float, float]:
    """Return x with as few decimal digits as possible, and their cost. fits tests whether a shorter number is good
    enough."""
    for digits in range(1, most + 1):
        short = float(f"{x:.{digits - 1}e}")
        if fits(short):
            return short, 4.0 + 4 * digits
    return x, FREE
