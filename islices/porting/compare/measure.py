"""How far two tensors are apart: rows, elements, ulps, norms. What is equal is the specification's "same bits".

Two sparse gradients are compared by their coalesced rows, so that the same contributions in another order of rows, or
uncoalesced, are equal; a row stored in one only is a difference even where it is zero, since a lazy optimizer sees it.
A dense tensor has no absent rows: beside one, rows of zeros and absent rows are the same.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from islices.backend import FLOATS
from islices.porting.compare.stored import Array, Stored, bits_equal, blocks, contained, nonzero_rows, wide

__all__ = ["SHOWN", "Place", "RowSample", "TensorDifference", "align", "measure"]

#: Rows of each kind, and elements of each row, that a report shows.
SHOWN, WIDTH = 10, 6
#: Upper ends of the histogram's bins, in ulps.
ULPS = (0, 1, 3, 7, 15, 255, 65535)
LABELS = (
    *(f"{last + 1}-{top}" if top > last + 1 else f"{top}" for last, top in pairwise((-1, *ULPS))),
    f"over {ULPS[-1]}", "not a number",
)  # fmt: skip
UNSIGNED = {2: np.uint16, 4: np.uint32, 8: np.uint64}


@dataclass(frozen=True)
class Place:
    """Where a largest difference is: the row, the position in it, both values there, and how large it is."""

    row: int
    position: tuple[int, ...]
    a: float
    b: float
    size: float


@dataclass(frozen=True)
class RowSample:
    """Rows of one kind: how many, and the first ten: (row, the first values of each side that has it)."""

    count: int
    first: tuple[tuple[int, tuple[tuple[float, ...], ...]], ...] = ()


@dataclass(frozen=True, eq=False)
class TensorDifference:
    """What is known of one tensor on both sides.

    Attributes
    ----------
    name, name_b : str
        Its names in a and in b.
    equal : bool
        Same dtype, shape, rows and bits.
    comparable : bool
        False where rows have different shapes: then nothing below is measured.
    kinds, dtypes, shapes, slots, norms : pairs, of a and of b
        kinds are such as "torch sparse"; slots are the stored rows as they came, duplicates included.
    rows : int
        Rows in both.
    elements : int
        Elements in both.
    ulps : tuple of (label, count)
        How far elements in both are apart, in units in the last place of the wider dtype.
    largest_absolute, largest_relative : Place or None
        None where nothing in both differs (relative: |a - b| / max(|a|, |b|); NaN against a number is inf).
    only_a, only_b, differing : RowSample
    notes : tuple of str
        What is worth saying and is no difference.
    row_gaps : dict of str to (row numbers, sizes)
        For the picture: "both", "only_a", "only_b"; the largest difference in each row, or the row's largest value.
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
    ulps: tuple[tuple[str, int], ...] = ()
    largest_absolute: Place | None = None
    largest_relative: Place | None = None
    only_a: RowSample = RowSample(0)
    only_b: RowSample = RowSample(0)
    differing: RowSample = RowSample(0)
    notes: tuple[str, ...] = ()
    row_gaps: dict[str, tuple[Array, Array]] = field(default_factory=dict, repr=False)

    @property
    def whole(self) -> bool:
        """Whether both sides hold whole numbers: a mask or a counter, which no clipping or mean changes."""
        return not any(dtype in FLOATS for dtype in self.dtypes)

    @property
    def same_rows(self) -> bool:
        """Whether nothing in the rows differs: types or shapes may."""
        return self.comparable and not (self.differing.count or self.only_a.count or self.only_b.count)

    @property
    def same_shape(self) -> bool:
        """Whether the shapes are the same, or one of them leaves the number of rows open."""
        return same_shape(*self.shapes)

    @property
    def shapes_alone(self) -> bool:
        """Whether nothing but the shapes differs."""
        return self.same_rows and not self.equal and self.dtypes[0] == self.dtypes[1]


@dataclass(frozen=True, eq=False)
class Aligned:
    """Numbers of the rows in both, their positions in each, and positions of the rows in one only."""

    ids: Array
    in_a: Array
    in_b: Array
    only_a: Array
    only_b: Array


