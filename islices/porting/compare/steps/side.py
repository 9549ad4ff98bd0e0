"""A side of a comparison of two steps: its inputs, its results, and the described optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from islices.backend import FLOATS
from islices.porting.compare.rows import Held
from islices.porting.compare.steps.elements import Elements, Taken, all_elements, sample
from islices.porting.compare.steps.fit import holds
from islices.porting.compare.steps.recipe import Recipe, bound, stepped
from islices.porting.compare.stored import Array, read


@dataclass(frozen=True, eq=False)
class TableStep:
    """The step of one table: the table before and after, the optimizer's input after clipping, and states.

    A state has arrays by the names of `islices.optim`, and "step", the number of earlier steps. Without a state, the
    step is treated as the first. optimizer is the description of the step's optimizer: "name", "semantics", "rows" and
    its numbers. A description without numbers decides between formulas that make the same step. {"class": name} stands
    for a class that `islices.optim` does not have.
    """

    before: Any
    after: Any
    gradient: Any
    state: Mapping[str, Any] | None = None
    state_after: Mapping[str, Any] | None = None
    optimizer: Mapping[str, Any] | None = None


class Side:
    """The step of a table, with the number of earlier steps, the names of the state's arrays, and the description."""

    def __init__(self, taken: Taken, steps: int, kept: set[str], optimizer: Mapping[str, Any] | None) -> None:
        self.taken, self.steps, self.kept, self.optimizer = taken, steps, kept, optimizer or {}
        self.elements: Elements = sample(taken)
        self._confirmed: dict[Recipe, bool] = {}

    @classmethod
    def of(cls, given: TableStep) -> Side | None:
        """Return a side; None if it is not a step of a dense table of floats."""
        before, x, grad = (read(getattr(given, name), "", name) for name in ("before", "after", "gradient"))
        if before.sparse or x.sparse or x.shape != before.shape or grad.row_shape != before.row_shape:
            return None
        if x.dtype not in FLOATS or before.dtype != x.dtype or grad.dtype not in FLOATS:
            return None
        arrays, steps = _read_state(given.state, "state")
        if (len(grad.ids) and grad.ids[-1] >= len(x.values)) or any(len(s) != len(x.values) for s in arrays.values()):
            return None
        kept = set(arrays or _read_state(given.state_after, "state_after")[0])
        return cls(Taken(before, x, Held(grad), arrays), steps, kept, given.optimizer)

    def stepped(self, recipe: Recipe) -> Array:
        """Return the sample's table after a recipe's step."""
        return stepped(recipe, self.elements, self.steps)

    def bound(self, recipe: Recipe, made: Array) -> Array:
        """Return the distance that rounding may cause between a framework's step and the recipe's for the sample."""
        return bound(recipe, self.elements, self.steps, made)

    def confirms(self, recipe: Recipe) -> bool:
        """Return whether a recipe makes the whole table; each is tried once, since that reads all of it."""
        if recipe not in self._confirmed:
            self._confirmed[recipe] = all(holds(recipe, e, self.steps) for e in all_elements(self.taken))
        return self._confirmed[recipe]


def _read_state(state: Mapping[str, Any] | None, argument: str) -> tuple[dict[str, Array], int]:
    """Return the arrays of a table's state by name, and the number of steps taken."""
    leaves = {name: x for name, x in (state or {}).items() if name not in ("step", "master") and x is not None}
    arrays = {name: read(x, name, f"{argument}[{name!r}]").values for name, x in leaves.items()}
    return arrays, int(np.asarray((state or {}).get("step", 0)).reshape(-1)[0])
