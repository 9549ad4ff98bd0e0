"""all_reduce within a program: a mapped axis of JAX, a replica context of TensorFlow. SPEC clause 25.

Nothing here looks at a value: what is moved follows from shapes, and errors that values would show cannot be raised.
Where shapes are static every slot travels, so the result has as many slots as the ranks have together, or, by "dense",
as there are rows if those are fewer; there are no "ranges", whose lengths would depend on the indices.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from islices.backend import Array, Backend
from islices.core import modes
from islices.core.arguments import show
from islices.core.rows import ITEMSIZE, coalesce, to_dense
from islices.core.slices import IndexedSlices
from islices.distributed.group import ArrayGroup
from islices.distributed.strategy import Cost, Link, choose, costs, dense_costs
from islices.norms.norm import parts

__all__ = ["reduce_inside"]

Fold = Callable[[Array, Array], Array]


def reduce_inside(leaf: Any, group: ArrayGroup, strategy: str = "auto", link: Link | None = None) -> Any:
    """The sum over ranks of one adopted leaf."""
    if isinstance(leaf, IndexedSlices):
        s = coalesce(leaf)
        return (_by_rows if _way(_slices_costs(s, group), group, strategy, link) == "dense" else _gathered)(s, group)
    B, x = parts(leaf)
    shape = B.shape(x)
    size = None if None in shape else math.prod(shape)  # type: ignore[arg-type]
    found = dense_costs(group.size, float(size or 0) * ITEMSIZE[B.dtype(x)])
    with B.scope():
        if size and _way(found, group, strategy, link) == "dense":
            return B.reshape(_summed_by_ranges(B, B.reshape(x, (size,)), group, _add), shape)
        return _fold(B, group.all_gather(B.reshape(x, (1, *shape))), group.size, _add)


def _way(found: dict[str, Cost], group: ArrayGroup, strategy: str, link: Link | None) -> str:
    """The strategy asked for, or the fastest of those that there are here."""
    accepted = ["gather"]
    if type(group).all_to_all is not ArrayGroup.all_to_all and "dense" in found:
        accepted.append("dense")
    if strategy == "auto":
        return choose({name: found[name] for name in accepted}, link or Link())
    if strategy not in accepted:
        raise ValueError(
            f"strategy: got {show(strategy)} for {group.engine}; accepted within a program are 'auto', "
            f"{', '.join(map(repr, accepted))}"
        )
    return strategy


def _slices_costs(s: IndexedSlices, group: ArrayGroup) -> dict[str, Cost]:
    B, rows = s.backend, s.dense_shape[0]
    n, *row_shape = B.shape(s.values)
    if n is None or None in row_shape:
        return {"gather": Cost(0.0, 0)}
    row = float(math.prod(row_shape)) * ITEMSIZE[B.dtype(s.values)]  # type: ignore[arg-type]
    stored = float(n * group.size)
    return costs(
        group.size,
        row_bytes=row + ITEMSIZE[B.dtype(s.indices)],
        values_bytes=row,
        rows=rows,
        stored=stored,
        union=stored,
    )


def _gathered(s: IndexedSlices, group: ArrayGroup) -> IndexedSlices:
    """Every rank's slots, summed."""
    B = s.backend
    with B.scope():
        values, indices = group.all_gather(s.values), group.all_gather(s.indices)
    still = s.padded or modes.keeps_slots(B, values, indices)
    return coalesce(IndexedSlices._trusted(B, values, indices, s.dense_shape, padded=still))


# ---------------------------------------------------------------------- by ranges of a table
def _by_rows(s: IndexedSlices, group: ArrayGroup) -> IndexedSlices:
    """The table's rows, each summed by the rank of its range, of which those that a rank has touched come back."""
    B, rows = s.backend, s.dense_shape[0]
    slots = B.shape(s.values)[0]
    if not rows or not slots:
        return _gathered(s, group)
    table = to_dense(s)
    with B.scope():
        ones = B.astype(B.equal(s.indices, s.indices), "int8")
        touched = _summed_by_ranges(B, B.scatter_rows(ones, s.indices, (rows,)), group, B.maximum)
        values = _summed_by_ranges(B, table, group, _add)
        numbers = B.astype(B.arange(values), B.dtype(s.indices))
        values, indices = B.select(values, numbers, B.equal(touched, 1), rows)
    padded = modes.keeps_slots(B, values, indices)
    found = coalesce(IndexedSlices._trusted(B, values, indices, s.dense_shape, padded=padded))
    most = slots * group.size
    if not padded or most >= rows:
        return found
    return IndexedSlices._trusted(
        B, found.values[:most], found.indices[:most], s.dense_shape, coalesced=True, padded=True
    )


def _summed_by_ranges(B: Backend, x: Array, group: ArrayGroup, fold: Fold) -> Array:
    """x of every rank folded, each range of axis 0 on one rank, which all then have."""
    count, *inner = B.shape(x)
    assert count is not None
    each = -(-count // group.size)
    rest = each * group.size - count
    if rest:
        x = B.concat([x, B.zeros((rest, *inner), B.dtype(x), x)])  # type: ignore[arg-type]
    blocks = B.reshape(group.all_to_all(x), (group.size, each, *inner))
    return group.all_gather(_fold(B, blocks, group.size, fold))[:count]


def _fold(B: Backend, blocks: Array, ranks: int, fold: Fold) -> Array:
    """The blocks (ranks, ...) taken together one after the other; 16-bit values in float32, rounded once."""
    shape = B.shape(blocks)[1:]
    dtype = B.dtype(blocks)
    wide = B.widen(B.reshape(blocks, (ranks, *shape)))
    order = B.arange(wide)
    total = None
    for rank in range(ranks):
        block = B.reshape(B.take(wide, order[rank : rank + 1]), shape)
        total = block if total is None else fold(total, block)
    return B.astype(total, dtype)


def _add(a: Array, b: Array) -> Array:
    return a + b
