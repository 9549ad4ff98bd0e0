"""Host arithmetic: the primitives of `Backend` on NumPy arrays, and the allocator of the arrays they return.

This is what runs, by default, under every framework whose arrays lie in CPU memory: the framework's memory is
viewed as NumPy arrays, the arithmetic happens here, and so the bits agree by construction. bfloat16, which
NumPy does not know, travels as uint16 bit patterns. May import: NumPy and `islices.backend`.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from islices.backend import Array, Backend

__all__ = ["HostBackend", "bfloat16_bits", "bfloat16_to_float32", "empty", "group", "zeros"]

#: Frameworks take NumPy memory without a copy only at this alignment (XLA, and TensorFlow aborts otherwise).
ALIGNMENT = 64
#: Elements of float64 that fit the second-level cache several times over.
BLOCK = 1 << 15
#: Below this many rows that still receive contributions, whole rows are reduced at once instead of layer by layer.
HEAVY_ROWS = 128


def empty(shape: Sequence[int], dtype: Any) -> np.ndarray[Any, Any]:
    """An uninitialised C-ordered array whose memory starts at a multiple of 64 bytes."""
    return _aligned(np.empty, shape, np.dtype(dtype))


def zeros(shape: Sequence[int], dtype: Any) -> np.ndarray[Any, Any]:
    """An array of zeros, aligned as `empty` is; the system's zero pages are not touched."""
    return _aligned(np.zeros, shape, np.dtype(dtype))


