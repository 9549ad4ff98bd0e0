"""The host's arithmetic, which implements the primitives of `Backend` on NumPy arrays.

In mode "host", this code computes on NumPy views of the frameworks' arrays, so all frameworks get the same bits. For
arrays without a view, see `islices.core.modes`. bfloat16, which NumPy lacks, is stored as uint16 bit patterns. Active
compiled kernels replace some of this NumPy code and give the same bits. May import: `numpy`, `islices.backend`,
`islices.core.dtypes`, `islices.kernels`, `islices.core.host_memory`.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from islices import kernels
from islices.backend import Array, Backend, Gradient, Host, Shape, elements_meet, view_span
from islices.core.dtypes import dtype_name, host_dtype
from islices.core.host_memory import empty, zeros

#: the largest number of columns in a block; several rows of this many float64 elements fit the second-level cache
BLOCK = 1 << 15
#: the largest number of remaining rows that `_fold` may finish one by one instead of layer by layer
HEAVY_ROWS = 128
#: the approximate number of elements that `_fold` gathers at a time
PIECE = 1 << 16
#: the number of indices below which one call of np.argsort sorts them
FEW = 4096
#: the largest number of elements that one call of np.add.at sums; the call is slow per element
SMALL = 1 << 14


#: returns a context without NumPy's floating-point warnings
quiet: Callable[[], contextlib.AbstractContextManager[Any]] = partial(np.errstate, all="ignore")


def bfloat16_to_float32(bits: Host) -> Host:
    """Return the exact float32 values of bfloat16 bit patterns; a pattern is the upper half of a float32."""
    wide: Host = bits.astype(np.uint32) << np.uint32(16)
    return wide.view(np.float32)


def bfloat16_bits(x: Host) -> Host:
    """Round float32 values to bfloat16 (nearest, ties to even), and return uint16 bit patterns; NaN stays NaN."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    lowest_kept = (bits >> np.uint32(16)) & np.uint32(1)
    rounded = ((bits + (np.uint32(0x7FFF) + lowest_kept)) >> np.uint32(16)).astype(np.uint16)
    nan = np.isnan(x)
    if nan.any():  # the rounding above may turn a NaN into an infinity or a zero
        rounded[nan] = 0x7FC0
    return rounded.reshape(np.shape(x))  # 0-d stays 0-d


def _refuse_negative(ids: Host, rows: int) -> None:
    """Raise IndexError for a negative id, which NumPy would count from the end. Unchecked slices may have such ids."""
    if len(ids) and ids.min() < 0:
        raise IndexError(f"index {ids.min()} is out of bounds for axis 0 with size {rows}")


