"""`explain_steps`: two training steps as they were recorded, and in what they differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from islices.porting.compare.comparison import Context
from islices.porting.compare.difference import Difference, Found, compared, side_names
from islices.porting.compare.pairing import leaves_beside, read_both, states_beside
from islices.porting.compare.steps.explain import steps_differ
from islices.porting.compare.steps.side import Side
from islices.porting.compare.why import side_by_side


@dataclass(frozen=True, eq=False)
class Step:
    """The input of one side's step, and its result: trees by name, of any framework.

    Attributes
    ----------
    before, after : tree
        The tables.
    gradient : tree
        What the optimizer was handed: clipped, if it is clipped; uncoalesced is best.
    state, state_after : dict of str to dict, optional
        Each table's state, before the step and after it, as ``state_of`` of a front gives it: its arrays by the names
        of `islices.optim`, and "step", the count of steps taken before. Without it the step is taken for the first.
    optimizer : mapping, optional
        The description of what took it: "name", "semantics", "rows" and its numbers ("lr", "eps" ...). Without
        numbers it decides between formulas that make the same step. Without a description stock optimizers are tried
        (SPEC clause 22). {"class": name} stands for a class that `islices.optim` does not have.
    """

    before: Any
    after: Any
    gradient: Any
    state: Mapping[str, Any] | None = None
    state_after: Mapping[str, Any] | None = None
    optimizer: Mapping[str, Any] | None = None


def explain_steps(a: Step, b: Step, *, names: Sequence[str] = ("a", "b")) -> Difference:
    """Compare the tables after two steps, each explained by its own tables before, gradient and state.

    Parameters
    ----------
    a, b : Step
    names : (str, str)
        What the report calls the sides.

    Returns
    -------
    Difference
        Of the tables after the steps. Where the steps are the same and what they began with is not, no cause is named.

    Raises
    ------
    TypeError, ValueError
        Tables and gradients that do not belong together, or of no known framework; names that are no two strings.

    Notes
    -----
    A cause is named only if each side's step is made by what it names, within the bound on rounding, and would be
    another without it, on more elements than by chance (SPEC clause 22).

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

    def explain(told: Sequence[int]) -> Found:
        some = [both.stored[k] for k in told]
        causes = steps_differ(
            *(Side.of([(both.stored[k][n], *given[n][k]) for k in told], x.optimizer) for n, x in enumerate((a, b)))
        )
        near = None if causes else side_by_side(some, Context())
        return causes, near is not None and near.agree(exact=False), None

    return compared(both, called, explain)
