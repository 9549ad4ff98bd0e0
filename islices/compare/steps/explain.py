"""Why two steps differ: what each side's step was made by, and in what the two differ.

Each side is explained by itself (`islices.compare.steps.identify`); of all pairs of what explains them that is taken
which differs least. A difference is named only if the step would be another without it, on enough elements.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

import numpy as np

from islices.compare.evidence import ENOUGH
from islices.compare.explanation import Explanation, Finding
from islices.compare.steps.identify import recipes
from islices.compare.steps.recipe import Recipe
from islices.compare.steps.said import Said
from islices.compare.steps.side import Side
from islices.compare.steps.traits import CLOSE, TRAITS, Trait, epsilon_place

__all__ = ["explain_sides"]

#: Pairs of recipes that are looked at closely, and what a trait weighs in bits.
PAIRS, WEIGHT = 12, 12.0
#: Bits by which another explanation may be less likely than the first and still be told.
NEAR = 18.0
#: Explanations that are told: others that need as few traits.
TOLD = 3


def explain_sides(a: Side, b: Side) -> tuple[Explanation, ...] | None:
    """What makes the steps differ, the likeliest first; nothing where a side's step is none that is known, None where
    one optimizer makes both."""
    found = recipes(a)
    others = recipes(b) if found else []
    if not others:
        return ()
    names, other_names = ({r.name for r in side} for side in (found, others))
    if not names & other_names:  # what is plainest by itself may be the other side's optimizer with other numbers
        found, others = found + recipes(a, only=other_names), others + recipes(b, only=names)
    pairs = sorted(_pairs(found, others, a, b), key=lambda p: p[0])
    if any(_one_step(x, y) and a.confirms(x) and b.confirms(y) for _, x, y in pairs):
        return None
    told: list[Explanation] = []
    least = math.inf
    for distance, x, y in pairs[:PAIRS]:
        if told and (distance > least + NEAR or len(told) == TOLD):
            break
        e = _explained(x, y, a, b)
        if e is None or any(e.names == other.names for other in told):
            continue
        if not (a.confirms(x) and b.confirms(y)):
            continue
        least = min(least, distance)
        e = _with_others(e, (x, found, a), (y, others, b))
        told.append(_with_what_is_not_as_said(e, (x, a.said), (y, b.said)))
    fewest = min((len(e.causes) for e in told), default=0)
    return tuple(e for e in told if len(e.causes) == fewest)


def _one_step(x: Recipe, y: Recipe) -> bool:
    return not any(t.differs(x, y) for t in TRAITS)


def _pairs(
    found: Sequence[Recipe], others: Sequence[Recipe], a: Side, b: Side
) -> Iterator[tuple[float, Recipe, Recipe]]:
    """All pairs of recipes, with what is between them; each moves the rows that the other does, where its own elements
    do not say which."""
    for x, y in product(found, others):
        x = _by_rows_of(x, y, a)
        y = _by_rows_of(y, x, b)
        yield _distance(x, y), x, y


def _by_rows_of(r: Recipe, other: Recipe, side: Side) -> Recipe:
    """The recipe with the other's rows, where its elements do not tell them."""
    return r if other.rows == r.rows or _rows_told(r, side) else replace(r, rows=other.rows)


def _rows_told(r: Recipe, side: Side) -> bool:
    """Whether a step of all rows would be another than one of those touched: else nothing says which it was."""
    instead = replace(r, rows="touched" if r.rows == "all" else "all")
    if side.elements.state or instead.rows not in r.formula.rows:
        return True
    return not np.array_equal(side.stepped(r), side.stepped(instead), equal_nan=True)


def _distance(x: Recipe, y: Recipe) -> float:
    """Bits: the traits in which two recipes differ, and what was read off the data for each."""
    apart = sum(t.weight for t in TRAITS if t.differs(x, y))
    apart += x.name == y.name and (x.get("eps") is None) != (y.get("eps") is None)  # none, beside one
    return WEIGHT * apart + x.bits + y.bits


def _explained(x: Recipe, y: Recipe, a: Side, b: Side) -> Explanation | None:
    """The traits that matter of those in which two recipes differ; None where they say too little."""
    apart = [t for t in TRAITS if t.differs(x, y)]
    if any(t.name == "optimizer" for t in apart):
        apart = [t for t in apart if t.name in ("optimizer", "weight_decay", "sign")]
    told: list[tuple[Trait, float]] = []
    for t in sorted(apart, key=lambda t: t.name == "formula"):  # which says the least, last
        bits = max(_bits(x, t.take(x, y), a), _bits(y, t.take(y, x), b))
        if bits >= ENOUGH:
            told.append((t, bits))
    net = min((bits for _, bits in told), default=0.0) - max(x.bits, y.bits)  # without what numbers were read off by
    if net < ENOUGH or not _suffices([t for t, _ in told], x, y, a):
        return None
    steps = {
        "step": [_details(x, a), _details(y, b)],
        "alike": _alike([t for t, _ in told], x, y, a),
    }
    findings = tuple(Finding(t.name, t.says(x, y), {"a": t.of(x), "b": t.of(y), **steps}) for t, _ in told)
    return Explanation(findings, False, round(net, 1))


