"""Use 64-bit types in JAX, even if the user has not set `jax_enable_x64`.

The core computes norms in float64. So while primitives run, `scope` turns 64-bit types on for the current thread. This
module compensates for the following properties of JAX:

- Inside `jax.jit`, the scope is active only while JAX traces the function. JAX 0.7 lowers the result with the user's
  setting, and narrows each 64-bit *literal* to 32 bits, so that the program does not compile. JAX does not narrow
  arrays, so `constant` replaces literals by arrays.
- Within the scope, if an operation has a Python scalar and a weakly typed array (``jnp.full((2,), 1.0)``), the scalar
  becomes float64. So `constant` first converts the scalar to the dtype of the array.
- The backward pass of `jax.grad` runs outside of the scope, where JAX makes 32-bit zeros for 64-bit cotangents and
  fails. So only `leave` converts traced float64 numbers, and its gradient raises an error that explains what to do.
- Within the scope, ``jax.config.jax_enable_x64`` is True. `users_x64` returns the user's setting.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

if TYPE_CHECKING or hasattr(jax, "enable_x64"):
    enable_x64 = jax.enable_x64
else:  # before 0.8
    from jax.experimental import enable_x64

_outside: ContextVar[bool | None] = ContextVar("islices_jax_x64_outside", default=None)


def users_x64() -> bool:
    """Return True if the user has turned 64-bit types on. The result is the same within `scope`."""
    outside = _outside.get()
    return bool(jax.config.jax_enable_x64) if outside is None else outside  # type: ignore[attr-defined]


def in_scope() -> bool:
    """Return True within `scope`, which is active while primitives run."""
    return _outside.get() is not None


@contextlib.contextmanager
def scope() -> Iterator[None]:
    """Turn 64-bit types on within the context. Afterwards, restore the user's setting."""
    if in_scope():
        yield
        return
    token = _outside.set(bool(jax.config.jax_enable_x64))  # type: ignore[attr-defined]
    try:
        with wide():
            yield
    finally:
        _outside.reset(token)


def wide() -> contextlib.AbstractContextManager[Any]:
    """Return a context in which 64-bit types are on. The context is not a `scope`, so `in_scope` does not change."""
    return contextlib.nullcontext() if jax.config.jax_enable_x64 else enable_x64(True)  # type: ignore[attr-defined]


def constant(value: Any, dtype: Any) -> Any:
    """Convert a scalar to an operand of exactly this dtype, even in traced code."""
    array = np.asarray(value, dtype)
    if array.dtype.itemsize < 8 or users_x64():
        return array
    # `apart` uses a NaN; jax_debug_nans would report it
    with jax.ensure_compile_time_eval(), wide(), jax.debug_nans(False):
        return jnp.asarray(array)


def apart(x: Any) -> Any:
    """Pass traced floats through a selection that changes no value. Return any other argument unchanged.

    Only a selection, not a barrier, prevents XLA from merging a product and a sum into a fused multiply-add. The
    selection also prevents XLA from moving a later addition into a scatter.
    """
    if not isinstance(x, jax.core.Tracer) or not jnp.issubdtype(x.dtype, np.floating):  # pyright: ignore[reportAttributeAccessIssue]
        return x
    return jnp.where(x == x, x, constant(np.nan, x.dtype))


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def leave(x: Any, dtype: str) -> Any:
    """Convert a traced float64 of the core to another dtype, for users who have not turned 64-bit types on. The
    gradient raises TypeError, because JAX cannot compute it in this case."""
    return lax.convert_element_type(x, dtype)


def _leave_backward(dtype: str, _: None, cotangent: Any) -> NoReturn:
    raise TypeError(
        "jax.grad through a norm, which islices forms in float64: accepted where "
        'jax.config.update("jax_enable_x64", True) is set; otherwise lax.stop_gradient the gradient that is clipped'
    )


leave.defvjp(lambda x, dtype: (leave(x, dtype), None), _leave_backward)
