"""`explain_step`: the difference of two tables after a step, explained by the optimizers that made the steps."""

from __future__ import annotations

from collections.abc import Sequence

from islices.porting.compare.comparison import Context
from islices.porting.compare.difference import Difference, Explained, compared
from islices.porting.compare.pairing import Both
from islices.porting.compare.steps.explain import steps_differ
from islices.porting.compare.steps.side import Side, TableStep
from islices.porting.compare.stored import read
from islices.porting.compare.why import side_by_side


def explain_step(a: TableStep, b: TableStep, table: str = "", names: tuple[str, str] = ("a", "b")) -> Difference:
    """Compare a table after two steps, and name what differs between the steps' optimizers.

    A cause is named only if it reproduces each side's step within the bound on rounding. Without it, the step would
    differ on more elements than by chance (SPEC clause 22). The steps may be the same with different inputs: then there
    is no cause.
    """
    stored = [(read(a.after, table, "a"), read(b.after, table, "b"))]

    def explain(chosen: Sequence[int]) -> Explained:
        causes = steps_differ(Side.of(a), Side.of(b))
        near = None if causes else side_by_side(stored, Context())
        return causes, near is not None and near.agree(exact=False), None

    return compared(Both([(table, table)], stored, (), (), ()), names, explain)
