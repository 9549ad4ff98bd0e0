"""`explain_steps`, which explains the differences of two recorded training steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from islices.porting.compare.comparison import Context
from islices.porting.compare.difference import Difference, Explained, compared, side_names
from islices.porting.compare.pairing import leaves_beside, read_both, states_beside
from islices.porting.compare.steps.explain import steps_differ
from islices.porting.compare.steps.side import Side
from islices.porting.compare.why import side_by_side


@dataclass(frozen=True, eq=False)
class Step:
    """The input and the result of one side's step, as trees by name, of any framework.

    Attributes
    ----------
    before, after : tree
        The tables.
    gradient : tree
        The optimizer's input, after clipping, if any. Pass it uncoalesced if possible.
    state, state_after : dict of str to dict, optional
        Each table's state before and after the step, as the ``state_of`` of a framework's module returns it. It has
        arrays by the names of `islices.optim`, and "step", the number of earlier steps. Without a state, the step is
        treated as the first.
    optimizer : mapping, optional
        The description of the step's optimizer: "name", "semantics", "rows" and its numbers ("lr", "eps" ...). A
        description without numbers chooses between formulas that make the same step. Without a description, stock
        optimizers are tried (SPEC clause 22). {"class": name} stands for a class that `islices.optim` does not have.
    """

    before: Any
    after: Any
    gradient: Any
    state: Mapping[str, Any] | None = None
    state_after: Mapping[str, Any] | None = None
    optimizer: Mapping[str, Any] | None = None


def explain_steps(a: Step, b: Step, *, names: Sequence[str] = ("a", "b")) -> Difference:
    """Compare the tables after two steps; explain each from its tables before, gradient and state.

    Parameters
    ----------
    a, b : Step
    names : (str, str)
        The names of the sides in the report.

    Returns
    -------
    Difference
        The difference of the tables after the steps. It has no cause if the steps are the same with different inputs.

    Raises
    ------
    TypeError, ValueError
        Tables and gradients do not belong together or have no known framework, or names are not two strings.

    Notes
    -----
    A cause is reported only if it reproduces each side's step within the bound on rounding. Without it, the step would
    differ on more elements than by chance (SPEC clause 22).

    Examples
    --------
    >>> import numpy as np
    >>> table, grad = np.linspace(-1, 1, 24).reshape(6, 4), np.linspace(2, -1, 24).reshape(6, 4)
    >>> slow, fast = (Step(before=table, gradient=grad, after=table - lr * grad) for lr in (0.1, 0.3))
    >>> [cause.names for cause in explain_steps(slow, fast).causes]
    [('learning_rate',)]
    """
    called = side_names(names)
    both = read_both(a.after, b.after)
    given = []
    for side, x in (("a", a), ("b", b)):
        before, gradient = (leaves_beside(getattr(x, n), both.pairs, f"{side}.{n}") for n in ("before", "gradient"))
        if before is None or gradient is None:
            raise ValueError(f"{side}: got a Step without before or gradient; accepted is one with both")
        states = (states_beside(getattr(x, n), both.pairs, f"{side}.{n}") for n in ("state", "state_after"))
        given.append(list(zip(before, gradient, *states, strict=True)))

    def explain(chosen: Sequence[int]) -> Explained:
        some = [both.stored[k] for k in chosen]
        causes = steps_differ(
            *(Side.of([(both.stored[k][n], *given[n][k]) for k in chosen], x.optimizer) for n, x in enumerate((a, b)))
        )
        near = None if causes else side_by_side(some, Context())
        return causes, near is not None and near.agree(exact=False), None

    return compared(both, called, explain)
