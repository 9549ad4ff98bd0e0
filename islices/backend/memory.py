"""Methods for memory: views for the host, and tables that change in place.

May import: `islices.backend.arrays`, `islices.backend.contract`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from islices.backend.arrays import Arrays
from islices.backend.contract import Array, Host, Shape, optional

#: The result of `Memory.writable`: views to write through, and the arrays that contain the written values afterwards.
Opened = tuple[list[Host], list[Array]]


class Look(NamedTuple):
    """The properties of a call's arrays that the core needs first, one item per array. `Backend.look` returns a
    `Look`."""

    dtypes: list[str]
    shapes: list[Shape]
    traced: list[bool]
    #: `Backend.host_view` of each array, or None if the core needs no views. Also None if an array has no view or is
    #: traced, or if the framework records operations on an array.
    views: list[Host] | None
    #: `Backend.memory_span` of each array, if the adapter found it at the same time
    spans: list[tuple[int, int]] | None = None


def view_span(view: Host) -> tuple[int, int]:
    """Return the span of a NumPy array's memory, as `Backend.memory_span` defines it."""
    start = view.__array_interface__["data"][0]
    if view.flags.c_contiguous:
        return start, start + view.nbytes
    if view.size == 0:
        return start, start
    reach = [(size - 1) * step for size, step in zip(view.shape, view.strides, strict=True)]
    return start + sum(x for x in reach if x < 0), start + sum(x for x in reach if x > 0) + view.itemsize


def elements_meet(shape: Sequence[int], strides: Sequence[int], step: int) -> bool:
    """Return True if elements of an array may share memory. `step` is an element's size in the unit of `strides`.

    The result is also True if the elements of one dimension lie in gaps between the elements of another dimension.
    """
    if 0 in shape:
        return False
    reach = step
    for stride, size in sorted((abs(stride), size) for stride, size in zip(strides, shape, strict=True) if size > 1):
        if stride < reach:
            return True
        reach += (size - 1) * stride
    return False


class Memory(Arrays):
    """The part of `Backend` for memory: views for the host, and tables that change in place."""

    # ------------------------------------------------------------------ the host's
    def host_view(self, x: Array) -> Host | None:
        """Return a NumPy view of x's memory, with bfloat16 as uint16. Return None if x is not in plain CPU memory.

        The core never writes through the view.
        """
        raise self._missing("host_view")

    def from_host(self, array: Host, like: Array) -> Array:
        """Return an array of the framework with the values of a NumPy array that islices no longer uses. uint16 stands
        for bfloat16.

        The result shares the memory if the framework allows this; otherwise, the result is a copy. `like` is None only
        if the default `asarray` calls this method without a `like`: the result may then be on any device.
        """
        raise self._missing("from_host")

    @optional("the methods that it names do it")
    def look(self, arrays: Sequence[Array], *, views: bool = True) -> Look:
        """Return a `Look`, which contains the results of `dtype`, `shape`, `is_traced` and `host_view` for each array.

        If `views` is False, the core needs no views, so the method need not wait until the arrays are computed. Most
        calls of the library start with `look`, so override this method if you have a faster implementation.
        """
        dtypes, traced = [self.dtype(x) for x in arrays], [self.is_traced(x) for x in arrays]
        found: list[Host] = []
        for x, unknown in zip(arrays, traced, strict=True) if views else ():
            view = None if unknown or self.records_gradient(x) else self.host_view(x)
            if view is None:
                break
            found.append(view)
        whole = len(found) == len(arrays)
        return Look(dtypes, [self.shape(x) for x in arrays], traced, found if whole else None)

    @optional("x is one piece")
    def blocks(self, x: Array) -> Sequence[Array]:
        """Divide x, of shape (k, m), along axis 1 into pieces whose rows fit into the caches. Return [x] if pieces have
        no advantage."""
        return [x]

    # ------------------------------------------------------------------ tables
    @optional("tables are new arrays")
    def in_place(self, x: Array) -> bool:
        """Return True if `set_rows` writes into x itself. Raise ValueError if x must not be written, for example
        because its elements share memory with each other."""
        return False

    @optional("`host_view` answers it")
    def memory_span(self, x: Array) -> tuple[int, int] | None:
        """Return the addresses of the first byte of x's elements, and of the byte after the last element.

        The two addresses are equal if x is empty. The core compares the addresses to find arrays that share memory with
        an array that it writes. Numbers that are not addresses are allowed too, if two references to the same array
        have the same numbers. Return None if nothing is known; the core then compares object identities.
        """
        view = None if self.is_traced(x) else self.host_view(x)
        return None if view is None else view_span(view)

    @optional("`writable` opens them")
    def plain_tables(self, arrays: Sequence[Any]) -> Look | None:
        """Return the `Look` of arrays that the host will write. The core writes through the views after `mark_written`.

        Return None if an array is not concrete or does not change in place. Also return None if the memory of an array
        is not contiguous, aligned, writable and in this machine's byte order. The core then calls `in_place` and
        `writable`. `plain_tables` itself changes no array.
        """
        return None

    @optional("no framework state depends on it")
    def mark_written(self, arrays: Sequence[Array]) -> None:
        """Notify autograd and similar observers that arrays from `plain_tables` or `writable` are being written."""

    @optional("what is written goes through `set_rows`")
    def writable_view(self, x: Array) -> Host | None:
        """Return a writable view of a concrete array that changes in place, or None if the host cannot or must not
        write into the memory.

        `writable` calls this method.
        """
        return None

    @optional("`writable_view` of each array does it")
    def writable(self, arrays: Sequence[Array], *, donate: bool = False) -> Opened | None:
        """Return (views, results) for concrete arrays that the host will write, or None if memory is not writable.

        The views have the values and the strides of the arrays; uint16 stands for bfloat16. The core writes through the
        views and drops them before anyone reads the results. The results contain the written values. For an array that
        changes in place, the result is the array itself. As after an update by the framework, values that were read
        earlier stay, and autograd notices the change. Any other result is a new array over copied memory, or over the
        memory of a donated array, which can no longer be used. The core has called `in_place` for each array, and no
        two arrays share memory. If the result is None, no array has changed.
        """
        views: list[Any] = [self.writable_view(x) for x in arrays]
        if any(view is None for view in views):
            return None
        self.mark_written(arrays)
        return views, list(arrays)

    @optional("x as it is")
    def variable(self, x: Array, like: Array) -> Array:
        """Return x as an object that changes in place if `like` does, such as a tf.Variable. The caller guarantees
        that no other object uses the memory of x."""
        return x

    @optional("`variable` does it")
    def made_like(self, x: Array, like: Array) -> Array:
        """Return x as an object of the type of `like`, such as a parameter or a variable. The caller guarantees
        that no other object uses the memory of x.

        The result is trainable if `like` is trainable.
        """
        return self.variable(x, like)
