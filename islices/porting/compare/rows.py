"""Define `Rows`, rows of a tensor as float64 values. Causes may change these values. For a large tensor, `Rows`
contains a sample or a block of the rows.

May import: `numpy`, the core below `islices.porting.compare.comparison`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from islices.backend import FLOATS
from islices.porting.compare.stored import (
    Array,
    Stored,
    blocks,
    common_rows,
    contained,
    matrix,
    norm_of,
    placed,
    row_tops,
    rows_differ,
    wide,
)  # fmt: skip

#: dtype -> the number of bits of its significand. For an integer dtype, this is the number of bits of its largest
#: number, but at most 53, the number of bits of float64's significand.
PRECISION = {
    "float16": 11, "bfloat16": 8, "float32": 24, "float64": 53, "bool": 1, "int8": 7, "uint8": 8, "int16": 15,
    "uint16": 16, "int32": 31, "uint32": 32, "int64": 53, "uint64": 53,
}  # fmt: skip
#: A sample has room for at least this many rows.
LEAST = 64


def eps_of(dtype: str) -> float:
    """Return the machine epsilon of a dtype, or 0 for integers and bools, which are never rounded."""
    return float(2.0 ** (1 - PRECISION[dtype])) if dtype in FLOATS else 0.0


@dataclass(frozen=True, eq=False)
class Rows:
    """Some or all rows of one tensor on one side. If the tensor is dense, its rows of zeros may be missing.

    `terms` contains, for each element, the sum of the absolute values in the slots. `counts` contains the number of
    slots of each row. If these numbers are unknown or no row of the tensor has several slots, `known` is False and
    `terms` is |values|. If `values` are sums of slots, `slots` is (ascending row numbers, values of the slots), else
    None.
    """

    ids: Array  # (k,) int64, ascending
    values: Array  # (k, *row_shape) float64
    dtype: str
    sparse: bool
    terms: Array  # (k, *row_shape)
    counts: Array  # (k,)
    known: bool = False
    slots: tuple[Array, Array] | None = None

    @property
    def eps(self) -> float:
        return eps_of(self.dtype)

    @property
    def row_shape(self) -> tuple[int, ...]:
        return tuple(self.values.shape[1:])

    @property
    def flat(self) -> Array:
        """Return the values as a 2-D array, with one flattened row of the tensor per row."""
        return matrix(self.values)

    @property
    def norm(self) -> float:
        return norm_of(self.values)

    @property
    def slot_norm(self) -> float | None:
        """Return the norm of the slots before duplicates are summed, or None if `slots` is None."""
        return None if self.slots is None else norm_of(self.slots[1])

    def meets(self, other: Rows) -> bool:
        """Return True if both objects have the same rows, and the rows have the same shape."""
        return self.values.shape == other.values.shape and np.array_equal(self.ids, other.ids)

    def having(self, values: Array, **more: Any) -> Rows:
        """Return the same rows with new values. `more` contains values of other fields. By default, the slots of the
        new values count as unknown."""
        unknown = {"terms": np.abs(values), "counts": np.ones(len(values), np.int64), "known": False, "slots": None}
        return replace(self, values=values, **{**unknown, **more})

    def scaled(self, factor: float) -> Rows:
        """Multiply the values and terms by a factor, and return the result. The slots stay unchanged."""
        return replace(self, values=self.values * factor, terms=self.terms * abs(factor))

    def onto(self, ids: Array) -> Rows:
        """Return the rows with the given row numbers. Rows that this object does not have become zeros."""
        values, terms, counts = (placed(self.ids, part, ids) for part in (self.values, self.terms, self.counts))
        return replace(self, ids=ids, values=values, terms=terms, counts=counts)

    def select(self, keep: Array) -> Rows:
        """Return the rows that the boolean mask `keep` selects."""
        kept = self.onto(self.ids[keep])
        if self.slots is None:
            return kept
        ids, values = self.slots
        there = contained(ids, kept.ids)
        return replace(kept, slots=(ids[there], values[there]))


def rows_at(x: Stored, places: Any) -> Rows:
    """Return the rows of x at some positions of x.ids. `places` is a mask, a slice or an array of positions."""
    ids, values = x.ids[places], wide(x.values[places])
    rows = Rows(ids, values, x.dtype, x.sparse, np.abs(values), np.ones(len(ids), np.int64))
    if not x.has_duplicates:
        return rows
    order, starts = x.by_row
    first, counts = starts[:-1][places], x.counts[places]
    begin = np.cumsum(counts) - counts
    some = order[np.repeat(first - begin, counts) + np.arange(counts.sum())]
    slots = x.slots[some]
    terms = np.add.reduceat(np.abs(wide(slots)), begin, axis=0) if len(begin) else rows.terms
    return replace(rows, terms=terms, counts=counts, known=True, slots=(x.slot_ids[some], slots))


# ---------------------------------------------------------------------- some rows of large tensors
def sample_rows(x: Stored, y: Stored, elements: int) -> Array:
    """Return the row numbers of a sample with about the given number of elements. The search tries causes on this
    sample. A sample of wide rows is larger.

    The sample contains evenly spaced rows, rows that only one side has, rows with several slots, rows with the largest
    values, and rows that differ.
    """
    width = max(1, math.prod(x.row_shape), math.prod(y.row_shape))
    rows = max(LEAST, elements // width)
    few = max(4, rows // 16)
    some = [spread(x.ids if len(x.ids) >= len(y.ids) else y.ids, rows // 4)]
    for s, other in ((x, y), (y, x)):
        some += [spread(ids, few) for ids in (s.ids[~contained(s.ids, other.ids)], s.repeated)]
        some.append(s.ids[_largest(np.concatenate(list(_tops(s))), few)])
    if x.row_shape == y.row_shape:
        ids, *values = common_rows(x, y)
        some.append(spread(ids[rows_differ(*values)], rows // 8))
    return np.unique(np.concatenate(some))


def _tops(s: Stored) -> Iterator[Array]:
    """Yield arrays with the largest |value| of each row, block by block."""
    for part in blocks(len(s.ids), s.row_shape):
        yield row_tops(np.nan_to_num(np.abs(wide(s.values[part])), nan=math.inf, posinf=math.inf))


def spread(x: Array, n: int) -> Array:
    """Return n evenly spaced elements of x. If x has at most n elements, return x."""
    return x if len(x) <= n else x[np.linspace(0, len(x) - 1, n).astype(np.int64)]


def _largest(x: Array, n: int) -> Array:
    """Return the positions of the n largest elements, in any order."""
    return np.arange(len(x)) if len(x) <= n else np.argpartition(-x, n)[:n]
