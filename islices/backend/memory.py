"""Memory: views for the host, and tables that change in place.

May import: `numpy`, `islices.backend.arrays`, `islices.backend.contract`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from islices.backend.arrays import Arrays
from islices.backend.contract import Array, optional


class Look(NamedTuple):
    """The facts of the arrays of a call that the core needs first: the answer of `Backend.look`, one item per array."""

    dtypes: list[str]
    shapes: list[tuple[int | None, ...]]
    traced: list[bool]
    #: `Backend.host_view` of each; None where one has none, is traced, or has its gradient recorded
    views: list[np.ndarray[Any, Any]] | None
    #: `Backend.memory_span` of each, where it was seen on the way
    spans: list[tuple[int, int]] | None = None


def view_span(view: np.ndarray[Any, Any]) -> tuple[int, int]:
    """`Backend.memory_span` of a NumPy array."""
    start = view.__array_interface__["data"][0]
    if view.flags.c_contiguous:
        return start, start + view.nbytes
    if view.size == 0:
        return start, start
    reach = [(size - 1) * step for size, step in zip(view.shape, view.strides, strict=True)]
    return start + sum(x for x in reach if x < 0), start + sum(x for x in reach if x > 0) + view.itemsize


def elements_meet(shape: Sequence[int], strides: Sequence[int], step: int) -> bool:
    """Whether elements of an array may share memory; step is an element's size, in what strides are counted in.

    True too of strides by which some dimension steps into the reach of a smaller one and yet hits gaps: nobody's.
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
    """Memory: views for the host, and tables that change in place."""

    # ------------------------------------------------------------------ the host's
    def host_view(self, x: Array) -> np.ndarray[Any, Any] | None:
        """A NumPy view of x's memory without a copy, bfloat16 as uint16; None if x is not plain CPU memory.

        The core never writes through the view.
        """
        raise self._missing("host_view")

    def from_host(self, array: np.ndarray[Any, Any], like: Array) -> Array:
        """The framework's array over a NumPy array that islices made and gives away; uint16 means bfloat16.

        Shares the memory where the framework allows it. Read-only or unaligned input is copied.
        """
        raise self._missing("from_host")

    @optional("the methods that it names do it")
    def look(self, arrays: Sequence[Array], *, views: bool = True) -> Look:
        """Return `dtype`, `shape`, `is_traced` and `host_view` of each array; without views where none are asked for,
        since they may have to wait for what computes the arrays. To be overridden only to say it faster: every call
        begins with it."""
        dtypes, traced = [self.dtype(x) for x in arrays], [self.is_traced(x) for x in arrays]
        found: list[np.ndarray[Any, Any]] = []
        for x, unknown in zip(arrays, traced, strict=True) if views else ():
            view = None if unknown or self.records_gradient(x) else self.host_view(x)
            if view is None:
                break
            found.append(view)
        whole = len(found) == len(arrays)
        return Look(dtypes, [self.shape(x) for x in arrays], traced, found if whole else None)

    @optional("x is one piece")
    def blocks(self, x: Array) -> Sequence[Array]:
        """x of shape (1, m) cut along axis 1 into pieces that suit the caches; [x] if that brings nothing."""
        return [x]

    # ------------------------------------------------------------------ tables
    @optional("tables are new arrays")
    def in_place(self, x: Array) -> bool:
        """Whether `set_rows` writes into x itself. ValueError for an x that it could not write into."""
        return False

    @optional("`host_view` says it")
    def memory_span(self, x: Array) -> tuple[int, int] | None:
        """The address of the first byte that x's elements lie in, and that behind the last; twice the same one where x
        has none. For arrays that change in place or may be donated: numbers that are equal for two of them where they
        are one will do. None where nothing is known: x is then told from others by its identity."""
        view = None if self.is_traced(x) else self.host_view(x)
        return None if view is None else view_span(view)

    @optional("`writable` opens them")
    def plain_tables(self, arrays: Sequence[Any]) -> Look | None:
        """`look` at what is to be written, with views that may be written through after `mark_written`; None where one
        of them is no concrete array that changes in place, or its memory is not contiguous, aligned, writable and of
        this machine's byte order: then `in_place` and `writable` are asked. Nothing is changed."""
        return None

    @optional("nobody has to know")
    def mark_written(self, arrays: Sequence[Array]) -> None:
        """Tells whoever has to know it, as autograd, that arrays that `plain_tables` took are written now."""

    @optional("what is written goes through `set_rows`")
    def writable(
        self, arrays: Sequence[Array], *, donate: bool = False
    ) -> tuple[list[np.ndarray[Any, Any]], list[Array]] | None:
        """(views, results) for concrete arrays that the host is to write into, or None where there is no such memory.

        The views hold the arrays' values, bfloat16 as uint16, with the arrays' own strides, and may be written through
        until they are dropped, which is before anyone reads the results. Those hold what was written: the arrays
        themselves where they change in place, as after the framework's own update (values read earlier stay, autograd
        notices); else new ones, over memory that was copied, or taken from arrays that are donated and gone
        thereafter. `in_place` was asked of each array before, and no two share memory. None is answered for all of them
        or for none, and nothing has changed then.
        """
        return None

    @optional("x as it is")
    def variable(self, x: Array, like: Array) -> Array:
        """x, which nobody else holds, as something that changes in place where like does (a tf.Variable)."""
        return x

    @optional("`variable` does it")
    def made_like(self, x: Array, like: Array) -> Array:
        """x, which nobody else holds, as what like is: a parameter or a variable of its kind, trained as it is."""
        return self.variable(x, like)
