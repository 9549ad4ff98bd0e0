"""How leaves that all ranks agree on are moved and summed: on the host, all of a tree in the same collectives."""

from __future__ import annotations

import abc
import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from islices.core import modes
from islices.core.dtypes import dtype_name
from islices.core.modes import HOST
from islices.distributed.group import Bytes, Group
from islices.distributed.packing import NARROW, Form, even_bounds, pack, size_of, unpack
from islices.distributed.sketch import sketch, splitters, union_size
from islices.distributed.strategy import choose, costs, dense_costs

__all__ = ["Dense", "Sparse", "fold_dense", "fold_sparse", "reduce_all"]

Host = np.ndarray[Any, Any]


class Sparse(NamedTuple):
    """Coalesced slices on the host (bfloat16 as uint16), of a table of so many rows (None: unknown)."""

    values: Host
    indices: Host
    rows: int | None

    @property
    def travelling(self) -> np.dtype[Any]:
        """The narrowest integers that hold every index."""
        return np.dtype(np.int32) if self.rows is not None and self.rows <= NARROW else self.indices.dtype

    @property
    def row_bytes(self) -> int:
        """Of a row as it travels."""
        return math.prod(map(int, self.values.shape[1:])) * self.values.itemsize + self.travelling.itemsize

    def arrays(self, start: int = 0, stop: int | None = None) -> list[Host]:
        """Rows of it as they travel."""
        return [self.indices[start:stop].astype(self.travelling, copy=False), self.values[start:stop]]

    def forms(self, n: int) -> list[Form]:
        """The forms of n rows of it as they travel."""
        return [((n,), self.travelling), ((n, *self.values.shape[1:]), self.values.dtype)]


class Dense(NamedTuple):
    """A dense array on the host (bfloat16 as uint16)."""

    values: Host


def fold_sparse(like: Sparse, received: list[list[Host]]) -> Sparse:
    """The ranks' rows, each [indices, values], added in the order of ranks. received is empty afterwards: what was in
    it is as large as the sums, and they may lie where it was."""
    values, indices = _joined(like, received)
    values, indices = modes.run("sum_rows", HOST, (values, indices), rows=like.rows, loose=False)
    return Sparse(values, indices, like.rows)


def _joined(like: Sparse, received: list[list[Host]]) -> tuple[Host, Host]:
    """(values, indices) of the ranks' rows, one rank's after the other; received is empty afterwards."""
    indices = np.concatenate([got[0] for got in received]).astype(like.indices.dtype, copy=False)
    with HOST.scope():
        values = HOST.concat([got[1] for got in received])
    received.clear()
    return values, indices


def fold_dense(blocks: Sequence[Host]) -> Host:
    """The ranks' blocks added in the order of ranks; 16-bit values in float32, rounded once."""
    with HOST.scope():
        total = HOST.widen(blocks[0])
        for block in blocks[1:]:
            total = total + HOST.widen(block)
        return np.asarray(HOST.astype(total, dtype_name(blocks[0].dtype)))  # sums of 0-d arrays are scalars


def reduce_all(
    group: Group, leaves: Sequence[Sparse | Dense], counts: Sequence[Host], strategy: str
) -> list[Sparse | Dense]:
    """The sums over ranks, in their order.

    Parameters
    ----------
    group : Group
    leaves : sequence of Sparse or Dense
        The same kinds, shapes and dtypes on every rank.
    counts : sequence of int64 arrays
        counts[r][k] is how many rows rank r stores of leaf k; 0 of a dense one.
    strategy : str
        "auto" or one of `STRATEGIES`.
    """
    if group.size == 1 or not leaves:
        return list(leaves)
    ways = _ways(group, leaves, counts, strategy)
    owned = [way for way in ways if not isinstance(way, _Gather)]
    if owned:
        _to_owners(group, owned)
    _to_all(group, ways)
    return [way.result for way in ways]


