"""Use 64-bit types in JAX, even if the user has not set `jax_enable_x64`.

The core computes norms in float64. So while primitives run, `scope` turns 64-bit types on for the current thread. This
module compensates for the following properties of JAX:

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
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

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
    return contextlib.nullcontext() if jax.config.jax_enable_x64 else jax.enable_x64(True)  # type: ignore[attr-defined]


def constant(value: Any, dtype: Any) -> Any:
    """Return a scalar as an array of exactly this dtype."""
    return np.asarray(value, dtype)


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
