"""A side of two steps that are compared: what it was given, what came of it, what is said to have made it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from islices.backend import FLOATS
from islices.porting.compare.rows import Held
from islices.porting.compare.steps.elements import Elements, Taken, all_elements, sample
from islices.porting.compare.steps.fit import holds
from islices.porting.compare.steps.recipe import Recipe, bound, stepped
from islices.porting.compare.steps.states import read_state
from islices.porting.compare.stored import Array, Stored

__all__ = ["Given", "Side"]


@dataclass(frozen=True, eq=False)
class Given:
    """What one side's step began with, for each tensor, the state after it, and the optimizer's description."""

    before: Sequence[Stored | None]
    grad: Sequence[Stored | None]
    state: Sequence[Any]
    state_after: Sequence[Any]
    optimizer: Mapping[str, Any] | None = None

    def some(self, told: Sequence[int]) -> Given:
        """Return what some tensors began with."""
        before, grad, state, after = (
            [x[k] for k in told] for x in (self.before, self.grad, self.state, self.state_after)
        )
        return Given(before, grad, state, after, self.optimizer)


class Side:
    """The steps of all tensors of a side, how many were taken before, and what is said to have taken them."""

    def __init__(self, tensors: Sequence[Taken], steps: int, optimizer: Mapping[str, Any] | None) -> None:
        self.tensors, self.steps, self.optimizer = tensors, steps, optimizer or {}
        self.elements: Elements = sample(tensors)
        self._confirmed: dict[Recipe, bool] = {}

    @classmethod
    def of(cls, after: Sequence[Stored], given: Given) -> Side | None:
        """Return a side; None where its tensors are no tables that took a step."""
        tensors: list[Taken] = []
        counts: set[int] = set()
        parts = zip(after, given.before, given.grad, given.state, given.state_after, strict=True)
        for x, before, grad, state, later in parts:
            if before is None or grad is None or before.sparse or x.sparse or x.shape != before.shape:
                return None
            if x.dtype not in FLOATS or before.dtype != x.dtype or grad.dtype not in FLOATS:
                return None
            if grad.row_shape != before.row_shape or (len(grad.ids) and grad.ids[-1] >= len(before.values)):
                return None
            (arrays, count), (arrays_after, _) = read_state(state, "states"), read_state(later, "state_after")
            if any(len(s) != len(x.values) for s in (*arrays.values(), *arrays_after.values())):
                return None
            counts.add(count or 0)
            tensors.append(Taken(before, x, Held(grad), arrays, arrays_after))
        return cls(tensors, counts.pop(), given.optimizer) if len(counts) == 1 else None

    def stepped(self, recipe: Recipe) -> Array:
        """Return the sample's table after a recipe's step."""
        return stepped(recipe, self.elements, self.steps)[0]

    def bound(self, recipe: Recipe, made: Array) -> Array:
        """Return how far a framework's own step may be from what the recipe has made of the sample."""
        return bound(recipe, self.elements, self.steps, made)

    def confirms(self, recipe: Recipe) -> bool:
        """Return whether a recipe makes the whole tables; each is tried once, since that reads them all."""
        if recipe not in self._confirmed:
            self._confirmed[recipe] = all(holds(recipe, e, self.steps) for e in all_elements(self.tensors))
        return self._confirmed[recipe]
