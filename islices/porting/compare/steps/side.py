"""Define `Side`, one of the two optimizer steps in a comparison: its inputs, its results, and the description of its
optimizer.

The supported optimizers compute each element separately, so `Elements` contains flat arrays.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from islices.backend import FLOATS
from islices.core.locks import lazy_property
from islices.porting.compare.rows import PRECISION, eps_of, rows_at, spread
from islices.porting.compare.stored import Array, Stored, blocks, contained, read, wide

#: The approximate number of elements in a sample.
FEW = 3000


@dataclass(frozen=True, eq=False)
class TableStep:
    """The data of one optimizer step of one table: table and state before and after the step, gradient, and optimizer.

    A state contains arrays under their names in `islices.optim`. In `state`, the key "step" contains the number of
    earlier steps. Without this key, the step counts as the first step, unless `state` contains a momentum. `optimizer`
    contains "name", "semantics", "rows" and hyperparameters. A description without a learning rate only helps to choose
    between formulas that make the same step. The description {"class": name} stands for an optimizer that
    `islices.optim` does not have.
    """

    before: Any
    after: Any
    gradient: Any
    state: Mapping[str, Any] = field(default_factory=dict)
    state_after: Mapping[str, Any] = field(default_factory=dict)
    optimizer: Mapping[str, Any] = field(default_factory=dict)


class Elements(NamedTuple):
    """Elements of a table before a step (`w`) and after it (`after`), of the gradient (`g`), and of the state before
    the step.

    For each element, `terms` contains the sum of the absolute values of the gradient's slots, and `raw` the sum of
    their squares. `counts` contains the number of slots, or 1 if there is none. `named` is True for elements of rows
    that the gradient has, except for a dense gradient's rows of zeros. `steps` is the number of earlier steps.
    """

    w: Array
    after: Array
    g: Array
    terms: Array
    raw: Array
    counts: Array
    named: Array
    state: Mapping[str, Array]
    steps: int
    eps: float
    precision: int

    def at(self, places: Array) -> Elements:
        """Return the elements that a mask or an array of positions selects."""
        some: dict[str, Any] = {name: x[places] for name, x in self._asdict().items() if isinstance(x, np.ndarray)}
        return self._replace(**some, state={name: x[places] for name, x in self.state.items()})


@dataclass(frozen=True, eq=False)
class Side:
    """The step of a table on one side, as arrays. `steps` is the number of earlier steps. `kept` contains the names of
    the state's arrays, and `optimizer` the description of the optimizer.

    `confirmed` is the cache of `identify.confirms`, and maps a recipe to True if the recipe reproduces the whole table.
    """

    before: Stored
    after: Stored
    grad: Stored
    state: Mapping[str, Array]
    steps: int
    kept: set[str]
    optimizer: Mapping[str, Any]
    confirmed: dict[Any, bool] = field(default_factory=dict)

    @classmethod
    def of(cls, given: TableStep) -> Side | None:
        """Return a side, or None if the step cannot be compared.

        The table must be dense, and must have the same dtype before and after the step. The table and the gradient must
        contain floats. The shapes of the table, the gradient and the states must fit together.
        """
        before, x, grad = (read(getattr(given, name), "", name) for name in ("before", "after", "gradient"))
        if before.sparse or x.sparse or x.shape != before.shape or grad.row_shape != before.row_shape:
            return None
        if x.dtype not in FLOATS or before.dtype != x.dtype or grad.dtype not in FLOATS:
            return None
        arrays, steps = _read_state(given.state, "state")
        if (len(grad.ids) and grad.ids[-1] >= len(x.values)) or any(len(s) != len(x.values) for s in arrays.values()):
            return None
        kept = set(arrays or _read_state(given.state_after, "state_after")[0])
        return cls(before, x, grad.without_zeros, arrays, steps, kept, given.optimizer)

    @lazy_property
    def sample(self) -> Elements:
        """Return the elements of some rows. The sample contains all rows of a small table. The sample of a large
        table contains rows with duplicates, other rows of the gradient, and rows that the gradient does not have."""
        rows = max(8, FEW // max(1, math.prod(self.before.row_shape)))
        every = np.arange(len(self.before.values))
        if len(every) <= rows:
            return self._elements(every)
        others = spread(every, 64 * rows)
        others = others[~contained(others, self.grad.ids)]
        some = (spread(self.grad.repeated, rows // 3), spread(self.grad.ids, rows * 3 // 4), spread(others, rows // 4))
        return self._elements(np.unique(np.concatenate(some)))

    def blocks(self) -> Iterator[Elements]:
        for part in blocks(len(self.before.values), self.before.row_shape):
            yield self._elements(np.arange(part.start, part.stop))

    def _elements(self, rows: Array) -> Elements:
        named = rows_at(self.grad, contained(self.grad.ids, rows))
        g, width = named.onto(rows), math.prod(self.before.row_shape)
        raw = g.values * g.values
        if named.slots is not None:
            raw[:] = 0.0
            np.add.at(raw, np.searchsorted(rows, named.slots[0]), wide(named.slots[1]) ** 2)
        state = {  # an array of the state has the shape of the table, or one number per row
            name: np.broadcast_to(wide(x[rows]).reshape(len(rows), -1), (len(rows), width)).ravel()
            for name, x in self.state.items()
        }
        w, after = (wide(x.values[rows]).ravel() for x in (self.before, self.after))
        counts, there = (np.repeat(x, width) for x in (np.maximum(g.counts, 1), contained(rows, named.ids)))
        return Elements(
            w, after, g.values.ravel(), g.terms.ravel(), raw.ravel(), counts, there, state, self.steps,
            eps_of(self.after.dtype), PRECISION[self.after.dtype],
        )  # fmt: skip


def _read_state(state: Mapping[str, Any], argument: str) -> tuple[dict[str, Array], int]:
    """Return (the arrays of a table's state by name, the number of earlier steps)."""
    leaves = {name: x for name, x in state.items() if name not in ("step", "master") and x is not None}
    arrays = {name: read(x, name, f"{argument}[{name!r}]").values for name, x in leaves.items()}
    # torch's SGD does not count steps, but has no momentum before the first
    return arrays, int(np.asarray(state.get("step", 1 if "momentum" in arrays else 0)).reshape(-1)[0])
