"""Internal classes for values and indices that are computed when they are first read.

Each of the two parts of an `IndexedSlices` is an array or a `Deferred`; reading a `Deferred` part calls `read`.
Operations that do not need the computed arrays get the stored data from `native_look` or `islices.core.slots.slots_in`.
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
        """Return the values (part 0) or the indices (part 1) of `owner`, an `IndexedSlices`."""
        raise NotImplementedError

    def held(self, owner: Any, part: int) -> Array:
        """Return an array with the dtype and the device of the part. A subclass may return a stored array without
        computing the part.
        """
        return self.read(owner, part)


class NativeIndices(Deferred):
    """The indices of a framework's sparse object, and the `Look` of the object's values and indices.

    Instances exist only during a call of the library. If the `Look` has views, `array` may be None; the first read then
    makes the array from the view of the indices.
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
    """Return the `Look` of the values and indices of s if the indices are `NativeIndices`, else None."""
    indices = s._indices
    return indices.look if type(indices) is NativeIndices else None