# ---------------------------------------------------------------------- the collectives
def _to_owners(group: Group, ways: Sequence[_Way]) -> None:
    """Each rank gets what all ranks have of its range, and sums it."""
    ranks = range(group.size)
    mine = [[way.count_for(rank) for way in ways] for rank in ranks]
    theirs = _exchange_counts(group, ways, mine)
    parts = [pack([x for way in ways for x in way.part_for(rank)]) for rank in ranks]
    forms = [[way.forms_from(n) for way, n in zip(ways, theirs[rank], strict=True)] for rank in ranks]
    got = group.all_to_all(parts, [size_of(form for each in forms[rank] for form in each) for rank in ranks])
    received = [_by_way(got[rank], forms[rank]) for rank in ranks]
    del parts, got
    for way in ways:
        way.fold([each.popleft() for each in received])


def _exchange_counts(group: Group, ways: Sequence[_Way], mine: Sequence[Sequence[int]]) -> list[list[int]]:
    """How many rows each rank has for this one, way by way; told only where that is not known anyway."""
    if not any(isinstance(way, _Ranges) for way in ways):
        return [list(mine[group.rank])] * group.size  # as many as this rank keeps for itself
    told = [np.array(counts, np.int64).view(np.uint8) for counts in mine]
    return [x.view(np.int64).tolist() for x in group.all_to_all(told, [len(x) for x in told])]


def _to_all(group: Group, ways: Sequence[_Way]) -> None:
    """Each rank gets what every rank has summed, or, of what is gathered, stored."""
    ranks = range(group.size)
    counts = [[0] * len(ways)] * group.size
    if any(isinstance(way, _Ranges) for way in ways):
        told = group.all_gather(np.array([way.folded_count for way in ways], np.int64).view(np.uint8))
        counts = [x.view(np.int64).tolist() for x in told]
    forms = [[way.forms_of(rank, n) for way, n in zip(ways, counts[rank], strict=True)] for rank in ranks]
    sizes = [size_of(form for each in forms[rank] for form in each) for rank in ranks]
    got = group.all_gather(pack([x for way in ways for x in way.folded]), sizes)
    received = [_by_way(got[rank], forms[rank]) for rank in ranks]
    del got
    for way in ways:
        way.finish([each.popleft() for each in received])


def _by_way(data: Bytes, forms: Sequence[Sequence[Form]]) -> deque[list[Host]]:
    """The arrays of each way in packed bytes, whose memory is free when the last of them is."""
    arrays = unpack(data, [form for each in forms for form in each])
    return deque([next(arrays) for _ in each] for each in forms)


# ---------------------------------------------------------------------- what becomes of a leaf
class _Way(abc.ABC):
    """A leaf on its way: parts of it to their owners, who sum them (not for `_Gather`), then the sums to everybody."""

    result: Sparse | Dense
    folded: list[Host]  # what this rank has for all
    folded_count = 0  # how many rows that is, where ranks cannot know it

    def count_for(self, rank: int) -> int:
        """How many rows this rank has for one."""
        return 0

    def part_for(self, rank: int) -> list[Host]:
        raise NotImplementedError

    def forms_from(self, n: int) -> list[Form]:
        """The forms of a part for this rank that has n rows."""
        raise NotImplementedError

    def fold(self, received: list[list[Host]]) -> None:
        raise NotImplementedError

    @abc.abstractmethod
    def forms_of(self, rank: int, n: int) -> list[Form]:
        """The forms of what a rank has for all; n is the rank's `folded_count`."""

    @abc.abstractmethod
    def finish(self, received: list[list[Host]]) -> None:
        """Make `result` of what every rank had for all."""


class _Gather(_Way):
    def __init__(self, leaf: Sparse | Dense, stored: Sequence[int]) -> None:
        self.leaf, self.stored = leaf, stored
        self.folded = leaf.arrays() if isinstance(leaf, Sparse) else [leaf.values]

    def forms_of(self, rank: int, n: int) -> list[Form]:
        leaf = self.leaf
        return leaf.forms(self.stored[rank]) if isinstance(leaf, Sparse) else [(leaf.values.shape, leaf.values.dtype)]

    def finish(self, received: list[list[Host]]) -> None:
        leaf = self.leaf
        self.result = (
            fold_sparse(leaf, received) if isinstance(leaf, Sparse) else Dense(fold_dense([got[0] for got in received]))
        )


