"""Arrays packed as bytes, and ranges of rows, one per rank.

Each array begins at a multiple of 8 bytes. Both sides know the shapes and dtypes already."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np

from islices.core.host_memory import empty
from islices.distributed.group import Bytes

#: (shape, dtype) of an array.
Form = tuple[tuple[int, ...], Any]
Ids: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]
STEP = 8
#: Row numbers of up to so many rows travel as int32.
NARROW = 2**31
#: The number of each rank's row numbers by which ranges are cut, and the filler of a smaller sample.
SAMPLED, NOTHING = 64, -1


def size_of(forms: Iterable[Form]) -> int:
    """Return the number of bytes that `pack` makes of arrays of these forms."""
    return sum(_padded(math.prod(shape) * np.dtype(dtype).itemsize) for shape, dtype in forms)


def pack(arrays: Sequence[np.ndarray[Any, Any]]) -> Bytes:
    """Return the arrays' bytes."""
    out: Bytes = empty((sum(_padded(x.nbytes) for x in arrays),), np.uint8)
    place = 0
    for x in arrays:
        end = place + x.nbytes
        out[place:end].view(x.dtype)[...] = x.reshape(-1)
        place += _padded(x.nbytes)
        out[end:place] = 0
    return out


def unpack(data: Bytes, forms: Sequence[Form]) -> Iterator[np.ndarray[Any, Any]]:
    """Yield views of the arrays in packed bytes; copies if the bytes do not begin at a multiple of 8."""
    if data.ctypes.data % STEP:
        data = data.copy()
    place = 0
    for shape, dtype in forms:
        nbytes = math.prod(shape) * np.dtype(dtype).itemsize
        yield data[place : place + nbytes].view(dtype).reshape(shape)
        place += _padded(nbytes)


def _padded(nbytes: int) -> int:
    return -(-nbytes // STEP) * STEP


def even_bounds(count: int, parts: int) -> Ids:
    """Return the bounds of ``parts`` ranges that cover 0 to count, (parts + 1,): their lengths differ by at most one,
    the longer ones first.
    """
    short, longer = divmod(count, parts)
    places = np.arange(parts + 1, dtype=np.int64)
    bounds: Ids = places * short + np.minimum(places, longer)
    return bounds


def sample(indices: np.ndarray[Any, Any]) -> Ids:
    """Return an evenly spaced sample of unique ascending indices: int64, (SAMPLED,), filled up with -1."""
    out = np.full(SAMPLED, NOTHING, np.int64)
    n = min(SAMPLED, len(indices))
    out[:n] = indices[(2 * np.arange(n) + 1) * len(indices) // (2 * max(n, 1))]
    return out


def splitters(samples: Sequence[Ids], counts: Sequence[int], parts: int) -> Ids:
    """Return the first index of parts 1 to parts - 1, so that all parts have about as many of all ranks' rows."""
    kept = [x[x != NOTHING] for x in samples]
    places = np.concatenate(kept)
    weights = np.concatenate([np.full(len(x), n / max(len(x), 1)) for x, n in zip(kept, counts, strict=True)])
    order = np.argsort(places, kind="stable")
    places, reached = places[order], np.cumsum(weights[order])
    if not len(places):
        return np.zeros(parts - 1, np.int64)
    wanted = reached[-1] * np.arange(1, parts) / parts
    cuts: Ids = places[np.minimum(np.searchsorted(reached, wanted), len(places) - 1)]
    return cuts
