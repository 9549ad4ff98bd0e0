"""Convert dtypes, arrays and numbers between MXNet and NumPy. If possible, the arrays share memory.

All functions work with `mx.util.np_shape` on or off. May import: `numpy`, the core, this folder.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from islices.backend import Host
from islices.backends.mxnet.stand_in import import_mxnet
from islices.core.dtypes import as_bits
from islices.core.host import bfloat16_bits
from islices.core.host_memory import at_address

mx = import_mxnet()

# If an array that shares NumPy's memory exists until the interpreter ends, it is freed after MXNet's modules. MXNet
# then calls this function of one of its modules, and the process crashes if the function no longer exists.
ctypes.pythonapi.Py_IncRef(ctypes.py_object(getattr(mx.nd.ndarray, "dl_managed_tensor_deleter", None)))

#: MXNet's Python code represents bfloat16 by this structured dtype with one field.
BFLOAT16 = np.dtype([("bfloat16", np.uint16)])
#: NumPy's name of a dtype -> MXNet's dtype
DTYPES: dict[str, Any] = {
    name: np.dtype(name).type for name in ("float16", "float32", "float64", "uint8", "int8", "int32", "int64", "bool")
}
DTYPES["bfloat16"] = BFLOAT16
NAMES = {dtype: name for name, dtype in DTYPES.items()}
#: MXNet's operations accept only arrays with fewer elements than this.
LIMIT = 2**31 - 1


def check_size(shape: Sequence[int]) -> None:
    """Raise ValueError if an array of this shape has too many elements for the operations of MXNet."""
    if math.prod(shape) >= LIMIT:
        raise ValueError(f"shape: got {tuple(shape)}; accepted by MXNet are fewer than 2**31 - 1 elements")


def view(x: Any, *, writable: bool = False) -> Host | None:
    """Wait until x is computed, and return a view of its memory. The view of bfloat16 has the dtype uint16. Return None
    if the memory is not on a CPU.

    If `writable` is True, the view is writable, and the function also waits until all pending reads of x have finished.
    """
    if not x.context.device_type.startswith("cpu"):
        return None
    shape, dtype = tuple(x.shape), np.dtype(x.dtype)
    if dtype == BFLOAT16:
        dtype = np.dtype(np.uint16)
    if 0 in shape:
        return np.empty(shape, dtype)
    if writable:
        mx.base.check_call(mx.base._LIB.MXNDArrayWaitToWrite(x.handle))
    else:
        x.wait_to_read()
    address = ctypes.c_void_p()
    mx.base.check_call(mx.base._LIB.MXNDArrayGetData(x.handle, ctypes.byref(address)))
    # a view is read-only unless writable, so that `share` copies it if a kernel returns it
    return at_address(x, address.value or 0, shape, dtype, writable=writable)


def share(array: Host, context: Any) -> Any:
    """Return an NDArray that shares the memory of a NumPy array, which the caller must not use afterwards. uint16
    becomes bfloat16. If MXNet cannot share the memory, copy the array."""
    check_size(array.shape)
    if array.size == 0:
        return zeros(array.shape, "bfloat16" if array.dtype == np.uint16 else array.dtype.name, context)
    if array.dtype == np.uint16:
        with mx.util.np_shape(True):
            out = mx.nd.empty(array.shape, context, BFLOAT16)
            out[:] = np.ascontiguousarray(array).view(BFLOAT16).reshape(array.shape)
        return out
    if array.dtype == np.int8:  # from_numpy rejects it
        with mx.util.np_shape(True):
            return mx.nd.array(array, context, dtype=np.int8)
    if not (array.flags.writeable and array.flags.c_contiguous and array.flags.aligned):
        array = array.copy()
    shared = mx.nd.from_numpy(array, zero_copy=True)
    return shared if context.device_type.startswith("cpu") else shared.as_in_context(context)


def as_array(array: Host, context: Any) -> Any:
    """Copy a NumPy array to an NDArray."""
    array = as_bits(np.asarray(array))
    if array.dtype != np.uint16 and array.dtype.name not in DTYPES:
        raise TypeError(f"array: got dtype {array.dtype}; accepted dtypes in MXNet are {', '.join(DTYPES)}")
    return share(np.array(array, array.dtype.newbyteorder("="), order="C"), context)


def zeros(shape: Sequence[int], dtype: str, context: Any) -> Any:
    check_size(shape)
    with mx.util.np_shape(True):
        return mx.nd.zeros(tuple(shape), context, DTYPES[dtype])


def operands(a: Any, b: Any) -> tuple[Any, Any]:
    """Return both operands as NDArrays. One operand may be a Python number, which gets the dtype and rank of the
    other."""
    if not isinstance(a, mx.nd.NDArray):
        return _number(a, b), b
    return (a, b) if isinstance(b, mx.nd.NDArray) else (a, _number(b, a))


def _number(value: float, like: Any) -> Any:
    shape = (1,) * len(like.shape)
    with np.errstate(over="ignore"):
        if NAMES[like.dtype] == "bfloat16":
            return share(bfloat16_bits(np.full(shape, value, np.float32)), like.context)
        return share(np.full(shape, value, like.dtype), like.context)
