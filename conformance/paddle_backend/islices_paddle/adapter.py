"""Define the primitives of islices for Paddle's tensors.

The adapter works around these properties of Paddle; the README gives the version and lists more:
    - On the CPU, few kernels accept float16 or bfloat16. So the adapter only copies 16-bit rows, and
      computes with their numbers in float32, or in float64 for ``sqrt``.
    - ``sqrt`` of float32 is not correctly rounded, and float64 is cast to float16 through float32.
    - ``put_along_axis`` loses NaN with the reduction "amax", and reductions of empty tensors raise an error.
    - In ``where``, a Python float counts as float32. So the adapter first converts a Python number to a tensor with
      the dtype of the other operand.
    - The time of ``paddle.unique`` with the inverse is quadratic in the number of distinct values.
    - ``x[ids]`` does not check ids and may read beyond the table, so islices checks ids first, as on every backend.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import paddle

from islices.backend import (
    Array,
    Backend,
    Host,
    LayerUse,
    LookedUp,
    Source,
    Transform,
    not_implemented,
)
from islices_paddle import layers, recording, selected_rows
from islices_paddle.memory import as_tensor, dtype_name, share, view, writable_view

__all__ = ["PaddleBackend", "backend"]

HALF = ("float16", "bfloat16")


class PaddleBackend(Backend):
    name = "paddle"
    module = "paddle"
    native_name = "paddle SelectedRows"
    protocol = 3
    own_calls = "islices_paddle.own_calls"

    # ------------------------------------------------------------------ identity
    def devices(self) -> tuple[str, ...]:
        count = paddle.device.cuda.device_count() if paddle.is_compiled_with_cuda() else 0
        return ("cpu", *(f"gpu:{i}" for i in range(count)))

    def is_array(self, x: object) -> bool:
        return isinstance(x, paddle.Tensor) and not selected_rows.is_special(x)

    def is_native(self, x: object) -> bool:
        return isinstance(x, paddle.Tensor) and selected_rows.is_special(x)

    # ------------------------------------------------------------------ looking at an array
    def dtype(self, x: Array) -> str:
        return dtype_name(x.dtype)

    def records_gradient(self, x: Array) -> bool:
        return not x.stop_gradient and paddle.is_grad_enabled()

    host_view = staticmethod(view)

    def from_host(self, array: Host, like: Array) -> Array:
        return share(array, like.place)

    def asarray(self, array: Host, like: Array | None = None) -> Array:
        return as_tensor(array, None if like is None else like.place)

    def to_numpy(self, x: Array) -> Host:
        on_host = view(x)
        return x.numpy() if on_host is None else on_host  # in both cases, bfloat16 becomes uint16

    def on_device(self, x: Array, device: str) -> Array:
        return x.to(device)

    # ------------------------------------------------------------------ the framework's sparse form
    from_native = staticmethod(selected_rows.take_apart)

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
        if dense_shape[0] is None:
            raise ValueError(
                f"s: got dense_shape {dense_shape}; SelectedRows needs the number of rows: accepted is a known one"
            )
        if self.records_gradient(values):
            raise ValueError(
                "s: got values whose gradient is being recorded, which a SelectedRows would lose; accepted are values "
                "that record none: values.detach(), or a call under paddle.no_grad()"
            )
        return selected_rows.build(values, indices.astype("int64"), dense_shape[0])

    # ------------------------------------------------------------------ array primitives
    def astype(self, x: Array, dtype: str) -> Array:
        if dtype == "float16" and x.dtype == paddle.float64:  # Paddle would round to float32 first; no gradient flows
            with np.errstate(over="ignore"):
                return share(self.to_numpy(x).astype(np.float16), x.place)
        return x.astype(dtype)

    def reshape(self, x: Array, shape: Sequence[int | None]) -> Array:
        known = [-1 if n is None else n for n in shape]
        return self.zeros(known, self.dtype(x), x) if 0 in known else x.reshape(known)

    def zeros(self, shape: Sequence[int], dtype: str, like: Array) -> Array:
        return paddle.zeros(list(shape), dtype, device=like.place)

    def concat(self, arrays: Sequence[Array]) -> Array:
        return paddle.concat(list(arrays))

    def take(self, x: Array, positions: Array) -> Array:
        flat = positions.reshape([-1])
        if x.dtype != paddle.float16:
            rows = paddle.gather(x, flat)
        elif not self.records_gradient(x):
            rows = paddle.gather(x.detach().view("int16"), flat).view("float16")
        else:  # a gradient of bit patterns would be wrong; `x[...]` of an empty tensor raises
            rows = x[flat] if flat.size else self.zeros((0, *x.shape[1:]), "float16", x)
        return rows if positions.ndim == 1 else rows.reshape([*positions.shape, *x.shape[1:]])

    def where(self, mask: Array, a: Array, b: Array) -> Array:
        a, b = _operands(a, b)
        dtype = self.dtype(a)
        return paddle.where(mask, self.widen(a), self.widen(b)).astype(dtype)

    def abs(self, x: Array) -> Array:
        return paddle.abs(self.widen(x)).astype(x.dtype)

    def minimum(self, a: Array, b: Array) -> Array:
        return paddle.minimum(*_operands(a, b))

    def maximum(self, a: Array, b: Array) -> Array:
        return paddle.maximum(*_operands(a, b))

    def less_equal(self, a: Array, b: Array) -> Array:
        return paddle.less_equal(*_operands(a, b))

    isfinite = staticmethod(paddle.isfinite)
    logical_not = staticmethod(paddle.logical_not)

    def sqrt(self, x: Array) -> Array:
        if x.dtype == paddle.float64:
            return paddle.sqrt(x)
        return paddle.sqrt(x.astype("float64")).astype(x.dtype)

    def div(self, a: Array, b: Array) -> Array:
        return paddle.divide(*_operands(a, b))

    def round_product(self, a: Array, b: Array | float) -> Array:
        return paddle.multiply(*_operands(a, b))

    def row_amax(self, x: Array) -> Array:
        if x.shape[1] == 0:
            return self.zeros(x.shape[:1], self.dtype(x), x)
        return paddle.max(paddle.abs(self.widen(x)), axis=1).astype(x.dtype)

    def row_sum(self, x: Array) -> Array:
        return paddle.sum(x, axis=1)

    def permute(self, x: Array, order: Sequence[int]) -> Array:
        return paddle.transpose(x, list(order))

    def outer_products(self, g: Array, x: Array) -> Array:
        return paddle.matmul(g, x, transpose_x=True)

    # ------------------------------------------------------------------ sparse primitives
    def equal(self, x: Array, value: int | Array) -> Array:
        return x == value

    def in_range(self, indices: Array, rows: int | None) -> Array:
        mask = indices >= 0
        if rows is None or rows > np.iinfo(self.dtype(indices)).max:
            return mask
        return mask & (indices < rows)

    def isin(self, indices: Array, rows: Array) -> Array:
        return paddle.isin(indices.astype("int64"), rows.astype("int64"))

    def select(self, values: Array, indices: Array, keep: Array, rows: int | None) -> tuple[Array, Array]:
        kept = paddle.nonzero(keep).reshape([-1])
        return self.take(values, kept), self.take(indices, kept)

    def unique(self, indices: Array, rows: int | None) -> tuple[Array, Array]:
        ids = paddle.unique(indices)
        return ids, paddle.searchsorted(ids, indices)

    def segment_sum(self, values: Array, segments: Array, count: int | None) -> Array:
        out = self.zeros((count or 0, *values.shape[1:]), self.dtype(values), values)
        return paddle.index_add_(out, segments, 0, values)

    def scatter_rows(self, values: Array, ids: Array, shape: tuple[int, ...]) -> Array:
        return paddle.index_put_(self.zeros(shape, self.dtype(values), values), (ids,), values)

    def add_rows(self, dense: Array, values: Array, ids: Array) -> Array:
        if self.dtype(dense) not in HALF:
            return paddle.index_add(dense, ids, 0, values)
        sums = self.widen(self.take(dense, ids)) + self.widen(values)
        return paddle.index_put(dense, (ids,), sums.astype(dense.dtype))

    def arange(self, x: Array) -> Array:
        return paddle.arange(x.shape[0], device=x.place)

    def searchsorted(self, ordered: Array, queries: Array, *, right: bool) -> Array:
        return paddle.searchsorted(ordered, queries, right=right)

    def segment_max(self, values: Array, segments: Array, count: int | None, *, least: float | None = None) -> Array:
        values, shape = values.detach(), [count or 0, *values.shape[1:]]
        floats = values.is_floating_point()
        lowest = least if least is not None else -math.inf if floats else np.iinfo(self.dtype(values)).min
        out = paddle.full(shape, lowest, values.dtype, device=values.place)
        if values.size == 0:
            return out
        place = self.as_column(segments.astype("int64"), values).expand(values.shape)
        out = paddle.put_along_axis(out, place, values, 0, "amax")
        if not floats:
            return out
        nan = paddle.isnan(values).astype(values.dtype)  # NaN, which put_along_axis loses
        found = paddle.put_along_axis(paddle.zeros_like(out), place, nan, 0, "add")
        return self.where(found > 0, math.nan, out)

    def set_rows(self, table: Array, ids: Array, values: Array, *, donate: bool = False) -> Array:
        with paddle.no_grad():
            paddle.index_put_(table, (ids,), values)
        return table

    def add_in_order(self, table: Array, ids: Array, values: Array, *, donate: bool = False) -> Array | None:
        if not table.place.is_cpu_place():  # on other devices, the order is undefined
            return None
        with paddle.no_grad():
            return paddle.index_add_(table, ids, 0, values)

    def in_place(self, x: Array) -> bool:
        if 0 in (step for step, size in zip(x.strides, x.shape, strict=True) if size > 1):
            raise ValueError("table: got a tensor whose rows share memory; accepted is one of its own: x.clone()")
        return True

    def writable(self, arrays: Sequence[Array], *, donate: bool = False) -> tuple[list[Host], list[Array]] | None:
        views = [writable_view(x) for x in arrays]
        if any(found is None for found in views):
            return None
        for x in arrays:  # so that autograd notices the change
            x._bump_inplace_version()
        return views, list(arrays)  # type: ignore[return-value]

    # ------------------------------------------------------------------ differentiation
    def stop_gradient(self, x: Array) -> Array:
        return x.detach()

    custom_gradient = staticmethod(recording.custom_gradient)

    def differentiate(
        self, fn: Transform, variables: Sequence[Array], sources: Sequence[Source]
    ) -> tuple[Array, Any, list[Array], list[list[LookedUp]]]:
        return recording.differentiate(self.read_rows, fn, variables, sources)

    per_sample_gradients = not_implemented(
        "Paddle has no vmap, so per-sample gradients of dense arguments are not available; pass Tables as the "
        "differentiated arguments, or take the dense gradients of one sample at a time"
    )

    # ------------------------------------------------------------------ models
    def is_model(self, x: object) -> bool:
        return isinstance(x, paddle.nn.Layer)

    def capture(self, model: Any, uses: list[LayerUse]) -> AbstractContextManager[dict[str, Array]]:
        return layers.capture(model, uses)


def _operands(a: Any, b: Any) -> tuple[paddle.Tensor, paddle.Tensor]:
    """Return a and b as tensors. If a or b is a Python number, the number gets the dtype of the other operand."""
    if not isinstance(a, paddle.Tensor):
        return paddle.full([], a, b.dtype, device=b.place), b
    return (a, b) if isinstance(b, paddle.Tensor) else (a, paddle.full([], b, a.dtype, device=a.place))


backend = PaddleBackend()
