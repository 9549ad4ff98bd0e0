"""Explain the difference of two steps by the recipe of each side's step and the traits in which they differ.

Each side is explained separately (`islices.porting.compare.steps.identify`). The pair of recipes with the smallest
difference is used. A trait is reported only if the step would differ without it, on enough elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import numpy as np

from islices.porting.compare.evidence import ENOUGH
from islices.porting.compare.explanation import Explanation, Finding
from islices.porting.compare.steps.identify import recipes
from islices.porting.compare.steps.recipe import Recipe
from islices.porting.compare.steps.side import Side
from islices.porting.compare.steps.traits import CLOSE, TRAITS, Trait

#: The number of pairs of recipes to compare closely, and the weight of a trait in bits.
PAIRS, WEIGHT = 12, 12.0


def steps_differ(a: Side | None, b: Side | None) -> tuple[Explanation, ...]:
    """Return the explanations of the steps' difference. There are none if a step has no recipe, or one recipe makes
    both."""
    if a is None or b is None:
        return ()
    pairs = sorted(product(recipes(a), recipes(b)), key=lambda pair: _distance(*pair))
    if any(not _apart(x, y) and a.confirms(x) and b.confirms(y) for x, y in pairs):
        return ()
    for x, y in pairs[:PAIRS]:
        explanation = _explained(x, y, a, b)
        if explanation and a.confirms(x) and b.confirms(y):
            return (explanation,)
    return ()


def _apart(x: Recipe, y: Recipe) -> list[Trait]:
    return [t for t in TRAITS if t.differs(x, y)]


def _distance(x: Recipe, y: Recipe) -> float:
    """Return the distance of two recipes in bits, from their differing traits and the cost of numbers from the data."""
    apart = sum(t.weight for t in _apart(x, y))
    apart += x.name == y.name and ("eps" in x.hyper) != ("eps" in y.hyper)
    return WEIGHT * apart + x.bits + y.bits


def _explained(x: Recipe, y: Recipe, a: Side, b: Side) -> Explanation | None:
    """Explain the steps by the differing traits of two recipes that matter. Return None without enough evidence."""
    apart = _apart(x, y)
    if any(t.name == "optimizer" for t in apart):
        apart = [t for t in apart if t.name in ("optimizer", "weight_decay", "sign")]
    evidence = {t: max(_bits(x, t.take(x, y), a), _bits(y, t.take(y, x), b)) for t in apart}
    matter = sorted((t for t in apart if evidence[t] >= ENOUGH), key=lambda t: t.name == "formula")  # the vaguest last
    net = min((evidence[t] for t in matter), default=0.0) - max(x.bits, y.bits)
    if net < ENOUGH or not _suffices(matter, x, y, a):
        return None
    steps = {"step": [_details(x), _details(y)]}
    findings = tuple(Finding(t.name, t.says(x, y), {"a": t.of(x), "b": t.of(y), **steps}) for t in matter)
    return Explanation(findings, False, round(net, 1))


def _details(r: Recipe) -> dict[str, object]:
    return {
        "optimizer": r.name, "semantics": r.semantics, "rows": r.rows, "duplicates": r.duplicates, "decay": r.decay,
        "up": r.up, **r.hyper,
    }  # fmt: skip


def _bits(r: Recipe, other: Recipe, side: Side) -> float:
    """Measure the evidence that separates two recipes: the elements for which their results differ."""
    try:
        made, instead = side.stepped(r), side.stepped(other)
    except ValueError:  # the formula does not have the trait, so its result is unknown
        return 0.0
    e, limit = side.elements, side.bound(r, made)
    with np.errstate(all="ignore"):
        bits = np.clip(np.nan_to_num(np.log2(np.abs(made - instead) / limit), nan=0.0, neginf=0.0), 0.0, e.precision)
    _, first = np.unique(np.stack([e.after, e.g]), axis=1, return_index=True)
    bits = bits[first]
    return float(bits.sum()) if (bits > 0).sum() >= 2 else 0.0


def _suffices(traits: Sequence[Trait], x: Recipe, y: Recipe, side: Side) -> bool:
    """Return True if these traits explain the whole difference: with them, the other recipe makes this recipe's
    step."""
    for t in traits:
        y = t.take(y, x)
    y = replace(y, rows=y.rows if y.rows in y.formula.rows else x.rows)
    own = x.hyper["lr"]
    if abs(y.hyper["lr"] - own) <= CLOSE * own:  # numbers that a semantics rounds otherwise
        y = y.having(lr=own)
    made, instead = side.stepped(x), side.stepped(y)
    near = np.abs(made - instead) <= 2 * side.bound(x, made) + CLOSE * np.abs(made - side.elements.w)
    return bool((near | (made == instead)).all())
