"""Sum leaves over ranks on the host, after the ranks have agreed on shapes and dtypes. One set of collectives sends all
leaves of a tree.

For the strategy "ranges", each rank cuts a leaf into one part per range. Each part is sent to the rank that owns the
range, and the owner sums the parts. Then all ranks send these sums, and the leaves of the strategy "gather", to every
rank.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from islices.backend import Host
from islices.core import modes
from islices.core.dtypes import dtype_name
from islices.core.modes import HOST
from islices.distributed.group import Group
from islices.distributed.packing import Form, even_bounds, exchange_arrays, gather_arrays, narrow, sample, splitters
from islices.distributed.strategy import choose, costs


class HostLeaf(NamedTuple):
    """A leaf in the form in which ranks send it. The columns are the elements of a dense array, or the indices and
    values of coalesced slices.

    Values in bfloat16 are stored as uint16. `rows` is the number of rows of the table; for dense arrays, and if the
    number is unknown, `rows` is None.
    """

    columns: Sequence[Host]
    rows: int | None = None

    @property
    def dense(self) -> bool:
        return len(self.columns) == 1

    @property
    def stored(self) -> int:
        """Return the number of stored rows, or the number of elements of a dense array."""
        return len(self.columns[0])

    def forms(self, n: int) -> list[Form]:
        """Return the shapes and dtypes that the leaf's arrays would have with n rows."""
        return [((n, *x.shape[1:]), x.dtype) for x in self.columns]

    def summed(self, received: list[list[Host]]) -> HostLeaf:
        """Add the ranks' parts of the leaf in the order of ranks, and return the sum. If the leaf is sparse, also empty
        `received`."""
        return HostLeaf([fold_dense([x for (x,) in received])]) if self.dense else fold_sparse(self, received)

    def joined(self, received: list[list[Host]]) -> HostLeaf:
        """Concatenate the ranks' parts of the leaf in the order of ranks, and empty `received`."""
        with HOST.scope():
            columns = [HOST.concat(parts) for parts in zip(*received, strict=True)]
        received.clear()
        return self._replace(columns=columns)


def sparse_leaf(values: Host, indices: Host, rows: int | None) -> HostLeaf:
    """Return coalesced slices as a leaf to send. If int32 can represent all row numbers, the indices become int32."""
    return HostLeaf([indices.astype(narrow(rows, indices.dtype), copy=False), values], rows)


def fold_sparse(like: HostLeaf, received: list[list[Host]]) -> HostLeaf:
    """Add the slices of all ranks in the order of ranks, and return the sum. Each item of `received` is [indices,
    values].

    The function empties `received`, so that the sums can reuse the memory of the ranks' arrays.
    """
    indices, values = like.joined(received).columns
    values, indices = modes.run("sum_rows", HOST, (values, indices), rows=like.rows, loose=False)
    return like._replace(columns=[indices, values])


def fold_dense(blocks: Sequence[Host]) -> Host:
    """Add the blocks of all ranks in the order of ranks, and return the sum.

    16-bit values are added in float32, and the sum is rounded once.
    """
    with HOST.scope():
        total = HOST.widen(blocks[0])
        for block in blocks[1:]:
            total = total + HOST.widen(block)
        return HOST.astype(total, dtype_name(blocks[0].dtype))  # type: ignore[no-any-return]


def reduce_all(group: Group, leaves: Sequence[HostLeaf], counts: Sequence[Host], strategy: str) -> list[HostLeaf]:
    """Sum each leaf over all ranks, in the order of ranks.

    Parameters
    ----------
    group : Group
    leaves : sequence of HostLeaf
        The leaves of this rank. The kinds, shapes and dtypes of leaves must be the same on every rank.
    counts : sequence of int64 arrays
        counts[r][k] is the number of rows of leaf k that rank r stores. The counts of dense leaves are not used.
    strategy : str
        "auto" or one of `STRATEGIES`.
    """
    if group.size == 1 or not leaves:
        return list(leaves)
    each: list[Sequence[int]] = [
        [leaf.stored] * group.size if leaf.dense else stored
        for leaf, stored in zip(leaves, np.stack(counts, 1).tolist(), strict=True)
    ]
    cuts = _cuts(group, leaves, each, strategy)
    have = list(leaves)
    if cuts:
        for k, part, stored in zip(cuts, *_to_owners(group, [leaves[k] for k in cuts], [*cuts.values()]), strict=True):
            have[k], each[k] = part, stored
    received = gather_arrays(group, [x for leaf in have for x in leaf.columns], _forms(leaves, zip(*each, strict=True)))
    done = []
    for k, leaf in enumerate(leaves):
        parts = _next(leaf, received)
        done.append(leaf.joined(parts) if k in cuts else leaf.summed(parts))
    return done


