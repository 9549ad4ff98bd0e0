"""all_reduce within a program: a mapped axis of JAX, a replica context of TensorFlow. SPEC clause 25.

This module reads no values: shapes alone decide the messages, so invalid values raise no error. Slices are gathered.
With static shapes every slot travels, so the result has as many slots as all ranks together. Slices do not go by
"ranges", because the lengths of ranges depend on the indices.
"""

from __future__ import annotations

import math
from typing import Any

from islices.backend import Array, Backend
from islices.core import modes
from islices.core.arguments import show
from islices.core.dtypes import host_dtype
from islices.core.rows import coalesce
from islices.core.slices import IndexedSlices, parts
from islices.distributed.group import ArrayGroup
from islices.distributed.strategy import choose, dense_costs


def reduce_inside(leaf: Any, group: ArrayGroup, strategy: str = "auto") -> Any:
    """Return the sum over ranks of one adopted leaf."""
    if strategy not in ("auto", "gather"):
        raise ValueError(
            f"strategy: got {show(strategy)} for {group.engine}; accepted within a program are 'auto' and 'gather'"
        )
    B, x = parts(leaf)
    if isinstance(leaf, IndexedSlices):
        s = coalesce(leaf)
        with B.scope():
            values, indices = group.all_gather(s.values), group.all_gather(s.indices)
        still = s.padded or modes.keeps_slots(B, values, indices)
        return coalesce(IndexedSlices._trusted(B, values, indices, s.dense_shape, padded=still))
    shape = B.shape(x)
    size = 0 if None in shape else math.prod(shape)  # type: ignore[arg-type]
    cuts = size and strategy == "auto" and type(group).all_to_all is not ArrayGroup.all_to_all
    with B.scope():
        nbytes = float(size) * host_dtype(B.dtype(x)).itemsize
        if cuts and choose(dense_costs(group.size, nbytes), group.size) == "ranges":
            return B.reshape(_summed_by_ranges(B, B.reshape(x, (size,)), group), shape)
        return _fold(B, group.all_gather(B.reshape(x, (1, *shape))), group.size)


def _summed_by_ranges(B: Backend, x: Array, group: ArrayGroup) -> Array:
    """Sum every rank's x (n,): each rank sums one range, and all ranks gather the sums."""
    (count,) = B.shape(x)
    assert count is not None
    each = -(-count // group.size)
    rest = each * group.size - count
    if rest:
        x = B.concat([x, B.zeros((rest,), B.dtype(x), x)])
    blocks = B.reshape(group.all_to_all(x), (group.size, each))
    return group.all_gather(_fold(B, blocks, group.size))[:count]


def _fold(B: Backend, blocks: Array, ranks: int) -> Array:
    """Add the blocks (ranks, ...) one after the other; 16-bit values in float32, rounded once."""
    shape = B.shape(blocks)[1:]
    dtype = B.dtype(blocks)
    wide = B.widen(B.reshape(blocks, (ranks, *shape)))
    order = B.arange(wide)
    total: Any = None
    for rank in range(ranks):
        block = B.reshape(B.take(wide, order[rank : rank + 1]), shape)
        total = block if total is None else total + block
    return B.astype(total, dtype)
