"""all_reduce within a program: a mapped axis of JAX, a replica context of TensorFlow. SPEC clause 25.

Nothing here looks at a value: what is moved follows from shapes, and errors that values would show cannot be raised.
"""

from __future__ import annotations

from typing import Any

from islices import modes
from islices.backend import Array, Backend
from islices.distributed.group import ArrayGroup
from islices.norms import parts
from islices.rows import coalesce
from islices.slices import IndexedSlices

__all__ = ["reduce_inside"]


def reduce_inside(leaf: Any, group: ArrayGroup, strategy: str = "auto") -> Any:
    """The sum over ranks of one adopted leaf."""
    if isinstance(leaf, IndexedSlices):
        return _reduce_slices(coalesce(leaf), group)
    B, x = parts(leaf)
    with B.scope():
        return _fold_blocks(B, group.all_gather(B.reshape(x, (1, *B.shape(x)))), group.size)


def _reduce_slices(s: IndexedSlices, group: ArrayGroup) -> IndexedSlices:
    B = s.backend
    with B.scope():
        values, indices = group.all_gather(s.values), group.all_gather(s.indices)
    still = s.padded or modes.keeps_slots(B, values, indices)
    return coalesce(IndexedSlices._trusted(B, values, indices, s.dense_shape, padded=still))  # type: ignore[no-any-return]


def _fold_blocks(B: Backend, blocks: Array, ranks: int) -> Array:
    """The blocks (ranks, ...) added one after the other; 16-bit values in float32, rounded once."""
    shape = B.shape(blocks)[1:]
    dtype = B.dtype(blocks)
    wide = B.widen(B.reshape(blocks, (ranks, *shape)))
    order = B.arange(wide)
    total = None
    for rank in range(ranks):
        block = B.reshape(B.take(wide, order[rank : rank + 1]), shape)
        total = block if total is None else total + block
    return B.astype(total, dtype)