def _to_owners(
    group: Group, leaves: Sequence[HostLeaf], cuts: Sequence[Host]
) -> tuple[list[HostLeaf], list[list[int]]]:
    """Send each range to its owner, and sum the range that this rank owns.

    Return (sums, counts). For each leaf, `counts` contains the number of rows of the sum on each rank.
    """
    sparse = not all(leaf.dense for leaf in leaves)
    mine = np.stack([np.diff(places) for places in cuts], 1)  # shape (ranks, leaves): the numbers of this rank's rows
    theirs: Sequence[Host] = [mine[group.rank]] * group.size  # right if all leaves are dense
    if sparse:
        theirs = [
            x for (x,) in exchange_arrays(group, [[row] for row in mine], [[(mine[0].shape, mine.dtype)]] * group.size)
        ]
    columns = [np.split(x, at[1:-1]) for leaf, at in zip(leaves, cuts, strict=True) for x in leaf.columns]
    received = exchange_arrays(group, list(zip(*columns, strict=True)), _forms(leaves, theirs))
    sums = [leaf.summed(_next(leaf, received)) for leaf in leaves]
    held = mine
    if sparse:
        held = np.stack([x for (x,) in gather_arrays(group, [np.array([leaf.stored for leaf in sums], np.int64)])])
    return sums, held.T.tolist()


def _forms(leaves: Sequence[HostLeaf], counts: Iterable[Iterable[int]]) -> list[list[Form]]:
    """Return the shapes and dtypes of each rank's arrays. For each rank, `counts` contains the numbers of rows of the
    leaves."""
    return [[form for leaf, n in zip(leaves, row, strict=True) for form in leaf.forms(int(n))] for row in counts]


def _next(leaf: HostLeaf, received: Sequence[list[Host]]) -> list[list[Host]]:
    """Remove the leaf's arrays from each rank's list of arrays, and return them.

    All arrays of a rank share one block of memory. The block is freed when the last of these arrays is freed.
    """
    return [[of_rank.pop(0) for _ in leaf.columns] for of_rank in received]


# ---------------------------------------------------------------------- choice of the strategy
def _cuts(group: Group, leaves: Sequence[HostLeaf], each: Sequence[Sequence[int]], strategy: str) -> dict[int, Host]:
    """Return the positions at which this rank's rows are cut for the strategy "ranges".

    The keys of the dict are the numbers of the leaves that use "ranges". Each value is an array of shape (ranks + 1,).
    """
    names = [_fastest(*x) if strategy == "auto" else strategy for x in zip(leaves, each, strict=True)]
    found = {k: even_bounds(leaf.stored, group.size) for k, leaf in enumerate(leaves) if names[k] == "ranges"}
    sparse = {k: leaves[k].columns[0] for k in found if not leaves[k].dense}
    if sparse:
        got = gather_arrays(group, [sample(ids) for ids in sparse.values()])
        for (k, ids), samples in zip(sparse.items(), zip(*got, strict=True), strict=True):
            inner = np.searchsorted(ids, splitters(samples, each[k], group.size))
            found[k] = np.concatenate([[0], inner, [len(ids)]])
    return found


def _fastest(leaf: HostLeaf, each: Sequence[int]) -> str:
    """Return the faster strategy for a leaf, on the assumption that half of all ranks' rows are distinct.

    `each` contains the number of rows on each rank.
    """
    ranks, most = len(each), max(each)
    row_bytes = sum(math.prod(x.shape[1:]) * x.itemsize for x in leaf.columns)
    union = most if leaf.dense else min(max(most, ranks * most / 2), math.inf if leaf.rows is None else leaf.rows)
    return choose(costs(ranks, row_bytes=row_bytes, most=most, union=union, dense=leaf.dense), ranks)
