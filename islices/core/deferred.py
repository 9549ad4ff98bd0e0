"""Internal classes of values and indices that are computed on first read.

Each of the two parts of an `IndexedSlices` is an array or a `Deferred`; reading a part calls `Deferred.read`.
Operations avoid this computation: they read the stored data with `native_look` or `islices.core.slots.slots_in`.
May import: `islices.backend`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from islices.backend import Array, Look

if TYPE_CHECKING:
    from islices.core.slices import IndexedSlices


class Deferred:
    """A part of slices (values or indices) that is computed on first read."""

    __slots__ = ()

    def read(self, owner: Any, part: int) -> Array:
        """Return the values (part 0) or the indices (part 1) of the owner."""
        raise NotImplementedError

    def held(self, owner: Any, part: int) -> Array:
        """Return an array with the dtype and the device of the part, without computing or checking anything."""
        return self.read(owner, part)


class NativeIndices(Deferred):
    """The indices of a framework's sparse object, with the `Look` at its arrays, during the call that received it.

    If the `Look` has views, the array may be None; reading the indices then makes it.
    """

    __slots__ = ("array", "look")

    def __init__(self, look: Look, array: Array | None = None) -> None:
        self.look, self.array = look, array

    def read(self, owner: IndexedSlices, part: int) -> Array:
        if self.array is None:
            assert self.look.views is not None, "an array without views is known"
            self.array = owner.backend.from_host(self.look.views[1], owner.values)
        return self.array


def native_look(s: IndexedSlices) -> Look | None:
    """Return the `Look` at values and indices of slices made from a framework's sparse object, else None."""
    indices = s._indices
    return indices.look if type(indices) is NativeIndices else None
