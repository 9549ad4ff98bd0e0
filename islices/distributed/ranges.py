"""Contiguous ranges of rows, one a rank."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["NARROW", "even_bounds"]

#: Row numbers of up to so many rows travel as int32.
NARROW = 2**31


def even_bounds(count: int, parts: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Where ``parts`` ranges that cover 0 to count begin and end, (parts + 1,): their lengths differ by at most one,
    the longer ones first."""
    short, longer = divmod(count, parts)
    places = np.arange(parts + 1, dtype=np.int64)
    bounds: np.ndarray[Any, np.dtype[np.int64]] = places * short + np.minimum(places, longer)
    return bounds
