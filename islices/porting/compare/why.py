"""From tensors read to the comparisons that causes are tried on: gradients first, then tables that a step has changed.

Where nothing explains the difference so, all is tried again with slack for the models' own arithmetic, the lesser
first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from islices.porting.compare.cause import Proposal
from islices.porting.compare.causes import CAUSES
from islices.porting.compare.comparison import Comparison, Context
from islices.porting.compare.evidence import MOST_SLACK, SLACKS
from islices.porting.compare.explanation import Explanation, Finding, name_sides
from islices.porting.compare.search import explain, proposals
from islices.porting.compare.stored import Stored, nonzero_rows
from islices.porting.compare.survey import distance, within_rounding
from islices.porting.compare.whole import Held, Moved, Tensors

__all__ = ["is_last", "why"]

#: The cause that two clips together are.
PER_TENSOR = "per_tensor"


def why(
    stored: Sequence[tuple[Stored, Stored]],
    before: Sequence[Stored | None] | None,
    grad: Sequence[Stored | None] | None,
    tables: Sequence[Stored | None] | None,
    context: Context,
    starts: Sequence[Sequence[Stored | None]] | None = None,
) -> tuple[tuple[Explanation, ...], bool, float | None]:
    """(the explanations, whether the sides are within rounding as they are, else how far they are apart if that is
    within the slack: see `islices.porting.compare.explanation.distance`). starts: the tables that each side's step
    began with, where they are not those before; none where the sides are known to be gradients."""
    if any(x.beyond_float64 for pair in stored for x in pair):
        return (), False, None
    context = replace(context, names=tuple(x.name for x, _ in stored))
    tensors = _tensors(stored, before)
    comparisons = [tensors.compared(context, tables=_tables(stored, tables))]
    rounding = within_rounding(comparisons[0])
    starts = (before, before) if starts is None and before is not None else starts
    if starts and (steps := _steps(stored, starts, grad, context)):
        comparisons.append(steps)
    proposed: list[Proposal] = []
    for both in comparisons:
        proposed = proposals(both)
        if causes := explain(both, proposed):
            if len(comparisons) == 1 and any(is_last(c) for e in causes for c in e.causes):
                causes = _each_from_before(tensors, both) or causes
            return causes, rounding, None
    if rounding:
        return (), True, None
    if len(comparisons) == 1 and (causes := _each_from_before(tensors, comparisons[0])):
        return causes, False, None
    last = comparisons[-1]  # what is little beside a table may be all of a step
    for slack in _slacks(last):
        loose = replace(last, slack=slack)
        if within_rounding(loose):
            return (), False, distance(loose)
        if causes := explain(loose, proposed):
            return causes, False, None
    return (), False, None


def is_last(c: Finding) -> bool:
    """Whether a cause is named only where nothing else explains: what was done to a known gradient is told rather."""
    cause = CAUSES.get(c.name)
    return cause is not None and cause.last


def _tensors(stored: Sequence[tuple[Stored, Stored]], before: Sequence[Stored | None] | None) -> Tensors:
    """Both sides and what they were computed from, whose slots tell how much was summed."""
    raw = None if before is None else tuple(None if x is None else Held(x) for x in before)
    sides = [tuple(Held(pair[k]) for pair in stored) for k in (0, 1)]
    for side in sides:
        for x, r in zip(side, raw or (), strict=raw is not None):
            if r is not None:
                x.lend(r)
    return Tensors(sides[0], sides[1], raw)


def _each_from_before(tensors: Tensors, both: Comparison) -> tuple[Explanation, ...]:
    """What was done to the gradient before on each side; what was done on both alike makes no difference."""
    if tensors.before is None or any(x is None for x in tensors.before):
        return ()
    raw = tuple(x for x in tensors.before if x is not None)
    found: list[Explanation | None] = []
    for which in (0, 1):
        one = Tensors(raw, tensors.side(which), raw).compared(both.context, tables=both.tables)
        if within_rounding(one):
            found.append(None)
            continue
        causes = explain(one, proposals(one))
        if not causes:
            return ()
        found.append(causes[0])
    kept = [[c for c in (e.causes if e else ()) if not _shared(c, found[1 - k])] for k, e in enumerate(found)]
    kept[1] = [_by_tensor(c, kept[0]) or c for c in kept[1]]
    told = [c if c.name == PER_TENSOR else _of_side(c, "ab"[k]) for k, causes in enumerate(kept) for c in causes]
    known = [e for e in found if e]
    if not told or not known:
        return ()
    return (Explanation(tuple(told), all(e.exact for e in known), min(e.bits for e in known)),)


def _shared(c: Finding, other: Explanation | None) -> bool:
    """Whether the other side has gone through the same."""
    return other is not None and any(_said_of(c) == _said_of(o) for o in other.causes)


def _said_of(c: Finding) -> tuple[Any, ...]:
    return (c.name, *(c.details.get(k) for k in ("max_norm", "limit", "dtype", "kind", "norm")))


def _by_tensor(c: Finding, others: list[Finding]) -> Finding | None:
    """Both sides are clipped to one limit, one of them each tensor by its own norm: then that is what differs."""
    for o in others:
        if c.name == o.name == "clipped" and c.details.get("max_norm") == o.details.get("max_norm"):
            others.remove(o)
            each = "b" if c.details.get("norm") else "a"
            both = f"{{{each}}} clips each tensor by its own norm, {{{'ab'[each == 'a']}}} all by their common norm"
            return Finding(PER_TENSOR, f"clipping by tensor: {both}", {**c.details, "side": each})
    return None


def _of_side(c: Finding, side: str) -> Finding:
    """What was found between the gradient before, as {a}, and a side, as {b}."""
    of = {"a": "ab"[side == "a"], "b": side}  # what the gradient before lacks beside it, the other side lacks
    details = {**c.details, "side": of[c.details.get("side", "b")]}
    return Finding(c.name, name_sides(c.text, ("the gradient before", f"{{{side}}}")), details)


def _tables(stored: Sequence[tuple[Stored, Stored]], tables: Sequence[Stored | None] | None) -> tuple[Any, ...] | None:
    """The tables' values, float64; None where it is no table of the gradient's rows."""
    if tables is None:
        return None
    return tuple(
        None if t is None or t.sparse or t.row_shape != x.row_shape else t.values
        for t, (x, _) in zip(tables, stored, strict=True)
    )


def _slacks(both: Comparison) -> list[float]:
    eps = max(max(x.eps, y.eps) for x, y in zip(both.a, both.b, strict=True))
    return sorted({min(k * eps, MOST_SLACK) for k in SLACKS}) if eps else []


def _steps(
    stored: Sequence[tuple[Stored, Stored]],
    starts: Sequence[Sequence[Stored | None]],
    grad: Sequence[Stored | None] | None,
    context: Context,
) -> Comparison | None:
    """Tables as what a step has changed in them; None where the tensors are no tables of one shape."""
    sides: tuple[list[Moved], list[Moved]] = ([], [])
    for pair, began in zip(stored, zip(*starts, strict=True), strict=True):
        for side, x, start in zip(sides, pair, began, strict=True):
            if start is None or start.sparse or x.sparse or not x.shape == start.shape == pair[0].shape:
                return None
            side.append(Moved(x, start))
    named = None if grad is None else tuple(None if g is None else _named_rows(g) for g in grad)
    return Tensors(tuple(sides[0]), tuple(sides[1])).compared(context, named=named, steps=True)


def _named_rows(g: Stored) -> Any:
    return g.ids if g.sparse else g.ids[nonzero_rows(g.values)]
