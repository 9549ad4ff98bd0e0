"""Factors between two sides: those that `islices.compare.factors` foretells, alone or two at once, and what is left."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations

import numpy as np

from islices.compare.case import Case, Proposal
from islices.compare.evidence import ANY, NONE, PRECISION, Evidence, Interval, Paired, evidence, factor_interval
from islices.compare.explanation import STRICT, Cause, Explanation, evidence_of, paired_sides, said, samples
from islices.compare.factors import Factor, candidates, inferred_epsilon

__all__ = ["constant_factor", "named_factors", "two_factors"]

#: A factor drawn at random must be this unlikely to lie as near to one of the named candidates.
CHANCE = 1 / 32


def _intervals(case: Case) -> list[tuple[Paired, Interval]] | None:
    if any(factor_interval(pair) is None for pair in samples(case)):
        return None
    pairs = paired_sides(case)
    if pairs is None:
        return None
    out = []
    for p in pairs:
        found = factor_interval(p)
        if found is None:
            return None
        out.append((p, found))
    return out


def named_factors(original: Case, now: Case, chain: Sequence[Proposal]) -> list[Explanation]:
    """Named factors that make the sides equal, after the proposals of chain."""
    intervals = _intervals(now)
    if intervals is None:
        return []
    found: list[Explanation] = []
    for factor in candidates(original, now, len(intervals)):
        e = _tried(original, now, chain, intervals, [factor])
        if e and not any(_says_the_same(e, other) for other in found):
            found.append(e)
    if not found and (e := _from_factor(original, now, chain, intervals)):
        found.append(e)
    return found


def _says_the_same(e: Explanation, other: Explanation) -> bool:
    """Whether one name would be given twice: for the same side, or where it says the same of both."""
    one, two = e.causes[-1], other.causes[-1]
    return one.name == two.name and one.details.get("side") == two.details.get("side")


def two_factors(case: Case) -> list[Explanation]:
    """Two named factors at once."""
    intervals = _intervals(case)
    if intervals is None:
        return []
    factors = [f for f in candidates(case, case, len(intervals)) if f.name != "clip_after"]
    pairs = [(f, g) for f, g in combinations(factors, 2) if f.name != g.name]
    tried = [_tried(case, case, [], intervals, [f, g], math.log2(len(pairs))) for f, g in pairs]
    found: list[Explanation] = []
    for e in tried:
        if e and not any(e.names == other.names for other in found):
            found.append(e)
    return found


def _tried(
    original: Case,
    now: Case,
    chain: Sequence[Proposal],
    intervals: Sequence[tuple[Paired, Interval]],
    factors: Sequence[Factor],
    cost: float = 0.0,
) -> Explanation | None:
    """The explanation by chain and factors, if the factors lie in the intervals and enough speaks for each."""
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
    causes = [Cause(*told_by) for f in factors for told_by in ((f.name, f.text, f.details), *f.with_)]
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
    original: Case,
    now: Case,
    chain: Sequence[Proposal],
    intervals: Sequence[tuple[Paired, Interval]],
    causes: Sequence[Cause],
    told: Sequence[Evidence],
) -> Explanation | None:
    least = min(e.bits for e in told)
    if chain:
        if any(p.name in STRICT - {"dtype"} for p in chain):
            return None
        bits = evidence_of(original, chain, now, [p for p, _ in intervals], False)
        if bits is None:
            return None
        least = min(least, bits)
    first = tuple(map(said, chain))
    return Explanation((*first, *causes), False, round(least, 1), original.slack)


def _common(intervals: Sequence[tuple[Paired, Interval]]) -> Interval:
    whole = ANY
    for _, interval in intervals:
        whole &= interval
    return whole


def _fitted(intervals: Sequence[tuple[Paired, Interval]], whole: Interval) -> Evidence | None:
    """What speaks for one factor for all tensors, read off the elements; None where there is none."""
    if whole.empty or whole.low <= 0 or math.isinf(whole.high) or whole.low <= 1.0 <= whole.high:
        return None
    told = NONE
    for pair, _ in intervals:
        told += _told(pair, whole.middle, 0.0)
    told = told.less(max(PRECISION["float32"], max(p.precision for p, _ in intervals)))
    return told if told.enough and told.elements >= 3 else None


def _from_factor(
    original: Case, now: Case, chain: Sequence[Proposal], intervals: Sequence[tuple[Paired, Interval]]
) -> Explanation | None:
    """The epsilon of a formula, inferred from the factor alone."""
    if original.before is not None or original.steps:
        return None
    whole = _common(intervals)
    told = _fitted(intervals, whole)
    found = inferred_epsilon(now, whole) if told else None
    if not told or not found:
        return None
    return _with_chain(original, now, chain, intervals, [Cause("epsilon", *found)], [told])


def constant_factor(original: Case, now: Case, chain: Sequence[Proposal]) -> list[Explanation]:
    """A factor that nothing known foretells."""
    intervals = _intervals(now)
    if intervals is None:
        return []
    whole = _common(intervals)
    told = _fitted(intervals, whole)
    if told is None:
        return []
    c = whole.middle
    for shown, what in ((c, "{a} is {b} times"), (1 / c, "{b} is {a} times")):
        if round(shown) > 1 and whole.low <= round(shown) ** (1 if shown == c else -1) <= whole.high:
            text = f"a constant factor: {what} {round(shown):,}, a whole number (a count that a mean divides by?)"
            break
    else:
        text = f"a constant factor: {{a}} is {{b}} times {c:.9g}"
    details = {"factor": c, "low": whole.low, "high": whole.high}
    explained = _with_chain(original, now, chain, intervals, [Cause("factor", text, details)], [told])
    return [explained] if explained else []
