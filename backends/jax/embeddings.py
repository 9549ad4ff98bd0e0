"""The backend's primitives for embeddings: reading and setting rows, bags, derivatives, models.

Operations that only move memory use NumPy views of CPU arrays, so that a new shape does not compile.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import jax.numpy as jnp
import numpy as np
from jax import lax

from islices.backend import Array, Backend, Gradient, GradientOfValue, Source, TableUse, Transform
from islices.backends.jax import differentiation, gathers, host_views, scatters
from islices.backends.jax.host_views import Tracer
from islices.backends.jax.markers import read
from islices.core.host_memory import empty
from islices.core.registry import describe

__all__ = ["Embeddings"]


class Embeddings(Backend):
    """The primitives of `Backend` that lookups and their gradients need."""

    # ------------------------------------------------------------------ rows
    def read_rows(self, table: Array, ids: Array) -> Array:
        views = host_views.view(table), host_views.view(ids)
        if views[0] is None or views[1] is None:
            return read(table, ids)
        rows = empty((*ids.shape, *table.shape[1:]), views[0].dtype)
        if rows.size:
            np.take(views[0], views[1], axis=0, out=rows, mode="clip")  # in range; "raise" would buffer
        return host_views.put(rows, table)

    def fold_rows(self, op: str, rows: Array, values: Array, segments_: Array) -> Array:  # pyright: ignore[reportIncompatibleMethodOverride]
        return scatters.fold_rows(op, rows, values, segments_)

    def set_rows(self, table: Array, ids: Array, values: Array, *, donate: bool = False) -> Array:
        if isinstance(table, Tracer):
            table = lax.stop_gradient(table)
        if donate and not any(isinstance(x, Tracer) for x in (table, ids, values)):
            return scatters.replace_donated(table, ids, values)
        views = [host_views.view(x) for x in (table, ids, values)]
        if any(v is None for v in views):
            return scatters.replace_jitted(table, ids, values)
        out = empty(table.shape, views[0].dtype)  # type: ignore[union-attr]
        out[...] = views[0]
        out[views[1]] = views[2]
        return host_views.put(out, table)

    def add_in_order(self, table: Array, ids: Array, values: Array, *, donate: bool = False) -> Array | None:
        if not donate or "float" not in table.dtype.name or any(isinstance(x, Tracer) for x in (table, ids, values)):
            return None  # in jit XLA might merge other additions into this one
        return scatters.add_donated(table, ids, values)

    def in_place(self, x: Array) -> bool:
        return False

    def writable(self, arrays: Sequence[Array], *, donate: bool = False) -> tuple[list[np.ndarray], list[Array]] | None:
        return host_views.writable(arrays, donate=donate)

    def arange(self, x: Array) -> Array:
        n = x.shape[0]
        return lax.iota(np.int32, n) if isinstance(x, Tracer) else host_views.put(np.arange(n, dtype=np.int32), x)

    def searchsorted(self, ordered: Array, queries: Array, *, right: bool) -> Array:
        if 0 in ordered.shape or 0 in queries.shape:
            return jnp.zeros(queries.shape, np.int32)
        # comparing all pairs or sorting both needs more memory; this makes log(n) reads per query
        return jnp.searchsorted(ordered, queries, side="right" if right else "left").astype(np.int32)

    def running_sum(self, x: Array) -> Array:
        return jnp.cumsum(x, dtype=x.dtype)

    def segment_max(self, values: Array, segments_: Array, count: int | None, *, least: float | None = None) -> Array:  # pyright: ignore[reportIncompatibleMethodOverride]
        assert count is not None, "JAX knows its shapes"
        traced = isinstance(values, Tracer) or isinstance(segments_, Tracer)
        if least is not None or traced or 0 in values.shape or count == 0:
            return scatters.maximum(values, segments_, count, least)
        room = host_views.power_of_two(count)
        values, segments_ = host_views.lengthened(values, segments_, room)
        return host_views.first_rows(scatters.maximum_jitted(values, segments_, room), count)

    # ------------------------------------------------------------------ derivatives
    def stop_gradient(self, x: Array) -> Array:
        return lax.stop_gradient(x)

    def custom_gradient(self, forward: Callable[..., Array], backward: Gradient) -> Callable[..., Array]:
        return differentiation.custom_gradient(forward, backward)

    def with_gradient(self, value: Array, arrays: Sequence[Array], backward: GradientOfValue) -> Array:
        return differentiation.with_gradient(value, arrays, backward)

    def differentiate(
        self, fn: Transform, variables: Sequence[Array], sources: Sequence[Source]
    ) -> tuple[Array, Any, list[Array], list[list[TableUse]]]:
        return differentiation.differentiate(fn, variables, sources)

    def differentiate_rows(
        self, fn: Callable[..., tuple[Array, Any]], tree: Any, sparse: Any, data: Sequence[Array] | None = None
    ) -> tuple[Array, Any, Any]:
        if data is not None:
            return gathers.per_sample(self, fn, tree, sparse, data)
        return gathers.value_and_grad(self, fn, tree, sparse)

    def per_sample_gradients(
        self, fn: Callable[[list[Array], list[Array]], Array], variables: Sequence[Array], data: Sequence[Array]
    ) -> list[Array]:
        return differentiation.per_sample_gradients(fn, variables, data)

    def flatten_tree(
        self, x: Any, is_leaf: Callable[[Any], bool]
    ) -> tuple[list[Any], Callable[[list[Any]], Any]] | None:
        return differentiation.flatten_tree(x, is_leaf)

    # ------------------------------------------------------------------ models
    def is_model(self, x: object) -> bool:
        kinds = (getattr(sys.modules.get(module), "Module", None) for module in ("flax.linen", "flax.nnx", "equinox"))
        return any(kind is not None and isinstance(x, kind) for kind in kinds)

    def capture(self, model: Any, uses: Any) -> NoReturn:
        raise TypeError(
            f"model: got {describe(model)}; JAX's models are functions without a backward pass to hook. Accepted is "
            "islices.value_and_grad(loss, sparse=lambda path: 'embedding' in path) of its parameters as they are"
        )
