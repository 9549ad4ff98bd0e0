"""The NumPy backend. Arrays in bfloat16 need the package ml_dtypes."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from islices.backend import FLOATS, Array, Host, Look, not_implemented
from islices.core.dtypes import as_bits
from islices.core.host import HostBackend


class NumpyBackend(HostBackend):
    name = "numpy"
    host_only = True
    float_dtypes = FLOATS if importlib.util.find_spec("ml_dtypes") else ("float16", "float32", "float64")

    def is_array(self, x: object) -> bool:
        return isinstance(x, (np.ndarray, np.generic)) and not isinstance(x, np.ma.MaskedArray)

    def dtype(self, x: Array) -> str:
        return _dtype_name(x.dtype)

    def host_view(self, x: Array) -> Host | None:
        return self.to_numpy(x)

    def look(self, arrays: Sequence[Array], *, views: bool = True) -> Look:
        look = Look([], [], [False] * len(arrays), [])
        for x in arrays:
            view, dtype = np.asarray(x), _dtype_name(x.dtype)
            look.dtypes.append(dtype)
            look.shapes.append(view.shape)
            look.views.append(view.view(np.uint16) if dtype == "bfloat16" else view)  # type: ignore[union-attr]
        return look

    def from_host(self, array: Host, like: Array) -> Array:
        return array.view(_bfloat16()) if array.dtype == np.uint16 else array

    def asarray(self, array: Host, like: Array | None = None) -> Array:
        array = np.array(array)
        return array.view(_bfloat16()) if array.dtype == np.uint16 else array

    def to_numpy(self, x: Array) -> Host:
        return as_bits(np.asarray(x))

    # ------------------------------------------------------------------ the host stores bfloat16 as uint16
    def astype(self, x: Array, dtype: str) -> Array:
        out = super().astype(self.to_numpy(x), dtype)
        return self.from_host(out, x) if dtype == "bfloat16" else out

    def zeros(self, shape: Sequence[int], dtype: str, like: Array) -> Array:
        out = super().zeros(shape, dtype, like)
        return self.from_host(out, like) if dtype == "bfloat16" else out

    def plain_tables(self, arrays: Sequence[Any]) -> Look | None:
        look = Look([], [], [False] * len(arrays), views := [])
        for x in arrays:
            if type(x) is not np.ndarray or not x.flags.carray or not x.dtype.isnative:
                return None
            look.dtypes.append(dtype := _dtype_name(x.dtype))
            look.shapes.append(x.shape)
            views.append(x.view(np.uint16) if dtype == "bfloat16" else x)
        return look

    def writable_view(self, x: Array) -> Host | None:
        flags = x.flags
        # threads must not write to an array whose elements share memory, such as a broadcast array
        lying = not flags.c_contiguous and any(n > 1 and step == 0 for n, step in zip(x.shape, x.strides, strict=True))
        return None if lying or not flags.writeable or not x.dtype.isnative else as_bits(x)

    differentiate = not_implemented(
        "NumPy records no gradients; where the gradient of the looked-up rows is known, "
        "embedding_grad(upstream, ids, num_rows) makes it the table's, and per_sample(upstream, ids, num_rows) each "
        "sample's"
    )


@cache
def _dtype_name(dtype: np.dtype) -> str:
    return str(dtype.name)  # NumPy makes the name again at every call, so it is cached


def _bfloat16() -> Any:
    try:
        import ml_dtypes
    except ImportError:
        raise TypeError("NumPy has no bfloat16 of its own: pip install ml_dtypes") from None
    return np.dtype(ml_dtypes.bfloat16)


backend = NumpyBackend()
