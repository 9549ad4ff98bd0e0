"""Share memory between JAX and NumPy on CPUs, in both directions and without copies. In NumPy arrays, uint16 represents
bfloat16.

JAX's `device_put` shares NumPy's memory if it is aligned to 64 bytes. A view keeps its array alive, and JAX does not
reuse a donated buffer that has a view. islices does not use DLPack, which is no faster than these views. DLPack also
rejects read-only and bfloat16 memory, and writes a line to stderr for each unaligned array.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.extend.core
import jax.numpy as jnp
import numpy as np
from jax import lax

from islices.backend import Array, Host, Opened
from islices.backends.jax import precision
from islices.core.dtypes import as_bits
from islices.core.host_memory import at_address, copied

if TYPE_CHECKING or hasattr(jax.extend.core, "get_opaque_trace_state"):
    from jax.extend.core import get_opaque_trace_state
else:  # before 0.10
    from jax.core import get_opaque_trace_state

BFLOAT16 = np.dtype(jnp.bfloat16)
with jax.ensure_compile_time_eval():
    #: JAX's trace state while nothing is being traced. A comparison with this state is cheaper than entering
    #: `ensure_compile_time_eval`.
    _NOT_TRACING = get_opaque_trace_state(convention="flax")
Tracer = jax.core.Tracer  # pyright: ignore[reportAttributeAccessIssue]


def view(x: Array) -> Host | None:
    """Return a NumPy view of the memory of an array. Return None if the array is traced, on several devices, or not on
    a CPU. Raise ValueError if the memory was deleted."""
    # the attribute `device` of an array on several devices is a sharding, and a sharding has no platform
    if isinstance(x, Tracer):
        return None
    check_alive(x)
    if getattr(x.device, "platform", None) != "cpu":
        return None
    return as_bits(np.asarray(x))


def check_alive(x: Array) -> None:
    """Raise ValueError if the array's memory was deleted or donated to another array."""
    if not isinstance(x, Tracer) and x.is_deleted():
        raise ValueError(f"x: got a JAX array of shape {x.shape} that was deleted or donated; accepted is one in use")


def put(array: Host, like: Array) -> Array:
    """Convert a NumPy array to a JAX array on the device ``place(like)``. If JAX can share the memory, nothing is
    copied.

    uint16 becomes bfloat16. All other dtypes stay the same, with any value of jax_enable_x64.
    """
    if array.dtype == np.uint16:
        array = array.view(BFLOAT16)
    wide = array.dtype.itemsize == 8 and not jax.config.jax_enable_x64  # type: ignore[attr-defined]
    if not wide and get_opaque_trace_state(convention="flax") == _NOT_TRACING:
        return jax.device_put(array, place(like))
    # the values are known, so the result is a concrete array even during a trace
    with precision.wide(), jax.ensure_compile_time_eval():
        return jax.device_put(array, place(like))


def place(like: Any) -> Any:
    """Return the device of `like`, where a result should be, or None if JAX should choose the device. The result is
    None if `like` is None, traced, a NumPy array, or on several devices. The result is also None if `like` is
    uncommitted on the default platform."""
    if like is None or isinstance(like, (Tracer, np.ndarray)):
        return None
    check_alive(like)
    device = like.device
    if not hasattr(device, "platform") or not (like.committed or device.platform != jax.default_backend()):
        return None
    return device


def narrow(array: Host) -> Host:
    """Convert a 64-bit array to a dtype that JAX can store without jax_enable_x64. int64 becomes int32.

    Raise IndexError if int32 cannot represent a number. Within `precision.scope`, float64 stays float64. Outside of the
    scope, float64 raises TypeError. All other dtypes always raise TypeError.
    """
    if array.dtype == np.int64:
        info = np.iinfo(np.int32)
        bad = (array < info.min) | (array > info.max)
        if bad.any():
            at = np.unravel_index(int(np.argmax(bad)), array.shape)
            position = int(at[0]) if len(at) == 1 else tuple(map(int, at))
            raise IndexError(
                f"array: got {int(array[at])} at position {position}; accepted is {info.min} <= value <= "
                f"{info.max}, since JAX holds int64 as int32 unless jax_enable_x64 is set"
            )
        return array.astype(np.int32)
    if array.dtype == np.float64 and precision.in_scope():  # a norm is being computed
        return array
    raise TypeError(
        f"array: got {array.dtype}; accepted are types of 32 bits or fewer, unless "
        'jax.config.update("jax_enable_x64", True) is set'
    )


# ---------------------------------------------------------------------- memory to write into
def writable(arrays: Sequence[Array], *, donate: bool = False) -> Opened | None:
    """See `Backend.writable`."""
    views: list[Any] = [view(x) for x in arrays]
    if any(v is None for v in views):
        return None
    if not donate:
        copies = [copied(v) for v in views]
        return copies, [put(new, x) for new, x in zip(copies, arrays, strict=True)]
    shapes_and_types = [(v.shape, v.dtype) for v in views]
    del views  # XLA copies arrays that have views
    with jax.ensure_compile_time_eval():
        results = _handed_over(list(arrays))
    jax.block_until_ready(results)  # wait for pending reads of the old arrays
    fresh = [
        at_address(x, x.unsafe_buffer_pointer(), shape, dtype, writable=True)
        for x, (shape, dtype) in zip(results, shapes_and_types, strict=True)
    ]
    return fresh, results


#: A function that returns new arrays in the memory of its arguments, because XLA reuses donated inputs for outputs.
#: Without the barrier, JAX would return the arguments without a computation, and would not donate them.
_handed_over: Any = jax.jit(lax.optimization_barrier, donate_argnums=0)
