"""The names of dtypes and their NumPy dtypes. NumPy lacks bfloat16, so its bit patterns are stored as uint16.

May import: `numpy`.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np


@cache
def dtype_name(dtype: np.dtype[Any]) -> str:
    """Return the name of a host array's dtype; uint16 holds bfloat16."""
    return "bfloat16" if dtype == np.uint16 else dtype.name  # NumPy composes the name on every call


def as_bits(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return an array, with bfloat16 as its bits."""
    # a name is composed on every call, so look at the kind first
    return array.view(np.uint16) if array.dtype.kind == "V" and array.dtype.name == "bfloat16" else array


@cache
def host_dtype(name: str) -> np.dtype[Any]:
    """Return the dtype of host arrays for a dtype's name; bfloat16 is stored as its bits."""
    return np.dtype(np.uint16 if name == "bfloat16" else name)
