"""`explain_steps`: two training steps as they were recorded, and in what they differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from islices.porting.compare.difference import Difference, compare_steps

__all__ = ["Step", "explain_steps"]


@dataclass(frozen=True, eq=False)
class Step:
    """What one side's step was given, and what came of it: trees by name, of any framework.

    Attributes
    ----------
    before, after : tree
        The tables.
    gradient : tree
        What the optimizer was handed: clipped, if it is clipped; uncoalesced is best.
    state, state_after : dict of str to dict, optional
        Each table's state, before the step and after it: its arrays by islices' names or the framework's, and "step",
        the count of steps taken before. Without it the step is taken for the first.
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


def explain_steps(
    a: Step,
    b: Step,
    *,
    names: Sequence[str] = ("a", "b"),
    padding_idx: int | None = None,
) -> Difference:
    """Compare the tables after two steps, each explained by its own tables before, gradient and state.

    Parameters
    ----------
    a, b : Step
    names, padding_idx
        As of `islices.diff`.

    Returns
    -------
    Difference
        Of the tables after the steps. Where the steps are the same and what they began with is not, no cause is named.

    Raises
    ------
    TypeError, ValueError
        As `islices.diff`.

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
    return compare_steps(a, b, names=names, padding_idx=padding_idx)
