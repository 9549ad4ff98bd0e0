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
count once. What was read off the data (a factor, a row, a permutation) costs what it could have explained. An
explanation needs `ENOUGH` bits from at least two elements: by chance one in 2^40 random pairs has that, and where all
elements are within rounding anyway there is no evidence for anything.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from islices.backend import FLOATS
from islices.compare.stored import Array, Stored, contained, nonzero_rows, norm_of, wide
from islices.locks import lazy_property

__all__ = [
    "ANY", "ENOUGH", "MOST_SLACK", "NONE", "PRECISION", "SLACKS", "Evidence", "Interval", "Paired", "Rows", "agrees",
    "bounds", "evidence", "factor_interval", "paired", "rows_of", "with_terms_of",
]  # fmt: skip

#: Bits of evidence below which nothing counts as a cause.
ENOUGH = 40.0
#: Roundings beside the additions of a row's slots.
ROUNDINGS = 8
#: Elements that are looked at first, and elements whose evidence is counted (the rest in proportion).
FEW, SAMPLE = 256, 1 << 14
#: Bits of each type's significand; of integers as many as float64 holds.
PRECISION = {
    "float16": 11, "bfloat16": 8, "float32": 24, "float64": 53, "bool": 1, "int8": 7, "uint8": 8, "int16": 15,
    "uint16": 16, "int32": 31, "uint32": 32, "int64": 53, "uint64": 53,
}  # fmt: skip
#: What is tried one after the other, in eps of the narrower type, but no more than `MOST_SLACK`. Models of three layers
#: in two frameworks, or in float32 and float64, were up to 2^6.3 eps apart, in float16 and bfloat16 up to 2^-4.6.
SLACKS, MOST_SLACK = (8, 256), 2.0**-4


@dataclass(frozen=True, eq=False)
class Rows:
    """One tensor of one side, as causes transform it; rows of zeros of a dense tensor are left out.

    terms is the sum of |slots| of each element, None where the slots are not known; slot_ids and slots are the slots
    themselves where they tell more than values.
    """

    ids: Array  # (k,) int64, ascending
    values: Array  # (k, *row_shape) float64
    shape: tuple[int | None, ...]
    dtype: str
    sparse: bool
    terms: Array | None = None
    counts: Array | None = None  # (k,)
    slot_ids: Array | None = None
    slots: Array | None = None

    @property
    def eps(self) -> float:
        """The spacing of the type at 1; 0 for integers, which nothing rounds."""
        return float(2.0 ** (1 - PRECISION[self.dtype])) if self.dtype in FLOATS else 0.0

    @lazy_property
    def top(self) -> float:
        """The largest finite |value|."""
        sizes = np.abs(self.values)
        return float(sizes.max(initial=0.0, where=np.isfinite(sizes)))

    @lazy_property
    def norm(self) -> float:
        """The norm, duplicates summed."""
        return norm_of([self.values])

    @lazy_property
    def raw_norm(self) -> float:
        """The norm of the slots, duplicates not summed."""
        return self.norm if self.slots is None else norm_of([self.slots])

    def select(self, keep: Array) -> Rows:
        """The rows where keep, a boolean mask, is True."""
        kept = self.rearranged(keep, self.ids[keep])
        if self.slots is None or self.slot_ids is None:
            return kept
        there = contained(self.slot_ids, kept.ids)
        return replace(kept, slot_ids=self.slot_ids[there], slots=self.slots[there])

    def rearranged(self, places: Array, ids: Array) -> Rows:
        """The rows at places, a mask or positions, under other ids; what is known of their slots no longer fits."""
        return replace(
            self, ids=ids, values=self.values[places], terms=None if self.terms is None else self.terms[places],
            counts=None if self.counts is None else self.counts[places], slot_ids=None, slots=None,
        )  # fmt: skip


def rows_of(x: Stored) -> Rows:
    """A tensor as causes see it."""
    if not x.sparse:
        keep = nonzero_rows(x.values)
        return Rows(x.ids[keep], wide(x.values[keep]), x.shape, x.dtype, False)
    if not x.has_duplicates:
        return Rows(x.ids, wide(x.values), x.shape, x.dtype, True)
    place = np.searchsorted(x.ids, x.slot_ids)
    values = wide(x.values)
    terms = np.zeros(values.shape)
    np.add.at(terms, place, np.abs(wide(x.slots)))
    return Rows(x.ids, values, x.shape, x.dtype, True, terms, x.counts, x.slot_ids, x.slots)


