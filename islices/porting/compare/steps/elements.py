"""The inputs and results of a table's step, as flat float64 arrays, because optimizers' rules are elementwise."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from islices.porting.compare.evidence import onto
from islices.porting.compare.rows import PRECISION, Held, eps_of, spread
from islices.porting.compare.stored import Array, Stored, blocks, contained, wide

#: Elements of a sample.
FEW = 3000


@dataclass(frozen=True, eq=False)
class Taken:
    """A table before and after a step, its gradient, and, if known, its state before the step."""

    before: Stored
    after: Stored
    grad: Held
    state: Mapping[str, Array]


class Elements(NamedTuple):
    """Elements of a table before and after a step, of the gradient g, and of the state before.

    terms: the sum of |slots| of g. raw: the sum of their squares. counts: how many slots each has. named: True in the
    rows of the gradient.
    """

    w: Array
    after: Array
    g: Array
    terms: Array
    raw: Array
    counts: Array
    named: Array
    state: Mapping[str, Array]
    eps: float
    precision: int

    def at(self, places: Array) -> Elements:
        """Return the elements that a mask or places select."""
        some: dict[str, Any] = {name: x[places] for name, x in self._asdict().items() if isinstance(x, np.ndarray)}
        return self._replace(**some, state={name: x[places] for name, x in self.state.items()})


# ---------------------------------------------------------------------- which rows
def sample(t: Taken) -> Elements:
    """Return some rows: those with duplicates, others that the gradient names, and others."""
    rows = max(8, FEW // max(1, math.prod(t.before.row_shape)))
    every = np.arange(len(t.before.values))
    if len(every) <= rows:
        return _elements(t, every)
    others = spread(every, 64 * rows)
    others = others[~contained(others, t.grad.ids)]
    some = (spread(t.grad.repeated, rows // 3), spread(t.grad.ids, rows * 3 // 4), spread(others, rows // 4))
    return _elements(t, np.unique(np.concatenate(some)))


def all_elements(t: Taken) -> Iterator[Elements]:
    """Yield all rows, block by block."""
    for part in blocks(len(t.before.values), t.before.row_shape):
        yield _elements(t, np.arange(part.start, part.stop))


# ---------------------------------------------------------------------- their elements
def _elements(t: Taken, rows: Array) -> Elements:
    g = t.grad.at(np.flatnonzero(contained(t.grad.ids, rows)))
    width = math.prod(t.before.row_shape)
    values, terms = (onto(rows, g, x) for x in (g.values, np.abs(g.values) if g.terms is None else g.terms))
    raw = values * values
    if g.slots is not None and g.slot_ids is not None:
        raw[:] = 0.0
        np.add.at(raw, np.searchsorted(rows, g.slot_ids), wide(g.slots) ** 2)
    counts = np.ones(len(rows)) if g.counts is None else np.maximum(onto(rows, g, g.counts), 1.0)
    state = {n: _flat(x[rows], len(rows), width) for n, x in t.state.items()}
    dtype = t.after.dtype
    return Elements(
        wide(t.before.values[rows]).ravel(), wide(t.after.values[rows]).ravel(), values.ravel(), terms.ravel(),
        raw.ravel(), np.repeat(counts, width), np.repeat(contained(rows, g.ids), width), state,
        eps_of(dtype), PRECISION[dtype],
    )  # fmt: skip


def _flat(x: Array, rows: int, width: int) -> Array:
    """Return a state's array on some rows. It is as large as the table, or has one number per row."""
    return np.broadcast_to(wide(x).reshape(rows, -1), (rows, width)).ravel()
