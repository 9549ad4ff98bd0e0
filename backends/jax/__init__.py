"""The JAX backend: XLA's operations, `BCOO` as the native form, and `IndexedSlices` as a pytree.

It handles these properties of JAX (`precision`, `scatters` and `host_views` have further lists):

- Inside `jax.jit` shapes are static. A slot cannot be dropped, so it is moved to the sentinel row ``rows``. `BCOO` uses
  the same row for its padding, where data need not be zero.
- XLA rewrites a / broadcast(b) to a product by the reciprocal, also in eager code, which is 1 ulp off. `div` spreads
the divisor
  first, behind a barrier under a trace. XLA contracts a product and a sum to a fused multiply-add, and moves additions
  into scatters, even across a barrier. Only a selection between them prevents this: `precision.apart`.
- Every new shape compiles. So operations that only move memory use NumPy views of CPU arrays, at no cost. Sums use
  lengths that are powers of two.
"""

from __future__ import annotations

from islices.core.registry import require

require("jax")

import contextlib
import sys
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from islices.backend import INDICES, Array, Look, NativeParts, Slots
from islices.backends.jax import host_views, precision, scatters
from islices.backends.jax.embeddings import Embeddings
from islices.backends.jax.host_calls import row_calls
from islices.backends.jax.host_views import BFLOAT16, Tracer
from islices.backends.jax.precision import constant, users_x64
from islices.backends.jax.pytree import register
from islices.core import modes
from islices.core.host_memory import empty
from islices.core.locks import load_module
from islices.core.registry import describe
from islices.core.slots import expand

__all__ = ["JaxBackend", "backend"]

#: Up to this many row numbers are compared one by one; more are sorted and searched.
FEW_ROWS = 16