def _aligned(allocate: Any, shape: Sequence[int], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    size = math.prod(shape) * dtype.itemsize
    raw: np.ndarray[Any, Any] = allocate(size + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    view: np.ndarray[Any, Any] = raw[start : start + size].view(dtype)
    return view.reshape(tuple(shape))


def bfloat16_to_float32(bits: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The float32 values of bfloat16 bit patterns: exact, the pattern is the upper half."""
    wide: np.ndarray[Any, Any] = bits.astype(np.uint32) << np.uint32(16)
    return wide.view(np.float32)


def bfloat16_bits(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """float32 rounded to bfloat16, to nearest even, as uint16 bit patterns; NaN stays NaN."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    lowest_kept = (bits >> np.uint32(16)) & np.uint32(1)
    rounded = ((bits + (np.uint32(0x7FFF) + lowest_kept)) >> np.uint32(16)).astype(np.uint16)
    nan = np.isnan(x)
    if nan.any():  # the addition above may carry a NaN's payload into infinity
        rounded[nan] = 0x7FC0
    return rounded


class HostBackend(Backend):
    """Primitives on NumPy arrays. A uint16 array of values holds bfloat16."""

    name = "host"
    module = "numpy"

    def version(self) -> str:
        return np.__version__

    def is_array(self, x: object) -> bool:
        return isinstance(x, np.ndarray)

    def dtype(self, x: Array) -> str:
        name = x.dtype.name
        return "bfloat16" if name == "uint16" else str(name)

    def shape(self, x: Array) -> tuple[int | None, ...]:
        return x.shape  # type: ignore[no-any-return]

    def host_view(self, x: Array) -> np.ndarray[Any, Any] | None:
        return x  # type: ignore[no-any-return]

    def from_host(self, array: np.ndarray[Any, Any], like: Array) -> Array:
        return array

    def asarray(self, array: np.ndarray[Any, Any], like: Array | None = None) -> Array:
        return np.array(array)

    def to_numpy(self, x: Array) -> np.ndarray[Any, Any]:
        return x  # type: ignore[no-any-return]

    def scope(self) -> contextlib.AbstractContextManager[Any]:
        return np.errstate(all="ignore")  # overflow and NaN are results here, not accidents

    # ------------------------------------------------------------------ array primitives
    def astype(self, x: Array, dtype: str) -> Array:
        if x.dtype == np.uint16:
            x = bfloat16_to_float32(x)
        return bfloat16_bits(x) if dtype == "bfloat16" else x.astype(dtype, copy=False)

    def reshape(self, x: Array, shape: Sequence[int | None]) -> Array:
        return x.reshape(shape)

    def zeros(self, shape: Sequence[int], dtype: str, like: Array) -> Array:
        return zeros(shape, np.uint16 if dtype == "bfloat16" else dtype)

    def concat(self, arrays: Sequence[Array]) -> Array:
        first = arrays[0]
        out = empty((sum(a.shape[0] for a in arrays), *first.shape[1:]), first.dtype)
        return np.concatenate(arrays, out=out)

    def take(self, x: Array, positions: Array) -> Array:
        out = empty((*positions.shape, *x.shape[1:]), x.dtype)
        return np.take(x, positions, axis=0, out=out, mode="clip")  # positions are in range; clip avoids a buffer

    def where(self, mask: Array, a: Array, b: Array) -> Array:
        if isinstance(a, float):
            a = b.dtype.type(a)
        elif isinstance(b, float):
            b = a.dtype.type(b)
        return np.where(mask, a, b)

    def abs(self, x: Array) -> Array:
        return np.abs(x)

    def minimum(self, a: Array, b: Array) -> Array:
        return np.minimum(a, b)

    def maximum(self, a: Array, b: Array) -> Array:
        return np.maximum(a, b)

    def less_equal(self, a: Array, b: Array) -> Array:
        return np.less_equal(a, b)

    def isfinite(self, x: Array) -> Array:
        return np.isfinite(x)

    def sqrt(self, x: Array) -> Array:
        return np.sqrt(x)

    def div(self, a: Array, b: Array) -> Array:
        return np.divide(a, b)

    def round_product(self, a: Array, b: Array | float) -> Array:
        return np.multiply(a, b, out=empty(np.broadcast_shapes(a.shape, np.shape(b)), a.dtype))

    def row_amax(self, x: Array) -> Array:
        if x.shape[1] == 0:
            return np.zeros(x.shape[0], x.dtype)
        # two reductions without a temporary; both carry NaN through
        return np.maximum(np.max(x, axis=1), -np.min(x, axis=1))

    def row_sum(self, x: Array) -> Array:
        return np.sum(x, axis=1)

    def blocks(self, x: Array) -> Sequence[Array]:
        m = x.shape[1]
        return [x[:, i : i + BLOCK] for i in range(0, m, BLOCK)] or [x]

    # ------------------------------------------------------------------ sparse primitives
    def equal(self, x: Array, value: int | Array) -> Array:
        return np.equal(x, value)

    def in_range(self, indices: Array, rows: int | None) -> Array:
        mask = indices >= 0
        return mask if rows is None else mask & (indices < rows)

    def logical_not(self, mask: Array) -> Array:
        return ~mask

    def isin(self, indices: Array, rows: Array) -> Array:
        return np.isin(indices, rows)

    def select(self, values: Array, indices: Array, keep: Array, rows: int | None) -> tuple[Array, Array]:
        places = np.flatnonzero(keep)
        return self.take(values, places), self.take(indices, places)

    def unique(self, indices: Array, rows: int | None) -> tuple[Array, Array]:
        order, ids, starts = group(indices)
        inverse = np.empty(len(indices), np.int64)
        inverse[order] = np.repeat(np.arange(len(ids)), np.diff(starts))
        return ids, inverse

    def segment_sum(self, values: Array, segments: Array, count: int | None) -> Array:
        order, ids, starts = group(segments)
        sums = _fold(values, order, starts)
        if len(ids) == count:
            return sums
        out = zeros((count or 0, *values.shape[1:]), values.dtype)
        out[ids] = sums
        return out

    def sum_duplicates(self, values: Array, indices: Array, rows: int | None) -> tuple[Array, Array]:
        order, ids, starts = group(indices)
        return _fold(values, order, starts), ids

    def scatter_rows(self, values: Array, ids: Array, shape: tuple[int, ...]) -> Array:
        out = zeros(shape, values.dtype)
        out[ids] = values
        return out

    def add_rows(self, dense: Array, values: Array, ids: Array) -> Array:
        out = empty(dense.shape, dense.dtype)
        out[...] = dense
        if dense.dtype == np.uint16:
            out[ids] = bfloat16_bits(bfloat16_to_float32(dense[ids]) + bfloat16_to_float32(values))
        else:
            out[ids] += values
        return out


def group(indices: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """(order, ids, starts): a stable order that sorts the indices, the distinct ones ascending, and where each
    one's run starts in the sorted order, with the end appended."""
    n = len(indices)
    if n == 0:
        return np.empty(0, np.int64), indices[:0].copy(), np.zeros(1, np.int64)
    shift = n.bit_length()
    if int(indices.min()) >= 0 and int(indices.max()) < 1 << (63 - shift):
        # sorting index and position as one number is stable without a stable sort, and several times faster
        packed = indices.astype(np.int64)
        packed <<= shift
        packed |= np.arange(n)
        packed.sort()
        order = packed & ((1 << shift) - 1)
        ordered = (packed >> shift).astype(indices.dtype, copy=False)
    else:
        order = np.argsort(indices, kind="stable")
        ordered = indices[order]
    first = np.empty(n, bool)
    first[0] = True
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    starts = np.flatnonzero(first)
    ids = ordered[starts]
    return order, ids, np.append(starts, n)


def _fold(
    values: np.ndarray[Any, Any], order: np.ndarray[Any, Any], starts: np.ndarray[Any, Any]
) -> np.ndarray[Any, Any]:
    """Sums of the runs of a grouping, each added left to right (clause 3).

    Layer k adds the k-th occurrence of every row that has one, so that each step is one vectorised addition;
    the few rows with very many occurrences are finished one by one. NumPy's own reduction is a left fold along
    an axis that is not the innermost one; along the innermost it is pairwise, so scalar rows are accumulated.
    """
    row_shape = values.shape[1:]
    counts = np.diff(starts)
    if len(counts) == len(values):  # nothing occurs twice
        return np.take(values, order, axis=0, out=empty(values.shape, values.dtype), mode="clip")
    by_count = np.argsort(-counts, kind="stable")
    descending = counts[by_count]
    begin = starts[:-1][by_count]
    sums = values[order[begin]]
    # active[k] = how many rows have more than k occurrences
    active = len(counts) - np.cumsum(np.bincount(descending))
    k = 1
    while k < len(active) and active[k] > HEAVY_ROWS:
        m = active[k]
        sums[:m] += values[order[begin[:m] + k]]
        k += 1
    for row in range(active[k] if k < len(active) else 0):
        rest = values[order[begin[row] + k : begin[row] + descending[row]]]
        sums[row] = _left_fold(sums[row], rest.reshape(len(rest), -1)).reshape(row_shape)
    out = empty(sums.shape, sums.dtype)
    out[by_count] = sums
    return out


def _left_fold(first: np.ndarray[Any, Any], rest: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    terms = np.concatenate([np.reshape(first, (1, rest.shape[1])), rest])
    if terms.shape[1] == 1:
        return np.add.accumulate(terms, axis=0)[-1]  # type: ignore[no-any-return]
    return np.add.reduce(terms, axis=0)  # type: ignore[no-any-return]
