"""Define internal classes of values and indices that are not arrays yet. Only the dispatch knows them.

`IndexedSlices` holds an array or one of these in each of its two parts, and calls `Deferred.read` when the part is
read. Operations look inside instead, so that nothing is computed: `native_look` and `islices.core.slots.slots_in`.
May import: `islices.backend`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from islices.backend import Array, Look

if TYPE_CHECKING:
    from islices.core.slices import IndexedSlices


class Deferred:
    """A part of slices that is made when it is first read."""

    __slots__ = ()

    def read(self, owner: Any, part: int) -> Array:
        """Return an array of the owner: part 0 is its values, part 1 its indices."""
        raise NotImplementedError

    def held(self, owner: Any, part: int) -> Array:
        """Return an array of the same dtype and device, unchecked; nothing is computed."""
        return self.read(owner, part)


class NativeIndices(Deferred):
    """The indices of a framework's sparse object, with the look at its arrays, during the call that received it.

    If the look has views, the array may be None and is made when it is read.
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
    """Return the look at values and indices that came with a framework's sparse object, or None for other slices."""
    indices = s._indices
    return indices.look if type(indices) is NativeIndices else None
