"""Groupings that the same step asks for twice: a gradient's indices are grouped for its norm, which clips it, and then
for the rows that the optimizer changes. Known by their contents, since the arrays may be others by then, or changed.

May import: `numpy`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

Host = np.ndarray[Any, Any]
#: (order, ids, starts) of `islices.kernels.grouping`
Groups: TypeAlias = tuple[Host, Host, Host]

#: Slots that are worth it, and of all that are kept, at most.
FEWEST, MOST = 1 << 12, 1 << 21

#: A few of the indices, by which they are found -> (a copy of all, their groups)
_kept: dict[tuple[Any, ...], tuple[Host, Groups]] = {}


def keep_groups(found: Sequence[tuple[Host, Groups | None]]) -> None:
    """Keep indices' groups for the next who asks, and no others."""
    kept: dict[tuple[Any, ...], tuple[Host, Groups]] = {}
    total = 0
    for indices, groups in found:
        total += len(indices)
        if groups is not None and len(indices) >= FEWEST and total <= MOST:
            kept[_key(indices)] = indices.copy(), groups
    global _kept
    _kept = kept  # at once: other threads look at the one or the other


def kept_groups(indices: Host) -> Groups | None:
    """The groups of indices, if they are kept. They no longer are then: whoever has them may give them away."""
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
