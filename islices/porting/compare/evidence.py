"""Check that two sides agree once a cause has been applied, and measure the evidence.

**Bound.** If an explanation multiplies, divides or sums, the two sides have rounded differently. A row of m slots is a
sum of m terms (m - 1 additions). On each side, a term may go through a reciprocal, a product, the division of a mean, a
clipping factor and a cast. These operations round at most 8 times; each rounding is at most half an eps of the sum of
|terms|. To first order, the sides therefore differ by less than (m + 8) eps sum |terms|. If the slots of neither side
are known, m is 1, and the largest |value| of the row replaces the sum of |terms|. Without known slots, elements that
are small because of cancellation are no evidence. Integers do not round: their bound is 0. An infinity agrees only with
itself.

**Slack.** Two models may compute their layers in different orders or by different functions. The gradients of the rows
of two such models differ before any sum. The size of this difference depends on the terms of the tensor, not on the
value of each element. With slack s, every element may differ by a further s times the largest |value| of its tensor
(`SLACKS`).

**Evidence.** An element may differ by D before the change and agree within the bound r after it. By chance, about one
of D / r random pairs would agree. So the element counts as log2(D / r) bits of evidence, at most the precision of its
type. Elements with the same pair of values count once. An element with few digits, such as a count, has at most the
bits of these digits and six more. A number from the data (a factor, a row, a permutation) costs as many bits as it
could have explained. An explanation needs `ENOUGH` = 40 bits from at least two elements. One in 2^40 random pairs has
40 bits by chance. If all elements agree within rounding before the change, there is no evidence for any cause.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np

from islices.porting.compare.rows import PRECISION, Rows
from islices.porting.compare.stored import Array, dot, matrix

#: The least evidence in bits that a cause needs.
ENOUGH = 40.0
#: The bits for the sign and exponent of a number.
SIZES = 6.0
#: The largest number of roundings of an element, apart from the additions of slots.
ROUNDINGS = 8
#: The cost in bits of a number that is not a short decimal.
FREE = 24.0
#: The number of elements to check first.
FEW = 256
#: The slacks to try in this order, in eps of the narrower type, but at most `MOST_SLACK`. Models of three layers in two
#: frameworks, or in float32 and float64, were up to 2^6.3 eps apart; in float16 and bfloat16 up to 2^-4.6.
SLACKS, MOST_SLACK = (8, 256), 2.0**-4


# ---------------------------------------------------------------------- corresponding elements
@dataclass(frozen=True, eq=False)
class Paired:
    """The corresponding elements of two sides, as flat arrays.

    `bound` is the distance that rounding and the slack allow for each element. `top` is the largest finite |value| of
    both tensors.
    """

    x: Array
    y: Array
    bound: Array
    ids: Array  # row numbers
    eps: float
    precision: int
    top: float

    def at(self, places: Array) -> Paired:
        """Return the elements that a mask or an array of positions selects; the row numbers stay unchanged."""
        return replace(self, x=self.x[places], y=self.y[places], bound=self.bound[places])


def paired(x: Rows, y: Rows, slack: float = 0.0, top: float | None = None) -> Paired | None:
    """Pair the elements of two sides. Return None if the row shapes differ, or if both sides are sparse and have
    different rows.

    `top` is the largest |value| of both sides. Pass `top` if the largest value may be outside these rows.
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
    """Return True if x equals y: to the bit if `exact`, else within the bound. A few elements are compared first.

    `tolerance` is an additional relative tolerance of y.
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
    """Return the bits of evidence that x equals y. `was` is the flat array of the elements' distances (>= 0) before the
    change.

    The result has one number for each distinct element with evidence.
    """
    counted = np.flatnonzero((was > 0) & np.isfinite(p.y) & np.isfinite(p.x))
    p, was = p.at(counted), was[counted]
    limit = 0.25 * p.eps * np.abs(p.x) if p.eps else np.full(len(was), 0.5)  # at most half the spacing of the type at x
    return bits_of(p.x, was, limit if exact else np.maximum(p.bound, limit), p.precision)


def bits_of(x: Array, was: Array, limit: Array, precision: int) -> Array:
    """Return the bits of evidence of the elements x, whose distances were `was` and are now within `limit`. Equal
    elements with equal distances count once; elements without evidence are omitted."""
    with np.errstate(all="ignore"):
        bits = np.clip(np.nan_to_num(np.log2(was / limit), posinf=precision), 0.0, precision)
    bits = np.minimum(bits, _digits(x))[np.unique(x + 1j * was, return_index=True)[1]]
    some: Array = bits[bits > 0]
    return some


def enough(found: Iterable[Array], cost: float, elements: int = 2) -> float | None:
    """Return the evidence of several tensors together, minus the cost of numbers from the data. Return None if this is
    less than `ENOUGH`, or if fewer than `elements` elements have evidence."""
    bits = np.concatenate([np.zeros(0), *found])
    total = float(bits.sum()) - cost
    return total if total >= ENOUGH and len(bits) >= elements else None


def _digits(x: Array) -> Array:
    """Return the largest evidence in bits that each number can give: the number of significant bits, plus `SIZES`.

    Counts and powers of two are often equal by chance. This function does not limit the evidence of a zero.
    """
    mantissa = np.ldexp(np.abs(np.frexp(x)[0]), 53).astype(np.int64)
    lowest = mantissa & -mantissa
    return np.where(x == 0, np.inf, 53.0 - np.log2(np.maximum(lowest, 1)) + SIZES)


# ---------------------------------------------------------------------- numbers from the data
def fitted(pairs: Iterable[Paired | None]) -> float:
    """Return the least-squares factor c of x = c * y over finite elements; 0 if all elements of y are zero."""
    square = product = 0.0
    for p in pairs:
        if p is not None:
            with np.errstate(over="ignore", invalid="ignore"):
                finite = np.isfinite(p.x) & np.isfinite(p.y)
                x, y = (np.where(finite, z, 0.0) for z in (p.x, p.y))
                square, product = square + dot(y, y), product + dot(x, y)
    return product / square if square else 0.0


def as_written(x: float, fits: Callable[[float], bool], most: int = 4) -> tuple[float, float]:
    """Return (x rounded to the fewest decimal digits that `fits` accepts, the cost of the digits in bits). If `fits`
    accepts no number of at most `most` digits, return (x, FREE)."""
    for digits in range(1, most + 1):
        short = float(f"{x:.{digits - 1}e}")
        if fits(short):
            return short, 4.0 + 4 * digits
    return x, FREE
