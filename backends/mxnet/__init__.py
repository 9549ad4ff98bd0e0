"""The adapter of MXNet's last release. The adapter uses the legacy NDArray interface, because only this interface has
row_sparse arrays.

In this folder, `stand_in` imports MXNet, and `gluon_layers` captures Gluon's layers. `mxnet_autograd` works around
properties of MXNet's autograd. The adapter compensates for the following other properties of MXNet:

- Operators parse Python scalars from text. For a quarter of all float64 scalars, and half of the powers of two beyond
  ``2**60``, the result is wrong in the last place. So the adapter passes scalars as arrays, except for float32 factors
  of float32 arrays.
- The shape () and all shapes that contain 0 mean "unknown", unless `mx.util.np_shape` is on. In `NDArray.reshape`, 0
  means "copy this dimension". A reduction of an empty array fails only later, in another thread.
- In Python, MXNet's bfloat16 is a structured dtype. MXNet truncates when it converts to bfloat16, so NumPy rounds
  instead.
- Operations are asynchronous, so memory may be read only after `wait_to_read`.
- Operations accept only arrays with fewer than ``2**31 - 1`` elements. Rows that a row_sparse array does not store also
  count.
- No operation adds rows in order, and the gradient of `gather_nd` depends on the order of threads. So NumPy computes
  sums of rows.
- The adapter does not accept `mx.np.ndarray`, because the legacy operators reject it. `x.as_nd_ndarray()` returns a
  legacy array that shares its memory.
"""

from __future__ import annotations

from islices.core.registry import require

require("mxnet")

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import numpy as np

from islices.backend import Array, Backend, Gradient, Host, NativeParts, Shape, not_implemented
from islices.backends.mxnet.gluon_layers import capture
from islices.backends.mxnet.mxnet_autograd import differentiate, is_recorded, paused, record_function
from islices.backends.mxnet.ndarrays import DTYPES, LIMIT, NAMES, as_array, check_size, mx, operands, share, view, zeros
from islices.core.host import HostBackend, bfloat16_bits

nd = mx.nd
SparseArray = mx.ndarray.sparse.BaseSparseNDArray
RowSparseArray = mx.ndarray.sparse.RowSparseNDArray

HOST = HostBackend()
#: The number of float64 elements in a block. A block fits into the caches, and is so large that the cost of a call does
#: not matter.
BLOCK = 1 << 17


def with_numbers(function: Callable[[Array, Array], Array]) -> Any:
    """Wrap a function of two arrays as a primitive in which one of them may also be a Python number."""
    return staticmethod(lambda a, b: function(*operands(a, b)))


def by_host(primitive: str) -> Any:
    """Return a primitive that uses NumPy, because MXNet does not have the operation or computes it wrongly."""

    def call(self: Backend, x: Array, *arguments: Any, **static: Any) -> Any:
        views = [self.to_numpy(y) if self.is_array(y) else y for y in (x, *arguments)]
        out = getattr(HOST, primitive)(*views, **static)
        found = out if isinstance(out, tuple) else (out,)
        made = [self.from_host(y.astype(np.int32) if y.dtype == bool else y, x) for y in found]
        return tuple(made) if isinstance(out, tuple) else made[0]

    return call


