"""Exchange arrays between NumPy and TensorFlow: NumPy's views of tensors, tensors in NumPy's memory, and copies.

NumPy reads the memory of an eager CPU tensor with the buffer protocol, because ``tensor.numpy()`` would copy. The
protocol does not support bfloat16, but a bitcast to uint16 also shares memory. In the other direction, DLPack shares
memory. TensorFlow aborts the process if the memory does not start at a multiple of 64 bytes, and NumPy does not export
read-only memory. So unaligned, read-only and non-contiguous arrays are first copied to aligned memory. For more than
`FEW` elements, this copy is also faster than `tf.constant`. May import: `tensorflow`, `numpy`, `islices.backend`,
`islices.core.dtypes`, `islices.core.host_memory`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import record
from tensorflow.python.ops.resource_variable_ops import BaseResourceVariable

from islices.backend import Array, Host, Opened
from islices.core.dtypes import as_bits
from islices.core.host_memory import ALIGNMENT, at_address, copied

#: The dtypes that both the buffer protocol and DLPack support.
PLAIN = frozenset(
    ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64")
)

#: Up to this number of elements, `tf.constant` is faster than a copy to aligned memory.
FEW = 256


def on_cpu(tensor: Array) -> bool:
    """Return True if an eager tensor is in host memory."""
    return "CPU:" in tensor.backing_device


def plain(x: Array) -> Array:
    """Return the tf.Variable or tensor inside a Keras variable. Return a tensor or a tf.Variable unchanged."""
    return x if isinstance(x, (tf.Tensor, tf.Variable)) else x.value


def handle(variable: Array) -> Array:
    """Return the resource of a variable of TensorFlow or Keras. Tapes identify variables by their resources."""
    return plain(variable).handle


def view(x: Array) -> Host | None:
    """Return a NumPy view of the memory of a tensor or variable. The view of bfloat16 has the dtype uint16. Return None
    if `x` is symbolic or not in host memory, or if its dtype is neither bfloat16 nor in `PLAIN`. Inside tf.function,
    also return None for a variable.

    The view of a variable contains the value at the time of the call. A later assignment does not change the view.
    """
    if not isinstance(x, tf.Tensor):
        if not tf.executing_eagerly():
            return None
        with tf.init_scope():  # no tape records this read
            own = plain(x)
            if is_plain(own):  # after a gather or scatter of rows, a read would copy (see `shared`)
                tf.raw_ops.DisableCopyOnRead(resource=own.handle)
            x = tf.convert_to_tensor(x)
    if tf.is_symbolic_tensor(x) or not on_cpu(x):
        return None
    name = x.dtype.name
    if name == "bfloat16":
        with tf.init_scope():
            x = tf.bitcast(x, tf.uint16)
    elif name not in PLAIN:
        return None
    return np.asarray(memoryview(x))


def writable(arrays: Sequence[Array], *, donate: bool = False) -> Opened | None:
    """See `Backend.writable`."""
    if not all(_is_here(x) for x in arrays):
        return None
    views, results = [], []
    for x in arrays:
        if isinstance(x, tf.Tensor):
            memory = copied(view(x))  # type: ignore[arg-type]  # x is in host memory
            x = accept(memory)
        else:
            memory = exclusive(handle(x), tf.as_dtype(x.dtype), tuple(x.shape))
        views.append(memory)
        results.append(x)
    return views, results


def _is_here(x: Array) -> bool:
    """Return True if x is an eager tensor, or a variable that `is_plain` accepts, in this process's host memory. The
    dtype must be bfloat16 or in `PLAIN`.

    Return False inside tf.function, for variables with several copies (tf.distribute), and for variables on other
    servers.
    """
    place = x = plain(x)
    if not isinstance(x, tf.Tensor):
        if not is_plain(x):
            return False
        place = x.handle
    if not tf.executing_eagerly() or tf.is_symbolic_tensor(place):
        return False
    device = place.backing_device  # pyright: ignore[reportOptionalMemberAccess]
    return (
        device.startswith("/job:localhost/") and "CPU:" in device and (x.dtype.name in PLAIN or x.dtype == tf.bfloat16)
    )


def is_plain(x: Array) -> bool:
    """Return True if a variable is a single resource, and its shape is known and has at least one dimension."""
    return isinstance(x, BaseResourceVariable) and x.shape.rank != 0 and x.shape.is_fully_defined()


def exclusive(resource: Array, dtype: tf.DType, shape: tuple[int, ...]) -> Host:
    """Return a writable view of the memory of the variable with this resource. When this function returns, no other
    tensor shares this memory.

    A tensor that was read from a variable may share its memory. So this function first runs a scatter with no rows on
    the variable. If the memory is shared, the scatter gives the variable new memory.
    """
    if 0 in shape:
        return np.empty(shape, np.uint16 if dtype == tf.bfloat16 else dtype.as_numpy_dtype)
    indices, updates = _no_rows(dtype, shape[1:])
    with record.stop_recording():
        tf.raw_ops.ResourceScatterUpdate(resource=resource, indices=indices, updates=updates)
    found = shared(resource, dtype, shape)
    return at_address(found, found.__array_interface__["data"][0], shape, found.dtype, writable=True)


def shared(resource: Array, dtype: tf.DType, shape: tuple[int, ...]) -> Host:
    """Return a view of the memory of the variable with this resource. The caller must delete the view before anything
    writes to the variable.

    After a gather or scatter of rows, TensorFlow makes a copy at each read of the variable. This function disables
    these copies until the next gather or scatter. Raise ValueError if the shape of the variable has changed.
    """
    with record.stop_recording():
        tf.raw_ops.DisableCopyOnRead(resource=resource)
        found = view(tf.raw_ops.ReadVariableOp(resource=resource, dtype=dtype))
    assert found is not None, "it is here"
    if found.shape != shape:  # the shape may change between steps
        raise ValueError(f"table: got shape {found.shape}; accepted is {shape}, as it was when the graph was built")
    return found


@cache
def _no_rows(dtype: Any, row_shape: tuple[int, ...]) -> tuple[Array, Array]:
    with tf.device("CPU:0"):
        return tf.zeros((0,), tf.int64), tf.zeros((0, *row_shape), dtype)


def fetch(x: Array) -> Host:
    """Return a tensor from any device as a NumPy array. bfloat16 becomes uint16. Raise TypeError for a symbolic tensor,
    and for a variable inside tf.function."""
    found = view(x)
    if found is not None:
        return found
    if not hasattr(x, "numpy") or tf.is_symbolic_tensor(x) or not (tf.executing_eagerly() or isinstance(x, tf.Tensor)):
        raise TypeError(f"x: got {x!r:.80}, whose value is not known inside tf.function; accepted is an eager tensor")
    return as_bits(np.asarray(x.numpy()))


def accept(array: Host) -> Array:
    """Return an eager CPU tensor that shares the memory of an array, or contains a copy if the memory cannot be shared.
    A later write to the array may also change the tensor. uint16 becomes bfloat16."""
    flags = array.flags
    if not (flags.writeable and flags.c_contiguous and array.__array_interface__["data"][0] % ALIGNMENT == 0):
        array = copied(array, array.dtype.newbyteorder("="))
    tensor = tf.experimental.dlpack.from_dlpack(array.__dlpack__())
    if array.dtype != np.uint16:
        return tensor
    with tf.init_scope():
        return tf.bitcast(tensor, tf.bfloat16)


def copy(array: Host) -> Array:
    """Copy an array to a new tensor on the current device. uint16 becomes bfloat16."""
    array = as_bits(array)
    if array.dtype.name not in PLAIN or (array.size <= FEW and array.dtype != np.uint16 and array.dtype.isnative):
        try:
            return tf.constant(array)
        except ValueError as error:
            raise TypeError(f"array: got {array.dtype}; accepted are the dtypes of TensorFlow") from error
    if tf.executing_eagerly():
        return tf.identity(accept(copied(array, array.dtype.newbyteorder("="))))
    tensor = tf.constant(array)
    return tf.bitcast(tensor, tf.bfloat16) if array.dtype == np.uint16 else tensor