class _Ranges(_Way):
    def __init__(self, leaf: Sparse, cuts: Host) -> None:
        self.leaf = leaf
        self.places = [0, *np.searchsorted(leaf.indices, cuts).tolist(), len(leaf.indices)]

    def count_for(self, rank: int) -> int:
        return int(self.places[rank + 1] - self.places[rank])

    def part_for(self, rank: int) -> list[Host]:
        return self.leaf.arrays(self.places[rank], self.places[rank + 1])

    def forms_from(self, n: int) -> list[Form]:
        return self.leaf.forms(n)

    def fold(self, received: list[list[Host]]) -> None:
        mine = fold_sparse(self.leaf, received)
        self.folded, self.folded_count = mine.arrays(), len(mine.indices)

    def forms_of(self, rank: int, n: int) -> list[Form]:
        return self.leaf.forms(n)

    def finish(self, received: list[list[Host]]) -> None:
        self.result = Sparse(*_joined(self.leaf, received), self.leaf.rows)


class _Blocks(_Way):
    """A dense array by equal ranges of its elements."""

    def __init__(self, leaf: Dense, ranks: int, rank: int) -> None:
        self.leaf, self.rank, self.flat = leaf, rank, leaf.values.reshape(-1)
        self.bounds = even_bounds(self.flat.size, ranks)

    def part_for(self, rank: int) -> list[Host]:
        return [self.flat[self.bounds[rank] : self.bounds[rank + 1]]]

    def forms_from(self, n: int) -> list[Form]:
        return self.forms_of(self.rank, n)

    def forms_of(self, rank: int, n: int) -> list[Form]:
        return [((int(self.bounds[rank + 1] - self.bounds[rank]),), self.flat.dtype)]

    def fold(self, received: list[list[Host]]) -> None:
        self.folded = [fold_dense([got[0] for got in received])]

    def finish(self, received: list[list[Host]]) -> None:
        self.result = Dense(np.concatenate([got[0] for got in received]).reshape(self.leaf.values.shape))


# ---------------------------------------------------------------------- which way
def _ways(group: Group, leaves: Sequence[Sparse | Dense], counts: Sequence[Host], strategy: str) -> list[_Way]:
    stored = np.stack(counts, 1).tolist()
    # by "auto" ranges cost least where the ranks' rows are all the same: what does not go so then never does
    names = [_strategy_for(leaf, each, max(each), strategy) for leaf, each in zip(leaves, stored, strict=True)]
    cut = {k: leaf for k, leaf in enumerate(leaves) if names[k] == "ranges" and isinstance(leaf, Sparse)}
    sketches = _sketches(group, cut)
    for k, seen in sketches.items():
        names[k] = _strategy_for(leaves[k], stored[k], union_size(seen, stored[k]), strategy)
    ways: list[_Way] = []
    for k, (leaf, name) in enumerate(zip(leaves, names, strict=True)):
        if name == "gather":
            ways.append(_Gather(leaf, stored[k]))
        elif isinstance(leaf, Sparse):
            ways.append(_Ranges(leaf, splitters(sketches[k], stored[k], group.size)))
        else:
            ways.append(_Blocks(leaf, group.size, group.rank))
    return ways


def _sketches(group: Group, leaves: Mapping[int, Sparse]) -> dict[int, list[Host]]:
    """Every rank's sketch of each of these sparse leaves."""
    if not leaves:
        return {}
    mine = np.stack([sketch(leaf.indices) for leaf in leaves.values()])
    got = [x.view(np.int64).reshape(mine.shape) for x in group.all_gather(mine.reshape(-1).view(np.uint8))]
    return {k: [x[place] for x in got] for place, k in enumerate(leaves)}


def _strategy_for(leaf: Sparse | Dense, each: Sequence[int], union: float, strategy: str) -> str:
    """The strategy asked for, or the one that is fastest; each: how many rows each rank stores."""
    ranks = len(each)
    if strategy != "auto":
        return strategy
    if isinstance(leaf, Dense):
        return choose(dense_costs(ranks, leaf.values.nbytes), ranks)
    return choose(costs(ranks, row_bytes=leaf.row_bytes, most=max(each), union=union), ranks)
