"""The duplicates of one IndexedSlices summed: what `islices.coalesce` does to each leaf.

A module of its own below `islices.native`, since a framework's own type may hold no duplicates. SPEC clauses 3 and 4.
May import: `islices.modes`, `islices.backend`, `islices.slices`.
"""

from __future__ import annotations

from islices import modes
from islices.backend import Array, Backend
from islices.slices import IndexedSlices

__all__ = ["coalesce_slices"]


def coalesce_slices(s: IndexedSlices) -> IndexedSlices:
    """s with strictly ascending indices, padding left out where nothing is traced; s itself where it is so already."""
    B, arrays = s.backend, (s.values, s.indices)
    if s.coalesced and not s.padded:
        return s
    views = modes.host_views(B, arrays)
    traced = views is None and modes.is_traced(B, *arrays)
    if s.coalesced and traced:
        return s
    rows = s.dense_shape[0]
    loose = traced or s.padded
    values, indices = modes.run_on(views, _sum_rows, B, arrays, rows=rows, loose=loose)
    return IndexedSlices._trusted(
        B, values, indices, s.dense_shape, coalesced=True, padded=traced and B.sentinel_padding
    )


def _sum_rows(B: Backend, values: Array, indices: Array, *, rows: int | None, loose: bool) -> tuple[Array, Array]:
    return B.sum_rows(values, indices, rows, loose=loose)
