"""Gradients that store an array of rows in place of their values. Where needed, a gradient also stores the positions of
the slots' rows in the array, and a factor.

The gradient of bags repeats each bag's row for each id in the bag, and clipping multiplies all rows by one number. For
a norm or a step, compiled kernels read the stored arrays and the factor. Reading ``.values`` computes the values. May
import: `islices.backend`, `islices.core.deferred`, `islices.core.linear`, `islices.core.modes`, `islices.core.slices`.
"""

from __future__ import annotations

from typing import Any

from islices.backend import Array, Backend, Slots
from islices.core import modes
from islices.core.deferred import Deferred
from islices.core.linear import number_of, scale_values
from islices.core.slices import IndexedSlices


class SlotValues(Deferred):
    """The values of slots. If `values` is None, the first read computes the values; in traced code, every read does.

    `values` contains the values if they are already known.
    """

    __slots__ = ("slots", "values")

    def __init__(self, slots: Slots, values: Array | None = None) -> None:
        self.slots, self.values = slots, values

    def read(self, owner: IndexedSlices, part: int) -> Array:
        if self.values is not None:
            return self.values
        values = _values_of(owner)
        if not owner.backend.is_traced(values):  # a value of a trace must not outlive the trace
            object.__setattr__(owner, "_values", values)  # instead of the slots: the user may change the values
        return values

    def held(self, owner: IndexedSlices, part: int) -> Array:
        return self.slots.values


def slots_in(s: IndexedSlices) -> Slots | None:
    """Return the slots from which a gradient's values are computed, or None if the gradient stores the values."""
    values = s._values
    return values.slots if isinstance(values, SlotValues) else None


def slots_of(s: IndexedSlices) -> Slots:
    """Return the slots of a gradient without computing values. Stored values become slots without a factor."""
    return slots_in(s) or Slots(s.values, s.indices, s.dense_shape[0])


def arrays_of(s: IndexedSlices) -> tuple[Array, ...]:
    """Return the arrays that slices store: (values, indices) if the values are stored.

    If the values come from slots, return the array of rows, the indices, and the positions if there are any. The factor
    is left out.
    """
    values, indices = s._values, s._indices
    if not (isinstance(values, Deferred) or isinstance(indices, Deferred)):  # nearly always
        return values, indices
    slots = slots_in(s)
    if slots is None:
        return s.values, s.indices
    return slots.values, s.indices, *(() if slots.positions is None else (slots.positions,))


def expand(B: Backend, slots: Slots) -> Array:
    """Compute and return the values of all slots, including empty slots."""
    values, factor = slots.values, known_factor(B, slots)
    if slots.positions is not None:
        values = modes.run("take", B, (values, slots.positions))
    return values if factor is None else scale_values(B, values, [("mul", factor)])


def _values_of(s: IndexedSlices) -> Array:
    """Compute and return the values of slices, with zeros in empty slots."""
    B, values = s.backend, expand(s.backend, slots_of(s))
    return modes.run(without_sentinels, B, (values, s.indices), rows=s.dense_shape[0]) if s.padded else values


def known_factor(B: Backend, slots: Slots) -> Any:
    """Return the factor of slots as a number, or as a 0-d array if it is traced. Without a factor, return None."""
    factor = slots.factor
    if factor is None or isinstance(factor, float):
        return factor
    if not B.is_traced(factor):
        return number_of(B, factor)
    with B.scope():
        return B.reshape(factor, ())


def without_sentinels(B: Backend, values: Array, indices: Array, *, rows: int | None) -> Array:
    """Return values with zeros in the slots whose indices are out of range."""
    return B.where(B.as_column(B.in_range(indices, rows), values), values, B.zeros_like(values))


def with_slots(s: IndexedSlices, slots: Slots, values: Array | None = None) -> IndexedSlices:
    """Return s with other slots; `values` are the values of these slots if they are already known."""
    return s._like(SlotValues(slots, values))


def slices_of(B: Backend, slots: Slots, *, padded: bool = False) -> IndexedSlices:
    """Return slices that compute their values from slots on first read."""
    shape = (slots.rows, *B.shape(slots.values)[1:])
    return IndexedSlices._trusted(B, SlotValues(slots), slots.indices, shape, padded=padded)


def deferred(s: IndexedSlices) -> IndexedSlices:
    """Return s with slots in place of stored values, so that `times` can multiply s.

    The arrays of s must not change before the values are read.
    """
    return s if slots_in(s) else s._like(SlotValues(slots_of(s)))


def times(s: IndexedSlices, factor: float | Array) -> IndexedSlices | None:
    """Return s multiplied by a factor that is stored in the slots and applied when the values are first read.

    The factor is already rounded to the dtype of the multiplication (float32 for 16-bit values). Return None if s
    already has a factor. Also return None if s has stored values, because the user could change them before the product
    is computed.
    """
    slots = slots_in(s)
    if slots is None or slots.factor is not None:
        return None
    return s._like(SlotValues(slots._replace(factor=factor)))


def with_known_values(s: IndexedSlices, values: Array) -> IndexedSlices:
    """Return s with known values, which are a differentiable function of the arrays of s.

    Kernels, which are not differentiated, still read the slots of s.
    """
    slots = slots_in(s)
    return s._like(values) if slots is None else with_slots(s, slots, values)


def known_times(s: IndexedSlices, factor: Array, values: Array) -> IndexedSlices:
    """Return s multiplied by a factor; `values` are the products, which the framework may differentiate.

    Kernels, which are not differentiated, read the unscaled array and the factor, unless s already had a factor.
    """
    B, slots = s.backend, slots_of(s)
    if slots.factor is not None:
        return s._like(values)
    with B.scope():
        slots = slots._replace(values=B.stop_gradient(slots.values), factor=B.stop_gradient(factor))
    return with_slots(s, slots, values)
