"""Exchange rows between the ranks that need them and their owners: ids go out, rows return, gradients go out.

All arrays are on the host, bfloat16 as its bits. The ids of a rank are distinct and ascending, so one contiguous piece
goes to each owner.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from islices.backend import Host
from islices.core import modes
from islices.core.host import native_order
from islices.core.host_memory import empty
from islices.core.modes import HOST
from islices.distributed.agree import Agreement
from islices.distributed.group import Group
from islices.distributed.packing import NARROW, Form, pack, size_of, unpack


class Routes(NamedTuple):
    """The rows that this rank requested, and those requested from it."""

    #: of its distinct ids, those at cuts[r] to cuts[r + 1] are rows of rank r: (ranks + 1,)
    cuts: Host
    #: the rows that each rank fetches from this one, counted from its first row, ascending
    requested: list[Host]


def _row_number_dtype(bounds: Host) -> np.dtype[Any]:
    """Return the dtype in which row numbers within a rank's range travel."""
    return np.dtype(np.int32 if int(np.diff(bounds).max()) <= NARROW else np.int64)


def received(group: Group, agreed: Agreement) -> list[int]:
    """Return each rank's number of rows for this one, after all have exchanged their counts."""
    return [int(counts[group.rank]) for counts in agreed.counts]


def find_routes(group: Group, agreed: Agreement, bounds: Host, ids: Host, cuts: Host) -> Routes:
    """Send the ids to their owners, and return the routes. ids: int64, distinct, ascending, cut by bounds at cuts."""
    dtype = _row_number_dtype(bounds)
    lengths = received(group, agreed)
    parts = [
        (ids[cuts[r] : cuts[r + 1]] - bounds[r]).astype(dtype).view(np.uint8)  # from its owner's first row
        for r in range(group.size)
    ]
    got = group.all_to_all(parts, [n * dtype.itemsize for n in lengths])
    return Routes(cuts, [_typed(x, dtype) for x in got])


def fetch_rows(group: Group, routes: Routes, take: Callable[[Host], Host], form: Form) -> Host:
    """Return the rows of this rank's ids, in the order of the ids.

    take(rows) reads rows of this rank's shard for the other ranks. form is a row's (shape, dtype).
    """
    shape, dtype = form[0], np.dtype(form[1])
    nbytes = math.prod(shape) * dtype.itemsize
    rows = _as_bytes(native_order(take(np.concatenate(routes.requested))))
    ends = np.cumsum([0, *map(len, routes.requested)]) * nbytes
    parts = [rows[ends[r] : ends[r + 1]] for r in range(group.size)]
    got = group.all_to_all(parts, (np.diff(routes.cuts) * nbytes).tolist())
    out = empty((int(routes.cuts[-1]), *shape), dtype)
    _join(got, _as_bytes(out))
    return out


def fold_gradients(
    group: Group, agreed: Agreement, routes: Routes, values: Host, places: Host, form: Form
) -> tuple[Host, Host]:
    """Return (values, rows) of the gradient of this rank's shard: all ranks' contributions, added in rank order.

    values are gradients of this rank's ids at the ascending places. They travel in the order of the fetched rows, after
    one bit per fetched row, which is set if the row has a gradient.
    """
    shape, dtype = form[0], np.dtype(form[1])
    values, places = native_order(values), native_order(places)
    ends = np.searchsorted(places, routes.cuts)
    has = np.zeros(int(routes.cuts[-1]), bool)
    has[places] = True
    parts = [
        pack([np.packbits(has[routes.cuts[r] : routes.cuts[r + 1]]), values[ends[r] : ends[r + 1]]])
        for r in range(group.size)
    ]
    counts = received(group, agreed)
    forms = [_forms(len(requested), n, shape, dtype) for requested, n in zip(routes.requested, counts, strict=True)]
    got = group.all_to_all(parts, [size_of(f) for f in forms])
    all_values, all_rows = [], []
    for data, requested, f in zip(got, routes.requested, forms, strict=True):
        bits, block = unpack(data, f)
        all_values.append(block)
        all_rows.append(requested[np.unpackbits(bits, count=len(requested)).view(bool)])
    arrays = HOST.concat(all_values), HOST.concat(all_rows)
    return modes.run("sum_rows", HOST, arrays, rows=None, loose=False)  # type: ignore[no-any-return]


def _forms(requested: int, n: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> list[Form]:
    return [((-(-requested // 8),), np.uint8), ((n, *shape), dtype)]


def _as_bytes(x: Host) -> Host:
    return x.reshape(-1).view(np.uint8)


def _typed(data: Host, dtype: np.dtype[Any]) -> Host:
    """Return bytes of any alignment as an array."""
    out = np.empty(len(data) // dtype.itemsize, dtype)
    out.view(np.uint8)[...] = data
    return out


def _join(parts: Sequence[Host], out: Host) -> None:
    place = 0
    for part in parts:
        out[place : place + len(part)] = part
        place += len(part)