def with_terms_of(x: Rows, before: Rows) -> Rows:
    """x with the sizes of the slots that it was computed from, in proportion to the norms; x if it names other rows."""
    if x.terms is not None or before.terms is None or before.counts is None or not contained(x.ids, before.ids).all():
        return x
    if x.values.shape[1:] != before.values.shape[1:]:
        return x
    place = np.searchsorted(before.ids, x.ids)
    scale = x.norm / before.norm if 0 < before.norm < math.inf else 1.0
    return replace(x, terms=before.terms[place] * scale, counts=before.counts[place])


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


def paired(x: Rows, y: Rows, slack: float = 0.0) -> Paired | None:
    """Element beside element; None where the rows' shapes or, for two sparse sides, the rows themselves differ."""
    tops = x.top, y.top
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
        result: Array = p.eps * p.k * np.maximum(p.x_terms, abs(factor) * p.y_terms)
    return result + p.slack * max(p.tops[0], abs(factor) * p.tops[1]) if p.slack else result


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
        if not _agrees(_part(p, few), exact, factor):
            return False
    return _agrees(p, exact, factor)


def _part(p: Paired, at: Array) -> Paired:
    return replace(p, x=p.x[at], y=p.y[at], x_terms=p.x_terms[at], y_terms=p.y_terms[at], k=p.k[at])


def _agrees(p: Paired, exact: bool, factor: float) -> bool:
    with np.errstate(invalid="ignore", over="ignore"):
        y = p.y if factor == 1.0 else p.y * factor
        same = p.x == y
        if not exact:
            same |= np.abs(p.x - y) <= bounds(p, factor)
    same |= (p.x != p.x) & (y != y)
    return bool(same.all())


def evidence(p: Paired, was: Array, *, exact: bool, factor: float = 1.0) -> Evidence:
    """What the agreement of x and factor * y says, where elements were `was` (flat, >= 0) apart before."""
    told = np.flatnonzero((was > 0) & np.isfinite(p.y) & np.isfinite(p.x))
    if not len(told):
        return NONE
    share = 1.0
    if len(told) > SAMPLE:
        share = len(told) / SAMPLE
        told = told[np.linspace(0, len(told) - 1, SAMPLE).astype(np.int64)]
    q = _part(p, told)
    finest = 0.25 * q.eps * np.abs(q.x) if q.eps else np.full(len(told), 0.5)  # half the spacing, or less
    limit = finest if exact else np.maximum(bounds(q, factor), finest)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        bits = np.clip(np.nan_to_num(np.log2(was[told] / limit), posinf=p.precision), 0.0, p.precision)
    _, first = np.unique(np.stack([q.x, was[told]]), axis=1, return_index=True)
    bits = bits[first]
    return Evidence(float(bits.sum()) * (share if len(first) > SAMPLE // 2 else 1.0), int((bits > 0).sum()))


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


def factor_interval(p: Paired) -> Interval | None:
    """The positive factors that make y into x; None where there is none, `ANY` where both sides are zeros."""
    n = len(p.x)
    if n > 4 * FEW:
        some = _part(p, np.linspace(0, n - 1, FEW).astype(np.int64))
        if _interval(some) is None:
            return None
    return _interval(p)


def _interval(p: Paired) -> Interval | None:
    finite = np.isfinite(p.x) & np.isfinite(p.y)
    if not finite.all():
        a, b = p.x[~finite], p.y[~finite]
        if not ((a == b) | ((a != a) & (b != b))).all():
            return None
        p = _part(p, np.flatnonzero(finite))
    with np.errstate(over="ignore", invalid="ignore"):
        top = max(np.abs(p.y).max(initial=0.0), 1e-300)
        y = p.y / top
        square = float(y @ y)
        if square == 0 or not p.x.any():
            return ANY if square == 0 and not p.x.any() else None
        guess = float((p.x / top) @ y) / square
    if not 0 < guess < math.inf:
        return None
    slack = bounds(p, guess)
    some = p.y != 0
    if (np.abs(p.x[~some]) > slack[~some]).any():
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        ratio, width = p.x[some] / p.y[some], slack[some] / np.abs(p.y[some])
    found = Interval(float((ratio - width).max()), float((ratio + width).min()), guess)
    return None if found.empty or found.high <= 0 else found
