"""Convert arrays to bytes to send them between ranks, and divide rows into one range per rank.

The receiver already knows the shapes and dtypes, so the bytes do not contain them. Each array begins at a multiple of 8
bytes.
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
#: If a table or shard has at most this many rows, its row numbers are sent as int32.
NARROW = 2**31
#: Each rank sends a sample of `SAMPLED` row numbers, from which all ranks choose the bounds of the ranges. `NOTHING`
#: fills up a smaller sample.
SAMPLED, NOTHING = 64, -1


def narrow(rows: int | None, dtype: Any) -> Any:
    """Return the dtype in which ranks send row numbers: int32 if it can represent all of them, else `dtype`. `rows` is
    the number of rows of the table or shard. If this number is unknown, `rows` is None, and the result is `dtype`."""
    return np.dtype(np.int32) if rows is not None and rows <= NARROW else dtype


def exchange_arrays(group: Group, parts: Sequence[Sequence[Host]], forms: Sequence[Sequence[Form]]) -> list[list[Host]]:
    """Send the arrays parts[r] to each rank r, and return the arrays that each rank sends to this rank. The arrays from
    rank r have the forms forms[r]."""
    got = group.all_to_all([pack(arrays) for arrays in parts], [size_of(form) for form in forms])
    return [unpack(data, form) for data, form in zip(got, forms, strict=True)]


def gather_arrays(
    group: Group, arrays: Sequence[Host], forms: Sequence[Sequence[Form]] | None = None
) -> list[list[Host]]:
    """Send this rank's arrays to all ranks, and return every rank's arrays. The arrays of rank r have the forms
    forms[r].

    By default, the arrays of all ranks have the same forms.
    """
    forms = forms or [[(x.shape, x.dtype) for x in arrays]] * group.size
    got = group.all_gather(pack(arrays), [size_of(form) for form in forms])
    return [unpack(data, form) for data, form in zip(got, forms, strict=True)]


def size_of(forms: Sequence[Form]) -> int:
    """Return the number of bytes that `pack` returns for arrays of these forms."""
    return _places(forms)[-1][1] if forms else 0


def pack(arrays: Sequence[Host]) -> Bytes:
    """Return the bytes of all arrays, one array after the other. A single array of uint8 is not copied."""
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
    """Return the arrays that packed bytes contain, as views.

    If the address of the bytes is not a multiple of 8, they are copied first.
    """
    if data.ctypes.data % STEP:
        data = data.copy()
    places = zip(forms, _places(forms), strict=True)
    return [data[start:stop].view(dtype).reshape(shape) for (shape, dtype), (start, stop) in places]


def _places(forms: Sequence[Form]) -> list[tuple[int, int]]:
    """Return, for each array, the position of its first byte, and the position after its last byte."""
    places, end = [], 0
    for shape, dtype in forms:
        start = -(-end // STEP) * STEP
        end = start + math.prod(shape) * np.dtype(dtype).itemsize
        places.append((start, end))
    return places


# ---------------------------------------------------------------------- ranges of rows
def even_bounds(count: int, parts: int) -> Host:
    """Divide the numbers from 0 to count - 1 into ``parts`` ranges, and return their bounds, an array of shape (parts +
    1,). The lengths of the ranges differ by at most one, and longer ranges come first."""
    short, longer = divmod(count, parts)
    places = np.arange(parts + 1, dtype=np.int64)
    return places * short + np.minimum(places, longer)


def range_of(count: int, group: Group) -> tuple[int, int]:
    """Return this rank's range of `even_bounds` as (first row, row after the last row)."""
    start, stop = even_bounds(count, group.size)[group.rank : group.rank + 2].tolist()
    return start, stop


def sample(indices: Host) -> Host:
    """Return evenly spaced elements of unique ascending indices as an int64 array of shape (SAMPLED,). Fill up the
    array with -1."""
    out = np.full(SAMPLED, NOTHING, np.int64)
    n = min(SAMPLED, len(indices))
    out[:n] = indices[(2 * np.arange(n) + 1) * len(indices) // (2 * max(n, 1))]
    return out


def splitters(samples: Sequence[Host], counts: Sequence[int], parts: int) -> Host:
    """Divide the rows into parts, and return the row number at which each part except the first begins.

    Each part contains about the same number of rows; a row that several ranks have counts once per rank. `samples`
    contains each rank's result of `sample`, and `counts` the number of rows on each rank.
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
