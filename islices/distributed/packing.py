"""Send arrays between ranks as bytes, and cut rows into one range per rank.

Sender and receiver already know the shapes and dtypes. In the bytes each array begins at a multiple of 8.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from islices.backend import Host
from islices.core.host_memory import empty
from islices.distributed.group import Bytes, Group

#: The form of an array: (shape, dtype).
Form = tuple[tuple[int, ...], Any]
STEP = 8
#: The number of rows up to which row numbers are sent as int32.
NARROW = 2**31
#: The size of each rank's sample of row numbers, from which cuts are chosen, and the number that fills up a smaller
#: sample.
SAMPLED, NOTHING = 64, -1


def narrow(rows: int | None, dtype: Any) -> Any:
    """Return the dtype in which ranks send row numbers that are stored as `dtype`. `rows` is the number of rows, or
    None if unknown.
    """
    return np.dtype(np.int32) if rows is not None and rows <= NARROW else dtype


def exchange_arrays(group: Group, parts: Sequence[Sequence[Host]], forms: Sequence[Sequence[Form]]) -> list[list[Host]]:
    """Send the arrays parts[r] to each rank r, and return the arrays, of the forms forms[r], that rank r sends."""
    got = group.all_to_all([pack(arrays) for arrays in parts], [size_of(form) for form in forms])
    return [unpack(data, form) for data, form in zip(got, forms, strict=True)]


def gather_arrays(
    group: Group, arrays: Sequence[Host], forms: Sequence[Sequence[Form]] | None = None
) -> list[list[Host]]:
    """Return every rank's arrays; the arrays of rank r have the forms forms[r].

    By default every rank's arrays have the forms of this rank's arrays.
    """
    forms = forms or [[(x.shape, x.dtype) for x in arrays]] * group.size
    got = group.all_gather(pack(arrays), [size_of(form) for form in forms])
    return [unpack(data, form) for data, form in zip(got, forms, strict=True)]


def size_of(forms: Sequence[Form]) -> int:
    """Return the number of bytes that `pack` returns for arrays of these forms."""
    return _places(forms)[-1][1] if forms else 0


def pack(arrays: Sequence[Host]) -> Bytes:
    """Return the arrays' bytes. A single array of uint8 is not copied."""
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
    """Return views of the arrays in packed bytes.

    If the address of the bytes is not a multiple of 8, the views are of a copy.
    """
    if data.ctypes.data % STEP:
        data = data.copy()
    places = zip(forms, _places(forms), strict=True)
    return [data[start:stop].view(dtype).reshape(shape) for (shape, dtype), (start, stop) in places]


def _places(forms: Sequence[Form]) -> list[tuple[int, int]]:
    """Return, for each array, the byte at which the array begins, and the byte after the array's last byte."""
    places, end = [], 0
    for shape, dtype in forms:
        start = -(-end // STEP) * STEP
        end = start + math.prod(shape) * np.dtype(dtype).itemsize
        places.append((start, end))
    return places


# ---------------------------------------------------------------------- ranges of rows
def even_bounds(count: int, parts: int) -> Host:
    """Return the bounds (parts + 1,) of ``parts`` ranges that cover 0 to count. Lengths differ by at most one, and
    longer ranges come first.
    """
    short, longer = divmod(count, parts)
    places = np.arange(parts + 1, dtype=np.int64)
    return places * short + np.minimum(places, longer)


def range_of(count: int, group: Group) -> tuple[int, int]:
    """Return this rank's range of `even_bounds`: the first row, and the row after the last row."""
    start, stop = even_bounds(count, group.size)[group.rank : group.rank + 2].tolist()
    return start, stop


def sample(indices: Host) -> Host:
    """Return an evenly spaced sample of unique ascending indices: int64, shape (SAMPLED,), padded with -1."""
    out = np.full(SAMPLED, NOTHING, np.int64)
    n = min(SAMPLED, len(indices))
    out[:n] = indices[(2 * np.arange(n) + 1) * len(indices) // (2 * max(n, 1))]
    return out


def splitters(samples: Sequence[Host], counts: Sequence[int], parts: int) -> Host:
    """Return the number of the first row of each part, except the first part.

    All parts get about the same number of the ranks' rows. `samples` are the ranks' results of `sample`, and `counts`
    the ranks' numbers of rows.
    """
    kept = [x[x != NOTHING] for x in samples]
    places = np.concatenate(kept)
    weights = np.concatenate([np.full(len(x), n / max(len(x), 1)) for x, n in zip(kept, counts, strict=True)])
    order = np.argsort(places, kind="stable")
    places, reached = places[order], np.cumsum(weights[order])
    if not len(places):
        return np.zeros(parts - 1, np.int64)
    wanted = reached[-1] * np.arange(1, parts) / parts
    return places[np.minimum(np.searchsorted(reached, wanted), len(places) - 1)]  # type: ignore[no-any-return]
