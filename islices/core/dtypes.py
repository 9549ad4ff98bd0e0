"""Names of dtypes, and the NumPy dtypes of host arrays. NumPy lacks bfloat16, so uint16 stores the bits of bfloat16.

May import: `numpy`.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np


@cache
def dtype_name(dtype: np.dtype[Any]) -> str:
    """Return the name of a host array's dtype; uint16 stands for bfloat16."""
    return "bfloat16" if dtype == np.uint16 else dtype.name  # NumPy composes the name on every call


def as_bits(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return an array of ml_dtypes' bfloat16 viewed as uint16, and any other array unchanged."""
    # NumPy composes the name on every call, so the kind is compared first
    return array.view(np.uint16) if array.dtype.kind == "V" and array.dtype.name == "bfloat16" else array


@cache
def host_dtype(name: str) -> np.dtype[Any]:
    """Return the NumPy dtype of host arrays for the dtype with this name; uint16 stands for bfloat16."""
    return np.dtype(np.uint16 if name == "bfloat16" else name)
