"""Move and sum leaves that all ranks agree on: on the host, with all leaves of a tree in the same collectives.

Leaves that go by ranges are cut first. Their parts go to their owners, which sum them. Then the sums, and all gathered
leaves, go to every rank.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from islices.backend import Host
from islices.core import modes
from islices.core.dtypes import dtype_name
from islices.core.modes import HOST
from islices.distributed.group import Bytes, Group
from islices.distributed.packing import NARROW, Form, even_bounds, pack, sample, size_of, splitters, unpack
from islices.distributed.strategy import choose, costs, dense_costs


class HostLeaf(NamedTuple):
    """Coalesced slices on the host (bfloat16 as uint16) of a table. rows is its number of rows, or None if unknown.

    A leaf without indices is a dense array, which travels as its elements.
    """

    values: Host
    indices: Host | None = None
    rows: int | None = None

    @property
    def travelling(self) -> np.dtype[Any]:
        """Return the narrowest integer dtype that holds every index."""
        assert self.indices is not None
        return np.dtype(np.int32) if self.rows is not None and self.rows <= NARROW else self.indices.dtype

    def arrays(self, start: int = 0, stop: int | None = None) -> list[Host]:
        """Return rows start to stop - 1 of the leaf as the arrays that are sent."""
        if self.indices is None:
            return [self.values.reshape(-1)[start:stop]]
        return [self.indices[start:stop].astype(self.travelling, copy=False), self.values[start:stop]]

    def forms(self, n: int) -> list[Form]:
        """Return the shapes and dtypes of n sent rows of the leaf."""
        if self.indices is None:
            return [((n,), self.values.dtype)]
        return [((n,), self.travelling), ((n, *self.values.shape[1:]), self.values.dtype)]

    def summed(self, received: list[list[Host]]) -> HostLeaf:
        """Add the ranks' parts of the leaf, in the order of ranks."""
        if self.indices is None:
            return self._replace(values=fold_dense([got[0] for got in received]))
        return fold_sparse(self, received)

    def joined(self, received: list[list[Host]]) -> HostLeaf:
        """Join the ranks' ranges of the leaf, and leave received empty."""
        indices = None
        if self.indices is not None:
            indices = np.concatenate([got[0] for got in received]).astype(self.indices.dtype, copy=False)
        with HOST.scope():
            values = HOST.concat([got[-1] for got in received])
        received.clear()
        return self._replace(values=values, indices=indices)


def fold_sparse(like: HostLeaf, received: list[list[Host]]) -> HostLeaf:
    """Add the ranks' rows, each [indices, values], in the order of ranks.

    Afterwards received is empty, so that the sums may reuse the memory of its arrays.
    """
    every = like.joined(received)
    values, indices = modes.run("sum_rows", HOST, (every.values, every.indices), rows=like.rows, loose=False)
    return HostLeaf(values, indices, like.rows)


def fold_dense(blocks: Sequence[Host]) -> Host:
    """Add the ranks' blocks in the order of ranks; 16-bit values in float32, rounded once."""
    with HOST.scope():
        total = HOST.widen(blocks[0])
        for block in blocks[1:]:
            total = total + HOST.widen(block)
        return np.asarray(HOST.astype(total, dtype_name(blocks[0].dtype)))  # sums of 0-d arrays are scalars


def reduce_all(group: Group, leaves: Sequence[HostLeaf], counts: Sequence[Host], strategy: str) -> list[HostLeaf]:
    """Return the sums over ranks, added in the order of ranks.

    Parameters
    ----------
    group : Group
    leaves : sequence of HostLeaf
        The same kinds, shapes and dtypes on every rank.
    counts : sequence of int64 arrays
        counts[r][k] is the number of rows that rank r stores of the sparse leaf k.
    strategy : str
        "auto" or one of `STRATEGIES`.
    """
    if group.size == 1 or not leaves:
        return list(leaves)
    each: list[Sequence[int]] = [
        [leaf.values.size] * group.size if leaf.indices is None else stored
        for leaf, stored in zip(leaves, np.stack(counts, 1).tolist(), strict=True)
    ]
    cuts = _cuts(group, leaves, each, strategy)
    have = list(leaves)
    if cuts:
        for k, part, stored in zip(cuts, *_to_owners(group, [leaves[k] for k in cuts], [*cuts.values()]), strict=True):
            have[k], each[k] = part, stored
    rows = list(zip(*each, strict=True))
    mine = pack([x for leaf in have for x in leaf.arrays()])
    received = _by_leaf(group.all_gather(mine, _sizes(leaves, rows)), leaves, rows)
    del mine
    done = []
    for k, leaf in enumerate(leaves):
        parts = [of_rank.popleft() for of_rank in received]
        out = leaf.joined(parts) if k in cuts else leaf.summed(parts)
        done.append(out if leaf.indices is not None else out._replace(values=out.values.reshape(leaf.values.shape)))
    return done


