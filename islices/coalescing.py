"""The duplicates of one IndexedSlices summed: what `islices.coalesce` does to each leaf.

A module of its own below `islices.conversion`, since a framework's own type may hold no duplicates. SPEC clauses 3
and 4. May import: `islices.modes`, `islices.slices`.
"""

from __future__ import annotations

from typing import Any

from islices import modes
from islices.slices import IndexedSlices

__all__ = ["coalesce_slices"]


def coalesce_slices(s: Any) -> Any:
    """s with strictly ascending indices, padding left out where nothing is traced; s itself where it is so already.

    A dense array, whose rows are distinct, is itself too.
    """
    if not isinstance(s, IndexedSlices):
        return s
    if s.coalesced and not s.padded:
        return s
    B, arrays = s.backend, (s.values, s.indices)
    look = s._look or B.look(arrays, views=B.host_only or modes.on_host())
    traced = look.traced[0] or look.traced[1]
    if s.coalesced and traced:
        return s
    values, indices = modes.run("sum_rows", B, arrays, look, rows=s.dense_shape[0], loose=traced or s.padded)
    return IndexedSlices._trusted(
        B, values, indices, s.dense_shape, coalesced=True, padded=traced and B.sentinel_padding
    )
