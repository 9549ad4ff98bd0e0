"""What a side's step was given and what came of it, as flat float64 arrays: rules of optimizers work by the element.

All tensors of a side stand behind one another, since one optimizer has made them all.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from islices.backend import FLOATS
from islices.porting.compare.evidence import PRECISION
from islices.porting.compare.stored import Array, Stored, contained, nonzero_rows, wide

__all__ = ["Elements", "Gradient", "Taken", "blocks", "gradient_of", "part_of", "sample"]

#: Elements of a sample, and of the blocks in which a whole table is looked at.
FEW, BLOCK = 3000, 1 << 17
#: Parts of a sample: rows that the gradient names, rows that it does not.
NAMED, OTHERS = 0.75, 0.25


@dataclass(frozen=True, eq=False)
class Gradient:
    """One tensor's gradient by rows: with duplicates summed, and its slots."""

    ids: Array  # (k,), ascending
    sums: Array  # (k, *row_shape) as it was stored
    starts: Array  # (k + 1,): where each row's slots begin in order
    order: Array  # (n,): slots by rows
    slots: Array

    @property
    def duplicates(self) -> bool:
        return len(self.order) > len(self.ids)


@dataclass(frozen=True, eq=False)
class Taken:
    """One tensor of one side: before, its gradient, after; its state before and after where it is known."""

    before: Stored
    after: Stored
    grad: Gradient
    state: Mapping[str, Array] = field(default_factory=dict)
    state_after: Mapping[str, Array] = field(default_factory=dict)
    steps: int | None = None  # taken before

    @property
    def rows(self) -> int:
        return len(self.before.values)


class Elements(NamedTuple):
    """Elements of a side. terms: of g, the sum of |slots|; counts: how many slots each has."""

    w: Array
    after: Array
    g: Array
    terms: Array
    squares: Mapping[str, Array]  # "element", "raw", "row"
    counts: Array
    named: Array  # bool
    state: Mapping[str, Array]
    state_after: Mapping[str, Array]
    eps: float
    precision: int


def gradient_of(x: Stored, table: Stored) -> Gradient | None:
    """A tensor's gradient; None where it is not one of the table's rows."""
    if x.row_shape != table.row_shape:
        return None
    if not x.sparse:
        if len(x.values) != len(table.values):
            return None
        ids = np.flatnonzero(nonzero_rows(x.values))
        return Gradient(ids, x.values[ids], np.arange(len(ids) + 1), ids, x.values)
    if len(x.ids) and x.ids[-1] >= len(table.values):
        return None
    order = np.argsort(x.slot_ids, kind="stable")
    starts = np.searchsorted(x.slot_ids[order], np.append(x.ids, np.iinfo(np.int64).max))
    return Gradient(x.ids, x.values, starts, order, x.slots)


# ---------------------------------------------------------------------- which rows
def sample(tensors: Sequence[Taken]) -> Elements:
    """Some rows of each tensor: named ones, those with duplicates first, and others."""
    return _joined([_elements(t, _some_rows(t, FEW // len(tensors))) for t in tensors])


def blocks(tensors: Sequence[Taken]) -> Iterator[Elements]:
    """All rows, a block after the other."""
    for t in tensors:
        size = max(1, BLOCK // max(1, math.prod(t.before.row_shape)))
        for first in range(0, t.rows, size):
            yield _elements(t, np.arange(first, min(first + size, t.rows)))


def _some_rows(t: Taken, elements: int) -> Array:
    rows = max(8, elements // max(1, math.prod(t.before.row_shape)))
    if t.rows <= rows:
        return np.arange(t.rows)
    many = np.diff(t.grad.starts) > 1
    named = max(int(rows * NAMED), 1)
    some = np.concatenate([_spread(t.grad.ids[many], named // 2), _spread(t.grad.ids, named)])
    few = _spread(np.arange(t.rows), 64 * rows)
    others = _spread(few[~contained(few, t.grad.ids)], max(1, int(rows * OTHERS)))
    return np.union1d(some, others)


def _spread(x: Array, n: int) -> Array:
    return x if len(x) <= n else x[np.linspace(0, len(x) - 1, n).astype(np.int64)]


# ---------------------------------------------------------------------- their elements
def _elements(t: Taken, rows: Array) -> Elements:
    shape = (len(rows), *t.before.row_shape)
    place = np.flatnonzero(contained(rows, t.grad.ids))
    at = np.searchsorted(t.grad.ids, rows[place])
    g, terms, raw = (np.zeros(shape) for _ in range(3))
    count = np.ones(len(rows))
    g[place] = wide(t.grad.sums[at])
    counts = np.diff(t.grad.starts)[at]
    first = t.grad.starts[:-1][at]
    for k in range(int(counts.max(initial=0))):  # as many rounds as the row with most slots has
        more = np.flatnonzero(counts > k)
        slot = wide(t.grad.slots[t.grad.order[first[more] + k]])
        terms[place[more]] += np.abs(slot)
        raw[place[more]] += slot * slot
    count[place] = counts
    named = np.zeros(len(rows), bool)
    named[place] = True
    width = math.prod(shape[1:])
    square = g * g
    row = np.broadcast_to(square.reshape(len(rows), width).mean(axis=1, keepdims=True), (len(rows), width))
    squares = {"element": square.ravel(), "raw": raw.ravel(), "row": row.ravel()}
    dtype = t.after.dtype
    eps = 2.0 ** (1 - PRECISION[dtype]) if dtype in FLOATS else 0.0
    return Elements(
        wide(t.before.values[rows]).ravel(), wide(t.after.values[rows]).ravel(), g.ravel(), terms.ravel(),
        squares, np.repeat(count, width), np.repeat(named, width),
        {name: _flat(x, rows, width) for name, x in t.state.items()},
        {name: _flat(x, rows, width) for name, x in t.state_after.items()}, eps, PRECISION[dtype],
    )  # fmt: skip


def part_of(e: Elements, at: Array) -> Elements:
    """Some elements: a mask, or their places."""
    maps: dict[str, Any] = {
        n: {k: x[at] for k, x in getattr(e, n).items()} for n in ("squares", "state", "state_after")
    }
    arrays = {n: getattr(e, n)[at] for n in ("w", "after", "g", "terms", "counts", "named")}
    return e._replace(**arrays, **maps)


def _flat(x: Array, rows: Array, width: int) -> Array:
    """A state's array on rows: as large as the table, or one number a row."""
    part = wide(x[rows]).reshape(len(rows), -1)
    return np.broadcast_to(part, (len(rows), width)).ravel()


def _joined(parts: Sequence[Elements]) -> Elements:
    if len(parts) == 1:
        return parts[0]

    def maps(field_: str) -> dict[str, Array]:
        names = set.intersection(*(set(getattr(p, field_)) for p in parts))
        return {name: np.concatenate([getattr(p, field_)[name] for p in parts]) for name in sorted(names)}

    arrays = {n: np.concatenate([getattr(p, n) for p in parts]) for n in ("w", "after", "g", "terms")}
    return Elements(
        **arrays, squares=maps("squares"), counts=np.concatenate([p.counts for p in parts]),
        named=np.concatenate([p.named for p in parts]), state=maps("state"), state_after=maps("state_after"),
        eps=max(p.eps for p in parts), precision=min(p.precision for p in parts),
    )  # fmt: skip
