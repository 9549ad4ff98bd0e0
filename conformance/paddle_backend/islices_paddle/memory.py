"""Share memory between Paddle's tensors and NumPy's arrays, and map Paddle's dtypes to names.

Through DLPack, Paddle uses NumPy memory at any alignment, and NumPy gets read-only views of Paddle's memory. DLPack
does not copy, but `Tensor.numpy` and `paddle.to_tensor` do. May import: Paddle, NumPy and `islices.core.host_memory`.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import paddle

from islices.core.host_memory import at_address

__all__ = ["as_tensor", "dtype_name", "share", "view", "writable_view"]

Host = np.ndarray[Any, Any]


@cache
def dtype_name(dtype: Any) -> str:
    return str(dtype).removeprefix("paddle.")


def view(x: paddle.Tensor) -> Host | None:
    """Return a read-only view of x's memory (uint16 for bfloat16), or None if x is not on the CPU. Paddle would not
    notice changes through a writable view. Raise ValueError if the memory was released."""
    if x.size and not x._is_initialized():
        raise ValueError("x: got a tensor whose memory has been released; accepted is one that holds values")
    if not x.place.is_cpu_place():
        return None
    x = x.detach()  # DLPack raises for a tensor that requires a gradient
    if x.dtype == paddle.bfloat16:
        return np.from_dlpack(x.view("int16")).view(np.uint16)
    return np.from_dlpack(x)


def writable_view(x: paddle.Tensor) -> Host | None:
    """Return a writable view of x's memory, or None if x is not on the CPU or not in C order."""
    seen = view(x)
    if seen is None or not seen.flags.c_contiguous:
        return None
    return at_address(x, x.data_ptr(), seen.shape, seen.dtype, writable=True) if seen.size else seen.copy()


def share(array: Host, place: Any = None) -> paddle.Tensor:
    """Return a tensor that shares the memory of a NumPy array. After the call, the caller must not use the array.

    uint16 means bfloat16. Read-only and strided arrays are copied. If `place` is not the CPU, every array is copied.
    """
    if not (array.flags.writeable and array.flags.c_contiguous):
        array = array.copy()  # DLPack raises for read-only arrays, and Paddle misreads negative strides
    bits = array.dtype == np.uint16
    out = paddle.utils.dlpack.from_dlpack(array.view(np.int16) if bits else array)
    out = out.view("bfloat16") if bits else out
    return out if place is None or place.is_cpu_place() else out.to(place)


def as_tensor(array: Host, place: Any = None) -> paddle.Tensor:
    """Return a tensor with a copy of the caller's NumPy array. Raise TypeError unless the elements are numbers or
    bools."""
    if array.dtype.name == "bfloat16":
        array = array.view(np.uint16)
    if array.dtype.kind not in "fiubc":
        raise TypeError(f"array: got dtype {array.dtype}; accepted in Paddle are numbers and bool")
    return share(np.array(array, array.dtype.newbyteorder("="), order="C"), place)
