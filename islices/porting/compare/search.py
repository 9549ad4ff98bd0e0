"""Search for causes: test single causes, then pairs of causes, and return those that explain the difference.

A candidate is one cause or a pair of causes. Each cause changes one side, or multiplies it by a factor. A candidate
explains the difference under two conditions. First, after the changes all tensors of both sides are equal, to the bit
or within the bound on rounding. Second, there is enough evidence for each cause. The search tries pairs of causes only
if no single cause explains the difference. If several candidates explain the difference, the search returns them in the
order of `CAUSES`, the most specific first. The search omits a candidate that is only a more general version of another
candidate. If neither a candidate nor rounding explains the difference, the search runs again with slack for two models
that compute in different orders. The smallest slack is tried first.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import permutations
from typing import TypeAlias

import numpy as np

from islices.porting.compare.cause import Cause, Factor
from islices.porting.compare.causes import CAUSES
from islices.porting.compare.comparison import Comparison
from islices.porting.compare.evidence import MOST_SLACK, SLACKS, Paired, enough, evidence
from islices.porting.compare.explanation import Explanation, Finding
from islices.porting.compare.stored import Array

#: The search accepts a predicted factor only if a random factor would be as close to the fitted factor with at most
#: this probability.
CHANCE = 1 / 32
#: (explanations, True if the sides agree within rounding, the distance of the sides or None). The distance is a number
#: only if the sides agree with slack for two models, but not within rounding.
Explained: TypeAlias = tuple[Sequence[Explanation], bool, float | None]


def explain(both: Comparison) -> Explained:
    """Return `Explained`, in which the most specific explanation is first. The tuple of explanations is empty if no
    known cause makes the sides equal."""
    singles = list(_changes(both))
    for slack in sorted({0.0, *(min(k * both.eps, MOST_SLACK) for k in SLACKS)}):
        now, loose = replace(both, slack=slack), [replace(c, slack=slack) for c in singles]
        near = now.agree(exact=False)  # if True, an explanation must make the bits equal
        if slack and near:
            return (), False, now.distance()
        found = _held([(now, loose)], exactly=near) or _held(((c, _changes(c)) for c in loose), exactly=near)
        if found or near:
            return _without_subsumed(found), near, None
    return (), False, None


def _changes(now: Comparison) -> Iterator[Comparison]:
    """Yield one comparison for each change that a cause proposes after the changes so far.

    A cause that has already changed one side is not applied again. The only exception is a cause that drops rows, which
    may be applied to both sides.
    """
    for cause in CAUSES.values():
        for which in (0,) if cause.symmetric else (1, 0):
            used = any(d.cause is cause and (d.which == which or not cause.drops) for d in now.chain)
            changes = () if used or cause.propose is None else cause.propose(now, which)
            yield from filter(None, (now.after(cause, which, change) for change in changes))


def _held(tried: Iterable[tuple[Comparison, Iterable[Comparison]]], *, exactly: bool) -> list[Explanation]:
    """Return the explanations that make both sides equal. An explanation consists of changes, of a factor, or of
    both. `tried` yields pairs of (a comparison, the comparisons after one more change).

    If `exactly` is True, an explanation must make the bits equal. Explanations with a factor that was estimated from
    the elements are left out if there is any other explanation.
    """
    found: list[Explanation] = []
    seen: set[frozenset[tuple[str, int]]] = set()
    for now, changes in tried:
        for c in changes:
            keys = frozenset((d.cause.name, d.which) for d in c.chain)
            if keys not in seen and (e := _by_changes(c, exactly=exactly)):
                seen.add(keys)
                found.append(e)
        if not exactly and all(d.cause.scales for d in now.chain):
            found += _by_factors(now)
    return [e for e in found if not CAUSES[e.names[-1]].fitted] or found


# ---------------------------------------------------------------------- tests
def _by_changes(now: Comparison, *, exactly: bool) -> Explanation | None:
    """Return the explanation that consists of the changes so far. Return None if the sides do not agree, or if a change
    has too little evidence."""
    kinds = {d.cause.exact for d in now.chain}
    for exact in (True, False):
        allowed = "never" not in kinds if exact else not exactly and "always" not in kinds
        if allowed and now.agree(exact=exact):
            least = _least(now, exact=exact)
            return None if least is None else _explanation(now, (), exact, least)
    return None


def _least(now: Comparison, *, exact: bool) -> float | None:
    """Return the smallest evidence of any change so far, or None if it is not enough."""
    pairs, least = [(t, p) for t, p in enumerate(now.elements) if p is not None], math.inf
    for k, done in enumerate(now.chain):
        bits = enough((evidence(p, _was(now, k, t, p), exact=exact) for t, p in pairs), done.change.cost)
        if bits is None:
            return None
        least = min(least, bits)
    return least


def _explanation(now: Comparison, more: tuple[Finding, ...], exact: bool, bits: float) -> Explanation:
    """Return the explanation that consists of the changes so far and of the findings in `more`. In the texts of the
    changes, replace {x} and {y} with {a} and {b}."""
    found = []
    for cause, which, change, tensors, _ in now.chain:
        x, y = "ab"[which], "ba"[which]
        text = change.text.replace("{x}", f"{{{x}}}").replace("{y}", f"{{{y}}}")
        names = [now.pairs[t].name for t in sorted(tensors)]
        found.append(Finding(cause.name, text, {"side": x, **change.details, "tensors": names}))
    return Explanation((*found, *more), exact, round(bits, 1), 0.0 if exact else now.slack)


def _was(now: Comparison, k: int, t: int, p: Paired) -> Array:
    """Return, for each element, how much the kth change modified it. If the change drops or renumbers rows or removes
    precision, return the |value| of each element instead."""
    cause, which, change, *_ = now.chain[k]
    if cause.drops or cause.narrows or change.moved:  # the evidence is the agreement of all other elements
        final: Array = np.abs(now.pairs[t].side(which).onto(p.ids).values).reshape(-1)
        return final
    around = (*(done.before for done in now.chain), now)[k : k + 2]
    old, new = (c.pairs[t].side(which).onto(p.ids).values for c in around)
    with np.errstate(invalid="ignore"):
        changed: Array = np.abs(new - old).reshape(-1)
    return changed


# ---------------------------------------------------------------------- factors
def _by_factors(now: Comparison) -> Iterator[Explanation]:
    """Yield the explanations that consist of the changes so far and a factor. For each cause and side, yield only the
    first explanation that makes both sides equal."""
    for cause in CAUSES.values() if None not in now.elements else ():
        sides = set()
        for f in cause.foretell(now) if cause.foretell else ():
            side = f.details.get("side")
            if side not in sides and (e := _by_factor(now, cause, f)):
                sides.add(side)
                yield e


def _by_factor(now: Comparison, cause: Cause, f: Factor) -> Explanation | None:
    """Return the explanation that consists of the changes so far and a factor. Return None if the factor is not
    positive, is too far from the fitted factor (`CHANCE`), or does not fit every row. Also return None if the factor or
    a change has too little evidence."""
    for ratio, fit in zip(f.ratios, now.fits, strict=True):
        if not ratio > 0 or (fit and not cause.fitted and 2**f.cost * 2 * abs(ratio / fit - 1.0) > CHANCE):
            return None
    multiplied = replace(now, ratios=f.ratios, tolerance=f.tolerance)
    if not multiplied.agree(exact=False):
        return None
    each = []
    for ratio, p in zip(f.ratios, multiplied.elements, strict=True):
        if p is not None and abs(ratio - 1.0) > f.tolerance:
            each.append(evidence(p, np.abs(p.x) * min(abs(ratio - 1.0), 1.0), exact=False))
    bits = enough(each, f.cost, 2 + cause.fitted)
    least = _least(now, exact=False) if now.chain else bits
    if bits is None or least is None:
        return None
    return _explanation(now, (Finding(cause.name, f.text, f.details),), False, min(least, bits))


# ---------------------------------------------------------------------- which explanations to report
def _without_subsumed(found: Sequence[Explanation]) -> tuple[Explanation, ...]:
    out: list[Explanation] = []
    for e in found:
        twice = any(set(e.names) == set(o.names) and e.names != o.names for o in out)
        if not twice and not any(_subsumes(other, e) for other in found):
            out.append(e)
    return tuple(out)


def _subsumes(specific: Explanation, e: Explanation) -> bool:
    """Return True if the explanation `e` is only a more general version of `specific`."""
    if specific is e:
        return False
    for order in permutations(specific.names):
        less = [g in CAUSES[s].subsumes for s, g in zip(order, e.names, strict=True)]
        if any(less) and all(is_less or s == g for is_less, s, g in zip(less, order, e.names, strict=True)):
            return True
    return False
