"""Measure the difference of two tensors in rows, elements and norms. "Equal" means "same bits" in the sense of the
specification.

Two sparse gradients are compared by their coalesced rows. So the order of the slots, and whether duplicates are already
summed, make no difference. A row that only one side stores is a difference even if the row is zero, because a lazy
optimizer updates stored rows. A dense tensor stores all rows. So a sparse gradient equals a dense tensor that has zeros
in the absent rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from islices.backend import FLOATS
from islices.core.conversion import nonzero_rows
from islices.porting.compare.stored import (
    Array,
    Stored,
    apart,
    blocks,
    common_rows,
    contained,
    row_tops,
    rows_differ,
    wide,
)  # fmt: skip

#: The number of rows of each kind, and of elements of each row, that a report shows.
SHOWN, WIDTH = 10, 6


@dataclass(frozen=True)
class Place:
    """The largest difference: the row, the position in the row, both values, and the size of the difference."""

    row: int
    position: tuple[int, ...]
    a: float
    b: float
    size: float


@dataclass(frozen=True)
class RowSample:
    """The number of rows of one kind, and the first ten of these rows. A row is (row number, the first six values on
    each side that has the row).
    """

    count: int
    first: tuple[tuple[int, tuple[tuple[float, ...], ...]], ...] = ()


@dataclass(frozen=True, eq=False)
class TensorDifference:
    """The measured difference of one tensor.

    Attributes
    ----------
    name, name_b : str
        The names of the tensor in a and in b.
    equal : bool
        True if the dtypes, shapes, rows and bits are the same.
    comparable : bool
        False if rows have different shapes; then the attributes from `rows` on are not measured, except `notes`.
    kinds, dtypes, shapes, slots, norms : pairs, of a and of b
        kinds are texts like "torch sparse"; slots count the stored rows, duplicates included.
    rows : int
        The number of rows that both sides have.
    elements : int
        The number of elements that both sides have.
    largest : Place or None
        The largest difference; None if no common element differs (NaN against a number is inf).
    only_a, only_b, differing : RowSample
        The rows that only one side has, and the rows of both sides that differ.
    notes : tuple of str
        Remarks that are not differences, such as that one side has duplicates.
    row_gaps : dict of str to (row numbers, sizes)
        The data of the picture, with the keys "both", "only_a" and "only_b". A size is the largest difference in a row
        of both sides, or the largest value in a row of one side.
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
        """Return True if both sides contain whole numbers, such as masks or counters. Clipping and means never change
        whole numbers."""
        return not any(dtype in FLOATS for dtype in self.dtypes)

    @property
    def same_rows(self) -> bool:
        """Return True if both sides have the same rows with the same values. The dtypes or the numbers of rows may
        differ."""
        return self.comparable and not (self.differing.count or self.only_a.count or self.only_b.count)

    @property
    def same_shape(self) -> bool:
        """Return True if the shapes agree. An unknown number of rows agrees with any number."""
        return same_shape(*self.shapes)

    @property
    def shapes_alone(self) -> bool:
        """Return True if only the shapes differ."""
        return self.same_rows and not self.equal and self.dtypes[0] == self.dtypes[1]


def measure(a: Stored, b: Stored) -> TensorDifference:
    head: dict[str, Any] = {
        "name": a.name, "name_b": b.name, "kinds": (_kind(a), _kind(b)), "dtypes": (a.dtype, b.dtype),
        "shapes": (a.shape, b.shape), "slots": (len(a.slot_ids), len(b.slot_ids)), "norms": (a.norm, b.norm),
        "notes": _notes(a, b),
    }  # fmt: skip
    if a.row_shape != b.row_shape:
        return TensorDifference(equal=False, comparable=False, **head)
    ids, x, y = common_rows(a, b)
    differing = np.flatnonzero(rows_differ(x, y))
    parts = [differing[part] for part in blocks(len(differing), a.row_shape)]
    worst = np.concatenate([row_tops(apart(wide(x[part]), wide(y[part]))) for part in parts])
    samples: dict[str, Any] = {"differing": _sample(ids[differing], x[differing[:SHOWN]], y[differing[:SHOWN]])}
    gaps = {"both": (ids[differing], worst)}
    for kind, s, other in (("only_a", a, b), ("only_b", b, a)):
        only = np.flatnonzero(~contained(s.ids, other.ids))
        if a.sparse != b.sparse:  # if the other side is dense, rows of zeros do not count
            only = only[nonzero_rows(s.values[only])]
        samples[kind] = _sample(s.ids[only], s.values[only[:SHOWN]])
        gaps[kind] = s.ids[only], row_tops(np.abs(wide(s.values[only])))
    same_rows = not any(sample.count for sample in samples.values())
    return TensorDifference(
        equal=same_rows and a.dtype == b.dtype and same_shape(a.shape, b.shape),
        comparable=True,
        rows=len(ids),
        elements=len(x) * math.prod(a.row_shape),
        largest=_place(differing[worst.argmax()], ids, x, y) if len(worst) else None,
        row_gaps=gaps,
        **samples,
        **head,
    )


def _place(k: int, ids: Array, x: Array, y: Array) -> Place:
    """Return the place of the largest difference between row k of x and row k of y. `ids` has the row numbers."""
    u, v = wide(x[k : k + 1]), wide(y[k : k + 1])
    sizes = apart(u, v)
    at = np.unravel_index(int(sizes.argmax()), sizes.shape)
    return Place(int(ids[k]), tuple(map(int, at[1:])), float(u[at]), float(v[at]), float(sizes[at]))


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
    """Return True if the shapes agree. An unknown number of rows agrees with any number."""
    return a == b or (len(a) == len(b) and a[1:] == b[1:] and None in (a[0], b[0]))


def _sample(rows: Array, *values: Array) -> RowSample:
    first = [
        (int(row), tuple(tuple(wide(v[k]).reshape(-1)[:WIDTH].tolist()) for v in values))
        for k, row in enumerate(rows[:SHOWN])
    ]
    return RowSample(len(rows), tuple(first))
