"""The search for causes. It tests candidates singly, then in pairs, and ranks those that hold.

A candidate is a comparison in which a cause has changed one side. It holds if both sides are then equal, to the bit or
within the bound, with enough evidence for each change. A single cause is preferred to two. If several explain the
difference, all are reported, the most specific first, without those that another subsumes. Tensors are explained
together. If no cause explains the difference, the search runs again with slack for the models' arithmetic, smallest
slack first.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import permutations
from typing import TypeAlias

import numpy as np

from islices.porting.compare.cause import Factor
from islices.porting.compare.causes import CAUSES
from islices.porting.compare.comparison import Comparison
from islices.porting.compare.evidence import MOST_SLACK, SLACKS, Paired, enough, evidence
from islices.porting.compare.explanation import Explanation, Finding
from islices.porting.compare.stored import Array

#: A factor drawn at random must be this unlikely to lie as near to one of the named candidates.
CHANCE = 1 / 32
#: (explanations, True if the sides are within rounding, their distance if it is within the slack for two models)
Explained: TypeAlias = tuple[Sequence[Explanation], bool, float | None]


def explain(both: Comparison) -> Explained:
    """Return the explanations, the most specific first; none if no known cause makes the sides equal."""
    singles = list(_changes(both, set()))
    for slack in sorted({0.0, *(min(k * both.eps, MOST_SLACK) for k in SLACKS)}):
        now = replace(both, slack=slack)
        near = now.agree(exact=False)
        if slack and near:
            return (), False, now.distance()
        causes = _causes(now, [replace(c, slack=slack) for c in singles], exactly=near)
        if causes or near:
            return causes, near, None
    return (), False, None


def _causes(both: Comparison, singles: Sequence[Comparison], *, exactly: bool) -> tuple[Explanation, ...]:
    """Return the explanations with the slack of both. exactly: the sides are near, so only equal bits explain."""
    found: list[Explanation] = []
    exact: set[tuple[str, int]] = set()  # an exact cause is not reported again with other numbers
    for c in singles:
        key = c.chain[-1].key
        if e := _held(c, exactly=exactly or key in exact):
            found.append(e)
            exact |= {key} if e.exact else set()
    if not exactly:
        named, estimated = _factors(both)
        found = found + named or estimated
    return _without_subsumed(found or _pairs(singles, exactly=exactly))


def _pairs(singles: Sequence[Comparison], *, exactly: bool) -> list[Explanation]:
    found: list[Explanation] = []
    seen: set[frozenset[tuple[str, int]]] = set()
    constants: list[Explanation] = []
    for c in singles:
        first = c.chain[-1]
        if not exactly and first.cause.scales:
            named, estimated = _factors(c)
            found += named
            constants += estimated
        # a change of values on both sides cancels out; rows may be dropped from both
        used = {first.key} if first.cause.drops else {(first.cause.name, 0), (first.cause.name, 1)}
        for second in _changes(c, used):
            keys = frozenset((first.key, second.chain[-1].key))
            if keys not in seen and (e := _held(second, exactly=exactly)):
                seen.add(keys)
                found.append(e)
    return found or constants


def _changes(both: Comparison, used: set[tuple[str, int]]) -> Iterator[Comparison]:
    """Yield the comparisons after each change of one side by a cause that is not used."""
    for cause in CAUSES.values():
        for which in (0,) if cause.symmetric else (1, 0):
            changes = cause.propose(both, which) if cause.propose and (cause.name, which) not in used else ()
            yield from filter(None, (both.after(cause, which, change) for change in changes))


# ---------------------------------------------------------------------- tests
def _held(now: Comparison, *, exactly: bool) -> Explanation | None:
    """Return the explanation by the changes made, if both sides are equal and each change has enough evidence."""
    kinds = {d.cause.exact for d in now.chain}
    for exact in (True, False):
        allowed = "never" not in kinds if exact else not exactly and "always" not in kinds
        if allowed and now.agree(exact=exact):
            least = _least(now, exact=exact)
            return None if least is None else _explanation(now, (), exact, least)
    return None


def _least(now: Comparison, *, exact: bool) -> float | None:
    """Return the evidence of the weakest change, or None if it is not enough."""
    pairs, least = [(t, p) for t, p in enumerate(now.elements) if p is not None], math.inf
    for k, done in enumerate(now.chain):
        bits = enough((evidence(p, _was(now, k, t, p), exact=exact) for t, p in pairs), done.change.cost)
        if bits is None:
            return None
        least = min(least, bits)
    return least


def _explanation(now: Comparison, more: tuple[Finding, ...], exact: bool, bits: float) -> Explanation:
    """Return the changes made in words, where {x} and {y} become {a} and {b}, and more findings."""
    found = []
    for cause, which, change, tensors, _ in now.chain:
        x, y = "ab"[which], "ba"[which]
        text = change.text.replace("{x}", f"{{{x}}}").replace("{y}", f"{{{y}}}")
        names = [now.pairs[t].name for t in sorted(tensors)]
        found.append(Finding(cause.name, text, {"side": x, **change.details, "tensors": names}))
    return Explanation((*found, *more), exact, round(bits, 1), 0.0 if exact else now.slack)


def _was(now: Comparison, k: int, t: int, p: Paired) -> Array:
    """Return, for each paired element, the size of the kth change there, or of the agreement."""
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
def _factors(now: Comparison) -> tuple[list[Explanation], list[Explanation]]:
    """Return the explanations by a factor after the changes made: known factors, and those fitted to the elements."""
    found: tuple[list[Explanation], list[Explanation]] = [], []
    for cause in CAUSES.values() if None not in now.elements else ():
        for f in cause.foretell(now) if cause.foretell else ():
            sides = {e.causes[-1].details.get("side") for e in found[f.fitted] if e.names[-1] == cause.name}
            if f.details.get("side") not in sides and (e := _by_factor(now, Finding(cause.name, f.text, f.details), f)):
                found[f.fitted].append(e)
    return found


def _by_factor(now: Comparison, finding: Finding, f: Factor) -> Explanation | None:
    """Return the explanation by the changes made and a factor, if it fits every row and each part has enough
    evidence."""
    for ratio, fit in zip(f.ratios, now.fits, strict=True):
        if not ratio > 0 or (fit and not f.fitted and 2**f.cost * 2 * abs(ratio / fit - 1.0) > CHANCE):
            return None
    multiplied = replace(now, ratios=f.ratios, tolerance=f.tolerance)
    if not multiplied.agree(exact=False):
        return None
    each = []
    for ratio, p in zip(f.ratios, multiplied.elements, strict=True):
        if p is not None and abs(ratio - 1.0) > f.tolerance:
            each.append(evidence(p, np.abs(p.x) * min(abs(ratio - 1.0), 1.0), exact=False))
    bits = enough(each, f.cost, 2 + f.fitted)
    least = _least(now, exact=False) if now.chain else bits
    return None if bits is None or least is None else _explanation(now, (finding,), False, min(least, bits))


# ---------------------------------------------------------------------- which to name
def _without_subsumed(found: Sequence[Explanation]) -> tuple[Explanation, ...]:
    out: list[Explanation] = []
    for e in found:
        twice = any(set(e.names) == set(o.names) and e.names != o.names for o in out)
        if not twice and not any(_subsumes(other, e) for other in found):
            out.append(e)
    return tuple(out)


def _subsumes(specific: Explanation, e: Explanation) -> bool:
    """Return True if e only states a more general version of another explanation."""
    if specific is e:
        return False
    for order in permutations(specific.names):
        less = [g in CAUSES[s].subsumes for s, g in zip(order, e.names, strict=True)]
        if any(less) and all(is_less or s == g for is_less, s, g in zip(less, order, e.names, strict=True)):
            return True
    return False
