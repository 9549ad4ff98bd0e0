"""64-bit types in JAX, which has them only where `jax_enable_x64` is set.

The core forms norms in float64 whatever the user's setting, so `scope` turns it on for the current thread while
the primitives run. What JAX minds:

- Inside `jax.jit` the scope lasts for the tracing only. JAX 0.7 lowers the result under the user's setting and
  narrows every 64-bit *literal* in it to 32 bits, which does not compile. Arrays are let through: `constant`.
- A Python scalar beside a weakly typed array (``jnp.full((2,), 1.0)``) becomes float64 under the scope. So
  scalars are given their array's dtype before JAX sees them: `constant` again.
- What `jax.grad` runs backwards runs outside the scope, where JAX makes 32-bit zeros for 64-bit cotangents and
  fails within: `leave` is the one way out of float64, and says so.
- ``jax.config.jax_enable_x64`` answers for the scope, not for the user: `users_x64` remembers the user's.
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

__all__ = ["apart", "constant", "enable_x64", "in_scope", "leave", "scope", "users_x64", "wide"]

if TYPE_CHECKING or hasattr(jax, "enable_x64"):
    enable_x64 = jax.enable_x64
else:  # before 0.8
    from jax.experimental import enable_x64

_outside: ContextVar[bool | None] = ContextVar("islices_jax_x64_outside", default=None)


def users_x64() -> bool:
    """Return whether the user has 64-bit types on, inside the scope too."""
    outside = _outside.get()
    return bool(jax.config.jax_enable_x64) if outside is None else outside  # type: ignore[attr-defined]


def in_scope() -> bool:
    """Return whether the core's arithmetic is running."""
    return _outside.get() is not None


@contextlib.contextmanager
def scope() -> Iterator[None]:
    """64-bit types on; the user's setting comes back at the end."""
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
    """64-bit types on, without entering the core's scope."""
    return contextlib.nullcontext() if jax.config.jax_enable_x64 else enable_x64(True)  # type: ignore[attr-defined]


def constant(value: Any, dtype: Any) -> Any:
    """A scalar as an operand of exactly that dtype, in traced code too."""
    array = np.asarray(value, dtype)
    if array.dtype.itemsize < 8 or users_x64():
        return array
    # jax_debug_nans would report the NaN that `apart` has for what is not a number already
    with jax.ensure_compile_time_eval(), wide(), jax.debug_nans(False):
        return jnp.asarray(array)


def apart(x: Any) -> Any:
    """Traced floats as they are, behind a selection, which alone stops XLA, barrier or not, from contracting a product
    and a sum to a fused multiply-add, and from starting a scatter's sums with what is added to them afterwards."""
    if not isinstance(x, jax.core.Tracer) or not jnp.issubdtype(x.dtype, np.floating):  # pyright: ignore[reportAttributeAccessIssue]
        return x
    return jnp.where(x == x, x, constant(np.nan, x.dtype))


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def leave(x: Any, dtype: str) -> Any:
    """Traced float64 of the core's own in the dtype of the user's; only what x64 allows is differentiated."""
    return lax.convert_element_type(x, dtype)


def _leave_forward(x: Any, dtype: str) -> tuple[Any, None]:
    return leave(x, dtype), None


def _leave_backward(dtype: str, _: None, cotangent: Any) -> NoReturn:
    raise TypeError(
        "jax.grad through a norm, which islices forms in float64: accepted where "
        'jax.config.update("jax_enable_x64", True) is set; otherwise lax.stop_gradient the gradient that is clipped'
    )


leave.defvjp(_leave_forward, _leave_backward)
