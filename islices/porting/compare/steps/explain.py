"""Explain the difference of two optimizer steps: find the recipe of each side's step, and the traits in which the two
recipes differ.

`islices.porting.compare.steps.identify` finds the recipes that may have made each side's step. This module tries pairs
of recipes, the most similar pair first. A trait is reported only if it changes enough elements of the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np

from islices.porting.compare.comparison import Comparison, Context, Whole
from islices.porting.compare.difference import Difference, compared
from islices.porting.compare.evidence import ENOUGH, bits_of
from islices.porting.compare.explanation import Explanation, Finding
from islices.porting.compare.pairing import Both
from islices.porting.compare.search import Explained
from islices.porting.compare.steps.identify import confirms, recipes
from islices.porting.compare.steps.recipe import Recipe, bound, stepped
from islices.porting.compare.steps.side import Elements, Side, TableStep
from islices.porting.compare.steps.traits import CLOSE, TRAITS, Trait
from islices.porting.compare.stored import read

#: The largest number of pairs of recipes to compare in full, and the cost in bits of a differing trait of weight 1.
PAIRS, WEIGHT = 12, 12.0


def explain_step(a: TableStep, b: TableStep, table: str = "", names: tuple[str, str] = ("a", "b")) -> Difference:
    """Compare the tables after one step of each side, and report how the optimizers of the two steps differ.

    The result contains a cause only under two conditions. First, the recipes reproduce both steps within the bound on
    rounding. Second, without the cause, more elements of the step would be different than chance explains
    (SPEC clause 22). If both sides use the same recipe and only the inputs differ, the result contains no cause.
    """
    stored = read(a.after, table, "a"), read(b.after, table, "b")

    def explained(chosen: Sequence[int]) -> Explained:
        causes, context = _steps_differ(Side.of(a), Side.of(b)), Context()
        near = not causes and Comparison.of((Whole.of(*stored, context),), context).agree(exact=False)
        return causes, near, None

    return compared(Both([stored]), names, explained)


def _steps_differ(a: Side | None, b: Side | None) -> tuple[Explanation, ...]:
    """Return a tuple with the explanation of the difference between two steps. Return an empty tuple if a step has no
    recipe, if the same recipe reproduces both steps, or if no pair of recipes explains the difference."""
    if a is None or b is None:
        return ()
    pairs = sorted(product(recipes(a), recipes(b)), key=lambda pair: _distance(*pair))
    if any(not _apart(x, y) and confirms(a, x) and confirms(b, y) for x, y in pairs):
        return ()
    for x, y in pairs[:PAIRS]:
        explanation = _explained(x, y, a.sample, b.sample)
        if explanation and confirms(a, x) and confirms(b, y):
            return (explanation,)
    return ()


def _apart(x: Recipe, y: Recipe) -> list[Trait]:
    return [t for t in TRAITS if t.differs(x, y)]


def _distance(x: Recipe, y: Recipe) -> float:
    """Return the distance of two recipes in bits. The distance grows with the weights of the traits that differ, and
    with the costs (`bits`) of both recipes."""
    apart = sum(t.weight for t in _apart(x, y))
    apart += x["optimizer"] == y["optimizer"] and (x["eps"] is None) != (y["eps"] is None)
    return WEIGHT * apart + x.bits + y.bits


def _explained(x: Recipe, y: Recipe, a: Elements, b: Elements) -> Explanation | None:
    """Return an explanation that consists of the traits in which two recipes differ. Traits that do not affect the
    steps are left out. If the optimizers differ, only weight decay and sign count as further traits. Return None if
    there is too little evidence, or if the traits do not explain the whole difference."""
    apart = _apart(x, y)
    if any(t.name == "optimizer" for t in apart):
        apart = [t for t in apart if t.name in ("optimizer", "weight_decay", "sign")]
    evidence = {t: max(_bits(x, t.take(x, y), a), _bits(y, t.take(y, x), b)) for t in apart}
    # the least specific trait, "formula", is last
    matter = sorted((t for t in apart if evidence[t] >= ENOUGH), key=lambda t: t.name == "formula")
    net = min((evidence[t] for t in matter), default=0.0) - max(x.bits, y.bits)
    if net < ENOUGH or not _suffices(matter, x, y, a):
        return None
    step = [dict(x.settings), dict(y.settings)]
    findings = tuple(Finding(t.name, t.says(x, y), {"a": t.of(x), "b": t.of(y), "step": step}) for t in matter)
    return Explanation(findings, False, round(net, 1))


def _bits(r: Recipe, other: Recipe, e: Elements) -> float:
    """Return the evidence, in bits, that a step used the recipe `r` and not `other`. Only elements for which the two
    recipes have different results are evidence."""
    try:
        made, instead = stepped(r, e), stepped(other, e)
    except ValueError:  # no formula has this combination of traits
        return 0.0
    bits = bits_of(e.after, np.abs(made - instead), bound(r, e, made), e.precision)
    return float(bits.sum()) if len(bits) >= 2 else 0.0


def _suffices(traits: Sequence[Trait], x: Recipe, y: Recipe, e: Elements) -> bool:
    """Return True if the traits explain the whole difference: with these traits of x, recipe y makes the same step as
    x."""
    for t in traits:
        y = t.take(y, x)
    y = y.having(rows=y["rows"] if y["rows"] in y.formula.rows else x["rows"])
    if abs(y["lr"] - x["lr"]) <= CLOSE * x["lr"]:  # the rates differ only because a semantics rounds its numbers
        y = y.having(lr=x["lr"])
    made, instead = stepped(x, e), stepped(y, e)
    near = np.abs(made - instead) <= 2 * bound(x, e, made) + CLOSE * np.abs(made - e.w)
    return bool((near | (made == instead)).all())
