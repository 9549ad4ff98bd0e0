"""The groupings of the last calls, by what was grouped: a norm and a step, or several passes of one step, group the
same indices.

Whether they are the same is read from the indices themselves, beside a copy, which takes a twentieth of the time: what
anyone writes to them in between is seen. May import: `numpy`, `islices.locks`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from islices.locks import Lock

__all__ = ["find", "keep"]

Host = np.ndarray[Any, Any]
Groups = tuple[Host, Host, Host]
#: Indices that are kept in all, 32 bytes each.
MOST = 1 << 19

_kept: dict[tuple[int, int], tuple[Host, Groups]] = {}
_lock = Lock()


def find(indices: Host) -> Groups | None:
    """What `keep` was given for equal indices in the same place, if it is still there. It is not to be written to."""
    held = _kept.get((indices.ctypes.data, len(indices)))
    if held is None or held[0].dtype != indices.dtype or not np.array_equal(held[0], indices):
        return None
    return held[1]


def keep(indices: Host, groups: Groups) -> None:
    """Hold the grouping of contiguous indices, for as long as there is room."""
    if len(indices) > MOST:
        return
    with _lock:
        _kept.pop(key := (indices.ctypes.data, len(indices)), None)
        _kept[key] = indices.copy(), groups
        size = sum(len(x) for x, _ in _kept.values())
        while size > MOST:
            oldest = next(iter(_kept))  # insertion order
            size -= len(_kept.pop(oldest)[0])
