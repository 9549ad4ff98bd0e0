"""Groupings that one step needs twice.

A gradient's indices are grouped for its norm, which clips it, and then for the rows that the optimizer changes. The
second call recognises the indices by their contents, since the arrays may have been replaced or changed. May import:
`numpy`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

Host = np.ndarray[Any, Any]
#: (order, ids, starts) of `islices.kernels.grouping`
Groups: TypeAlias = tuple[Host, Host, Host]

#: the smallest number of slots of a kept grouping, and the largest number of slots of all kept ones
FEWEST, MOST = 1 << 12, 1 << 21

#: a few of the indices as the key -> (a copy of all, their groups)
_kept: dict[tuple[Any, ...], tuple[Host, Groups]] = {}


def keep_groups(found: Sequence[tuple[Host, Groups | None]]) -> None:
    """Keep only the groups of these indices for the next caller."""
    kept: dict[tuple[Any, ...], tuple[Host, Groups]] = {}
    total = 0
    for indices, groups in found:
        total += len(indices)
        if groups is not None and len(indices) >= FEWEST and total <= MOST:
            kept[_key(indices)] = indices.copy(), groups
    global _kept
    _kept = kept  # in one assignment: other threads see the old or the new dict


def kept_groups(indices: Host) -> Groups | None:
    """Return the groups of indices if they are kept, and forget them, because the caller may give the arrays away."""
    known = _kept
    if not known:
        return None
    key = _key(indices)
    found = known.get(key)
    if found is None or not np.array_equal(found[0], indices):
        return None
    return known.pop(key, (None, None))[1]  # None if another thread was faster


def _key(indices: Host) -> tuple[Any, ...]:
    n = len(indices)
    return indices.dtype.str, n, *indices[:: n // 8].tolist()
