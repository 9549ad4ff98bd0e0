"""Arrays as bytes, one after the other, each at a multiple of 8; what is in them both sides know already. Ranges of
rows, one a rank."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from islices.core.host_memory import empty
from islices.distributed.group import Bytes

__all__ = ["NARROW", "Form", "even_bounds", "pack", "size_of", "unpack"]

#: (shape, dtype) of an array.
Form = tuple[tuple[int, ...], Any]
STEP = 8
#: Row numbers of up to so many rows travel as int32.
NARROW = 2**31


def size_of(forms: Iterable[Form]) -> int:
    """How many bytes `pack` makes of arrays of these forms."""
    return sum(_padded(math.prod(shape) * np.dtype(dtype).itemsize) for shape, dtype in forms)


def pack(arrays: Sequence[np.ndarray[Any, Any]]) -> Bytes:
    """The arrays' bytes."""
    out: Bytes = empty((sum(_padded(x.nbytes) for x in arrays),), np.uint8)
    place = 0
    for x in arrays:
        end = place + x.nbytes
        out[place:end].view(x.dtype)[...] = x.reshape(-1)
        place += _padded(x.nbytes)
        out[end:place] = 0
    return out


def unpack(data: Bytes, forms: Sequence[Form]) -> Iterator[np.ndarray[Any, Any]]:
    """Views of the arrays in packed bytes; copies where the bytes begin at no multiple of 8."""
    if data.ctypes.data % STEP:
        data = data.copy()
    place = 0
    for shape, dtype in forms:
        nbytes = math.prod(shape) * np.dtype(dtype).itemsize
        yield data[place : place + nbytes].view(dtype).reshape(shape)
        place += _padded(nbytes)


def _padded(nbytes: int) -> int:
    return -(-nbytes // STEP) * STEP


def even_bounds(count: int, parts: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Where ``parts`` ranges that cover 0 to count begin and end, (parts + 1,): their lengths differ by at most one,
    the longer ones first."""
    short, longer = divmod(count, parts)
    places = np.arange(parts + 1, dtype=np.int64)
    bounds: np.ndarray[Any, np.dtype[np.int64]] = places * short + np.minimum(places, longer)
    return bounds