def align(a: Stored, b: Stored) -> Aligned:
    """Which rows stand beside which: by row number."""
    if not a.sparse and not b.sparse:
        n = min(len(a.ids), len(b.ids))
        both = a.ids[:n]
        return Aligned(both, both, both, a.ids[n:], b.ids[n:])
    there_a, there_b = contained(a.ids, b.ids), contained(b.ids, a.ids)
    only_a, only_b = np.flatnonzero(~there_a), np.flatnonzero(~there_b)
    if not (a.sparse and b.sparse):
        only_a = only_a[nonzero_rows(a.values[only_a])]
        only_b = only_b[nonzero_rows(b.values[only_b])]
    return Aligned(a.ids[there_a], np.flatnonzero(there_a), np.flatnonzero(there_b), only_a, only_b)


def measure(a: Stored, b: Stored) -> TensorDifference:
    """Compare one tensor."""
    head: dict[str, Any] = {
        "name": a.name, "name_b": b.name, "kinds": (_kind(a), _kind(b)), "dtypes": (a.dtype, b.dtype),
        "shapes": (a.shape, b.shape), "slots": (len(a.slot_ids), len(b.slot_ids)), "norms": (a.norm, b.norm),
        "notes": _notes(a, b),
    }  # fmt: skip
    if a.row_shape != b.row_shape:
        return TensorDifference(equal=False, comparable=False, **head)
    rows = align(a, b)
    x, y = a.values, b.values
    if not (len(rows.ids) == len(x) == len(y)):  # no copies where every row has its partner
        x, y = x[rows.in_a], y[rows.in_b]
    width = math.prod(a.row_shape)
    parts = list(blocks(len(x), a.row_shape))
    found = [_block(x[part], y[part], rows.ids[part]) for part in parts]
    differing = np.concatenate([part.start + block.differing for part, block in zip(parts, found, strict=True)])
    equal = not (len(differing) or len(rows.only_a) or len(rows.only_b))
    numbers = rows.ids[differing]
    counts = np.sum([block.ulps for block in found], axis=0)
    counts[0] += (len(x) - len(differing)) * width
    return TensorDifference(
        equal=equal and a.dtype == b.dtype and same_shape(a.shape, b.shape),
        comparable=True,
        rows=len(rows.ids),
        elements=len(x) * width,
        ulps=tuple((label, n) for label, n in zip(LABELS, counts.tolist(), strict=True) if n),
        largest_absolute=_largest([block.absolute for block in found]),
        largest_relative=_largest([block.relative for block in found]),
        only_a=_sample(a.ids[rows.only_a], a.values[rows.only_a[:SHOWN]]),
        only_b=_sample(b.ids[rows.only_b], b.values[rows.only_b[:SHOWN]]),
        differing=_sample(numbers, x[differing[:SHOWN]], y[differing[:SHOWN]]),
        row_gaps={
            "both": (numbers, np.concatenate([block.worst for block in found])),
            "only_a": (a.ids[rows.only_a], _row_tops(a.values[rows.only_a])),
            "only_b": (b.ids[rows.only_b], _row_tops(b.values[rows.only_b])),
        },
        **head,
    )


class _Block(NamedTuple):
    """What some rows come to: those that differ, their largest differences, the histogram of their ulps."""

    differing: Array
    worst: Array
    ulps: Array
    absolute: Place | None
    relative: Place | None


def _block(x: Array, y: Array, ids: Array) -> _Block:
    if x.dtype != y.dtype:
        x, y = _common(x, y)
    same = bits_equal(x, y)
    differing = np.flatnonzero(~same.reshape(len(same), math.prod(same.shape[1:])).all(axis=1))
    if len(differing) < len(same):
        x, y, ids = x[differing], y[differing], ids[differing]
    u, v = wide(x), wide(y)
    gaps = _gaps(u, v)
    worst = gaps.reshape(len(gaps), math.prod(gaps.shape[1:])).max(axis=1, initial=0.0)
    finite = bool(np.isfinite(worst).all())
    relative = _place(_relative(gaps, u, v, finite=finite), ids, u, v)
    return _Block(differing, worst, _ulps(x, y, finite=finite), _place(gaps, ids, u, v), relative)