def _to_owners(
    group: Group, leaves: Sequence[HostLeaf], cuts: Sequence[Host]
) -> tuple[list[HostLeaf], list[list[int]]]:
    """Send each range to its owner, and sum this rank's range; return the sums and each rank's numbers of rows."""
    ranks, sparse = range(group.size), any(leaf.indices is not None for leaf in leaves)
    mine = np.stack([np.diff(places) for places in cuts], 1)  # for each rank, of each leaf
    theirs: list[Any] = [mine[group.rank]] * group.size  # of dense leaves every rank sends as many as this one keeps
    if sparse:
        sent = [row.view(np.uint8) for row in mine]
        theirs = [x.view(np.int64) for x in group.all_to_all(sent, [len(x) for x in sent])]
    parts = [
        pack([x for leaf, at in zip(leaves, cuts, strict=True) for x in leaf.arrays(int(at[r]), int(at[r + 1]))])
        for r in ranks
    ]
    received = _by_leaf(group.all_to_all(parts, _sizes(leaves, theirs)), leaves, theirs)
    del parts
    sums = [leaf.summed([of_rank.popleft() for of_rank in received]) for leaf in leaves]
    held = mine
    if sparse:
        own = np.array([sum_.values.size if sum_.indices is None else len(sum_.indices) for sum_ in sums], np.int64)
        held = np.stack([x.view(np.int64) for x in group.all_gather(own.view(np.uint8))])
    return sums, held.T.tolist()


def _sizes(leaves: Sequence[HostLeaf], counts: Sequence[Iterable[int]]) -> list[int]:
    """Return each rank's number of bytes for these numbers of rows of each leaf."""
    return [size_of(form for leaf, n in zip(leaves, row, strict=True) for form in leaf.forms(int(n))) for row in counts]


def _by_leaf(got: list[Bytes], leaves: Sequence[HostLeaf], counts: Sequence[Iterable[int]]) -> list[deque[list[Host]]]:
    """Return the arrays of each leaf in each rank's packed bytes. The memory lives as long as the last array."""
    found = []
    for data, row in zip(got, counts, strict=True):
        forms = [leaf.forms(int(n)) for leaf, n in zip(leaves, row, strict=True)]
        arrays = unpack(data, [form for each in forms for form in each])
        found.append(deque([next(arrays) for _ in each] for each in forms))
    return found


# ---------------------------------------------------------------------- choice of the strategy
def _cuts(group: Group, leaves: Sequence[HostLeaf], each: Sequence[Sequence[int]], strategy: str) -> dict[int, Host]:
    """Return {the number of a leaf that goes by ranges: the cuts of this rank's rows, (ranks + 1,)}."""
    names = [_fastest(*x) if strategy == "auto" else strategy for x in zip(leaves, each, strict=True)]
    found = {k: even_bounds(leaf.values.size, group.size) for k, leaf in enumerate(leaves) if names[k] == "ranges"}
    sparse = {k: ids for k in found if (ids := leaves[k].indices) is not None}
    if sparse:
        mine = np.stack([sample(ids) for ids in sparse.values()])
        got = [x.view(np.int64).reshape(mine.shape) for x in group.all_gather(mine.reshape(-1).view(np.uint8))]
        for place, (k, ids) in enumerate(sparse.items()):
            inner = np.searchsorted(ids, splitters([x[place] for x in got], each[k], group.size))
            found[k] = np.concatenate([[0], inner, [len(ids)]])
    return found


def _fastest(leaf: HostLeaf, each: Sequence[int]) -> str:
    """Return the strategy for a leaf, given the ranks' row counts. Assume that half of all rows are distinct."""
    ranks, most = len(each), max(each)
    if leaf.indices is None:
        return choose(dense_costs(ranks, leaf.values.nbytes), ranks)
    row_bytes = math.prod(map(int, leaf.values.shape[1:])) * leaf.values.itemsize + leaf.travelling.itemsize
    union = min(max(most, ranks * most / 2), math.inf if leaf.rows is None else leaf.rows)
    return choose(costs(ranks, row_bytes=row_bytes, most=most, union=union), ranks)
