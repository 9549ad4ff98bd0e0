"""flax.linen.Embed with a `Table` in place of its "embedding" parameter: the layer then looks its rows up.

The model is not changed: flax lets its method calls be intercepted, for the current thread, while a function is
differentiated. Flax is not imported here; it is used where it has been.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from typing import Any

from islices.table import Table

__all__ = ["intercepting"]


def intercepting() -> contextlib.AbstractContextManager[Any]:
    """A context in which nn.Embed layers whose embedding is a Table look up in it."""
    linen = sys.modules.get("flax.linen")
    intercept = getattr(linen, "intercept_methods", None)  # not there yet while flax itself is being imported
    return contextlib.nullcontext() if intercept is None else intercept(_look_up)


def _look_up(call: Callable[..., Any], args: Any, kwargs: Any, context: Any) -> Any:
    module = context.module
    if not isinstance(module, sys.modules["flax.linen"].Embed) or context.method_name not in ("__call__", "attend"):
        return call(*args, **kwargs)
    table = module.embedding
    if not isinstance(table, Table):
        return call(*args, **kwargs)
    if context.method_name == "attend":
        return _attend(module, table, *args, **kwargs)
    return _embed(module, table, *args, **kwargs)


def _embed(module: Any, table: Table, inputs: Any) -> Any:
    (rows,) = module.promote_dtype(table[inputs], dtype=module.dtype, inexact=False)
    return rows


def _attend(module: Any, table: Table, query: Any) -> Any:
    query, weights = module.promote_dtype(query, table.weights, dtype=module.dtype)
    return sys.modules["jax"].numpy.dot(query, weights.T)
