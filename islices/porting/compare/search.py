"""The search for causes. It tests candidates singly, then in pairs, and ranks those that hold.

A candidate is a comparison in which a cause has changed one side. It holds if both sides are then equal, to the bit or
within the bound, with enough evidence for each change. A single cause is preferred to two. If several explain the
difference, all are reported, the most specific first, without those that another subsumes. Tensors are explained
together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import permutations

import numpy as np

from islices.porting.compare.cause import Factor
from islices.porting.compare.causes import CAUSES
from islices.porting.compare.comparison import Comparison
from islices.porting.compare.evidence import Evidence, Paired, evidence, onto
from islices.porting.compare.explanation import Explanation, Finding
from islices.porting.compare.stored import Array

#: A factor drawn at random must be this unlikely to lie as near to one of the named candidates.
CHANCE = 1 / 32


def explain(both: Comparison, singles: Sequence[Comparison]) -> tuple[Explanation, ...]:
    """Return the explanations, the most specific first; none if no known cause makes the sides equal.

    singles: the results of `candidates` for both, with any slack.
    """
    if not both.pairs:
        return ()
    near = both.agree(exact=False)  # then an inexact candidate explains nothing
    singles = [replace(c, slack=both.slack) if both.slack else c for c in singles]
    found: list[Explanation] = []
    exact: set[tuple[str, int]] = set()  # an exact cause is not reported again with other numbers
    for c in singles:
        key = c.chain[-1].key
        if e := _held(c, exactly=near or key in exact):
            found.append(e)
            exact |= {key} if e.exact else set()
    if not near:
        named, estimated = _factors(both)
        found = found + named or estimated
    found = found or _pairs(singles, exactly=near)
    fewest = min((len(e.causes) for e in found), default=0)
    return _without_subsumed([e for e in found if (e.exact or not near) and len(e.causes) == fewest])


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


# ---------------------------------------------------------------------- candidates
def candidates(both: Comparison) -> list[Comparison]:
    """Return the comparisons after each single change of one side."""
    return list(_changes(both, set()))


def _changes(both: Comparison, used: set[tuple[str, int]]) -> Iterator[Comparison]:
    for cause in CAUSES.values():
        if cause.propose is not None:
            for which in (0,) if cause.symmetric else (1, 0):
                changes = () if (cause.name, which) in used else cause.propose(both, which)
                yield from filter(None, (both.after(cause, which, change) for change in changes))


# ---------------------------------------------------------------------- tests
def _held(now: Comparison, *, exactly: bool) -> Explanation | None:
    """Return the explanation by the changes made, if both sides are equal and each change has enough evidence."""
    kinds = {d.cause.exact for d in now.chain}
    modes = [] if "never" in kinds else [True]
    modes += [] if exactly or "always" in kinds else [False]
    for exact in modes:
        if now.agree(exact=exact):
            least = _least(now, exact=exact)
            slack = 0.0 if exact else now.slack
            return None if least is None else Explanation(_described_as(now), exact, round(least, 1), slack)
    return None


def _least(now: Comparison, *, exact: bool) -> float | None:
    """Return the evidence of the weakest change, or None if it is not enough."""
    found = []
    for k, d in enumerate(now.chain):
        pairs = ((t, p) for t, p in enumerate(now.elements) if p is not None)
        each = (evidence(p, _was(now, k, t, p), exact=exact) for t, p in pairs)
        found.append(Evidence.all(each, d.change.cost))
    return min(e.bits for e in found) if all(e.enough for e in found) else None


def _described_as(now: Comparison) -> tuple[Finding, ...]:
    """Return the changes made in words: {x} and {y} become {a} and {b}."""
    found = []
    for cause, which, change, tensors in now.chain:
        x, y = "ab"[which], "ba"[which]
        text = change.text.replace("{x}", f"{{{x}}}").replace("{y}", f"{{{y}}}")
        names = [now.pairs[t].name for t in sorted(tensors)]
        found.append(Finding(cause.name, text, {"side": x, **change.details, "tensors": names}))
    return tuple(found)


def _was(now: Comparison, k: int, t: int, p: Paired) -> Array:
    """Return, for each paired element, the size of the kth change there, or of the agreement."""
    cause, which, _, tensors = now.chain[k]
    final = now.pairs[t].side(which)
    here: Array = np.abs(final.values)  # the evidence is the agreement of all other elements
    if not (cause.drops or cause.narrows or now.chain[k].change.moved):
        if t not in tensors:
            return np.zeros(p.x.shape)
        old, new = (c.pairs[t].side(which) for c in (*now.past, now)[k : k + 2])
        with np.errstate(invalid="ignore"):
            here = np.abs(onto(final.ids, new, new.values) - onto(final.ids, old, old.values))
    flat: Array = onto(p.ids, final, here).reshape(-1)
    return flat


# ---------------------------------------------------------------------- factors
def _factors(now: Comparison) -> tuple[list[Explanation], list[Explanation]]:
    """Return the explanations by a factor after the changes made: known factors, and those fitted to the elements."""
    found: tuple[list[Explanation], list[Explanation]] = [], []
    for cause in CAUSES.values() if None not in now.elements else ():
        for f in cause.foretell(now) if cause.foretell else ():
            e = _by_factor(now, Finding(cause.name, f.text, f.details), f)
            if e and not any(_says_the_same(e, other) for other in found[f.fitted]):
                found[f.fitted].append(e)
    return found


def _says_the_same(e: Explanation, other: Explanation) -> bool:
    """Return whether two changes would give one name twice, for the same side or with the same meaning."""
    one, two = e.causes[-1], other.causes[-1]
    return one.name == two.name and one.details.get("side") == two.details.get("side")


def _by_factor(now: Comparison, finding: Finding, f: Factor) -> Explanation | None:
    """Return the explanation by the changes made and a factor, if it fits every row and each part has enough
    evidence."""
    for ratio, fit in zip(f.ratios, now.fits, strict=True):
        if not ratio > 0 or (fit and not f.fitted and 2**f.cost * 2 * abs(ratio / fit - 1.0) > CHANCE):
            return None
    if not now.agree(exact=False, ratios=f.ratios, tolerance=f.tolerance):
        return None
    each = []
    for ratio, p in zip(f.ratios, now.elements, strict=True):
        if p is not None and abs(ratio - 1.0) > f.tolerance:
            each.append(evidence(p, np.abs(p.x) * min(abs(ratio - 1.0), 1.0), exact=False, factor=ratio))
    total = Evidence.all(each, f.cost)
    least = _least(now, exact=False) if now.chain else total.bits
    if not total.enough or total.elements < 2 + f.fitted or least is None:
        return None
    return Explanation((*_described_as(now), finding), False, round(min(least, total.bits), 1), now.slack)


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
    if len(specific.causes) != len(e.causes) or specific is e:
        return False
    for order in permutations(specific.names):
        less = [g in CAUSES[s].subsumes for s, g in zip(order, e.names, strict=True)]
        if any(less) and all(is_less or s == g for is_less, s, g in zip(less, order, e.names, strict=True)):
            return True
    return False
