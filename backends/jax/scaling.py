"""Values times numbers in traced code: one primitive (`primitives`), for what is too small to share among threads.

XLA shares even a loop of a thousand products among its threads, and waits for them: that took longer than the norm that
the products clip by. Many products are XLA's, which forms them where they are read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp

from islices.backend import Array
from islices.backends.jax import precision
from islices.backends.jax.primitives import calls, host_calls, kernels_run, primitive, shared

__all__ = ["scaled"]

#: (values, steps) to the values after them
Otherwise = Callable[[Array, Sequence[tuple[str, Any]]], Array]
#: Elements that XLA may share.
FEW = 1 << 16
#: The types of values, and of the numbers that they are multiplied by.
WIDE = {"float16": "float32", "bfloat16": "float32", "float32": "float32", "float64": "float64"}


def scaled(values: Array, steps: Sequence[tuple[str, Any]], otherwise: Otherwise) -> Array | None:
    """Traced values times ("mul") or over ("div") one or two numbers, one after the other, each step rounded; None
    where no kernel takes them."""
    dtype = values.dtype.name
    wide = WIDE.get(dtype)
    if wide is None or not 0 < values.size < FEW or not 0 < len(steps) <= 2 or kernels_run() is None:
        return None
    names, operands = [], [values]
    for name, c in steps:
        c = precision.constant(c, wide) if isinstance(c, (int, float)) else c
        if c.size != 1 or c.dtype.name != wide:
            return None
        names.append(name)
        operands.append(jnp.reshape(c, (1,)))
    if host_calls().scale_target(dtype, tuple(names)) is None:
        return None
    (out,) = scaled_p.bind(*operands, names=tuple(names), otherwise=otherwise)
    return out


def _shapes(values: Any, *numbers: Any, **params: Any) -> list[Any]:
    return [shared(values, *numbers)]


def _elsewhere(values: Array, *numbers: Array, names: tuple[str, ...], otherwise: Otherwise) -> list[Array]:
    return [otherwise(values, [(name, jnp.reshape(c, ())) for name, c in zip(names, numbers, strict=True)])]


def _on_host(values: Array, *numbers: Array, names: tuple[str, ...], otherwise: Otherwise) -> list[Array]:
    target = host_calls().scale_target(values.dtype.name, names)
    return calls(target, [values, *numbers], [(values.shape, values.dtype)])


scaled_p = primitive("islices_scaled", _shapes, _on_host, _elsewhere, whole=True)
