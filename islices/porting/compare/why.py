"""From tensors read to the comparisons that causes are tried on: gradients first, then tables that a step has changed.

Where nothing explains the difference so, all is tried again with slack for the models' own arithmetic, the lesser
first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from islices.porting.compare.causes import CAUSES
from islices.porting.compare.comparison import Comparison, Context, Tensors
from islices.porting.compare.evidence import MOST_SLACK, SLACKS
from islices.porting.compare.explanation import Explanation, Finding
from islices.porting.compare.rows import Held, Stepped
from islices.porting.compare.search import candidates, explain
from islices.porting.compare.stored import Stored, nonzero_rows

__all__ = ["Leaves", "is_last", "why"]

#: A leaf for each pair of tensors, None for one that is not given; or nothing at all.
Leaves: TypeAlias = Sequence[Stored | None] | None


def why(
    stored: Sequence[tuple[Stored, Stored]],
    context: Context,
    starts: Sequence[Sequence[Stored | None]],
    *,
    before: Leaves = None,
    grad: Leaves = None,
    tables: Leaves = None,
) -> tuple[tuple[Explanation, ...], bool, float | None]:
    """Return why two sides differ.

    Parameters
    ----------
    starts : sequence of two sequences, or none
        The tables that each side's step began with.

    Returns
    -------
    (tuple of Explanation, bool, float or None)
        Whether the sides are within rounding as they are; else how far they are apart if that is within the slack.
    """
    if any(x.beyond_float64 for pair in stored for x in pair):
        return (), False, None
    raw = list(before or [None] * len(stored))
    a, b = (tuple(Held(pair[k], r) for pair, r in zip(stored, raw, strict=True)) for k in (0, 1))
    tensors = Tensors(a, b, tuple(None if r is None else Held(r) for r in raw), _tables(stored, tables))
    comparisons = [tensors.compared(context)]
    rounding = comparisons[0].agree(exact=False)
    comparisons += _steps(stored, starts, grad, context) if starts else []
    singles: list[Comparison] = []
    for both in comparisons:
        singles = candidates(both)
        if causes := explain(both, singles):
            return causes, rounding, None
    if rounding:
        return (), True, None
    last = comparisons[-1]  # what is little next to a table may be all of a step
    for slack in sorted({min(k * last.eps, MOST_SLACK) for k in SLACKS} - {0.0}):
        loose = replace(last, slack=slack)
        if loose.agree(exact=False):
            return (), False, loose.distance()
        if causes := explain(loose, singles):
            return causes, False, None
    return (), False, None


def is_last(c: Finding) -> bool:
    """Return whether a cause is named only where nothing else explains."""
    cause = CAUSES.get(c.name)
    return cause is not None and cause.fit is not None


def _tables(stored: Sequence[tuple[Stored, Stored]], tables: Leaves) -> list[Any]:
    """Return the tables' values; None where it is no table of the gradient's rows."""
    return [
        None if t is None or t.sparse or t.row_shape != x.row_shape else t.values
        for t, (x, _) in zip(tables or [None] * len(stored), stored, strict=True)
    ]


def _steps(
    stored: Sequence[tuple[Stored, Stored]],
    starts: Sequence[Sequence[Stored | None]],
    grad: Leaves,
    context: Context,
) -> list[Comparison]:
    """Return the comparison of what a step has changed in tables; none where the tensors are no tables of one shape."""
    sides: tuple[list[Stepped], list[Stepped]] = ([], [])
    for pair, began in zip(stored, zip(*starts, strict=True), strict=True):
        for side, x, start in zip(sides, pair, began, strict=True):
            if start is None or start.sparse or x.sparse or not x.shape == start.shape == pair[0].shape:
                return []
            side.append(Stepped(x, start))
    named = [None if g is None else g.ids if g.sparse else g.ids[nonzero_rows(g.values)] for g in grad or ()]
    return [Tensors(tuple(sides[0]), tuple(sides[1]), named=named).compared(context, steps=True)]
