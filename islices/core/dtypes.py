"""The names of dtypes and the NumPy arrays for them: bfloat16, which NumPy lacks, as uint16 bit patterns.

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


@cache
def host_dtype(name: str) -> np.dtype[Any]:
    """Return the dtype of host arrays for a dtype's name; bfloat16 is stored as its bits."""
    return np.dtype(np.uint16 if name == "bfloat16" else name)
