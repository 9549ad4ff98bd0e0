"""Causes by which the same rows stand in other places: under other numbers, or transposed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import TypeAlias

import numpy as np

from islices.porting.compare.cause import Cause, Change, both_ways
from islices.porting.compare.stored import Array, Stored, blocks, contained, nonzero_rows, wide

__all__ = ["OFF_BY_ONE", "PERMUTED", "TRANSPOSED"]

Side: TypeAlias = Sequence[Stored]
Moves: TypeAlias = tuple[Sequence[Stored | None], Change]


def _renumbered(x: Stored, y: Stored, ids: Array) -> Stored:
    """Return x with other numbers of its rows, less than zero for those that are dropped."""
    order = np.argsort(ids, kind="stable")
    order = order[ids[order] >= 0]
    if not x.sparse:
        ids, values = ids[order], x.values[order]
        return replace(x, shape=y.shape, ids=ids, values=values, slot_ids=ids, slots=values)
    slot_ids = ids[np.searchsorted(x.ids, x.slot_ids)]
    kept = slot_ids >= 0
    return replace(
        x, shape=y.shape, ids=ids[order], values=x.values[order], slot_ids=slot_ids[kept], slots=x.slots[kept]
    )


def shifted(side: Side, others: Side) -> Iterator[Moves]:
    """Ids off by one."""
    for step in (1, -1):
        moved = [_shifted(x, y, step) for x, y in zip(side, others, strict=True)]
        if any(moved):
            text = f"off by one: row r of {{x}} is row r {'+' if step > 0 else '-'} 1 of {{y}}"
            yield moved, Change(None, text, {"shift": step}, 1.0)


def _shifted(x: Stored, y: Stored, step: int) -> Stored | None:
    one, other = _held(x), _held(y)
    limit = y.shape[0] if y.shape and y.shape[0] is not None else math.inf
    there = one + step
    there = there[(there >= 0) & (there < limit)]
    if x.row_shape != y.row_shape or contained(there, other).sum() <= contained(one, other).sum():
        return None
    ids = x.ids + step
    return _renumbered(x, y, np.where(ids < limit, ids, -1))


def _held(x: Stored) -> Array:
    """Return the numbers of the rows that count."""
    return x.ids if x.sparse else x.ids[nonzero_rows(x.values)]


OFF_BY_ONE = Cause(
    "off_by_one", "off-by-one ids", 80, move=shifted, symmetric=True, subsumes=("permuted",),
    fix=both_ways("ids = ids - ({shift})"),
)  # fmt: skip


def permuted(side: Side, others: Side) -> Iterator[Moves]:
    """Ids permuted: the contents of rows tell them, in the order of a number that a factor leaves in order."""
    maps: list[list[int]] = []
    found: list[Stored | None] = []
    cost = 0.0
    for x, y in zip(side, others, strict=True):
        target = _target(x, y)
        found.append(None if target is None else _renumbered(x, y, target))
        if target is not None:
            moved = np.flatnonzero((target != x.ids) & (target >= 0))
            maps += [[int(x.ids[k]), int(target[k])] for k in moved[:10]]
            cost += math.lgamma(len(moved) + 1) / math.log(2)
    if maps:
        shown = ", ".join(f"{i} is {j}" for i, j in maps[:3])
        text = f"permuted ids: the same rows under other numbers (of {{x}} and of {{y}}: {shown}, ...)"
        yield found, Change(None, text, {"first": maps[:10]}, cost)


def _target(x: Stored, y: Stored) -> Array | None:
    """Return y's number of each row of x, less than zero for rows of zeros of a dense x; None where rows are others."""
    one, other = _held(x), _held(y)
    if len(one) < 2 or len(one) != len(other) or x.row_shape != y.row_shape or 0 in x.row_shape:
        return None
    keys = [_content(z, ids) for z, ids in ((x, one), (y, other))]
    first, second = (np.argsort(key, kind="stable") for key in keys)
    if not _alike(keys[0][first], keys[1][second]):
        return None
    target = np.full(len(x.ids), -1)
    target[np.searchsorted(x.ids, one[first])] = other[second]
    kept = target[target >= 0]
    return None if np.array_equal(kept, one) else target


PERMUTED = Cause("permuted", "permuted ids", 120, move=permuted, symmetric=True)


def _content(x: Stored, ids: Array) -> Array:
    """Return a number for each row that its elements decide, in their order."""
    width = math.prod(x.row_shape)
    weights = 1.0 + np.sin(1.0 + np.arange(width))
    places = np.searchsorted(x.ids, ids)
    keys = []
    for part in blocks(len(ids), x.row_shape):
        flat = wide(x.values[places[part]]).reshape(part.stop - part.start, width)
        with np.errstate(over="ignore", invalid="ignore"):
            keys.append(np.einsum("ij,j->i", np.nan_to_num(flat), weights))  # the same, whichever rows are near it
    return np.concatenate(keys)


def _alike(one: Array, other: Array) -> bool:
    """Return whether sorted numbers may be multiples of one another: most are within one part in 10^4."""
    some = np.linspace(0, len(one) - 1, min(len(one), 1024)).astype(np.int64)
    one, other = one[some], other[some]
    sizes = np.abs(one).sum(), np.abs(other).sum()
    if not (np.isfinite(sizes).all() and min(sizes) > 0):
        return False
    return bool(np.median(np.abs(one / sizes[0] - other / sizes[1])) <= 1e-4 / len(some))


def transposed(side: Side, others: Side) -> Iterator[Moves]:
    """A dense (d, rows) next to (rows, d)."""
    turned = [_turned(x, y) for x, y in zip(side, others, strict=True)]
    shapes = ((x.shape, y.shape) for x, y, new in zip(side, others, turned, strict=True) if new is not None)
    for one, other in islice(shapes, 1):
        text = f"transposed: {{x}} is {one[0]}x{one[1]}, {{y}} is {other[0]}x{other[1]}"
        yield turned, Change(None, text)


def _turned(x: Stored, y: Stored) -> Stored | None:
    if x.sparse or len(x.shape) != 2 or x.shape != y.shape[::-1]:
        return None
    values, ids = np.ascontiguousarray(x.values.T), np.arange(x.values.shape[1])
    return replace(x, shape=y.shape, ids=ids, values=values, slot_ids=ids, slots=values)


TRANSPOSED = Cause("transposed", "transposed rows", 90, move=transposed)
