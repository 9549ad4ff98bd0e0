"""The JAX backend, whose native row-sparse type is `BCOO`. This module registers `IndexedSlices`, `Table` and
`PerSample` as pytrees.

The backend compensates for the following properties of JAX. The modules `precision`, `scatters` and `host_views` list
more.

- Inside `jax.jit`, shapes are static, so an operation cannot remove a slot (one row of values with its index). Instead,
  the slot's index becomes the sentinel ``rows``, which is the number of rows of the table. `BCOO` marks its padding
  with the same index. The values of padding slots in a `BCOO` need not be zero.
- XLA replaces ``a / broadcast(b)`` by a product with the reciprocal, even in eager code, and the result can be wrong by
  1 ulp. So `div` first broadcasts the divisor; in traced code, a barrier separates the broadcast from the division. XLA
  also merges a product and a sum into a fused multiply-add, and moves additions into scatters, even across a barrier.
  A selection (`jnp.where`) between the two operations prevents both, and `precision.apart` inserts one.
- JAX compiles each operation again for every new shape. So several operations that only copy memory, such as
  `read_rows`, use NumPy views of CPU arrays, which need no compilation.
"""

from __future__ import annotations

from islices.core.registry import require

require("jax")

import sys
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from islices.backend import FLOATS, INDICES, INTEGERS, Array, Backend, Host, LoopState, NativeParts, Shape
from islices.backends.jax import differentiation, gathers, host_views, precision, scatters
from islices.backends.jax.host_calls import row_calls
from islices.backends.jax.host_views import Tracer
from islices.backends.jax.markers import read
from islices.backends.jax.precision import constant, users_x64
from islices.backends.jax.pytree import register
from islices.core import modes
from islices.core.dtypes import as_bits
from islices.core.host_memory import copied, empty
from islices.core.locks import load_module
from islices.core.registry import describe

#: `method` makes a function a method of the adapter without a wrapper. The type is Any, because type checkers expect a
#: parameter `self`.
method: Any = staticmethod


def _operands(a: Any, b: Any) -> tuple[Any, Any]:
    """Return both operands as arrays. If one is a Python number, it becomes a constant with the dtype of the other."""
    if isinstance(a, (int, float)):
        return constant(a, b.dtype), b
    return a, constant(b, a.dtype) if isinstance(b, (int, float)) else b


def _typed(fn: Callable[..., Array]) -> Any:
    """Wrap a function of two arrays as a method in which one of the operands may also be a Python number."""
    return method(lambda a, b: fn(*_operands(a, b)))


