"""Host memory: arrays that frameworks take without a copy, large ones in memory that earlier results have left.

What the system hands out anew it must fill with zeros first, page by page, which takes several times as long as writing
a result: so what large results leave behind is kept, up to `KEPT` bytes, for the next. May import: `numpy`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from ctypes import addressof, c_char
from typing import Any

import numpy as np

Host = np.ndarray[Any, Any]

#: Frameworks take NumPy memory without a copy only at this alignment (XLA, and TensorFlow aborts otherwise).
ALIGNMENT = 64
#: Smaller arrays are NumPy's and the system's own business.
LARGE = 1 << 20
#: Bytes kept for later, at most, and a block's waste, at most: a quarter of what is asked for.
KEPT = 1 << 26
WASTE = 4

_first_byte: Callable[[Any], c_char] = c_char.from_buffer


def empty(shape: Sequence[int], dtype: Any, allocate: Callable[..., Host] = np.empty) -> Host:
    """An uninitialised C-ordered array whose memory starts at a multiple of 64 bytes."""
    dtype = np.dtype(dtype)
    if dtype.hasobject:  # references, which are never uninitialised
        return allocate(shape, dtype)
    nbytes = math.prod(shape) * dtype.itemsize
    if allocate is np.empty and nbytes >= LARGE:
        return _Block.array(tuple(shape), dtype)
    raw: Host = allocate(nbytes + ALIGNMENT, np.uint8)
    # raw.ctypes and the array interface take several times as long to say the address
    return np.ndarray(shape, dtype, raw, -addressof(_first_byte(raw)) % ALIGNMENT)


def zeros(shape: Sequence[int], dtype: Any) -> Host:
    """An array of zeros, aligned as `empty` is; the system's zero pages are not touched."""
    return empty(shape, dtype, np.zeros)


def at_address(owner: Any, address: int, shape: tuple[int, ...], dtype: np.dtype[Any], *, writable: bool) -> Host:
    """The C-ordered array at an address, keeping alive the owner of the memory there."""
    return np.asarray(_Memory(owner, address, shape, dtype, writable))


class _Memory:
    """Memory as NumPy's array interface; a view keeps it, and so its owner, alive."""

    def __init__(self, owner: Any, address: int, shape: tuple[int, ...], dtype: np.dtype[Any], writable: bool) -> None:
        self.owner = owner
        data = (address, not writable)
        self.__array_interface__ = {"version": 3, "shape": shape, "typestr": dtype.str, "data": data}


#: Blocks that no array uses, by identity, the oldest first. Blocks may come back from any thread, and at any moment:
#: what is changed is changed by single calls.
_free: dict[int, Host] = {}


class _Block(_Memory):
    """Memory for one large array; when the last view is gone it is free for another."""

    @classmethod
    def array(cls, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Host:
        raw = _taken(math.prod(shape) * dtype.itemsize + ALIGNMENT)
        address = raw.__array_interface__["data"][0]
        return np.asarray(cls(raw, address + -address % ALIGNMENT, shape, dtype, True))

    def __del__(self) -> None:
        owner = getattr(self, "owner", None)  # an interrupt may come before it is known
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
    """The smallest free block that is large enough without much waste, else a new one."""
    fitting = [raw for raw in list(_free.values()) if nbytes <= raw.nbytes <= nbytes + nbytes // WASTE]
    for raw in sorted(fitting, key=_size):
        if _free.pop(id(raw), None) is not None:  # no other thread was faster
            return raw
    return np.empty(nbytes, np.uint8)


def _size(raw: Host) -> int:
    return raw.nbytes