class HostBackend(Backend):
    """A backend whose primitives compute on NumPy arrays. A uint16 array of values stands for bfloat16."""

    name = "host"
    module = "numpy"

    def is_array(self, x: object) -> bool:
        return isinstance(x, np.ndarray)

    def dtype(self, x: Array) -> str:
        return dtype_name(x.dtype)

    def shape(self, x: Array) -> Shape:
        return x.shape  # type: ignore[no-any-return]

    def host_view(self, x: Array) -> Host | None:
        return x  # type: ignore[no-any-return]

    memory_span = staticmethod(view_span)  # type: ignore[assignment]

    def from_host(self, array: Host, like: Array) -> Array:
        return array

    def asarray(self, array: Host, like: Array | None = None) -> Array:
        return np.array(array)

    def to_numpy(self, x: Array) -> Host:
        return x  # type: ignore[no-any-return]

    def scalar(self, x: Host, like: Array) -> Array:
        return x.copy()

    def scope(self) -> contextlib.AbstractContextManager[Any]:
        return quiet()  # overflow and NaN are valid results of operations

    # ------------------------------------------------------------------ array primitives
    def astype(self, x: Array, dtype: str) -> Array:
        if x.dtype == np.uint16:
            x = bfloat16_to_float32(x)
        return bfloat16_bits(x) if dtype == "bfloat16" else x.astype(dtype, copy=False)

    def reshape(self, x: Array, shape: Sequence[int | None]) -> Array:
        return x.reshape(shape)

    def zeros(self, shape: Sequence[int], dtype: str, like: Array) -> Array:
        return zeros(shape, host_dtype(dtype))

    def concat(self, arrays: Sequence[Array]) -> Array:
        first = arrays[0]
        out = empty((sum(a.shape[0] for a in arrays), *first.shape[1:]), first.dtype)
        return np.concatenate(arrays, out=out)

    def take(self, x: Array, positions: Array) -> Array:
        out = empty((*positions.shape, *x.shape[1:]), x.dtype)
        return np.take(x, positions, axis=0, out=out, mode="clip")  # positions are in range; "clip" avoids a buffer

    def where(self, mask: Array, a: Array, b: Array) -> Array:
        if isinstance(a, float):
            a = b.dtype.type(a)
        elif isinstance(b, float):
            b = a.dtype.type(b)
        return np.where(mask, a, b)

    abs = staticmethod(np.abs)  # type: ignore[assignment]
    minimum = staticmethod(np.minimum)  # type: ignore[assignment]
    maximum = staticmethod(np.maximum)  # type: ignore[assignment]
    less_equal = staticmethod(np.less_equal)  # type: ignore[assignment]
    isfinite = staticmethod(np.isfinite)  # type: ignore[assignment]
    sqrt = staticmethod(np.sqrt)  # type: ignore[assignment]
    div = staticmethod(np.divide)  # type: ignore[assignment]

    def round_product(self, a: Array, b: Array | float) -> Array:
        return np.multiply(a, b, out=empty(np.broadcast_shapes(a.shape, np.shape(b)), a.dtype))

    def row_amax(self, x: Array) -> Array:
        if x.shape[1] == 0:
            return np.zeros(x.shape[0], x.dtype)
        # two reductions without a temporary array of x's size; both return NaN for a row with NaN
        return np.maximum(np.maximum.reduce(x, axis=1), -np.minimum.reduce(x, axis=1))

    def row_sum(self, x: Array) -> Array:
        return np.add.reduce(x, axis=1)

    def blocks(self, x: Array) -> Sequence[Array]:
        m = x.shape[1]
        return [x[:, i : i + BLOCK] for i in range(0, m, BLOCK)] or [x]

    # ------------------------------------------------------------------ sparse primitives
    equal = staticmethod(np.equal)  # type: ignore[assignment]

    def in_range(self, indices: Array, rows: int | None) -> Array:
        mask = indices >= 0
        return mask if rows is None else mask & (indices < rows)

    def logical_not(self, mask: Array) -> Array:
        return ~mask

    isin = staticmethod(np.isin)  # type: ignore[assignment]

    def select(self, values: Array, indices: Array, keep: Array, rows: int | None) -> tuple[Array, Array]:
        places = np.flatnonzero(keep)
        return self.take(values, places), self.take(indices, places)

    def unique(self, indices: Array, rows: int | None) -> tuple[Array, Array]:
        order, ids, starts = group(indices)
        return ids, _places(order, starts)

    def segment_sum(self, values: Array, segments: Array, count: int | None) -> Array:
        order, ids, starts = group(segments)
        sums = _fold(values, order, starts)
        if len(ids) == count:
            return sums
        out = zeros((count or 0, *values.shape[1:]), values.dtype)
        out[ids] = sums
        return out

    def outer_products(self, g: Array, x: Array) -> Array:
        return np.matmul(g.transpose(0, 2, 1), x)

    def sum_duplicates(self, values: Array, indices: Array, rows: int | None) -> tuple[Array, Array]:
        order, ids, starts = group(indices)
        return _fold(values, order, starts), ids

    def scatter_rows(self, values: Array, ids: Array, shape: tuple[int, ...]) -> Array:
        _refuse_negative(ids, shape[0])
        out = zeros(shape, values.dtype)
        out[ids] = values
        return out

    def add_rows(self, dense: Array, values: Array, ids: Array) -> Array:
        _refuse_negative(ids, len(dense))
        out = empty(dense.shape, dense.dtype)
        out[...] = dense
        if dense.dtype == np.uint16:
            out[ids] = bfloat16_bits(bfloat16_to_float32(dense[ids]) + bfloat16_to_float32(values))
        else:
            out[ids] += values
        return out

    def permute(self, x: Array, order: Sequence[int]) -> Array:
        return x.transpose(order)

    def arange(self, x: Array) -> Array:
        return np.arange(x.shape[0])

    def searchsorted(self, ordered: Array, queries: Array, *, right: bool) -> Array:
        return np.searchsorted(ordered, queries, "right" if right else "left")

    def segment_max(self, values: Array, segments: Array, count: int | None, *, least: float | None = None) -> Array:
        if least is None:
            least = -np.inf if values.dtype.kind == "f" else np.iinfo(values.dtype).min
        out = np.full((count or 0, *values.shape[1:]), least, values.dtype)
        if values.size:
            order, ids, starts = group(segments)
            out[ids] = np.maximum.reduceat(values[order], starts[:-1], axis=0)
        return out

    def set_rows(self, table: Array, ids: Array, values: Array, *, donate: bool = False) -> Array:
        self.in_place(table)
        table[ids] = values
        return table

    def in_place(self, x: Array) -> bool:
        if not x.flags.writeable:
            raise ValueError("table: got a read-only array; accepted is one that can be written to")
        if not x.flags.c_contiguous and elements_meet(x.shape, x.strides, x.itemsize):
            raise ValueError(
                f"table: got strides {x.strides} for shape {x.shape}, by which elements share memory; accepted is an "
                "array whose elements have each their own"
            )
        return True

    # ------------------------------------------------------------------ differentiation
    def stop_gradient(self, x: Array) -> Array:
        return x

    def custom_gradient(self, forward: Callable[..., Array], backward: Gradient) -> Callable[..., Array]:
        return forward  # NumPy records no operations


def native_order(x: Host) -> Host:
    """Return x in this machine's byte order, for code that compares bits or sends bits to other processes.

    NumPy arrays may have either byte order.
    """
    return x if x.dtype.isnative else x.astype(x.dtype.newbyteorder("="))