class JaxBackend(Backend):
    name = "jax"
    module = "jax"
    memory_error = "RESOURCE_EXHAUSTED: Out of memory"
    native_name = "jax BCOO"
    native_of_views = True
    sentinel_padding = True

    # ------------------------------------------------------------------ identity
    def devices(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(["cpu", *(d.platform for d in jax.devices())]))

    def is_array(self, x: object) -> bool:
        return isinstance(x, jax.Array)

    def is_native(self, x: object) -> bool:
        return isinstance(x, getattr(sys.modules.get("jax.experimental.sparse"), "JAXSparse", ()))

    # ------------------------------------------------------------------ looking at an array
    def dtype(self, x: Array) -> str:
        host_views.check_alive(x)
        return _dtype_name(x.dtype)

    def is_traced(self, x: Array) -> bool:
        return isinstance(x, Tracer)

    host_view = method(host_views.view)
    from_host = method(host_views.put)

    def memory_span(self, x: Array) -> tuple[int, int] | None:
        if isinstance(x, Tracer) or x.is_deleted() or not x.nbytes:
            return None
        if len(x.sharding.device_set) == 1:
            start = x.unsafe_buffer_pointer()
            return start, start + x.nbytes
        shards = x.addressable_shards  # the memory of the first shard identifies an array that has several shards
        return self.memory_span(shards[0].data) if shards else None

    def asarray(self, array: Host, like: Array | None = None) -> Array:
        array = np.asarray(array)
        array = array.astype(array.dtype.newbyteorder("="), copy=False)
        if array.dtype.itemsize >= 8 and not users_x64():
            array = host_views.narrow(array)
        return host_views.put(copied(array), like)

    def to_numpy(self, x: Array) -> Host:
        host_views.check_alive(x)
        return as_bits(np.asarray(x))

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
        look: Any = self.look([x.data, x.indices])
        if look.views is None or look.dtypes[1] not in INDICES:
            indices, look = self.reshape(x.indices, x.indices.shape[:1]), None
            padded = self.is_traced(indices) or bool((self.to_numpy(indices) == shape[0]).any())
        else:  # to make an array of the indices would take longer than the rest of this function
            indices, row = None, look.views[1].reshape(look.shapes[1][:1])
            padded = bool((row == shape[0]).any())
            look = look._replace(shapes=[look.shapes[0], row.shape], views=[look.views[0], row])
        # padding slots may contain any values, so slices with padding do not count as coalesced
        return NativeParts(x.data, indices, shape, ordered and not padded, padded, look)

    def to_native(
        self,
        values: Array,
        indices: Array,
        dense_shape: Shape,
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

    def coalesce_few(self, x: Any) -> Any:
        if not self.is_native(x):
            return None
        values, _, shape, coalesced, padded, look = self.from_native(x)
        if coalesced or padded or look is None or look.dtypes[0] not in FLOATS + INTEGERS:
            return None
        views = modes.look_at(self, (values,), look).views
        compiled = modes.kernels_on(views)
        if not compiled or views is None or look.shapes[0] != (*look.shapes[1], *shape[1:]):
            return None
        found = compiled.sum_few(*views, shape[0])
        if found is None:
            return None
        return self.to_native(host_views.put(found[0], values), found[1], shape, coalesced=True, padded=False)

    # ------------------------------------------------------------------ where the arithmetic runs
    scope = method(precision.scope)
    wide_types = method(precision.wide)
    trace = method(jax.jit)
    forget_compiled = method(jax.clear_caches)

    def on_device(self, x: Array, device: str) -> Array:
        with precision.wide():
            return jax.device_put(x, jax.devices(device)[0])

    # ------------------------------------------------------------------ array primitives
    abs = method(lax.abs)
    concat = method(jnp.concatenate)
    isfinite = method(lax.is_finite)
    less_equal = _typed(jnp.less_equal)
    logical_not = method(jnp.logical_not)
    maximum = _typed(jnp.maximum)
    minimum = _typed(jnp.minimum)
    permute = method(jnp.transpose)
    row_sum = method(partial(jnp.sum, axis=1))
    sqrt = method(lax.sqrt)

    def astype(self, x: Array, dtype: str) -> Array:
        target = np.dtype(dtype)
        if x.dtype == target and not x.aval.weak_type:
            return x
        if x.dtype == np.float64 and isinstance(x, Tracer) and not users_x64():
            return precision.leave(x, dtype)
        out = lax.convert_element_type(x, target)
        # With xla_allow_excess_precision, XLA may skip a rounding to 16 bits if the result is immediately widened
        # again. JAX 0.7.0 and 0.10.2 do not skip it on CPUs, so no test case needs this barrier.
        narrowed = target.itemsize == 2 and isinstance(x, Tracer)
        return lax.optimization_barrier(out) if narrowed else out

    def reshape(self, x: Array, shape: Sequence[int | None]) -> Array:
        if x.shape == tuple(shape):
            return x
        dims = tuple(-1 if n is None else n for n in shape)
        view = host_views.view(x)
        return jnp.reshape(x, dims) if view is None else host_views.put(view.reshape(dims), x)

    def zeros(self, shape: Sequence[int], dtype: str, like: Array) -> Array:
        zero = constant(0, dtype)
        device = host_views.place(like)
        return jnp.broadcast_to(zero if device is None else jax.device_put(zero, device), tuple(shape))

    def take(self, x: Array, positions: Array) -> Array:
        if x.shape[0] == 0:  # JAX cannot clip to an axis of length zero
            return jnp.zeros((*positions.shape, *x.shape[1:]), x.dtype)
        return jnp.take(x, positions, axis=0, mode="clip")

    def where(self, mask: Array, a: Array, b: Array) -> Array:
        return jnp.where(mask, *_operands(a, b))

    def div(self, a: Array, b: Array) -> Array:
        a, b = _operands(a, b)
        shape = np.broadcast_shapes(a.shape, b.shape)
        dividend, divisor = jnp.broadcast_to(a, shape), jnp.broadcast_to(b, shape)
        if isinstance(a, Tracer) or isinstance(b, Tracer):
            # XLA replaces a / c by a * (1 / c) if c is a single number, and (a / b) / c by a / (b * c). Under vmap, the
            # divisor of a mapped call may be a single number, which would be broadcast only after the barrier. A
            # selection that depends on the dividend prevents this.
            divisor = jnp.where(dividend == dividend, divisor, constant(np.nan, divisor.dtype))
            dividend, divisor = lax.optimization_barrier((dividend, divisor))
        return lax.div(dividend, divisor)

    def round_product(self, a: Array, b: Array | float) -> Array:
        a, b = _operands(a, b)
        return precision.apart(jnp.multiply(a, b))

    def row_amax(self, x: Array) -> Array:
        if x.shape[1] == 0:
            return jnp.zeros(x.shape[:1], x.dtype)
        return jnp.max(lax.abs(x), axis=1)

    def largest(self, x: Array, k: int) -> Array:
        return jnp.sort(jnp.argsort(-x, stable=True)[:k])

    def while_any(self, condition: Callable[..., Array], body: Callable[..., LoopState], state: LoopState) -> LoopState:
        def holds(state: tuple[Array, ...]) -> Array:
            return jnp.any(condition(*state))

        # the branch around the loop keeps XLA from moving loop-invariant code before the first condition
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
        return (indices >= least) & (indices < constant(rows, indices.dtype))

    def isin(self, indices: Array, rows: Array) -> Array:
        if not rows.shape[0]:  # a take from an empty array would return 0, which is a row number
            return jnp.zeros(indices.shape, bool)
        ordered = lax.sort(rows)
        return self.take(ordered, jnp.searchsorted(ordered, indices)) == indices

    def select(self, values: Array, indices: Array, keep: Array, rows: int | None) -> tuple[Array, Array]:
        if any(isinstance(x, Tracer) for x in (values, indices, keep)):
            sentinel = constant(scatters.check_sentinel(rows, indices.dtype), indices.dtype)
            kept = jnp.where(self.as_column(keep, values), values, constant(0, values.dtype))
            return kept, jnp.where(keep, indices, sentinel)
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
        return row_calls.sum_rows(values, indices, rows) or super().sum_rows(values, indices, rows, loose=loose)

    def outer_products(self, g: Array, x: Array) -> Array:
        return jnp.matmul(jnp.swapaxes(g, 1, 2), x, precision="highest")

    def sum_duplicates(self, values: Array, indices: Array, rows: int | None) -> tuple[Array, Array]:
        return row_calls.sum_rows(values, indices, rows) or super().sum_duplicates(values, indices, rows)

    traced_step = method(row_calls.step)
    traced_bags = method(row_calls.read_bags)
    traced_norm = method(row_calls.norm)

    segment_sum = method(scatters.fold)
    segment_max = method(scatters.maximum)
    scatter_rows = method(scatters.set_rows)

    def add_rows(self, dense: Array, values: Array, ids: Array) -> Array:
        if 0 in values.shape or 0 in dense.shape:
            return dense
        if dense.dtype.itemsize > 2:
            return scatters.add_at(dense, ids, values)
        sums = self.widen(self.take(dense, ids)) + self.widen(values)
        return scatters.set_at(dense, ids, self.astype(sums, self.dtype(dense)))

    # ------------------------------------------------------------------ tables
    fold_rows = method(scatters.fold_rows)
    running_sum = method(lax.cumsum)
    writable = method(host_views.writable)

    def read_rows(self, table: Array, ids: Array) -> Array:
        views = host_views.view(table), host_views.view(ids)
        if views[0] is None or views[1] is None:
            return read(table, ids)
        rows = empty((*ids.shape, *table.shape[1:]), views[0].dtype)
        if rows.size:
            np.take(views[0], views[1], axis=0, out=rows, mode="clip")  # all ids are in range; "raise" would copy
        return host_views.put(rows, table)

    def set_rows(self, table: Array, ids: Array, values: Array, *, donate: bool = False) -> Array:
        if isinstance(table, Tracer):
            table = lax.stop_gradient(table)
        traced = any(isinstance(x, Tracer) for x in (table, ids, values))
        views = [None if donate else host_views.view(x) for x in (table, ids, values)]
        if any(v is None for v in views):
            return (scatters.set_donated if donate and not traced else scatters.set_jitted)(table, ids, values)
        out = copied(views[0])  # type: ignore[arg-type]
        out[views[1]] = views[2]
        return host_views.put(out, table)

    def arange(self, x: Array) -> Array:
        n = x.shape[0]
        return lax.iota(np.int32, n) if isinstance(x, Tracer) else host_views.put(np.arange(n, dtype=np.int32), x)

    def searchsorted(self, ordered: Array, queries: Array, *, right: bool) -> Array:
        if 0 in ordered.shape or 0 in queries.shape:
            return jnp.zeros(queries.shape, np.int32)
        # a binary search reads log(n) elements per query; a comparison of all pairs, or a sort of both arrays, needs
        # more memory
        return jnp.searchsorted(ordered, queries, side="right" if right else "left").astype(np.int32)

    # ------------------------------------------------------------------ derivatives
    stop_gradient = method(lax.stop_gradient)
    custom_gradient = method(differentiation.custom_gradient)
    with_gradient = method(differentiation.with_gradient)
    differentiate = method(differentiation.differentiate)
    per_sample_gradients = method(differentiation.per_sample_gradients)
    flatten_tree = method(differentiation.flatten_tree)
    differentiate_rows: Any = gathers.differentiate_rows

    # ------------------------------------------------------------------ models
    def is_model(self, x: object) -> bool:
        kinds = (getattr(sys.modules.get(module), "Module", ()) for module in ("flax.linen", "flax.nnx", "equinox"))
        return isinstance(x, tuple(kinds))

    def capture(self, model: Any, uses: Any) -> NoReturn:
        raise TypeError(
            f"model: got {describe(model)}; JAX's models are functions without a backward pass to hook. Accepted is "
            "islices.value_and_grad(loss, sparse=lambda path: 'embedding' in path) of its parameters as they are"
        )


# ---------------------------------------------------------------------- dtypes
@cache
def _dtype_name(dtype: Any) -> str:
    return str(getattr(dtype, "name", dtype))


def _fits(value: int, dtype: Any) -> bool:
    return bool(np.iinfo(dtype).min <= value <= np.iinfo(dtype).max)


backend = JaxBackend()
register()
