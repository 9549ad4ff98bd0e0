"""The duplicates of one IndexedSlices summed: what `islices.coalesce` does to each leaf.

A module of its own below `islices.core.conversion`, since a framework's own type may hold no duplicates. SPEC clauses 3
and 4. May import: `islices.kernels`, `islices.backend`, `islices.core.modes`, `islices.core.slices`.
"""

from __future__ import annotations

from typing import Any

from islices import kernels
from islices.backend import FLOATS, INTEGERS, Backend
from islices.core import modes
from islices.core.slices import IndexedSlices

__all__ = ["coalesce_few", "coalesce_slices"]

#: dtypes of values.
SUMMED = frozenset((*FLOATS, *INTEGERS))


def coalesce_slices(s: Any) -> Any:
    """s with strictly ascending indices, padding left out where nothing is traced; s itself where it is so already.

    A dense array, whose rows are distinct, is itself too.
    """
    if not isinstance(s, IndexedSlices):
        return s
    if s.coalesced and not s.padded:
        return s
    B, look = s.backend, s._look
    if look is not None and look.views is not None and modes.on_host():
        sums, ids = modes.compute("sum_rows", look.views, rows=s.dense_shape[0], loose=s.padded)
        return IndexedSlices._of_views(s, sums, ids, coalesced=True)
    arrays = s.values, s.indices
    look = look or B.look(arrays, views=B.host_only or modes.on_host())
    traced = look.traced[0] or look.traced[1]
    if s.coalesced and traced:
        return s
    values, indices = modes.run("sum_rows", B, arrays, look, rows=s.dense_shape[0], loose=traced or s.padded)
    return IndexedSlices._trusted(
        B, values, indices, s.dense_shape, coalesced=True, padded=traced and B.sentinel_padding
    )


def coalesce_few(B: Backend, x: Any) -> Any:
    """A framework's own object coalesced by one call of a kernel, which looks at the indices on its way; None where
    `coalesce_slices` is to do it, or to say what is wrong."""
    compiled = kernels.active() if modes.on_host() else None
    if compiled is None:
        return None
    values, _, shape, coalesced, padded, look = B.from_native(x)
    if look is None or look.views is None or coalesced or padded:
        return None
    if look.dtypes[0] not in SUMMED or look.shapes[0] != (*look.shapes[1], *shape[1:]):
        return None
    found = compiled.sum_few(*look.views, shape[0])
    if found is None:
        return None
    return B.to_native(B.from_host(found[0], values), found[1], shape, coalesced=True, padded=False, like=x)
