"""Factors between two sides: those that causes foretell, alone or two at once, and those read off the elements."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import TypeAlias

import numpy as np

from islices.compare.cause import Cause, Factor, Proposal
from islices.compare.causes import CAUSES
from islices.compare.comparison import Comparison
from islices.compare.evidence import ANY, NONE, PRECISION, Evidence, Interval, Paired, evidence, factor_interval
from islices.compare.explanation import Explanation, Finding, evidence_of, paired_sides, said, samples

__all__ = ["fitted_factors", "named_factors", "two_factors"]

#: A factor as a cause foretells it.
Foretold: TypeAlias = tuple[Cause, Factor]
#: Of each tensor: its elements, and the factors that they allow.
Intervals: TypeAlias = Sequence[tuple[Paired, Interval]]
#: A factor drawn at random must be this unlikely to lie as near to one of the named candidates.
CHANCE = 1 / 32


def _intervals(both: Comparison) -> Intervals | None:
    if any(factor_interval(pair) is None for pair in samples(both)):
        return None
    pairs = paired_sides(both)
    if pairs is None:
        return None
    out = []
    for p in pairs:
        found = factor_interval(p)
        if found is None:
            return None
        out.append((p, found))
    return out


def _foretold(original: Comparison, now: Comparison) -> Iterator[Foretold]:
    for cause in CAUSES.values():
        if cause.foretell is not None and cause.applies(original, another=now is not original):
            yield from ((cause, factor) for factor in cause.foretell(original, now))


def named_factors(original: Comparison, now: Comparison, chain: Sequence[Proposal]) -> list[Explanation]:
    """Factors of known causes that make the sides equal, after the proposals of chain."""
    intervals = _intervals(now)
    if intervals is None:
        return []
    found: list[Explanation] = []
    for foretold in _foretold(original, now):
        e = _tried(original, now, chain, intervals, [foretold])
        if e and not any(_says_the_same(e, other) for other in found):
            found.append(e)
    return found or _fitted(original, now, chain, intervals, last=False)


def fitted_factors(original: Comparison, now: Comparison, chain: Sequence[Proposal]) -> list[Explanation]:
    """Factors that are named only where nothing else explains, after the proposals of chain."""
    intervals = _intervals(now)
    return [] if intervals is None else _fitted(original, now, chain, intervals, last=True)


def _says_the_same(e: Explanation, other: Explanation) -> bool:
    """Whether one name would be given twice: for the same side, or where it says the same of both."""
    one, two = e.causes[-1], other.causes[-1]
    return one.name == two.name and one.details.get("side") == two.details.get("side")


def two_factors(both: Comparison) -> list[Explanation]:
    """Two named factors at once."""
    intervals = _intervals(both)
    if intervals is None:
        return []
    pairs = [(f, g) for f, g in combinations(_foretold(both, both), 2) if f[0] is not g[0]]
    tried = [_tried(both, both, [], intervals, [f, g], math.log2(len(pairs))) for f, g in pairs]
    found: list[Explanation] = []
    for e in tried:
        if e and not any(e.names == other.names for other in found):
            found.append(e)
    return found


def _tried(
    original: Comparison,
    now: Comparison,
    chain: Sequence[Proposal],
    intervals: Intervals,
    foretold: Sequence[Foretold],
    cost: float = 0.0,
) -> Explanation | None:
    """The explanation by chain and factors, if the factors lie in the intervals and enough speaks for each."""
    factors = [f for _, f in foretold]
    tolerance = sum(f.tolerance for f in factors)
    spent = cost + sum(f.cost for f in factors)
    told = [NONE] * len(factors)
    for t, (pair, interval) in enumerate(intervals):
        ratio = math.prod(f.ratios[t] for f in factors)
        if not (0 < ratio < math.inf and interval.holds(ratio, tolerance)):
            return None
        if 2**spent * 2 * interval.apart(ratio) > CHANCE:
            return None
        for k, f in enumerate(factors):
            told[k] += _told(pair, f.ratios[t], tolerance)
    told = [e.less(f.cost + cost) for e, f in zip(told, factors, strict=True)]
    if not all(e.enough for e in told):
        return None
    causes = [Finding(*one) for cause, f in foretold for one in ((cause.name, f.text, f.details), *f.granted)]
    return _with_chain(original, now, chain, intervals, causes, told)


def _told(pair: Paired, ratio: float, tolerance: float) -> Evidence:
    """What it says that x is y times some factor, where the factor differs from 1 by more than is tolerated."""
    if abs(ratio - 1.0) <= tolerance:
        return NONE
    return evidence(pair, np.abs(pair.x) * min(abs(ratio - 1.0), 1.0), exact=False, factor=_ratio_of(pair))


def _ratio_of(pair: Paired) -> float:
    """The size of x beside y, for the bound."""
    top = np.nan_to_num(np.abs(pair.y)).max(initial=0.0)
    return float(np.nan_to_num(np.abs(pair.x)).max(initial=0.0) / top) if top else 1.0


def _with_chain(
    original: Comparison,
    now: Comparison,
    chain: Sequence[Proposal],
    intervals: Intervals,
    causes: Sequence[Finding],
    told: Sequence[Evidence],
) -> Explanation | None:
    least = min(e.bits for e in told)
    if chain:
        if not all(p.cause.scales for p in chain):
            return None
        bits = evidence_of(original, chain, now, [p for p, _ in intervals], False)
        if bits is None:
            return None
        least = min(least, bits)
    first = tuple(map(said, chain))
    return Explanation((*first, *causes), False, round(least, 1), original.slack)


def _common(intervals: Intervals) -> Interval:
    whole = ANY
    for _, interval in intervals:
        whole &= interval
    return whole


def _fitted(
    original: Comparison, now: Comparison, chain: Sequence[Proposal], intervals: Intervals, *, last: bool
) -> list[Explanation]:
    """One factor for all tensors, read off the elements, and what causes make of it."""
    whole = _common(intervals)
    told = _told_by_all(intervals, whole)
    if told is None:
        return []
    found: list[Explanation] = []
    for cause in CAUSES.values():
        if cause.fit is not None and cause.last is last and cause.applies(original, another=bool(chain)):
            fit = cause.fit(now, whole)
            e = fit and _with_chain(original, now, chain, intervals, [Finding(cause.name, *fit)], [told])
            found += [e] if e else []
    return found


def _told_by_all(intervals: Intervals, whole: Interval) -> Evidence | None:
    """What speaks for one factor for all tensors; None where there is none."""
    if whole.empty or whole.low <= 0 or math.isinf(whole.high) or whole.low <= 1.0 <= whole.high:
        return None
    told = NONE
    for pair, _ in intervals:
        told += _told(pair, whole.middle, 0.0)
    told = told.less(max(PRECISION["float32"], max(p.precision for p, _ in intervals)))
    return told if told.enough and told.elements >= 3 else None
