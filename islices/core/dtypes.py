"""The names of dtypes and what NumPy arrays hold them: bfloat16, which NumPy does not know, as uint16 bit patterns.

May import: `numpy`.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np


@cache
def dtype_name(dtype: np.dtype[Any]) -> str:
    """The name of a host array's dtype: uint16 holds bfloat16."""
    return "bfloat16" if dtype == np.uint16 else dtype.name  # NumPy puts the name together on every call


@cache
def host_dtype(name: str) -> np.dtype[Any]:
    """The dtype of host arrays that hold what the name says: bfloat16 as its bits."""
    return np.dtype(np.uint16 if name == "bfloat16" else name)
