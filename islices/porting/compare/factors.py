"""Factors between two sides: those that causes foretell, alone or two at once, and those read off the elements."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import TypeAlias

from islices.porting.compare.cause import Cause, Factor, Proposal
from islices.porting.compare.causes import CAUSES
from islices.porting.compare.comparison import Comparison
from islices.porting.compare.evidence import ANY, NONE, PRECISION, Evidence, Interval
from islices.porting.compare.explanation import Explanation, Finding, said
from islices.porting.compare.survey import Factored, Multiple, factored

__all__ = ["fitted_factors", "named_factors", "two_factors"]

#: A factor as a cause foretells it.
Foretold: TypeAlias = tuple[Cause, Factor]
#: A factor drawn at random must be this unlikely to lie as near to one of the named candidates.
CHANCE = 1 / 32


def _foretold(original: Comparison, now: Comparison) -> Iterator[Foretold]:
    for cause in CAUSES.values():
        if cause.foretell is not None and cause.applies(original, another=now is not original):
            yield from ((cause, factor) for factor in cause.foretell(original, now))


def named_factors(original: Comparison, now: Comparison, chain: Sequence[Proposal]) -> list[Explanation]:
    """Factors of known causes that make the sides equal, after the proposals of chain."""
    multiples = factored(now, chain)
    if multiples is None:
        return []
    found: list[Explanation] = []
    for foretold in _foretold(original, now):
        e = _tried(original, multiples, [foretold])
        if e and not any(_says_the_same(e, other) for other in found):
            found.append(e)
    return found or _fitted(original, now, multiples, last=False)


def fitted_factors(original: Comparison, now: Comparison, chain: Sequence[Proposal]) -> list[Explanation]:
    """Factors that are named only where nothing else explains, after the proposals of chain."""
    multiples = factored(now, chain)
    return [] if multiples is None else _fitted(original, now, multiples, last=True)


def _says_the_same(e: Explanation, other: Explanation) -> bool:
    """Whether one name would be given twice: for the same side, or where it says the same of both."""
    one, two = e.causes[-1], other.causes[-1]
    return one.name == two.name and one.details.get("side") == two.details.get("side")


def two_factors(both: Comparison) -> list[Explanation]:
    """Two named factors at once."""
    multiples = factored(both, [])
    if multiples is None:
        return []
    pairs = [(f, g) for f, g in combinations(_foretold(both, both), 2) if f[0] is not g[0]]
    tried = [_tried(both, multiples, [f, g], math.log2(len(pairs))) for f, g in pairs]
    found: list[Explanation] = []
    for e in tried:
        if e and not any(e.names == other.names for other in found):
            found.append(e)
    return found


def _tried(
    original: Comparison, multiples: Factored, foretold: Sequence[Foretold], cost: float = 0.0
) -> Explanation | None:
    """The explanation by the changes made and factors, if the factors lie in the intervals and enough speaks for it."""
    factors = [f for _, f in foretold]
    tolerance = sum(f.tolerance for f in factors)
    spent = cost + sum(f.cost for f in factors)
    ratios = [math.prod(f.ratios[t] for f in factors) for t in range(len(multiples.tensors))]
    for ratio, m in zip(ratios, multiples.tensors, strict=True):
        if not (0 < ratio < math.inf and m.interval.holds(ratio, tolerance)):
            return None
        if 2**spent * 2 * m.interval.apart(ratio) > CHANCE:
            return None
    told = [
        sum((_told(m, f.ratios[t], tolerance) for t, m in enumerate(multiples.tensors)), NONE).less(f.cost + cost)
        for f in factors
    ]
    if not all(e.enough for e in told):
        return None
    causes = [Finding(*one) for cause, f in foretold for one in ((cause.name, f.text, f.details), *f.granted)]
    return _with_chain(original, multiples, causes, told)


def _told(m: Multiple, ratio: float, tolerance: float) -> Evidence:
    """What it says that x is y times some factor, where the factor differs from 1 by more than is tolerated."""
    if abs(ratio - 1.0) <= tolerance:
        return NONE
    return m.told.evidence(exact=False, factor=m.ratio, scale=min(abs(ratio - 1.0), 1.0))


def _with_chain(
    original: Comparison, multiples: Factored, causes: Sequence[Finding], told: Sequence[Evidence]
) -> Explanation | None:
    least, chain = min(e.bits for e in told), multiples.seen.chain
    if chain:
        bits = multiples.seen.least
        if bits is None or not all(p.cause.scales for p in chain):
            return None
        least = min(least, bits)
    first = tuple(map(said, chain))
    return Explanation((*first, *causes), False, round(least, 1), original.slack)


def _fitted(original: Comparison, now: Comparison, multiples: Factored, *, last: bool) -> list[Explanation]:
    """One factor for all tensors, read off the elements, and what causes make of it."""
    whole = ANY
    for m in multiples.tensors:
        whole &= m.interval
    told = _told_by_all(multiples, whole)
    if told is None:
        return []
    found: list[Explanation] = []
    for cause in CAUSES.values():
        if cause.fit is not None and cause.last is last and cause.applies(original, another=bool(multiples.seen.chain)):
            fit = cause.fit(now, whole)
            e = fit and _with_chain(original, multiples, [Finding(cause.name, *fit)], [told])
            found += [e] if e else []
    return found


def _told_by_all(multiples: Factored, whole: Interval) -> Evidence | None:
    """What speaks for one factor for all tensors; None where there is none."""
    if whole.empty or whole.low <= 0 or math.isinf(whole.high) or whole.low <= 1.0 <= whole.high:
        return None
    told = sum((_told(m, whole.middle, 0.0) for m in multiples.tensors), NONE)
    told = told.less(max(PRECISION["float32"], multiples.precision))
    return told if told.enough and told.elements >= 3 else None
