"""A side of a comparison of two steps: its inputs, its results, and the described optimizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from islices.backend import FLOATS
from islices.porting.compare.rows import Held
from islices.porting.compare.steps.elements import Elements, Taken, all_elements, sample
from islices.porting.compare.steps.fit import holds
from islices.porting.compare.steps.recipe import Recipe, bound, stepped
from islices.porting.compare.stored import Array, read


class Side:
    """The steps of all tensors of a side.

    A side also has the number of earlier steps, the names of its states' arrays, and the description of its optimizer.
    """

    def __init__(
        self, tensors: Sequence[Taken], steps: int, kept: set[str], optimizer: Mapping[str, Any] | None
    ) -> None:
        self.tensors, self.steps, self.kept, self.optimizer = tensors, steps, kept, optimizer or {}
        self.elements: Elements = sample(tensors)
        self._confirmed: dict[Recipe, bool] = {}

    @classmethod
    def of(cls, given: Sequence[tuple[Any, ...]], optimizer: Mapping[str, Any] | None) -> Side | None:
        """Return a side, or None if its tensors are not tables that took a step.

        given: for each tensor the tables after and before the step, the gradient, and the states before and after.
        """
        tensors: list[Taken] = []
        counts: set[int] = set()
        kept: set[str] = set()
        for x, before, grad, state, later in given:
            if before is None or grad is None or before.sparse or x.sparse or x.shape != before.shape:
                return None
            if x.dtype not in FLOATS or before.dtype != x.dtype or grad.dtype not in FLOATS:
                return None
            if grad.row_shape != before.row_shape or (len(grad.ids) and grad.ids[-1] >= len(before.values)):
                return None
            arrays, count = _read_state(state, "state")
            if any(len(s) != len(x.values) for s in arrays.values()):
                return None
            counts.add(count)
            kept |= arrays.keys() or _read_state(later, "state_after")[0].keys()
            tensors.append(Taken(before, x, Held(grad), arrays))
        return cls(tensors, counts.pop(), kept, optimizer) if len(counts) == 1 else None

    def stepped(self, recipe: Recipe) -> Array:
        """Return the sample's table after a recipe's step."""
        return stepped(recipe, self.elements, self.steps)

    def bound(self, recipe: Recipe, made: Array) -> Array:
        """Return the distance that rounding may cause between a framework's step and the recipe's for the sample."""
        return bound(recipe, self.elements, self.steps, made)

    def confirms(self, recipe: Recipe) -> bool:
        """Return whether a recipe reproduces the whole tables. Each recipe is tried once, because this reads all
        tables."""
        if recipe not in self._confirmed:
            self._confirmed[recipe] = all(holds(recipe, e, self.steps) for e in all_elements(self.tensors))
        return self._confirmed[recipe]


def _read_state(tree: Any, argument: str) -> tuple[dict[str, Array], int]:
    """Return the arrays of one table's state by name, and the steps taken."""
    if tree is None:
        return {}, 0
    if not isinstance(tree, Mapping):
        raise TypeError(f"{argument}: got {type(tree).__name__}; accepted is a dict of a state's arrays by name")
    beside = {"step", "master"}
    arrays = {n: read(x, n, f"{argument}[{n!r}]").values for n, x in tree.items() if n not in beside and x is not None}
    return arrays, int(np.asarray(tree.get("step", 0)).reshape(-1)[0])
