"""Check that two sides agree after a change, and measure the evidence for the cause of the change.

**Bound.** If one side multiplies, divides or sums and the other does not, the two sides round differently. A row of m
slots is a sum of m terms, so it takes m - 1 additions. On each side, at most 8 other operations round a term, for
example a reciprocal, a product, the division of a mean or a cast. Each rounding error is at most half an eps times the
sum of |terms|. To first order, the two sides therefore differ by less than (m + 8) eps sum |terms|. If the slots of
both sides are unknown or contain no duplicates, m is 1. The largest |value| of the row then replaces the sum of
|terms|, so elements that are small because of cancellation are no evidence. Operations on integers do not round, so
their bound is 0. An infinity agrees only with the same infinity.

**Slack.** Two models may compute sums in different orders, and may use different functions. The gradients of two
such models then differ even before duplicates are summed. The size of this difference depends on the terms of the whole
tensor, not on the value of each element. With the slack s, each element may differ by another s times the largest
|value| of the tensor. `SLACKS` contains the values of s, in multiples of eps.

**Evidence.** Suppose that an element differs by D before a change, and agrees within the bound r after it. Of random
pairs of numbers, about one in D / r would agree by chance. So the element counts as log2(D / r) bits of evidence, but
not more than the precision of its dtype. Elements with the same value and the same D count once. The evidence of an
element with few significant bits, such as a count, is limited to these bits and six more. A number that is estimated
from the data, such as a factor or a row number, has a cost in bits. The cost is subtracted from the evidence. Each
cause then needs at least `ENOUGH` = 40 bits from two or more elements. Of random pairs, one in 2^40 has 40 bits by
chance. If all elements agree within rounding before the change, only a change that makes the bits equal can be a cause.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np

from islices.porting.compare.rows import PRECISION, Rows
from islices.porting.compare.stored import Array, dot, matrix

#: The least evidence in bits that a cause needs.
ENOUGH = 40.0
#: The evidence in bits that the sign and exponent of a number contribute.
SIZES = 6.0
#: The largest number of roundings per element on each side, without the additions of slots.
ROUNDINGS = 8
#: The cost in bits of an estimated number that is not a short decimal.
FREE = 24.0
#: The number of elements to check first.
FEW = 256
#: The slacks to try in this order, in multiples of the largest eps, but at most `MOST_SLACK`. In a measurement, models
#: of three layers in two frameworks, or in float32 and float64, differed by up to 2^6.3 eps. In float16 and bfloat16,
#: such models differed by up to 2^-4.6 of a tensor's largest value.
SLACKS, MOST_SLACK = (8, 256), 2.0**-4


# ---------------------------------------------------------------------- corresponding elements
@dataclass(frozen=True, eq=False)
class Paired:
    """The corresponding elements of two sides, as flat arrays.

    `bound` contains the distance that rounding and slack allow for each element. `top` is the largest finite |value| in
    either tensor.
    """

    x: Array
    y: Array
    bound: Array
    ids: Array  # row numbers
    eps: float
    precision: int
    top: float

    def at(self, places: Array) -> Paired:
        """Return the elements that a mask or an array of positions selects. `ids` stays unchanged."""
        return replace(self, x=self.x[places], y=self.y[places], bound=self.bound[places])


def paired(x: Rows, y: Rows, slack: float = 0.0, top: float | None = None) -> Paired | None:
    """Pair the elements of two sides. Return None if the row shapes differ, or if both sides are sparse and have
    different rows.

    `top` is the largest |value| of either side. The caller must pass `top` if these rows might lack the largest
    value.
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
    """Return True if x and y agree. If `exact` is True, all values must be equal; else each element may differ within
    the bound. To save time, the function first compares a few elements.

    `tolerance` is an additional tolerance, relative to the elements of y.
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
    """Return the evidence, in bits, that x and y agree because of a change. `was` is a flat array with the distance of
    each element before the change (D in the module's docstring).

    The result contains one number for each distinct element that has evidence. Elements with the same value and the
    same distance count as one element.
    """
    counted = np.flatnonzero((was > 0) & np.isfinite(p.y) & np.isfinite(p.x))
    p, was = p.at(counted), was[counted]
    limit = 0.25 * p.eps * np.abs(p.x) if p.eps else np.full(len(was), 0.5)  # at most half the dtype's spacing near x
    return bits_of(p.x, was, limit if exact else np.maximum(p.bound, limit), p.precision)


def bits_of(x: Array, was: Array, limit: Array, precision: int) -> Array:
    """Return the evidence, in bits, of the elements x. `was` contains the distances of the elements before the change,
    and `limit` contains the distances within which the elements agree now. Equal elements with equal distances count
    once. The result omits elements without evidence."""
    with np.errstate(all="ignore"):
        bits = np.clip(np.nan_to_num(np.log2(was / limit), posinf=precision), 0.0, precision)
    bits = np.minimum(bits, _digits(x))[np.unique(x + 1j * was, return_index=True)[1]]
    some: Array = bits[bits > 0]
    return some


def enough(found: Iterable[Array], cost: float, elements: int = 2) -> float | None:
    """Return the sum of the evidence of several tensors, minus `cost`, the bits of numbers estimated from the data.
    Return None if the result is less than `ENOUGH`, or if fewer than `elements` elements have evidence."""
    bits = np.concatenate([np.zeros(0), *found])
    total = float(bits.sum()) - cost
    return total if total >= ENOUGH and len(bits) >= elements else None


def _digits(x: Array) -> Array:
    """Return, for each number, the largest evidence in bits that it can contribute: its significant bits plus `SIZES`.

    The limit exists because counts and powers of two are often equal by chance. The evidence of a zero is not limited.
    """
    mantissa = np.ldexp(np.abs(np.frexp(x)[0]), 53).astype(np.int64)
    lowest = mantissa & -mantissa
    return np.where(x == 0, np.inf, 53.0 - np.log2(np.maximum(lowest, 1)) + SIZES)


# ---------------------------------------------------------------------- numbers from the data
def fitted(pairs: Iterable[Paired | None]) -> float:
    """Fit x = c * y to the finite elements by least squares, and return c. If all elements of y are zero, return 0."""
    square = product = 0.0
    for p in pairs:
        if p is not None:
            with np.errstate(over="ignore", invalid="ignore"):
                finite = np.isfinite(p.x) & np.isfinite(p.y)
                x, y = (np.where(finite, z, 0.0) for z in (p.x, p.y))
                square, product = square + dot(y, y), product + dot(x, y)
    return product / square if square else 0.0


def as_written(x: float, fits: Callable[[float], bool], most: int = 4) -> tuple[float, float]:
    """Round x to as few decimal digits as the function `fits` accepts. Return (the rounded number, the cost of its
    digits in bits). If `fits` rejects x rounded to `most` or fewer digits, return (x, FREE)."""
    for digits in range(1, most + 1):
        short = float(f"{x:.{digits - 1}e}")
        if fits(short):
            return short, 4.0 + 4 * digits
    return x, FREE
