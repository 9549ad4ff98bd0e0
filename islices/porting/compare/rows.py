"""`Rows`: one tensor of one side as causes transform it, in float64; all of its rows, or some of them with `Facts`.

May import: `numpy`, the core below `islices.porting.compare.comparison`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from islices.backend import FLOATS
from islices.core.locks import lazy_property
from islices.porting.compare.stored import Array, contained, norm_of

__all__ = ["PRECISION", "Facts", "Measured", "Rows", "extent"]

#: Bits of each type's significand; of integers as many as float64 holds.
PRECISION = {
    "float16": 11, "bfloat16": 8, "float32": 24, "float64": 53, "bool": 1, "int8": 7, "uint8": 8, "int16": 15,
    "uint16": 16, "int32": 31, "uint32": 32, "int64": 53, "uint64": 53,
}  # fmt: skip


class Measured(NamedTuple):
    """Of all elements: the norms of rows and of slots, the largest finite |value|, the least that is not 0."""

    norm: float
    raw_norm: float
    top: float
    least: float


class Facts:
    """Numbers of a whole tensor, computed when one is first asked for; of rows that are a part of it.

    Parameters
    ----------
    size : int
        Elements.
    measure : callable
    slots : (ids, slots), optional
        As they are stored, where the tensor is as it came.
    """

    def __init__(self, size: int, measure: Callable[[], Measured], slots: tuple[Array, Array] | None = None) -> None:
        self.size = size
        self.slots = slots
        self._measure = measure

    @lazy_property
    def measured(self) -> Measured:
        """One pass over the whole tensor."""
        return self._measure()


@dataclass(frozen=True, eq=False)
class Rows:
    """One tensor of one side, as causes transform it; rows of zeros of a dense tensor are left out.

    terms is the sum of |slots| of each element, None where the slots are not known; slot_ids and slots are the slots
    themselves where they tell more than values. facts: of the whole tensor, where these are some of its rows.
    """

    ids: Array  # (k,) int64, ascending
    values: Array  # (k, *row_shape) float64
    shape: tuple[int | None, ...]
    dtype: str
    sparse: bool
    terms: Array | None = None
    counts: Array | None = None  # (k,)
    slot_ids: Array | None = None
    slots: Array | None = None
    facts: Facts | None = None

    @property
    def eps(self) -> float:
        """The spacing of the type at 1; 0 for integers, which nothing rounds."""
        return float(2.0 ** (1 - PRECISION[self.dtype])) if self.dtype in FLOATS else 0.0

    @property
    def size(self) -> int:
        """Elements of the whole tensor."""
        return self.facts.size if self.facts else self.values.size

    @lazy_property
    def top(self) -> float:
        """The largest finite |value| of the whole tensor."""
        return self.facts.measured.top if self.facts else extent(self.values)[0]

    @lazy_property
    def least(self) -> float:
        """The least |value| of the whole tensor that is not 0; inf where there is none."""
        return self.facts.measured.least if self.facts else extent(self.values)[1]

    @lazy_property
    def norm(self) -> float:
        """The norm of the whole tensor, duplicates summed."""
        return self.facts.measured.norm if self.facts else norm_of([self.values])

    @lazy_property
    def raw_norm(self) -> float:
        """The norm of the slots of the whole tensor, duplicates not summed."""
        if self.facts:
            return self.facts.measured.raw_norm
        return self.norm if self.slots is None else norm_of([self.slots])

    @property
    def all_slots(self) -> tuple[Array, Array]:
        """(row of each slot, slots) of the whole tensor; the rows themselves where slots are not known."""
        if self.facts and self.facts.slots:
            return self.facts.slots
        return (self.ids, self.values) if self.slots is None or self.slot_ids is None else (self.slot_ids, self.slots)

    def select(self, keep: Array) -> Rows:
        """The rows where keep, a boolean mask, is True."""
        kept = self.rearranged(keep, self.ids[keep])
        if self.slots is None or self.slot_ids is None:
            return kept
        there = contained(self.slot_ids, kept.ids)
        return replace(kept, slot_ids=self.slot_ids[there], slots=self.slots[there])

    @property
    def row_shape(self) -> tuple[int, ...]:
        """The shape of one row."""
        return tuple(self.values.shape[1:])

    def parts(self) -> Iterator[Array]:
        """All values."""
        yield self.values

    def at(self, places: Any) -> Rows:
        """The rows at places."""
        return self.rearranged(places, self.ids[places])

    def rearranged(self, places: Array, ids: Array, shape: tuple[int | None, ...] | None = None) -> Rows:
        """The rows at places, a mask or positions, under other ids; what is known of their slots no longer fits."""
        return replace(
            self, shape=shape or self.shape, ids=ids, values=self.values[places],
            terms=None if self.terms is None else self.terms[places],
            counts=None if self.counts is None else self.counts[places], slot_ids=None, slots=None,
        )  # fmt: skip


def extent(values: Array) -> tuple[float, float]:
    """(the largest finite |value|, the least that is not 0)."""
    sizes = np.abs(values)
    top = float(sizes.max(initial=0.0))
    if not np.isfinite(top):
        top = float(sizes.max(initial=0.0, where=np.isfinite(sizes)))
    least = float(sizes.min(initial=np.inf))
    if least == 0:
        least = float(sizes.min(initial=np.inf, where=sizes > 0))
    return top, least
