"""Define `Rows`, some float64 rows of a tensor, which causes transform, and `Held`, the tensor that provides them.

May import: `numpy`, the core below `islices.porting.compare.comparison`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from islices.backend import FLOATS
from islices.core.locks import lazy_property
from islices.porting.compare.stored import Array, Stored, blocks, contained, nonzero_rows, norm_of, rows_differ, wide

#: Bits of each type's significand; of integers as many as float64 holds.
PRECISION = {
    "float16": 11, "bfloat16": 8, "float32": 24, "float64": 53, "bool": 1, "int8": 7, "uint8": 8, "int16": 15,
    "uint16": 16, "int32": 31, "uint32": 32, "int64": 53, "uint64": 53,
}  # fmt: skip
#: The fewest rows of a sample.
LEAST = 64


def eps_of(dtype: str) -> float:
    """Return the spacing of a type at 1; 0 for integers, which are never rounded."""
    return float(2.0 ** (1 - PRECISION[dtype])) if dtype in FLOATS else 0.0


@dataclass(frozen=True, eq=False)
class Rows:
    """Some rows, or all, of one tensor of one side, without the zero rows of a dense tensor.

    terms is the sum of |slots| of each element, None if the slots are unknown. slot_ids and slots are the slots, if
    they contain more than values. size: the number of elements of the whole tensor.
    """

    ids: Array  # (k,) int64, ascending
    values: Array  # (k, *row_shape) float64
    shape: tuple[int | None, ...]
    dtype: str
    sparse: bool
    size: int
    terms: Array | None = None
    counts: Array | None = None  # (k,)
    slot_ids: Array | None = None
    slots: Array | None = None

    @property
    def eps(self) -> float:
        return eps_of(self.dtype)

    @property
    def flat(self) -> Array:
        """Return the values as a matrix with one line per row."""
        return self.values.reshape(len(self.ids), math.prod(self.values.shape[1:]))

    def meets(self, other: Rows) -> bool:
        """Return whether both have the same rows of the same shape."""
        return self.values.shape == other.values.shape and np.array_equal(self.ids, other.ids)

    def having(self, values: Array, terms: Array | None = None, **more: Any) -> Rows:
        """Return the rows with other values and without slots."""
        return replace(self, values=values, terms=terms, slot_ids=None, slots=None, **more)

    def select(self, keep: Array) -> Rows:
        """Return the rows where keep, a boolean mask, is True."""
        terms, counts = (None if x is None else x[keep] for x in (self.terms, self.counts))
        kept = replace(self, ids=self.ids[keep], values=self.values[keep], terms=terms, counts=counts)
        if self.slots is None or self.slot_ids is None:
            return kept
        there = contained(self.slot_ids, kept.ids)
        return replace(kept, slot_ids=self.slot_ids[there], slots=self.slots[there])


class Norm(NamedTuple):
    """The norm of a whole tensor, and the norm of its unsummed slots, or None if they are unknown."""

    rows: float = 0.0
    slots: float | None = None

    def joined(self, x: Rows | None) -> Norm:
        """Return the norm with more rows."""
        if x is None:
            return self
        slots = None if x.slots is None else math.hypot(self.slots or 0.0, norm_of([x.slots]))
        return Norm(math.hypot(self.rows, norm_of([x.values])), slots)


class Held:
    """A tensor as it was read, which returns any of its rows by `at`."""

    def __init__(self, x: Stored) -> None:
        self.stored = x
        self._places = np.arange(len(x.ids)) if x.sparse else np.flatnonzero(nonzero_rows(x.values))
        self.ids = x.ids[self._places]

    @property
    def size(self) -> int:
        """Return the number of elements in the rows that count."""
        return len(self.ids) * math.prod(self.stored.row_shape)

    def values_at(self, places: Any) -> Array:
        """Return the values of the rows at places of ids."""
        return wide(self.stored.values[self._places[places]])

    def at_rows(self, ids: Array) -> Array:
        """Return the places of ids, which it has, in the stored values."""
        return self._places[np.searchsorted(self.ids, ids)]

    def at(self, places: Any) -> Rows:
        """Return the rows at places of ids."""
        x, ids = self.stored, self.ids[places]
        rows = Rows(ids, self.values_at(places), x.shape, x.dtype, x.sparse, self.size)
        if x.sparse and x.has_duplicates:
            order, starts = self._by_row
            first, counts = starts[:-1][places], np.diff(starts)[places]
            begin = np.cumsum(counts) - counts
            some = order[np.repeat(first - begin, counts) + np.arange(counts.sum())]
            slots = x.slots[some]
            terms = np.add.reduceat(np.abs(wide(slots)), begin, axis=0) if len(begin) else np.zeros(rows.values.shape)
            return replace(rows, terms=terms, counts=counts, slot_ids=x.slot_ids[some], slots=slots)
        return rows

    @lazy_property
    def _by_row(self) -> tuple[Array, Array]:
        """Return the slots in the order of their rows, and the start of each row's slots."""
        order = np.argsort(self.stored.slot_ids, kind="stable")
        return order, np.append(0, np.cumsum(self.stored.counts))

    @lazy_property
    def norms(self) -> Norm:
        """Return the norms of all rows and of all slots."""
        x = self.stored
        return Norm(x.norm, norm_of([x.slots]) if x.sparse and x.has_duplicates else None)

    @property
    def repeated(self) -> Array:
        """Return the rows that have several slots."""
        x = self.stored
        return x.ids[x.counts > 1] if x.sparse and x.has_duplicates else x.ids[:0]


# ---------------------------------------------------------------------- some rows of large tensors
def sample_rows(x: Held, y: Held, elements: int) -> Array:
    """Return the numbers of the rows on which causes are tried.

    Some rows are evenly spaced. Others belong to one side only, have several slots or the largest values, or differ.
    """
    width = max(1, math.prod(x.stored.row_shape), math.prod(y.stored.row_shape))
    rows = max(LEAST, elements // width)
    few = max(4, rows // 16)
    some = [spread(x.ids if len(x.ids) >= len(y.ids) else y.ids, rows // 4)]
    for s, other in ((x, y), (y, x)):
        some += [spread(ids, few) for ids in (s.ids[~contained(s.ids, other.ids)], s.repeated)]
        some.append(s.ids[_largest(np.concatenate(list(_tops(s))), few)])
    if x.stored.row_shape == y.stored.row_shape:
        ids = x.ids[contained(x.ids, y.ids)]
        parts = [ids[part] for part in blocks(len(ids), x.stored.row_shape)]
        differ = [rows_differ(*(s.stored.values[s.at_rows(part)] for s in (x, y))) for part in parts]
        some.append(spread(ids[np.concatenate(differ)], rows // 8))
    return np.unique(np.concatenate(some))


def _tops(s: Held) -> Iterator[Array]:
    """Yield the largest |value| of each row, block by block."""
    for part in blocks(len(s.ids), s.stored.row_shape):
        flat = np.abs(s.values_at(part).reshape(part.stop - part.start, math.prod(s.stored.row_shape)))
        yield np.nan_to_num(flat, nan=math.inf, posinf=math.inf).max(axis=1, initial=0.0)


def spread(x: Array, n: int) -> Array:
    """Return n evenly spaced elements, or all if there are at most n."""
    return x if len(x) <= n else x[np.linspace(0, len(x) - 1, n).astype(np.int64)]


def _largest(x: Array, n: int) -> Array:
    """Return the positions of the n largest."""
    return np.arange(len(x)) if len(x) <= n else np.argpartition(-x, n)[:n]
