"""Keep groupings of indices, because one training step may need each grouping twice.

A step with clipping groups a gradient's indices to compute the norm, and again to update the table's rows.
`kept_groups` compares the contents of the indices, since the arrays may have been replaced or changed. May import:
`numpy`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

Host = np.ndarray[Any, Any]
#: (order, ids, starts) of `islices.kernels.grouping`
Groups: TypeAlias = tuple[Host, Host, Host]

#: the smallest number of slots of a kept grouping, and the largest total number of slots of all kept groupings
FEWEST, MOST = 1 << 12, 1 << 21

#: `_key` of the indices -> (a copy of the indices, their groups)
_kept: dict[tuple[Any, ...], tuple[Host, Groups]] = {}


def keep_groups(found: Sequence[tuple[Host, Groups | None]]) -> None:
    """Keep the groups of these indices for later calls of `kept_groups`, and drop all groups kept before.

    Groups of fewer than `FEWEST` slots, and groups beyond `MOST` slots in total, are not kept.
    """
    kept: dict[tuple[Any, ...], tuple[Host, Groups]] = {}
    total = 0
    for indices, groups in found:
        total += len(indices)
        if groups is not None and len(indices) >= FEWEST and total <= MOST:
            kept[_key(indices)] = indices.copy(), groups
    global _kept
    _kept = kept  # in one assignment: other threads see the old or the new dict


def kept_groups(indices: Host) -> Groups | None:
    """Return the kept groups of an array with the same contents as `indices`, or None if there are none.

    The cache drops the returned groups, because the caller may pass their arrays on to the user.
    """
    known = _kept
    if not known:
        return None
    key = _key(indices)
    found = known.get(key)
    if found is None or not np.array_equal(found[0], indices):
        return None
    return known.pop(key, (None, None))[1]  # None if another thread has just taken the groups


def _key(indices: Host) -> tuple[Any, ...]:
    n = len(indices)
    return indices.dtype.str, n, *indices[:: n // 8].tolist()
