"""Make a comparison of stored tensors, and search for causes.

If no cause explains the difference, the search runs again with slack for the models' arithmetic, smallest slack
first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias

from islices.porting.compare.comparison import Comparison, Context, Tensors
from islices.porting.compare.evidence import MOST_SLACK, SLACKS
from islices.porting.compare.explanation import Explanation
from islices.porting.compare.rows import Held
from islices.porting.compare.search import candidates, explain
from islices.porting.compare.stored import Stored

#: A leaf for each pair of tensors, None for one that is not given; or nothing at all.
Leaves: TypeAlias = Sequence[Stored | None] | None


def side_by_side(
    stored: Sequence[tuple[Stored, Stored]], context: Context, raw: Leaves = None, tables: Leaves = None
) -> Comparison | None:
    """Return the comparison before any change, or None for whole numbers that float64 does not hold.

    raw: the gradient from which both were computed. tables: the tables that a regularizer may add.
    """
    if any(x.beyond_float64 for pair in stored for x in pair):
        return None
    known = list(raw or [None] * len(stored))
    a, b = (tuple(Held(pair[k]) for pair in stored) for k in (0, 1))
    whole = [
        None if t is None or t.sparse or t.row_shape != x.row_shape else t.values
        for t, (x, _) in zip(tables or [None] * len(stored), stored, strict=True)
    ]
    return Tensors(a, b, tuple(None if r is None else Held(r) for r in known), whole).compared(context)


def why(both: Comparison | None) -> tuple[tuple[Explanation, ...], bool, float | None]:
    """Return the explanations, True if the sides are within rounding, and their distance if it is within the slack."""
    if both is None:
        return (), False, None
    rounding, singles = both.agree(exact=False), candidates(both)
    causes = explain(both, singles)
    if causes or rounding:
        return causes, rounding, None
    for slack in sorted({min(k * both.eps, MOST_SLACK) for k in SLACKS} - {0.0}):
        loose = replace(both, slack=slack)
        if loose.agree(exact=False):
            return (), False, loose.distance()
        if causes := explain(loose, singles):
            return causes, False, None
    return (), False, None
