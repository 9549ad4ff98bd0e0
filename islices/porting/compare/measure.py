"""Measure how two tensors differ in rows, elements and norms. Two tensors are equal if they have the same bits, as
defined in the specification.

The duplicates of both sides are summed before sparse gradients are compared. The order in which a side stores its rows
makes no difference. If both sides are sparse, a row that only one side stores is a difference, even a row of zeros. The
reason is that a lazy optimizer updates stored rows. If only one side is dense, a row of zeros that only one side stores
is no difference.
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

#: A `RowSample` contains at most `SHOWN` rows, and at most `WIDTH` elements of each row.
SHOWN, WIDTH = 10, 6


@dataclass(frozen=True)
class Place:
    """The element with the largest difference: its row, its position in the row, both values, and the difference."""

    row: int
    position: tuple[int, ...]
    a: float
    b: float
    size: float


@dataclass(frozen=True)
class RowSample:
    """The number of rows of one kind, and the first ten of these rows. An item of `first` is (row number,
    values). `values` contains one tuple per side that has the row; the tuple contains the row's first six values."""

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
        False if the rows of both sides have different shapes. Then only `kinds`, `dtypes`, `shapes`, `slots`, `norms`
        and `notes` are measured.
    kinds, dtypes, shapes, slots, norms : pairs, of a and of b
        `kinds` contains texts such as "torch sparse". `slots` contains the numbers of stored rows, with duplicates.
    rows : int
        The number of rows that both sides have.
    elements : int
        The number of elements that both sides have.
    largest : Place or None
        The element with the largest difference, or None if no common element differs. The difference between NaN and a
        number is infinity.
    only_a, only_b, differing : RowSample
        The rows that only a has, the rows that only b has, and the common rows that differ.
    notes : tuple of str
        Remarks for the reader, for example that one side has duplicates.
    row_gaps : dict of str to (row numbers, sizes)
        The data that `plot` draws, with the keys "both", "only_a" and "only_b". For "both", each size is the largest
        difference in a row. For the other keys, each size is the largest absolute value in a row.
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
        """Return True if both sides contain integers or bools, such as counters or masks, which clipping and means
        never change."""
        return not any(dtype in FLOATS for dtype in self.dtypes)

    @property
    def same_rows(self) -> bool:
        """Return True if both sides store the same rows with the same values. If only one side is dense, rows of zeros
        that only one side stores do not count. The dtypes and the shapes may still differ."""
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
    """Return the element with the largest difference between row k of x and row k of y. `ids` contains the row
    numbers."""
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