class MXNetBackend(Backend):
    name = "mxnet"
    module = "mxnet"
    memory_error = "Failed to allocate CPU Memory"
    native_name = "mxnet RowSparseNDArray"
    native_needs_coalesced = True
    whole_floats = True
    native_float_dtypes = ("float16", "float32", "float64")

    # ------------------------------------------------------------------ identity
    def devices(self) -> tuple[str, ...]:
        return ("cpu", *(f"gpu({i})" for i in range(mx.context.num_gpus())))

    def is_array(self, x: object) -> bool:
        return isinstance(x, nd.NDArray) and not isinstance(x, (SparseArray, mx.np.ndarray))

    def is_native(self, x: object) -> bool:
        return isinstance(x, SparseArray)

    # ------------------------------------------------------------------ looking at an array
    def dtype(self, x: Array) -> str:
        return NAMES[x.dtype]

    def records_gradient(self, x: Array) -> bool:
        return bool(mx.autograd.is_recording()) and "float" in self.dtype(x)

    host_view: Any = staticmethod(view)

    def from_host(self, array: Host, like: Array) -> Array:
        return share(array, like.context)

    def asarray(self, array: Host, like: Array | None = None) -> Array:
        return as_array(array, mx.cpu() if like is None else like.context)

    def to_numpy(self, x: Array) -> Host:
        on_host = view(x)
        return view(x.as_in_context(mx.cpu())) if on_host is None else on_host  # type: ignore[return-value]

    def scalar(self, x: Host, like: Array) -> Array:
        """Return x as an array of shape (1,), because MXNet cannot compute with an array of shape () unless `np_shape`
        is on."""
        return self.asarray(x.reshape(1), like)

    # ------------------------------------------------------------------ the framework's sparse form
    def from_native(self, x: Any) -> NativeParts:
        if not isinstance(x, RowSparseArray):
            raise ValueError(f"x: got a {x.stype} array of shape {x.shape}; accepted is MXNet's row_sparse")
        with self.scope():  # `.data` and `.indices` are copies; indices must be checked before any other operation
            return NativeParts(x.data, x.indices, tuple(x.shape), coalesced=True)

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
        rows, *row_shape = dense_shape
        dtype = self.dtype(values)
        subject = f"s: got slices of {dtype} with dense_shape {dense_shape}; accepted by MXNet's row_sparse"
        if rows is None:
            raise ValueError(f"{subject} is a known number of rows")
        if math.prod(dense_shape) >= LIMIT:  # type: ignore[arg-type]
            raise ValueError(f"{subject} are fewer than 2**31 - 1 elements, rows that are not stored included")
        if 0 in row_shape:
            raise ValueError(f"{subject} are rows of at least one element")
        if dtype == "bfloat16":
            raise ValueError(f"{subject} are float16, float32, float64, int32 and int64")
        return nd.sparse.row_sparse_array(
            (values, self.astype(indices, "int64")), shape=dense_shape, ctx=values.context, dtype=DTYPES[dtype]
        )

    # ------------------------------------------------------------------ where the arithmetic runs
    def scope(self) -> AbstractContextManager[Any]:
        return mx.util.np_shape(True)  # type: ignore[no-any-return]

    # ------------------------------------------------------------------ array primitives
    def astype(self, x: Array, dtype: str) -> Array:
        of = self.dtype(x)
        if of == dtype:
            return x
        if "bfloat16" not in (of, dtype):
            return nd.cast(x, DTYPES[dtype])
        if not self.records_gradient(x) or "float" not in dtype:
            return self._round(x, dtype)
        # nd.cast truncates to bfloat16, also in the backward pass
        known = self._round(self.stop_gradient(x), dtype)
        return self.with_gradient(known, (x,), lambda value, arrays, upstream: (self._round(upstream, of),))

    def _round(self, x: Array, dtype: str) -> Array:
        """Convert from or to bfloat16. NumPy rounds to bfloat16, because MXNet would truncate."""
        if dtype != "bfloat16":
            return nd.cast(x, DTYPES[dtype])
        wide = x if self.dtype(x) == "float32" else nd.cast(x, "float32")
        return self.from_host(bfloat16_bits(self.to_numpy(wide)), x)

    def reshape(self, x: Array, shape: Sequence[int | None]) -> Array:
        sizes = tuple(-1 if n is None else n for n in shape)
        return self.zeros(sizes, self.dtype(x), x) if 0 in sizes else x.reshape(sizes)

    def zeros(self, shape: Sequence[int], dtype: str, like: Array) -> Array:
        return zeros(shape, dtype, like.context)

    def concat(self, arrays: Sequence[Array]) -> Array:
        check_size((sum(a.shape[0] for a in arrays), *arrays[0].shape[1:]))
        return arrays[0] if len(arrays) == 1 else nd.concat(*arrays, dim=0)

    def take(self, x: Array, positions: Array) -> Array:
        shape = (*positions.shape, *x.shape[1:])
        check_size(shape)
        return self.zeros(shape, self.dtype(x), x) if 0 in shape else nd.take(x, positions)

    def where(self, mask: Array, a: Array, b: Array) -> Array:
        a, b = operands(a, b)
        shape = np.broadcast_shapes(mask.shape, a.shape, b.shape)
        return nd.where(*(_broadcast(x, shape) for x in (mask, a, b)))

    abs = staticmethod(nd.abs)
    isfinite = staticmethod(nd.contrib.isfinite)
    logical_not = staticmethod(nd.logical_not)
    sqrt = staticmethod(nd.sqrt)
    minimum = with_numbers(nd.broadcast_minimum)
    maximum = with_numbers(nd.broadcast_maximum)
    less_equal = with_numbers(nd.broadcast_lesser_equal)
    equal = with_numbers(nd.broadcast_equal)
    div = with_numbers(nd.broadcast_div)

    def permute(self, x: Array, order: Sequence[int]) -> Array:
        if 0 in x.shape:
            return self.reshape(x, [x.shape[k] for k in order])
        return nd.transpose(x, tuple(order))

    def round_product(self, a: Array, b: Array | float) -> Array:
        if isinstance(b, float) and math.isfinite(b) and self.dtype(a) == "float32":
            return a * b  # float32 can represent b, so MXNet parses the text of b exactly; no broadcast is needed
        return nd.broadcast_mul(*operands(a, b))

    def row_amax(self, x: Array) -> Array:
        return self.zeros(x.shape[:1], self.dtype(x), x) if 0 in x.shape else nd.max(nd.abs(x), axis=1)

    def row_sum(self, x: Array) -> Array:
        if 0 in x.shape:
            return self.zeros(x.shape[:1], self.dtype(x), x)
        return nd.dot(x, nd.ones((x.shape[1],), x.context, x.dtype))  # for few rows nd.sum takes ten times as long

    def blocks(self, x: Array) -> Sequence[Array]:
        m = x.shape[1]
        if m <= BLOCK or len(x) > 1:  # pieces of several rows would be copies
            return [x]
        flat = x.reshape((m,))
        return [flat[i : i + BLOCK].reshape((1, min(BLOCK, m - i))) for i in range(0, m, BLOCK)]

    # ------------------------------------------------------------------ sparse primitives
    isin = by_host("isin")
    unique = by_host("unique")
    arange = by_host("arange")
    searchsorted = by_host("searchsorted")
    segment_max = by_host("segment_max")  # MXNet would compute the maximum of integers in float32

    def in_range(self, indices: Array, rows: int | None) -> Array:
        mask = nd.broadcast_greater_equal(*operands(indices, 0))
        if rows is None or rows > np.iinfo(indices.dtype).max:
            return mask
        return mask * nd.broadcast_lesser(*operands(indices, rows))

    def select(self, values: Array, indices: Array, keep: Array, rows: int | None) -> tuple[Array, Array]:
        kept = self.from_host(np.flatnonzero(self.to_numpy(keep)), indices)
        return self.take(values, kept), self.take(indices, kept)

    def segment_sum(self, values: Array, segments: Array, count: int | None) -> Array:
        sums = HOST.segment_sum(self.to_numpy(values), self.to_numpy(segments), count)
        return self._summed(sums, values, lambda: segments)

    def _summed(self, sums: Host, values: Array, places: Callable[[], Array]) -> Array:
        """Make `sums`, which NumPy has computed, a differentiable function of the rows `values`. `places()` returns the
        position of the sum to which each row belongs."""
        out = self.from_host(sums, values)
        if not self.records_gradient(values):
            return out
        return self.with_gradient(out, (values,), lambda out, arrays, upstream: (self.take(upstream, places()),))

    def outer_products(self, g: Array, x: Array) -> Array:
        if 0 in g.shape or 0 in x.shape:
            return self.zeros((g.shape[0], g.shape[2], x.shape[2]), "float64", g)
        return nd.batch_dot(g, x, transpose_a=True)

    def sum_duplicates(self, values: Array, indices: Array, rows: int | None) -> tuple[Array, Array]:
        at = self.to_numpy(indices)
        sums, ids = HOST.sum_duplicates(self.to_numpy(values), at, rows)
        places = lambda: self.from_host(np.searchsorted(ids, at), indices)  # noqa: E731
        return self._summed(sums, values, places), self.from_host(ids, indices)

    def scatter_rows(self, values: Array, ids: Array, shape: tuple[int, ...]) -> Array:
        check_size(shape)
        if values.size == 0:
            return self.zeros(shape, self.dtype(values), values)
        return nd.scatter_nd(values, ids.reshape((1, ids.shape[0])), shape=shape)

    def add_rows(self, dense: Array, values: Array, ids: Array) -> Array:
        if values.size == 0:
            return dense.copy()
        sums = self.widen(self.take(dense, ids)) + self.widen(values)
        return nd.contrib.index_copy(dense, ids, self.astype(sums, self.dtype(dense)))

    def set_rows(self, table: Array, ids: Array, values: Array, *, donate: bool = False) -> Array:
        if values.size:
            with paused(), self.scope():
                nd.contrib.index_copy(table, ids, values, out=table)  # only these rows are written
        return table

    def in_place(self, x: Array) -> bool:
        if is_recorded(x):
            raise ValueError(
                "table: got an array that autograd.record() has in its graph; accepted is an update outside of the "
                "record section, since the backward pass would read the changed values"
            )
        return True

    writable_view: Any = staticmethod(partial(view, writable=True))

    # ------------------------------------------------------------------ differentiation
    stop_gradient = staticmethod(nd.NDArray.detach)
    differentiate: Any = differentiate

    def custom_gradient(self, forward: Callable[..., Array], backward: Gradient) -> Callable[..., Array]:
        def apply(*arrays: Array) -> Array:
            with paused():
                value = forward(*arrays)
            floats = [k for k, x in enumerate(arrays) if "float" in self.dtype(x)]
            if not floats or not mx.autograd.is_recording():
                return value

            def gradients(upstream: Array) -> list[Any]:
                every = backward(arrays, upstream)
                return [every[k] for k in floats]

            return record_function([arrays[k] for k in floats], value, gradients)

        return apply

    per_sample_gradients = not_implemented(
        "MXNet has no vmap, so per-sample gradients of dense arguments are not available; pass Tables as the "
        "differentiated arguments, or take the dense gradients of one sample at a time"
    )

    # ------------------------------------------------------------------ models
    def is_model(self, x: object) -> bool:
        return isinstance(x, mx.gluon.Block)

    capture: Any = staticmethod(capture)


def _broadcast(x: Array, shape: tuple[int, ...]) -> Array:
    if x.shape == shape:
        return x
    if 0 in shape:
        return zeros(shape, NAMES[x.dtype], x.context)
    return nd.broadcast_to(x.reshape((1,) * (len(shape) - len(x.shape)) + x.shape), shape)


backend = MXNetBackend()
