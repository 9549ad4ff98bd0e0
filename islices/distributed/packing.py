"""Move arrays between ranks as bytes, and cut rows into one range per rank.

Both sides know the shapes and dtypes already. Each array begins at a multiple of 8 bytes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from islices.backend import Host
from islices.core.host_memory import empty
from islices.distributed.group import Bytes, Group

#: (shape, dtype) of an array.
Form = tuple[tuple[int, ...], Any]
STEP = 8
#: Row numbers of up to so many rows travel as int32.
NARROW = 2**31
#: The number of each rank's row numbers by which ranges are cut, and the filler of a smaller sample.
SAMPLED, NOTHING = 64, -1


def narrow(rows: int | None, dtype: Any) -> Any:
    """Return the dtype in which row numbers of this dtype travel; rows is the number of rows, or None if unknown."""
    return np.dtype(np.int32) if rows is not None and rows <= NARROW else dtype


def exchange_arrays(group: Group, parts: Sequence[Sequence[Host]], forms: Sequence[Sequence[Form]]) -> list[list[Host]]:
    """Send the arrays parts[r] to each rank r, and return the arrays of the forms[r] that come from rank r."""
    got = group.all_to_all([pack(arrays) for arrays in parts], [size_of(form) for form in forms])
    return [unpack(data, form) for data, form in zip(got, forms, strict=True)]


def gather_arrays(
    group: Group, arrays: Sequence[Host], forms: Sequence[Sequence[Form]] | None = None
) -> list[list[Host]]:
    """Return every rank's arrays, which have the forms[r] on rank r; by default the same forms on every rank."""
    forms = forms or [[(x.shape, x.dtype) for x in arrays]] * group.size
    got = group.all_gather(pack(arrays), [size_of(form) for form in forms])
    return [unpack(data, form) for data, form in zip(got, forms, strict=True)]


def size_of(forms: Sequence[Form]) -> int:
    """Return the number of bytes that `pack` makes of arrays of these forms."""
    return _places(forms)[-1][1] if forms else 0


def pack(arrays: Sequence[Host]) -> Bytes:
    """Return the arrays' bytes; bytes alone are not copied."""
    if len(arrays) == 1 and arrays[0].dtype == np.uint8:
        return arrays[0].reshape(-1)
    forms = [(x.shape, x.dtype) for x in arrays]
    out: Bytes = empty((size_of(forms),), np.uint8)
    end = 0
    for x, (start, stop) in zip(arrays, _places(forms), strict=True):
        out[end:start] = 0
        out[start:stop].view(x.dtype)[...] = x.reshape(-1)
        end = stop
    return out


def unpack(data: Bytes, forms: Sequence[Form]) -> list[Host]:
    """Return views of the arrays in packed bytes; copies if the bytes do not begin at a multiple of 8."""
    if data.ctypes.data % STEP:
        data = data.copy()
    places = zip(forms, _places(forms), strict=True)
    return [data[start:stop].view(dtype).reshape(shape) for (shape, dtype), (start, stop) in places]


def _places(forms: Sequence[Form]) -> list[tuple[int, int]]:
    """Return the byte at which each array begins, and the byte after its last."""
    places, end = [], 0
    for shape, dtype in forms:
        start = -(-end // STEP) * STEP
        end = start + math.prod(shape) * np.dtype(dtype).itemsize
        places.append((start, end))
    return places


# ---------------------------------------------------------------------- ranges of rows
def even_bounds(count: int, parts: int) -> Host:
    """Return the bounds of ``parts`` ranges that cover 0 to count, (parts + 1,): their lengths differ by at most one,
    the longer ones first.
    """
    short, longer = divmod(count, parts)
    places = np.arange(parts + 1, dtype=np.int64)
    return places * short + np.minimum(places, longer)


def range_of(count: int, group: Group) -> tuple[int, int]:
    """Return this rank's range of `even_bounds`: its first row, and the row after its last."""
    start, stop = even_bounds(count, group.size)[group.rank : group.rank + 2].tolist()
    return start, stop


def sample(indices: Host) -> Host:
    """Return an evenly spaced sample of unique ascending indices: int64, (SAMPLED,), filled up with -1."""
    out = np.full(SAMPLED, NOTHING, np.int64)
    n = min(SAMPLED, len(indices))
    out[:n] = indices[(2 * np.arange(n) + 1) * len(indices) // (2 * max(n, 1))]
    return out


def splitters(samples: Sequence[Host], counts: Sequence[int], parts: int) -> Host:
    """Return the first index of parts 1 to parts - 1, so that all parts have about as many of all ranks' rows."""
    kept = [x[x != NOTHING] for x in samples]
    places = np.concatenate(kept)
    weights = np.concatenate([np.full(len(x), n / max(len(x), 1)) for x, n in zip(kept, counts, strict=True)])
    order = np.argsort(places, kind="stable")
    places, reached = places[order], np.cumsum(weights[order])
    if not len(places):
        return np.zeros(parts - 1, np.int64)
    wanted = reached[-1] * np.arange(1, parts) / parts
    return places[np.minimum(np.searchsorted(reached, wanted), len(places) - 1)]  # type: ignore[no-any-return]
