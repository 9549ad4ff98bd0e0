"""The adapter of the library `sample`. `islices.backend.Backend` describes each primitive. The adapter declares that
sample has no autodiff."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import sample
from sample import Tensor

from islices.backend import Backend, NativeParts, not_implemented

NAMES = sample.KINDS
KINDS = {name: kind for kind, name in NAMES.items()}


class SampleBackend(Backend):
    name = module = "sample"
    protocol = 3  # the value of islices.backend.PROTOCOL for which this adapter was written
    float_dtypes = native_float_dtypes = ("float16", "float32", "float64")  # no bfloat16
    native_name = "sample.RowGradient"

    # ------------------------------------------------------------------ identity
    def is_array(self, x: object) -> bool:
        return isinstance(x, Tensor)

    def is_native(self, x: object) -> bool:
        return isinstance(x, sample.RowGradient)

    # ------------------------------------------------------------------ arrays in and out
    def dtype(self, x: Tensor) -> str:
        return NAMES[x.kind]

    def from_host(self, array: np.ndarray, like: Tensor) -> Tensor:
        return Tensor(array)

    host_view = to_numpy = staticmethod(Tensor.memory)  # type: ignore[assignment]  # shared: the host computes on the library's memory

    # ------------------------------------------------------------------ the library's sparse gradient
    def from_native(self, x: sample.RowGradient) -> NativeParts:
        return NativeParts(x.values, x.rows, x.shape)

    def to_native(self, values: Tensor, indices: Tensor, dense_shape: Any, **claims: Any) -> sample.RowGradient:
        if None in dense_shape:
            raise ValueError("s: got an unknown number of rows; accepted by sample.RowGradient is a known one")
        return sample.RowGradient(values, indices, dense_shape)

    # ------------------------------------------------------------------ the library's functions as they are
    abs = staticmethod(sample.absolute)
    sqrt = staticmethod(sample.root)
    isfinite = staticmethod(sample.finite)
    logical_not = staticmethod(sample.negate)
    minimum = staticmethod(sample.smaller)
    maximum = staticmethod(sample.larger)
    less_equal = staticmethod(sample.at_most)
    equal = staticmethod(sample.equal)
    div = staticmethod(sample.divide)
    where = staticmethod(sample.choose)
    row_sum = staticmethod(sample.total)
    concat = staticmethod(sample.join)  # type: ignore[assignment]
    take = staticmethod(sample.gather)  # type: ignore[assignment]
    reshape = staticmethod(sample.reshape)  # type: ignore[assignment]
    permute = staticmethod(sample.transpose)  # type: ignore[assignment]
    outer_products = staticmethod(sample.products)

    # ------------------------------------------------------------------ primitives composed of several functions
    def scope(self) -> contextlib.AbstractContextManager[Any]:
        return np.errstate(all="ignore")  # overflow and NaN are valid results

    def astype(self, x: Tensor, dtype: str) -> Tensor:
        return sample.cast(x, KINDS[dtype])

    def zeros(self, shape: Sequence[int], dtype: str, like: Tensor) -> Tensor:
        return sample.zeros(tuple(shape), KINDS[dtype])

    def arange(self, x: Tensor) -> Tensor:
        return sample.count(x.shape[0])

    def row_amax(self, x: Tensor) -> Tensor:
        return sample.peak(sample.absolute(x))

    def in_range(self, indices: Tensor, rows: int | None) -> Tensor:
        valid = sample.at_most(0, indices)
        return valid if rows is None else valid * sample.at_most(indices, rows - 1)

    def isin(self, indices: Tensor, rows: Tensor) -> Tensor:
        places = [sample.search(sample.distinct(rows)[0], indices, side) for side in ("left", "right")]
        return sample.negate(sample.equal(*places))

    def select(self, values: Tensor, indices: Tensor, keep: Tensor, rows: int | None) -> tuple[Tensor, Tensor]:
        kept = sample.where_true(keep)
        return sample.gather(values, kept), sample.gather(indices, kept)

    def unique(self, indices: Tensor, rows: int | None) -> tuple[Tensor, Tensor]:
        return sample.distinct(indices)

    def searchsorted(self, ordered: Tensor, queries: Tensor, *, right: bool) -> Tensor:
        return sample.search(ordered, queries, "right" if right else "left")

    def segment_sum(self, values: Tensor, segments: Tensor, count: Any) -> Tensor:
        out = sample.zeros((count, *values.shape[1:]), values.kind)
        sample.add_at(out, segments, values)  # from left to right, as SPEC clause 3 requires
        return out

    def segment_max(self, values: Tensor, segments: Tensor, count: Any, *, least: float | None = None) -> Tensor:
        name = NAMES[values.kind]
        lowest = least if least is not None else -np.inf if "float" in name else np.iinfo(name).min
        out = Tensor(np.full((count, *values.shape[1:]), lowest, name))
        sample.max_at(out, segments, values)
        return out

    def scatter_rows(self, values: Tensor, ids: Tensor, shape: tuple[int, ...]) -> Tensor:
        out = sample.zeros(shape, values.kind)
        sample.put(out, ids, values)
        return out

    def add_rows(self, dense: Tensor, values: Tensor, ids: Tensor) -> Tensor:
        sums = self.widen(sample.gather(dense, ids)) + self.widen(values)
        return self.set_rows(self.asarray(dense.memory()), ids, sample.cast(sums, dense.kind))

    def set_rows(self, table: Tensor, ids: Tensor, values: Tensor, *, donate: bool = False) -> Tensor:
        sample.put(table, ids, values)
        return table

    def in_place(self, x: Tensor) -> bool:
        return True

    # ------------------------------------------------------------------ missing features
    differentiate = not_implemented("sample has no autodiff; embedding_grad makes a table's gradient from its rows'")


backend = SampleBackend()
