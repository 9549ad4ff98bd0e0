"""The inputs and results of a side's step, as flat float64 arrays, because optimizers' rules are elementwise.

All tensors of a side are concatenated, because one optimizer has made them all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from islices.backend import FLOATS
from islices.porting.compare.evidence import onto
from islices.porting.compare.rows import PRECISION, Held, spread
from islices.porting.compare.stored import Array, Stored, blocks, contained, wide

#: Elements of a sample.
FEW = 3000


@dataclass(frozen=True, eq=False)
class Taken:
    """One tensor of one side: before, after, its gradient, and its state before where it is known."""

    before: Stored
    after: Stored
    grad: Held
    state: Mapping[str, Array]


class Elements(NamedTuple):
    """Elements of a side: the table before and after, the gradient g, and the state before.

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
        """Return some elements: a mask, or their places."""
        return _each(lambda x: x[places], self)


# ---------------------------------------------------------------------- which rows
def sample(tensors: Sequence[Taken]) -> Elements:
    """Return some rows of each tensor: those with duplicates, others that the gradient names, and others."""
    parts = [_elements(t, _some_rows(t, FEW // len(tensors))) for t in tensors]
    joined = _each(lambda *arrays: np.concatenate(arrays), *parts)
    return joined._replace(eps=max(p.eps for p in parts), precision=min(p.precision for p in parts))


def all_elements(tensors: Sequence[Taken]) -> Iterator[Elements]:
    """Yield all rows, block by block."""
    for t in tensors:
        for part in blocks(len(t.before.values), t.before.row_shape):
            yield _elements(t, np.arange(part.start, part.stop))


def _some_rows(t: Taken, elements: int) -> Array:
    rows = max(8, elements // max(1, math.prod(t.before.row_shape)))
    every = np.arange(len(t.before.values))
    if len(every) <= rows:
        return every
    others = spread(every, 64 * rows)
    others = others[~contained(others, t.grad.ids)]
    some = (spread(t.grad.repeated, rows // 3), spread(t.grad.ids, rows * 3 // 4), spread(others, rows // 4))
    return np.unique(np.concatenate(some))


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
        2.0 ** (1 - PRECISION[dtype]) if dtype in FLOATS else 0.0, PRECISION[dtype],
    )  # fmt: skip


def _flat(x: Array, rows: int, width: int) -> Array:
    """Return a state's array on rows: as large as the table, or one number a row."""
    return np.broadcast_to(wide(x).reshape(rows, -1), (rows, width)).ravel()


def _each(of: Callable[..., Array], *parts: Elements) -> Elements:
    """Return the elements with each array made from the parts' arrays of the same name."""
    names = [name for name, x in parts[0]._asdict().items() if isinstance(x, np.ndarray)]
    kept = [name for name in parts[0].state if all(name in p.state for p in parts)]
    return parts[0]._replace(
        state={name: of(*(p.state[name] for p in parts)) for name in kept},
        **{name: of(*(getattr(p, name) for p in parts)) for name in names},
    )