class JaxBackend(Embeddings):
    name = "jax"
    module = "jax"
    pip = 'pip install "islices[jax]"'
    memory_error = "RESOURCE_EXHAUSTED: Out of memory"
    native_name = "jax BCOO"
    native_of_views = True
    sentinel_padding = True

    # ------------------------------------------------------------------ identity
    def version(self) -> str:
        return str(jax.__version__)

    def devices(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(["cpu", *(d.platform for d in jax.devices())]))

    def is_array(self, x: object) -> bool:
        return isinstance(x, jax.Array)

    def is_native(self, x: object) -> bool:
        sparse = sys.modules.get("jax.experimental.sparse")
        kind = getattr(sparse, "JAXSparse", None)
        return kind is not None and isinstance(x, kind)

    # ------------------------------------------------------------------ looking at an array
    def dtype(self, x: Array) -> str:
        host_views.check_alive(x)
        return _dtype_name(x.dtype)

    def shape(self, x: Array) -> tuple[int | None, ...]:
        return x.shape  # type: ignore[no-any-return]

    def is_traced(self, x: Array) -> bool:
        return isinstance(x, Tracer)

    def host_view(self, x: Array) -> np.ndarray | None:
        return host_views.view(x)

    def memory_span(self, x: Array) -> tuple[int, int] | None:
        if isinstance(x, Tracer) or x.is_deleted() or not x.nbytes:
            return None
        if len(x.sharding.device_set) == 1:
            start = x.unsafe_buffer_pointer()
            return start, start + x.nbytes
        shards = x.addressable_shards  # the first piece identifies an array of several pieces
        return self.memory_span(shards[0].data) if shards else None

    def from_host(self, array: np.ndarray, like: Array) -> Array:
        return host_views.put(array, like)

    def asarray(self, array: np.ndarray, like: Array | None = None) -> Array:
        array = np.asarray(array)
        array = array.astype(array.dtype.newbyteorder("="), copy=False)
        if array.dtype.itemsize >= 8 and not users_x64():
            array = host_views.narrow(array)
        own = empty(array.shape, array.dtype)
        own[...] = array
        return host_views.put(own, like)

    def to_numpy(self, x: Array) -> np.ndarray:
        host_views.check_alive(x)
        return host_views.bits(np.asarray(x))

    # ------------------------------------------------------------------ the framework's sparse form
    def from_native(self, x: Any) -> NativeParts:
        sparse = load_module("jax.experimental.sparse")
        if not isinstance(x, sparse.BCOO):
            raise ValueError(f"x: got {describe(x)}; accepted is a BCOO with n_sparse=1 and n_batch=0")
        if not (isinstance(x.data, jax.Array) and isinstance(x.indices, jax.Array)):  # a pytree may hold anything
            raise TypeError(f"x: got a BCOO of {describe(x.data)} and {describe(x.indices)}; accepted is one of arrays")
        if x.n_sparse != 1 or x.n_batch != 0:
            raise ValueError(
                f"x: got a BCOO with n_sparse={x.n_sparse} and n_batch={x.n_batch}; accepted is n_sparse=1 (the rows) "
                "and n_batch=0; jax.experimental.sparse.bcoo_update_layout(x, n_dense=x.ndim - 1, "
                "on_inefficient=None) stores whole rows"
            )
        shape, ordered = tuple(x.shape), x.indices_sorted and x.unique_indices
        views = [host_views.view(x.data), host_views.view(x.indices)]
        if views[0] is None or views[1] is None or views[1].dtype.name not in INDICES:
            indices, look = self.reshape(x.indices, x.indices.shape[:1]), None
            padded = self.is_traced(indices) or bool((self.to_numpy(indices) == shape[0]).any())
        else:  # an array of them would take longer than all that is done here
            indices, row = None, views[1].reshape(views[1].shape[:1])
            padded = bool((row == shape[0]).any())
            dtypes = [_dtype_name(x.data.dtype), _dtype_name(x.indices.dtype)]
            look = Look(dtypes, [x.data.shape, row.shape], [False, False], [views[0], row])
        # padding slots may hold anything, so that nothing is known of their rows yet
        return NativeParts(x.data, indices, shape, ordered and not padded, padded, look)

    def to_native(
        self,
        values: Array,
        indices: Array,
        dense_shape: tuple[int | None, ...],
        *,
        coalesced: bool,
        padded: bool,
        like: Any = None,
    ) -> Any:
        sparse = load_module("jax.experimental.sparse")
        if dense_shape[0] is None:
            raise ValueError(f"s: got dense_shape {dense_shape}; a BCOO needs a known number of rows")
        column = (
            host_views.put(indices[:, None], values)
            if isinstance(indices, np.ndarray)
            else self.reshape(indices, (indices.shape[0], 1))
        )
        return sparse.BCOO((values, column), shape=dense_shape, indices_sorted=coalesced, unique_indices=coalesced)

    # ------------------------------------------------------------------ where the arithmetic runs
    def scope(self) -> contextlib.AbstractContextManager[Any]:
        return precision.scope()

    def wide_types(self) -> contextlib.AbstractContextManager[Any]:
        return precision.wide()

    def on_device(self, x: Array, device: str) -> Array:
        with precision.wide():
            return jax.device_put(x, jax.devices(device)[0])

    def trace(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        return jax.jit(fn)

    def forget_compiled(self) -> None:
        jax.clear_caches()

    # ------------------------------------------------------------------ array primitives
    def astype(self, x: Array, dtype: str) -> Array:
        target = np.dtype(dtype) if dtype != "bfloat16" else BFLOAT16
        if x.dtype == target and not x.aval.weak_type:
            return x
        if x.dtype == np.float64 and isinstance(x, Tracer) and not users_x64():
            return precision.leave(x, dtype)
        out = lax.convert_element_type(x, target)
        # where xla_allow_excess_precision holds, XLA may skip a rounding to 16 bits that is widened again right after;
        # for CPUs neither 0.7.0 nor 0.10.2 does, so no case shows this barrier
        narrowed = target.itemsize == 2 and isinstance(x, Tracer)
        return lax.optimization_barrier(out) if narrowed else out

    def reshape(self, x: Array, shape: Sequence[int | None]) -> Array:
        if x.shape == tuple(shape):
            return x
        dims = tuple(-1 if n is None else n for n in shape)
        view = host_views.view(x)
        return jnp.reshape(x, dims) if view is None else host_views.put(view.reshape(dims), x)

    def zeros(self, shape: Sequence[int], dtype: str, like: Array) -> Array:
        zero = constant(0, BFLOAT16 if dtype == "bfloat16" else dtype)
        device = host_views.place(like)
        return jnp.broadcast_to(zero if device is None else jax.device_put(zero, device), tuple(shape))

    def concat(self, arrays: Sequence[Array]) -> Array:
        return jnp.concatenate(arrays)

    def take(self, x: Array, positions: Array) -> Array:
        if x.shape[0] == 0:  # JAX cannot clip to an axis of length zero
            return jnp.zeros((*positions.shape, *x.shape[1:]), x.dtype)
        return jnp.take(x, positions, axis=0, mode="clip")

    def where(self, mask: Array, a: Array, b: Array) -> Array:
        return jnp.where(mask, *_operands(a, b))

    def abs(self, x: Array) -> Array:
        return lax.abs(x)

    def minimum(self, a: Array, b: Array) -> Array:
        return jnp.minimum(*_operands(a, b))

    def maximum(self, a: Array, b: Array) -> Array:
        return jnp.maximum(*_operands(a, b))

    def less_equal(self, a: Array, b: Array) -> Array:
        return jnp.less_equal(*_operands(a, b))

    def isfinite(self, x: Array) -> Array:
        return lax.is_finite(x)

    def permute(self, x: Array, order: Sequence[int]) -> Array:
        return jnp.transpose(x, order)

    def sqrt(self, x: Array) -> Array:
        return lax.sqrt(x)

    def div(self, a: Array, b: Array) -> Array:
        a, b = _operands(a, b)
        shape = np.broadcast_shapes(a.shape, b.shape)
        dividend, divisor = jnp.broadcast_to(a, shape), jnp.broadcast_to(b, shape)
        if isinstance(a, Tracer) or isinstance(b, Tracer):
            # XLA writes a / c as a * (1 / c) for a c that is one number, and (a / b) / c as a / (b * c). A c that vmap
            # would spread behind the barrier is one number per mapped call before it, unless selected by the dividend
            divisor = jnp.where(dividend == dividend, divisor, constant(np.nan, divisor.dtype))
            dividend, divisor = lax.optimization_barrier((dividend, divisor))
        return lax.div(dividend, divisor)

    def round_product(self, a: Array, b: Array | float) -> Array:
        a, b = _operands(a, b)
        return precision.apart(jnp.multiply(a, b))

    def row_amax(self, x: Array) -> Array:
        if x.shape[1] == 0:
            return jnp.zeros(x.shape[:1], x.dtype)
        return _row_amax(x)

    def row_sum(self, x: Array) -> Array:
        return jnp.sum(x, axis=1)

    def largest(self, x: Array, k: int) -> Array:
        return jnp.sort(jnp.argsort(-x, stable=True)[:k])

    def while_any(
        self, condition: Callable[..., Array], body: Callable[..., tuple[Array, ...]], state: tuple[Array, ...]
    ) -> tuple[Array, ...]:
        def holds(state: tuple[Array, ...]) -> Array:
            return jnp.any(condition(*state))

        # a branch around it keeps what does not depend on the state from being moved before the first question
        loop = partial(lax.while_loop, holds, lambda x: body(*x))  # pyright: ignore[reportGeneralTypeIssues]
        return lax.cond(holds(state), loop, lambda x: x, state)  # type: ignore[no-any-return]

    # ------------------------------------------------------------------ sparse primitives
    def equal(self, x: Array, value: int | Array) -> Array:
        if isinstance(value, int):
            if not _fits(value, x.dtype):
                return jnp.zeros(x.shape, bool)
            value = constant(value, x.dtype)
        return jnp.equal(x, value)

    def in_range(self, indices: Array, rows: int | None) -> Array:
        least = constant(0, indices.dtype)
        if rows is None or not _fits(rows, indices.dtype):
            return indices >= least
        return _between(indices, least, constant(rows, indices.dtype))

    def logical_not(self, mask: Array) -> Array:
        return jnp.logical_not(mask)

    def isin(self, indices: Array, rows: Array) -> Array:
        if rows.shape[0] <= FEW_ROWS:
            return _is_one_of(indices, rows)
        ordered = lax.sort(rows)
        return self.take(ordered, jnp.searchsorted(ordered, indices)) == indices

    def select(self, values: Array, indices: Array, keep: Array, rows: int | None) -> tuple[Array, Array]:
        if any(isinstance(x, Tracer) for x in (values, indices, keep)):
            sentinel = constant(scatters.check_sentinel(rows, indices.dtype), indices.dtype)
            column = jnp.reshape(keep, (keep.shape[0], *(1,) * (values.ndim - 1)))
            return jnp.where(column, values, constant(0, values.dtype)), jnp.where(keep, indices, sentinel)
        positions = np.flatnonzero(np.asarray(keep)).astype(np.int32)
        if len(positions) == keep.shape[0]:
            return values, indices
        positions = host_views.put(positions, values)
        return self.take(values, positions), self.take(indices, positions)

    def unique(self, indices: Array, rows: int | None) -> tuple[Array, Array]:
        if isinstance(indices, Tracer):
            return scatters.group(indices, rows)
        ids, inverse = modes.HOST.unique(np.asarray(indices), rows)
        return host_views.put(ids, indices), host_views.put(inverse.astype(np.int32), indices)

    def sum_rows(self, values: Array, indices: Array, rows: int | None, *, loose: bool) -> tuple[Array, Array]:
        at_once = row_calls.sum_rows(values, indices, rows) if isinstance(indices, Tracer) else None
        return at_once or super().sum_rows(values, indices, rows, loose=loose)

    def outer_products(self, g: Array, x: Array) -> Array:
        return jnp.matmul(jnp.swapaxes(g, 1, 2), x, precision="highest")

    def sum_duplicates(self, values: Array, indices: Array, rows: int | None) -> tuple[Array, Array]:
        at_once = row_calls.sum_rows(values, indices, rows) if isinstance(indices, Tracer) else None
        return at_once or super().sum_duplicates(values, indices, rows)

    def traced_step(
        self,
        formula: Any,
        slots: Slots,
        numbers: Array,
        tables: Sequence[Array],
        otherwise: Callable[..., Sequence[Array]],
    ) -> Sequence[Array] | None:
        return row_calls.step(formula, slots, numbers, tables, otherwise)

    def traced_norm(
        self, leaves: Sequence[Slots], ord: int, otherwise: Callable[[Sequence[Slots]], Array]
    ) -> Array | None:
        leaves = [x if x.factor is None else Slots(expand(self, x), x.indices, x.rows) for x in leaves]
        return row_calls.norm(leaves, ord, otherwise)

    def traced_bags(
        self,
        table: Array,
        ids: Array,
        segments: Array,
        bags: Array,
        keep: Array | None,
        otherwise: Callable[[Array, Array, Array, Array, Array | None], Array],
    ) -> Array | None:
        return row_calls.read_bags(table, ids, segments, bags, keep, otherwise)

    def segment_sum(self, values: Array, segments_: Array, count: int | None) -> Array:  # pyright: ignore[reportIncompatibleMethodOverride]
        assert count is not None, "JAX knows its shapes"
        if 0 in values.shape or count == 0:
            return self.zeros((count, *values.shape[1:]), self.dtype(values), values)
        if isinstance(values, Tracer) or isinstance(segments_, Tracer):
            return scatters.fold(values, segments_, count)
        room = host_views.power_of_two(count)
        values, segments_ = host_views.lengthened(values, segments_, room)
        return host_views.first_rows(scatters.fold_jitted(values, segments_, room), count)

    def scatter_rows(self, values: Array, ids: Array, shape: tuple[int, ...]) -> Array:
        if 0 in values.shape or 0 in shape:
            return self.zeros(shape, self.dtype(values), values)
        if not isinstance(values, Tracer) and not isinstance(ids, Tracer) and _fits(shape[0], ids.dtype):
            values, ids = host_views.lengthened(values, ids, shape[0])
        return scatters.set_jitted(values, ids, shape)

    def add_rows(self, dense: Array, values: Array, ids: Array) -> Array:
        if 0 in values.shape or 0 in dense.shape:
            return dense
        if dense.dtype.itemsize > 2:
            return scatters.add_at(dense, ids, values)
        sums = self.widen(self.take(dense, ids)) + self.widen(values)
        return scatters.set_at(dense, ids, self.astype(sums, self.dtype(dense)))


# ---------------------------------------------------------------------- a program each, for eager code
@partial(jax.jit, inline=True)
def _row_amax(x: Array) -> Array:
    return jnp.max(lax.abs(x), axis=1)


@partial(jax.jit, inline=True)
def _between(indices: Array, least: Array, end: Array) -> Array:
    return (indices >= least) & (indices < end)


@partial(jax.jit, inline=True)
def _is_one_of(indices: Array, rows: Array) -> Array:
    return jnp.any(indices[:, None] == rows[None, :], axis=1)


# ---------------------------------------------------------------------- dtypes
@cache
def _dtype_name(dtype: Any) -> str:
    return str(getattr(dtype, "name", dtype))


def _fits(value: int, dtype: Any) -> bool:
    return bool(np.iinfo(dtype).min <= value <= np.iinfo(dtype).max)


def _operands(a: Any, b: Any) -> tuple[Any, Any]:
    """Return two operands, with a Python number as a constant of the other's dtype."""
    if isinstance(a, (int, float)):
        return constant(a, b.dtype), b
    return a, constant(b, a.dtype) if isinstance(b, (int, float)) else b


backend = JaxBackend()
register(backend)
