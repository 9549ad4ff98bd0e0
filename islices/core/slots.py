"""Gradients whose values are not computed yet: rows of a smaller array, times a factor.

The gradient of bags repeats each bag's row for each member, and clipping multiplies all rows by one number. Compiled
kernels read the small array and the factor instead, where a norm or a step is all that is asked for; who reads
``.values`` gets them computed. May import: `islices.backend`, `islices.core.linear`, `islices.core.modes`,
`islices.core.slices`.
"""

from __future__ import annotations

from typing import Any

from islices.backend import Array, Backend, Slots
from islices.core import modes
from islices.core.linear import number_of, scale_values
from islices.core.slices import IndexedSlices


def slots_of(s: IndexedSlices) -> Slots:
    """The slots of a gradient as they are."""
    return s._slots or Slots(s.values, s.indices, s.dense_shape[0])


def expand(B: Backend, slots: Slots) -> Array:
    """The values of slots, those that name no row included."""
    values, factor = slots.values, known_factor(B, slots)
    if slots.positions is not None:
        values = modes.run("take", B, (values, slots.positions))
    return values if factor is None else scale_values(B, values, [("mul", factor)])


def _values_of(s: IndexedSlices) -> Array:
    """The values of slices; zeros, as ever, in slots that hold nothing."""
    B, values = s.backend, expand(s.backend, slots_of(s))
    return modes.run(_without_sentinels, B, (values, s.indices), rows=s.dense_shape[0]) if s.padded else values


def known_factor(B: Backend, slots: Slots) -> Any:
    """The factor of slots as a number, or as an array without dimensions while it is traced."""
    factor = slots.factor
    if factor is None or isinstance(factor, float):
        return factor
    if not B.is_traced(factor):
        return number_of(B, factor)
    with B.scope():
        return B.reshape(factor, ())


def _without_sentinels(B: Backend, values: Array, indices: Array, *, rows: int | None) -> Array:
    return B.where(B.as_column(B.in_range(indices, rows), values), values, B.zeros_like(values))


def deferred(s: IndexedSlices) -> IndexedSlices:
    """s as `times` takes it; for callers who know that nobody changes its arrays before its values are read."""
    return s if s._slots is not None else s._like(slots=slots_of(s))


def times(s: IndexedSlices, factor: float | Array) -> IndexedSlices | None:
    """s with each value times a factor of the type of their sums, to be computed when it is read; None where s has one
    already, or values, which others may change before that."""
    slots = s._slots
    if slots is None or slots.factor is not None:
        return None
    return s._like(slots=slots._replace(factor=factor))


def known_times(s: IndexedSlices, factor: Array, values: Array) -> IndexedSlices:
    """s with each value times a factor: values that are traced and may be differentiated. To kernels, which are not
    differentiated, they are what they are computed from."""
    B, slots = s.backend, slots_of(s)
    if slots.factor is not None:
        return s._like(values)
    with B.scope():
        slots = slots._replace(values=B.stop_gradient(slots.values), factor=B.stop_gradient(factor))
    return s._like(values, slots=slots)


IndexedSlices._compute = staticmethod(_values_of)