def _with_others(e: Explanation, *sides: tuple[Recipe, Sequence[Recipe], Side]) -> Explanation:
    """Beside another optimizer, those that make the same step; sides: what is told, all that do, of what."""
    if "optimizer" not in e.names:
        return e
    text, alike = "", {}
    for side, (told, known, there) in zip("ab", sides, strict=True):
        made = there.stepped(told)
        near = there.bound(told, made)
        others = [r for r in known if r.name not in (sides[0][0].name, sides[1][0].name)]
        same = sorted({r.name for r in others if (np.abs(there.stepped(r) - made) <= near).all()})
        alike[side] = same
        if same:
            text += f"; {' or '.join(same)} would make the same step of {{{side}}}"
    causes = [
        replace(c, text=c.text + text, details={**c.details, "same_step": alike}) if c.name == "optimizer" else c
        for c in e.causes
    ]
    return replace(e, causes=tuple(causes))


def _with_what_is_not_as_said(e: Explanation, *sides: tuple[Recipe, Said]) -> Explanation:
    """Which side's step is another optimizer's, or another semantics', than it is said to be."""
    text, unlike = "", {}
    for side, (r, said) in zip("ab", sides, strict=True):
        if said.names_another(r) and not said.assumed:
            unlike[side] = {k: v for k, v in said._asdict().items() if isinstance(v, str)}
            text += f"; {{{side}}} is said to step by {said.claim}, but steps as {r.name} of {r.semantics}"
    if not unlike:
        return e
    first, *rest = e.causes
    return replace(e, causes=(replace(first, text=first.text + text, details={**first.details, "said": unlike}), *rest))


def _details(r: Recipe, side: Side) -> dict[str, object]:
    return {
        "epsilon_place": epsilon_place(r), "rows_told": _rows_told(r, side),
        "optimizer": r.name, "semantics": r.semantics, "rows": r.rows, "duplicates": r.duplicates, "decay": r.decay,
        "corrected": r.corrected, "up": r.up, **dict(r.hyper),
    }  # fmt: skip


def _bits(r: Recipe, other: Recipe, side: Side) -> float:
    """What tells a recipe from another: the elements that would come out otherwise."""
    try:
        made, instead = side.stepped(r), side.stepped(other)
    except (ValueError, KeyError):  # the formula has no such trait: what it makes then is not known
        return 0.0
    e, limit = side.elements, side.bound(r, made)
    with np.errstate(all="ignore"):
        bits = np.clip(np.nan_to_num(np.log2(np.abs(made - instead) / limit), nan=0.0, neginf=0.0), 0.0, e.precision)
    _, first = np.unique(np.stack([e.after, e.g]), axis=1, return_index=True)
    bits = bits[first]
    return float(bits.sum()) if (bits > 0).sum() >= 2 else 0.0


def _with(traits: Sequence[Trait], x: Recipe, y: Recipe) -> Recipe:
    """y with these traits of x."""
    for t in traits:
        y = t.take(y, x)
    return replace(y, rows=y.rows if y.rows in y.formula.rows else x.rows)


def _alike(traits: Sequence[Trait], x: Recipe, y: Recipe, side: Side) -> bool:
    """Whether the other's formula makes this one's step, with all numbers of this one: to rounding, and no more."""
    y = _with(traits, x, y)
    y = y.having(**{k: v for k, v in x.hyper if y.get(k) is not None})
    made, instead = side.stepped(x), side.stepped(y)
    return bool(((np.abs(made - instead) <= side.bound(x, made)) | (made == instead)).all())


def _suffices(traits: Sequence[Trait], x: Recipe, y: Recipe, side: Side) -> bool:
    """Whether the other's step is this one's with these traits of this one: nothing else differs."""
    y = _with(traits, x, y)
    rate, own = float(y.get("lr")), float(x.get("lr"))
    if abs(rate - own) <= CLOSE * own:  # numbers that a semantics rounds otherwise
        y = y.having(lr=own)
    made, instead = side.stepped(x), side.stepped(y)
    near = np.abs(made - instead) <= 2 * side.bound(x, made) + CLOSE * np.abs(made - side.elements.w)
    return bool((near | (made == instead)).all())
