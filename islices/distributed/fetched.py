"""The rows that a rank has fetched from a sharded table, and their gradient. SPEC clause 26."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from islices.backend import Array, Host
from islices.core.rows import coalesce
from islices.core.slices import IndexedSlices
from islices.distributed.routes import Routes
from islices.embedding.table import Table
from islices.optim.inputs import accept_gradient

if TYPE_CHECKING:
    from islices.distributed.sharded import ShardedTable


@dataclass(frozen=True, eq=False, repr=False)
class Batch:
    """The rows that one rank's lookups need, fetched from their owners.

    Attributes
    ----------
    table : Table
        The distinct rows, ascending by row number, in the framework of the sharded table. They are a copy: lookups and
        derivatives use the values from the time of the fetch.
    ids : int array of the shape of the fetched ids
        The positions of the ids in ``table``; a padding id has the position ``table.padding_idx``.
    indices : int64 NumPy array, shape (table.shape[0],)
        The row numbers of these rows in the sharded table.

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
    """Return (values, places) of a gradient of a batch's table, coalesced, without the padding."""
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
