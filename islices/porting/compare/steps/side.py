"""A side of two steps that are compared: what it was given, what came of it, what is said to have made it."""

from __future__ import annotations

from collections.abc import Sequence

from islices.porting.compare.steps.elements import Elements, Taken, blocks, sample
from islices.porting.compare.steps.fit import holds
from islices.porting.compare.steps.recipe import Recipe, bound, stepped
from islices.porting.compare.steps.said import NOTHING, Said
from islices.porting.compare.stored import Array

__all__ = ["Side"]


class Side:
    """The steps of all tensors of a side, how many were taken before, and what is said to have taken them; elements is
    a sample."""

    def __init__(self, tensors: Sequence[Taken], steps: int, said: Said = NOTHING) -> None:
        self.tensors, self.steps, self.said = tensors, steps, said
        self.elements: Elements = sample(tensors)
        self._confirmed: dict[Recipe, bool] = {}

    def stepped(self, recipe: Recipe) -> Array:
        """The sample's table after a recipe's step."""
        return stepped(recipe, self.elements, self.steps)[0]

    def bound(self, recipe: Recipe, made: Array) -> Array:
        """How far a framework's own step may be from what the recipe has made of the sample."""
        return bound(recipe, self.elements, self.steps, made)

    def confirms(self, recipe: Recipe) -> bool:
        """Whether a recipe makes the whole tables; each is tried once, since that reads them all."""
        if recipe not in self._confirmed:
            self._confirmed[recipe] = all(holds(recipe, e, self.steps) for e in blocks(self.tensors))
        return self._confirmed[recipe]