def group(indices: Host) -> tuple[Host, Host, Host]:
    """Group the positions of equal indices, and return (order, ids, starts).

    `order` contains all positions, sorted stably by index, so that each distinct index has one run of positions. `ids`
    contains the distinct indices in ascending order. `starts` contains the start of each run, and then the end of the
    last run.
    """
    n = len(indices)
    if n == 0:
        return np.empty(0, np.int64), indices[:0].copy(), np.zeros(1, np.int64)
    compiled = kernels.active(n)
    found = compiled.group(indices) if compiled else None
    if found is not None:
        order, ids, starts = found
        return order.view(np.int64), ids, starts.view(np.int64)
    order = _stable_order(indices)
    ordered = indices[order]
    first = np.empty(n + 1, bool)
    first[0] = first[n] = True
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:n])
    starts = np.flatnonzero(first)
    return order, ordered[starts[:-1]], starts


def _stable_order(indices: Host) -> Host:
    """Return np.argsort(indices, kind="stable").

    For at least `FEW` indices, all from 0 to 2^48 - 1, this function is several times faster than one call of argsort.
    """
    if len(indices) < FEW:
        return np.argsort(indices, kind="stable")
    digits = -(-int(indices.max()).bit_length() // 16) or 1
    if digits > 3 or int(indices.min()) < 0:
        return np.argsort(indices, kind="stable")
    # NumPy's stable sort of 16-bit numbers is a radix sort; sort once per 16-bit digit, the lowest first
    order = np.argsort(indices.astype(np.uint16), kind="stable")
    for digit in range(1, digits):
        higher = (indices >> (16 * digit)).astype(np.uint16)
        order = order[np.argsort(higher[order], kind="stable")]
    return order


def _places(order: Host, starts: Host) -> Host:
    """Return, for each slot, the number of the run that contains the slot; the arguments are from `group`."""
    places = np.empty(len(order), np.int64)
    places[order] = np.repeat(np.arange(len(starts) - 1), starts[1:] - starts[:-1])
    return places


def _fold(values: Host, order: Host, starts: Host) -> Host:
    """Return the sum of each group's rows of values, added left to right (SPEC clause 3).

    Without a kernel, many values are added in layers. Layer k >= 2 is a vectorised addition of the k-th occurrence of
    every row that occurs at least k times. The few rows with very many occurrences are finished one by one. The added
    values are first copied, piece by piece, into a buffer that stays in the processor's caches.
    """
    compiled = kernels.active(values.size)
    if compiled:
        return compiled.fold(values, order.view(np.uint64), starts.view(np.uint64))  # type: ignore[no-any-return]
    row_shape = values.shape[1:]
    count, width = len(starts) - 1, math.prod(row_shape)
    if count == len(values) or width == 0:  # nothing to add
        return np.take(values, order[starts[:-1]], axis=0, out=empty((count, *row_shape), values.dtype), mode="clip")
    if values.size <= SMALL:
        few = empty((count, *row_shape), values.dtype)
        few.fill(-0.0)  # -0 plus x is x, also for -0
        np.add.at(few, _places(order, starts), values)
        return few
    rows = values.reshape(len(values), width)
    counts = np.diff(starts)
    by_count = np.argsort(-counts, kind="stable")
    descending = counts[by_count]
    begin = starts[:-1][by_count]
    sums = np.take(rows, order[begin], axis=0, mode="clip")
    # active[k] = the number of rows with more than k occurrences
    active = (count - np.cumsum(np.bincount(descending))).tolist()
    buffer = np.empty((min(max(16, PIECE // width), len(rows)), width), values.dtype)
    k = 1
    while active[k] > min(HEAVY_ROWS, len(active) - k):  # until few rows remain, at most as many as layers
        positions = order[begin[: active[k]] + k]
        for i in range(0, len(positions), len(buffer)):
            part = positions[i : i + len(buffer)]
            into = sums[i : i + len(part)]
            into += np.take(rows, part, axis=0, out=buffer[: len(part)], mode="clip")
        k += 1
    for row in range(active[k]):
        _fold_row(rows, order[begin[row] + k : begin[row] + descending[row]], sums[row], buffer)
    place = np.empty(count, np.int64)
    place[by_count] = np.arange(count)
    out = empty((count, *row_shape), values.dtype)
    np.take(sums, place, axis=0, out=out.reshape(count, width), mode="clip")
    return out


def _fold_row(
    rows: Host,
    positions: Host,
    total: Host,
    buffer: Host,
) -> None:
    """Add rows[positions] to `total`, in place and left to right.

    NumPy sums from left to right along any axis except the innermost, where it sums in pairs. So this function sums
    rows of one element with np.add.accumulate instead.
    """
    step = len(buffer) - 1
    for i in range(0, len(positions), step):
        part = positions[i : i + step]
        terms = buffer[: len(part) + 1]
        terms[0] = total
        np.take(rows, part, axis=0, out=terms[1:], mode="clip")
        if len(total) == 1:
            total[:] = np.add.accumulate(terms, axis=0)[-1]
        else:
            np.add.reduce(terms, axis=0, out=total)
