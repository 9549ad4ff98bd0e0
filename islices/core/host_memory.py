"""Host memory for arrays that frameworks can use without a copy; large arrays reuse freed memory.

The operating system fills new memory with zeros, page by page, which takes several times as long as writing a result.
So this module keeps up to `KEPT` bytes of freed large arrays for later arrays. May import: `numpy`, `islices.backend`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from ctypes import addressof, c_char
from typing import Any

import numpy as np

from islices.backend import Host

#: the alignment in bytes that frameworks need to use NumPy memory without a copy (without it TensorFlow aborts)
ALIGNMENT = 64
#: the size in bytes from which arrays may reuse freed memory; smaller arrays get new memory
LARGE = 1 << 20
#: The largest number of bytes kept for later arrays. A block is reused for a request of n bytes only if the block has
#: from n to n + n / `WASTE` bytes.
KEPT = 1 << 26
WASTE = 4

_first_byte: Callable[[Any], c_char] = c_char.from_buffer


def empty(shape: Sequence[int], dtype: Any, allocate: Callable[..., Host] = np.empty) -> Host:
    """Return a C-ordered array whose memory starts at a multiple of 64 bytes, uninitialised by default.

    `allocate` is np.empty or np.zeros. An array of Python objects does not have this alignment.
    """
    dtype = np.dtype(dtype)
    if dtype.hasobject:  # references to objects are never uninitialised
        return allocate(shape, dtype)
    nbytes = math.prod(shape) * dtype.itemsize
    if allocate is np.empty and nbytes >= LARGE:
        return _Block.array(tuple(shape), dtype)
    raw: Host = allocate(nbytes + ALIGNMENT, np.uint8)
    # raw.ctypes and the array interface take several times as long to return the address
    return np.ndarray(shape, dtype, raw, -addressof(_first_byte(raw)) % ALIGNMENT)


def zeros(shape: Sequence[int], dtype: Any) -> Host:
    """Return an array of zeros, aligned like the result of `empty`. The array never reuses a freed block."""
    return empty(shape, dtype, np.zeros)


def copied(array: Host, dtype: Any = None) -> Host:
    """Return a copy of an array, aligned like the result of `empty`, converted to `dtype` if it is given."""
    out = empty(array.shape, array.dtype if dtype is None else dtype)
    out[...] = array
    return out


def at_address(owner: Any, address: int, shape: tuple[int, ...], dtype: np.dtype[Any], *, writable: bool) -> Host:
    """Return the C-ordered array at an address. The array keeps `owner`, the owner of the memory, alive."""
    return np.asarray(_Memory(owner, address, shape, dtype, writable))


class _Memory:
    """A piece of memory with NumPy's array interface; a view keeps this object and the memory's owner alive."""

    def __init__(self, owner: Any, address: int, shape: tuple[int, ...], dtype: np.dtype[Any], writable: bool) -> None:
        self.owner = owner
        data = (address, not writable)
        self.__array_interface__ = {"version": 3, "shape": shape, "typestr": dtype.str, "data": data}


#: The identity of a block that no array uses -> the block, oldest first. Any thread may return a block at any moment,
#: so every change of the dict is a single call.
_free: dict[int, Host] = {}


class _Block(_Memory):
    """Memory for one large array; once the last view is gone, another array may use the memory."""

    @classmethod
    def array(cls, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Host:
        raw = _taken(math.prod(shape) * dtype.itemsize + ALIGNMENT)
        address = raw.__array_interface__["data"][0]
        return np.asarray(cls(raw, address + -address % ALIGNMENT, shape, dtype, True))

    def __del__(self) -> None:
        owner = getattr(self, "owner", None)  # an interrupt may come before the attribute is set
        if _free is None or owner is None:  # the interpreter is ending
            return
        _free[id(owner)] = owner
        kept = sum(raw.nbytes for raw in list(_free.values()))
        for key, raw in list(_free.items()):
            if kept <= KEPT:
                break
            _free.pop(key, None)
            kept -= raw.nbytes


def _taken(nbytes: int) -> Host:
    """Return the smallest free block that fits without much waste, or else a new block."""
    fitting = [raw for raw in list(_free.values()) if nbytes <= raw.nbytes <= nbytes + nbytes // WASTE]
    for raw in sorted(fitting, key=lambda raw: raw.nbytes):
        if _free.pop(id(raw), None) is not None:  # no other thread has taken the block
            return raw
    return np.empty(nbytes, np.uint8)
