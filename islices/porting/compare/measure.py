"""Measure the distance of two tensors by rows, elements and norms. Equal means "same bits" as in the specification.

Two sparse gradients are compared by their coalesced rows. So the same contributions in another order of rows, or
uncoalesced, are equal. A row that only one side stores is a difference even if it is zero, because a lazy optimizer
sees it. A dense tensor has no absent rows, so in a comparison with one, absent rows equal rows of zeros.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from islices.backend import FLOATS
from islices.porting.compare.stored import Array, Stored, apart, blocks, contained, nonzero_rows, rows_differ, wide

#: Rows of each kind, and elements of each row, that a report shows.
SHOWN, WIDTH = 10, 6


@dataclass(frozen=True)
class Place:
    """The place of the largest difference: its row, the position in the row, both values, and its size."""

    row: int
    position: tuple[int, ...]
    a: float
    b: float
    size: float


@dataclass(frozen=True)
class RowSample:
    """The number of rows of one kind, and the first ten as (row, the first values of each side that has it)."""

    count: int
    first: tuple[tuple[int, tuple[tuple[float, ...], ...]], ...] = ()


@dataclass(frozen=True, eq=False)
class TensorDifference:
    """The measured difference of one tensor.

    Attributes
    ----------
    name, name_b : str
        Its names in a and in b.
    equal : bool
        Same dtype, shape, rows and bits.
    comparable : bool
        False if rows have different shapes; then the attributes below are not measured.
    kinds, dtypes, shapes, slots, norms : pairs, of a and of b
        kinds are texts like "torch sparse"; slots count the stored rows, duplicates included.
    rows : int
        Rows in both.
    elements : int
        Elements in both.
    largest : Place or None
        The largest difference; None if no common element differs (NaN against a number is inf).
    only_a, only_b, differing : RowSample
    notes : tuple of str
        Remarks that are not differences.
    row_gaps : dict of str to (row numbers, sizes)
        The data of the picture by "both", "only_a" and "only_b": the largest difference in each row, or the row's
        largest value.
    """

    name: str
    name_b: str
    equal: bool
    comparable: bool
    kinds: tuple[str, str]
    dtypes: tuple[str, str]
    shapes: tuple[tuple[int | None, ...], tuple[int | None, ...]]
    slots: tuple[int, int]
    norms: tuple[float, float]
    rows: int = 0
    elements: int = 0
    largest: Place | None = None
    only_a: RowSample = RowSample(0)
    only_b: RowSample = RowSample(0)
    differing: RowSample = RowSample(0)
    notes: tuple[str, ...] = ()
    row_gaps: dict[str, tuple[Array, Array]] = field(default_factory=dict, repr=False)

    @property
    def whole(self) -> bool:
        """Return True if both sides hold whole numbers: a mask or a counter, which no clipping or mean changes."""
        return not any(dtype in FLOATS for dtype in self.dtypes)

    @property
    def same_rows(self) -> bool:
        """Return True if the rows do not differ; types or shapes may."""
        return self.comparable and not (self.differing.count or self.only_a.count or self.only_b.count)

    @property
    def same_shape(self) -> bool:
        """Return True if the shapes agree, or if one has an unknown number of rows."""
        return same_shape(*self.shapes)

    @property
    def shapes_alone(self) -> bool:
        """Return True if nothing but the shapes differs."""
        return self.same_rows and not self.equal and self.dtypes[0] == self.dtypes[1]


def _alone(a: Stored, b: Stored) -> tuple[Array, Array]:
    """Return the positions of rows that only a has and that only b has. Against a dense side, zeros do not count."""
    only_a, only_b = np.flatnonzero(~contained(a.ids, b.ids)), np.flatnonzero(~contained(b.ids, a.ids))
    if a.sparse != b.sparse:
        only_a = only_a[nonzero_rows(a.values[only_a])]
        only_b = only_b[nonzero_rows(b.values[only_b])]
    return only_a, only_b


def measure(a: Stored, b: Stored) -> TensorDifference:
    """Compare one tensor."""
    head: dict[str, Any] = {
        "name": a.name, "name_b": b.name, "kinds": (_kind(a), _kind(b)), "dtypes": (a.dtype, b.dtype),
        "shapes": (a.shape, b.shape), "slots": (len(a.slot_ids), len(b.slot_ids)), "norms": (a.norm, b.norm),
        "notes": _notes(a, b),
    }  # fmt: skip
    if a.row_shape != b.row_shape:
        return TensorDifference(equal=False, comparable=False, **head)
    only_a, only_b = _alone(a, b)
    x, y, ids = a.values, b.values, a.ids
    if not np.array_equal(ids, b.ids):  # no copies where every row has its partner
        x, y, ids = x[contained(ids, b.ids)], y[contained(b.ids, ids)], ids[contained(ids, b.ids)]
    parts = list(blocks(len(x), a.row_shape))
    found = [_block(x[part], y[part], ids[part]) for part in parts]
    differing = np.concatenate([part.start + block.differing for part, block in zip(parts, found, strict=True)])
    equal = not (len(differing) or len(only_a) or len(only_b))
    return TensorDifference(
        equal=equal and a.dtype == b.dtype and same_shape(a.shape, b.shape),
        comparable=True,
        rows=len(ids),
        elements=len(x) * math.prod(a.row_shape),
        largest=max((b.largest for b in found if b.largest), key=lambda place: place.size, default=None),
        only_a=_sample(a.ids[only_a], a.values[only_a[:SHOWN]]),
        only_b=_sample(b.ids[only_b], b.values[only_b[:SHOWN]]),
        differing=_sample(ids[differing], x[differing[:SHOWN]], y[differing[:SHOWN]]),
        row_gaps={
            "both": (ids[differing], np.concatenate([block.worst for block in found])),
            "only_a": (a.ids[only_a], _row_tops(np.abs(wide(a.values[only_a])))),
            "only_b": (b.ids[only_b], _row_tops(np.abs(wide(b.values[only_b])))),
        },
        **head,
    )


class _Block(NamedTuple):
    """The differing rows of a block, and their largest differences."""

    differing: Array
    worst: Array
    largest: Place | None


def _block(x: Array, y: Array, ids: Array) -> _Block:
    differing = np.flatnonzero(rows_differ(x, y))
    u, v, ids = wide(x[differing]), wide(y[differing]), ids[differing]
    gaps = apart(u, v)
    return _Block(differing, _row_tops(gaps), _place(gaps, ids, u, v))


def _kind(x: Stored) -> str:
    return f"{x.backend} {'sparse' if x.sparse else 'dense'}"


def _notes(a: Stored, b: Stored) -> tuple[str, ...]:
    notes = []
    if a.has_duplicates != b.has_duplicates and a.sparse and b.sparse:
        side, x = ("a", a) if a.has_duplicates else ("b", b)
        counts = f"{len(x.slot_ids):,} slots of {len(x.ids):,} rows"
        notes.append(f"{{{side}}} is uncoalesced: {counts}, compared by their sums")
    if None in (a.shape[:1] + b.shape[:1]) and a.shape != b.shape:
        notes.append("one side does not know its number of rows")
    if a.beyond_float64 or b.beyond_float64:
        notes.append("whole numbers beyond 2^53, which float64 does not hold: no cause is tried")
    return tuple(notes)


def same_shape(a: tuple[int | None, ...], b: tuple[int | None, ...]) -> bool:
    """Return True if the shapes agree, or if one has an unknown number of rows."""
    return a == b or (len(a) == len(b) and a[1:] == b[1:] and None in (a[0], b[0]))


def _place(sizes: Array, rows: Array, x: Array, y: Array) -> Place | None:
    if not sizes.size:
        return None
    at = np.unravel_index(int(sizes.argmax()), sizes.shape)
    here = tuple(int(k) for k in at)
    return Place(int(rows[here[0]]), here[1:], float(x[here]), float(y[here]), float(sizes[here]))


def _sample(rows: Array, *values: Array) -> RowSample:
    first = [
        (int(row), tuple(tuple(wide(v[k]).reshape(-1)[:WIDTH].tolist()) for v in values))
        for k, row in enumerate(rows[:SHOWN])
    ]
    return RowSample(len(rows), tuple(first))


def _row_tops(sizes: Array) -> Array:
    tops: Array = sizes.reshape(len(sizes), math.prod(sizes.shape[1:])).max(axis=1, initial=0.0)
    return tops