def _largest(places: list[Place | None]) -> Place | None:
    return max((place for place in places if place is not None), key=lambda place: place.size, default=None)


def _kind(x: Stored) -> str:
    return f"{x.backend} {'sparse' if x.sparse else 'dense'}"


def _notes(a: Stored, b: Stored) -> tuple[str, ...]:
    notes = []
    if a.has_duplicates != b.has_duplicates and a.sparse and b.sparse:
        one, k, n = ("a", len(a.ids), len(a.slot_ids)) if a.has_duplicates else ("b", len(b.ids), len(b.slot_ids))
        notes.append(f"{{{one}}} is uncoalesced: {n:,} slots of {k:,} rows, compared by their sums")
    if None in (a.shape[:1] + b.shape[:1]) and a.shape != b.shape:
        notes.append("one side does not know its number of rows")
    if a.beyond_float64 or b.beyond_float64:
        notes.append("whole numbers beyond 2^53, which float64 does not hold: no cause is tried")
    return tuple(notes)


def same_shape(a: tuple[int | None, ...], b: tuple[int | None, ...]) -> bool:
    """The same, or one of them leaves the number of rows open."""
    return a == b or (len(a) == len(b) and a[1:] == b[1:] and None in (a[0], b[0]))


def _common(x: Array, y: Array) -> tuple[Array, Array]:
    """Both in the wider of their types, where one holds the other, else in float64."""
    x, y = (wide(z).astype(np.float32) if z.dtype == np.uint16 else z for z in (x, y))
    common = np.result_type(x.dtype, y.dtype)
    return x.astype(common), y.astype(common)


def _gaps(x: Array, y: Array) -> Array:
    """|x - y|; where one is NaN, or infinite and the other is not the same, inf."""
    with np.errstate(invalid="ignore", over="ignore"):
        gaps: Array = np.abs(x - y)
    unknown = np.isnan(gaps)
    if not unknown.any():
        return gaps
    gaps[x == y] = 0.0
    unknown = np.isnan(gaps)
    gaps[unknown] = np.where(np.isnan(x[unknown]) & np.isnan(y[unknown]), 0.0, np.inf)
    return gaps


def _relative(gaps: Array, x: Array, y: Array, *, finite: bool) -> Array:
    sizes = np.fmax(np.abs(x), np.abs(y))
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio: Array = gaps / sizes
    if finite and sizes.all() and np.isfinite(sizes.max(initial=0.0)):
        return ratio
    ratio[np.isnan(ratio)] = 0.0
    ratio[np.isinf(gaps)] = np.inf
    return ratio


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


def _row_tops(values: Array) -> Array:
    x = np.abs(wide(values)).reshape(len(values), math.prod(values.shape[1:]))
    tops: Array = x.max(axis=1, initial=0.0)
    return tops


# ---------------------------------------------------------------------- ulps
def _ulps(x: Array, y: Array, *, finite: bool) -> Array:
    """The histogram: as many numbers as there are `LABELS`. finite: no element is a number on one side alone."""
    unknown = 0
    if x.dtype.kind == "f" or x.dtype == np.uint16:
        a, b = (_ordered(z) for z in (x, y))
        distance = np.maximum(a, b) - np.minimum(a, b)
        if not finite or np.isnan(wide(x).max(initial=0.0)):
            nan = np.isnan(wide(x)) != np.isnan(wide(y))
            distance[bits_equal(x, y)] = 0
            distance, unknown = distance[~nan], int(nan.sum())
    else:
        distance = (np.maximum(x, y) - np.minimum(x, y)).astype(np.uint64)
    within = [int(np.count_nonzero(distance <= distance.dtype.type(top))) for top in ULPS]
    return np.diff([0, *within, distance.size, distance.size + unknown])


def _ordered(x: Array) -> Array:
    """Unsigned integers of x's size in the order of the floats, one apart for neighbours."""
    kind = UNSIGNED[x.dtype.itemsize]
    bits = np.ascontiguousarray(x).view(kind)
    half = kind(1 << (8 * x.dtype.itemsize - 1))
    return np.where(bits < half, bits + half, -bits)  # modulo 2 to the bits that there are
