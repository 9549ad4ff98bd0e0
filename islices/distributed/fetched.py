"""Fetch rows of a sharded table from the ranks that own them, and send gradients of these rows back to the owners.

A rank sends ids to the owners, gets rows from them, and later sends them gradients. Ids, rows and gradients are host
arrays, in which bfloat16 is stored as uint16. The ids are distinct and ascending, so each owner gets one contiguous
piece of them. SPEC clause 26.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from islices.backend import Array, Host
from islices.core import modes
from islices.core.host import native_order
from islices.core.modes import HOST
from islices.core.rows import coalesce
from islices.core.slices import IndexedSlices
from islices.distributed.agree import Agreement
from islices.distributed.group import Group
from islices.distributed.packing import exchange_arrays, narrow
from islices.embedding.table import Table
from islices.optim.inputs import accept_gradient

if TYPE_CHECKING:
    from islices.distributed.sharded import ShardedTable


class Routes(NamedTuple):
    """The rows that this rank requested from each rank, and the rows that each rank requested from this rank."""

    #: shape (ranks + 1,): this rank's distinct ids at the positions cuts[r] to cuts[r + 1] - 1 are rows of rank r
    cuts: Host
    #: for each rank, the numbers of the rows that it fetches from this rank, ascending and counted from this rank's
    #: first row
    requested: list[Host]


@dataclass(frozen=True, eq=False, repr=False)
class Batch:
    """The rows that `ShardedTable.fetch` fetched for the lookups of one rank.

    Attributes
    ----------
    table : Table
        The distinct rows in ascending order of their row numbers, in the framework of the sharded table. The rows are
        copies, so lookups and derivatives use the values at the time of the fetch.
    ids : int array of the shape of the fetched ids
        For each id, the number of its row in ``table``. For a padding id, the number is ``table.padding_idx``.
    indices : int64 NumPy array, shape (table.shape[0],)
        For each row of ``table``, its row number in the sharded table.

    Notes
    -----
    SPEC clause 26.

    Examples
    --------
    >>> import numpy as np
    >>> from islices import lookup
    >>> from islices.distributed import Alone, ShardedTable
    >>> table = ShardedTable.from_full(np.array([[1.0], [2.0], [4.0]]), Alone())
    >>> batch = table.fetch(np.array([[2, 2], [0, 2]]))
    >>> batch.indices.tolist(), batch.ids.tolist()
    ([0, 2], [[1, 1], [0, 1]])
    >>> lookup(batch.table, batch.ids, combiner="sum").tolist()
    [[8.0], [5.0]]
    """

    table: Table
    ids: Array
    indices: Host
    _owner: ShardedTable
    _number: int
    _routes: Routes

    def __repr__(self) -> str:
        return f"Batch({self.table.shape[0]} rows of {self._owner!r})"


def gradient_on_host(table: Table, grad: Any) -> tuple[Host, Host]:
    """Return (values, places) of the gradient of a batch's table, after summing duplicates, without the padding row.

    `places` contains row numbers of the batch's table.
    """
    B, weights, padding = table.backend, table.weights, table.padding_idx
    leaf, _ = accept_gradient(B, B.dtype(weights), table.shape, grad)
    if isinstance(leaf, IndexedSlices):
        s = coalesce(leaf)
        values, places = B.to_numpy(s.values), B.to_numpy(s.indices)
    else:
        values, places = B.to_numpy(leaf), np.arange(table.shape[0])
    if padding is not None:
        keep = places != padding
        values, places = (values, places) if keep.all() else (values[keep], places[keep])
    return values, places


# ---------------------------------------------------------------------- between the ranks
def find_routes(group: Group, agreed: Agreement, bounds: Host, ids: Host, cuts: Host) -> Routes:
    """Send this rank's ids to the ranks that own the rows, and return the routes.

    `ids` must be int64, distinct and ascending. The ids at the positions cuts[r] to cuts[r + 1] - 1 are rows of rank r.
    """
    dtype = narrow(int(np.diff(bounds).max()), np.int64)
    parts = [[(rows - first).astype(dtype)] for rows, first in zip(np.split(ids, cuts[1:-1]), bounds[:-1], strict=True)]
    got = exchange_arrays(group, parts, [[((n,), dtype)] for n in _counts(group, agreed)])
    return Routes(cuts, [rows for (rows,) in got])


def fetch_rows(group: Group, routes: Routes, take: Callable[[Host], Host]) -> Host:
    """Return the rows of this rank's ids, in the order of the ids.

    The function `take` gets row numbers of this rank's shard, and returns these rows. `fetch_rows` passes to `take` the
    numbers of the rows that all ranks requested from this rank.
    """
    rows = native_order(take(np.concatenate(routes.requested)))
    ends = np.cumsum([len(x) for x in routes.requested])
    forms = [[((n, *rows.shape[1:]), rows.dtype)] for n in np.diff(routes.cuts).tolist()]
    got = exchange_arrays(group, [[x.view(np.uint8)] for x in np.split(rows, ends[:-1])], forms)
    return HOST.concat([x for (x,) in got])  # type: ignore[no-any-return]


def fold_gradients(group: Group, agreed: Agreement, routes: Routes, values: Host, places: Host) -> tuple[Host, Host]:
    """Sum all ranks' contributions to the gradient of this rank's shard, in the order of ranks. Return the (values,
    rows) of this gradient.

    `values` contains the gradients of the fetched rows at the positions `places`, which are ascending. For each fetched
    row, a rank sends the owner one bit, which is 1 if the row has a gradient. After the bits, the rank sends the
    gradients, in the order of the fetched rows.
    """
    values = native_order(values)
    has = np.zeros(int(routes.cuts[-1]), bool)
    has[places] = True
    pieces = np.split(has, routes.cuts[1:-1]), np.split(values, np.searchsorted(places, routes.cuts[1:-1]))
    parts = [[np.packbits(bits), rows] for bits, rows in zip(*pieces, strict=True)]
    forms = [
        [((-(-len(rows) // 8),), np.uint8), ((n, *values.shape[1:]), values.dtype)]
        for rows, n in zip(routes.requested, _counts(group, agreed), strict=True)
    ]
    blocks, rows = [], []
    for (bits, block), requested in zip(exchange_arrays(group, parts, forms), routes.requested, strict=True):
        blocks.append(block)
        rows.append(requested[np.unpackbits(bits, count=len(requested)).view(bool)])
    arrays = HOST.concat(blocks), HOST.concat(rows)
    return modes.run("sum_rows", HOST, arrays, rows=None, loose=False)  # type: ignore[no-any-return]


def _counts(group: Group, agreed: Agreement) -> list[int]:
    """Return, for each rank, the number of ids or rows that it sends to this rank. The ranks have already exchanged
    these numbers."""
    return [int(counts[group.rank]) for counts in agreed.counts]
