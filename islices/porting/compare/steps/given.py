"""From tensors read to the steps of two sides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from islices.backend import FLOATS
from islices.porting.compare.explanation import Explanation
from islices.porting.compare.steps.elements import Taken, gradient_of
from islices.porting.compare.steps.explain import explain_sides
from islices.porting.compare.steps.said import NOTHING, Said
from islices.porting.compare.steps.side import Side
from islices.porting.compare.steps.states import read_state
from islices.porting.compare.stored import Stored

__all__ = ["Given", "steps_differ"]


@dataclass(frozen=True, eq=False)
class Given:
    """What one side's step began with: for each tensor the table, the gradient, the state before and after it."""

    before: Sequence[Stored | None]
    grad: Sequence[Stored | None]
    state: Sequence[Any]
    state_after: Sequence[Any] = ()
    said: Said = NOTHING

    def begins_as(self, other: Given) -> bool:
        """Whether another side began with the very same tables and gradients."""
        return self.before is other.before and self.grad is other.grad

    def some(self, told: Sequence[int]) -> Given:
        """Of some tensors."""
        before, grad = [self.before[k] for k in told], [self.grad[k] for k in told]
        state, after = ([x[k] for k in told] if x else [] for x in (self.state, self.state_after))
        return Given(before, grad, state, after, self.said)


def steps_differ(stored: Sequence[tuple[Stored, Stored]], given: Sequence[Given]) -> tuple[Explanation, ...] | None:
    """What makes two steps differ; nothing where tensors are no tables that took one, None where both are one."""
    sides = []
    for k, side in enumerate(given):
        taken = _side([pair[k] for pair in stored], side)
        if taken is None:
            return ()
        sides.append(taken)
    return explain_sides(*sides)


def _side(after: Sequence[Stored], given: Given) -> Side | None:
    tensors: list[Taken] = []
    counts: set[int] = set()
    states_after = given.state_after or [None] * len(after)
    for x, before, grad, state, later in zip(after, given.before, given.grad, given.state, states_after, strict=True):
        if before is None or grad is None or before.sparse or x.sparse or x.shape != before.shape:
            return None
        if x.dtype not in FLOATS or before.dtype != x.dtype or grad.dtype not in FLOATS:
            return None
        by_row = gradient_of(grad, before)
        if by_row is None:
            return None
        arrays, count = read_state(state, "states")
        arrays_after, _ = read_state(later, "state_after")
        if any(len(s) != len(x.values) for s in (*arrays.values(), *arrays_after.values())):
            return None
        counts.add(count or 0)
        tensors.append(Taken(before, x, by_row, arrays, arrays_after))
    return Side(tensors, counts.pop(), given.said) if len(counts) == 1 else None
