"""Group, sum and scatter rows in XLA, for traced code and for mode framework.

On CPU XLA's scatter runs in the order of the updates, so a scatter-add is a left fold there. This module calls XLA's
scatter directly, because ``x.at[ids]`` wraps -1 to the last row. In this module a negative row is dropped like every
other row out of range. The functions never declare indices as sorted, which would give wrong results on GPU.

XLA on CPU scatters into its operand in place even if operand and indices are the same array. XLA then reads indices
that it has just overwritten. So `fold` never passes an operand and indices that XLA could merge into one array.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from islices.backend import Array
from islices.backends.jax.precision import apart, constant


def check_sentinel(rows: int | None, dtype: Any) -> int:
    """Return `rows`, the index that marks an empty slot. Raise ValueError if `rows` is unknown or does not fit the
    dtype."""
    if rows is None:
        raise ValueError(
            "dense_shape: got an unknown number of rows; accepted in traced code is a known one, "
            "since the index `rows` marks the slots that hold nothing"
        )
    if rows > np.iinfo(dtype).max:
        raise ValueError(
            f"dense_shape: got {rows} rows with {dtype} indices; accepted in traced code is rows <= "
            f"{np.iinfo(dtype).max}, since the index `rows` marks the slots that hold nothing"
        )
    return rows


#: The kind of signed integers for unsigned ones, and the reverse; both kinds wrap around alike.
_OTHER_SIGN = {"i": "u", "u": "i"}


# ---------------------------------------------------------------------- grouping
def group(indices: Array, rows: int | None) -> tuple[Array, Array]:
    """Return (ids, places) of traced indices.

    `ids` has the distinct indices, ascending, in an array as long as `indices`. Spare entries at the end are `rows`.
    `places` has the position of each slot's index in `ids`. All indices out of range count as one more row, `rows`.
    """
    sentinel = check_sentinel(rows, indices.dtype)
    indices, n = within(indices, indices, sentinel, sentinel), indices.shape[0]
    if n == 0:
        return indices, jnp.zeros((0,), np.int32)
    ordered, order = _sort(indices, sentinel)
    first = jnp.concatenate([jnp.zeros((1,), bool), ordered[1:] != ordered[:-1]])
    place = lax.cumsum(first.astype(np.int32))
    inverse = set_at(jnp.zeros((n,), np.int32), order, place)
    return set_at(jnp.broadcast_to(constant(sentinel, indices.dtype), (n,)), place, ordered), inverse


def within(x: Array, indices: Array, rows: int, nowhere: int) -> Array:
    """Return x with the value `nowhere` in the slots whose indices are out of range."""
    inside = (indices >= constant(0, indices.dtype)) & (indices < constant(rows, indices.dtype))
    return jnp.where(inside, x, constant(nowhere, x.dtype))


def _sort(indices: Array, rows: int) -> tuple[Array, Array]:
    """Return the sorted indices and their original positions. The indices are at least 0 and at most `rows`."""
    n = indices.shape[0]
    shift = n.bit_length()
    positions = lax.iota(np.int32, n)
    if indices.dtype != np.int32 and rows >= 1 << (63 - shift):  # int32 always leaves enough bits for positions
        return tuple(lax.sort((indices, positions), num_keys=1, is_stable=True))  # type: ignore[return-value]
    # a key that packs index and position sorts four times faster than pairs, and the sort is stable
    bits = constant(shift, np.int64)
    packed = lax.shift_left(indices.astype(np.int64), jnp.broadcast_to(bits, (n,))) | positions.astype(np.int64)
    packed = lax.sort(packed, is_stable=False)
    order = (packed & constant((1 << shift) - 1, np.int64)).astype(np.int32)
    return lax.shift_right_arithmetic(packed, jnp.broadcast_to(bits, (n,))).astype(indices.dtype), order


# ---------------------------------------------------------------------- scatter
def _dimensions(updates: Array) -> lax.ScatterDimensionNumbers:
    return lax.ScatterDimensionNumbers(
        update_window_dims=tuple(range(1, updates.ndim)),
        inserted_window_dims=(0,),
        scatter_dims_to_operand_dims=(0,),
    )


def set_at(x: Array, ids: Array, updates: Array) -> Array:
    """Return x with the rows at `ids` set to updates. Equal ids must have equal updates; ids out of range change
    nothing."""
    return lax.scatter(x, ids[:, None], updates, _dimensions(updates), mode="drop")


def add_at(x: Array, ids: Array, updates: Array) -> Array:
    """Return x with updates added to the rows at `ids`, in order on CPU. Ids out of range add nothing."""
    return lax.scatter_add(x, ids[:, None], updates, _dimensions(updates), mode="drop")


@partial(jax.jit, static_argnums=2, inline=True)
def fold(values: Array, segments: Array, count: int) -> Array:
    """Return the sums of values by segment, added left to right on CPU."""
    dtype = values.dtype
    if dtype == segments.dtype:
        # The initial sums are zeros, and so are the segments of a single bag. XLA merges them into one array if their
        # shapes agree, as (batch, 1) and (n, 1) may under vmap: in JAX 0.10 every count became 1. Integers of the other
        # signedness have the same sums to the bit, and XLA never merges arrays of two types.
        values = values.astype(_OTHER_SIGN[dtype.kind] + str(dtype.itemsize))
    zeros = jnp.broadcast_to(constant(0, values.dtype), (count, *values.shape[1:]))
    if 0 in values.shape or count == 0:
        return zeros.astype(dtype)
    return apart(add_at(zeros, segments, values)).astype(dtype)


@partial(jax.jit, static_argnames=("count", "least"), inline=True)
def maximum(values: Array, segments: Array, count: int, *, least: float | None = None) -> Array:
    """Return the largest value of each segment, or NaN if the segment contains NaN. An empty segment gets `least`;
    without `least`, it gets the least number of the dtype."""
    if least is None:
        least = -np.inf if jnp.issubdtype(values.dtype, np.floating) else np.iinfo(values.dtype).min
    start = jnp.broadcast_to(constant(least, values.dtype), (count, *values.shape[1:]))
    if 0 in values.shape or count == 0:
        return start
    return lax.scatter_max(start, segments[:, None], values, _dimensions(values), mode="drop")


def fold_rows(op: str, rows: Array, values: Array, segments: Array) -> Array:
    """Return `rows`, with each row multiplied or divided by the values of its segment, one after the other."""
    if 0 in values.shape or 0 in rows.shape:
        return rows
    if op == "mul":  # XLA's scatter goes through the updates in order on CPU
        return lax.scatter_mul(rows, segments[:, None], values, _dimensions(values), mode="drop")

    def divide(out: Array, slot: tuple[Array, Array]) -> tuple[Array, None]:
        at, value = slot
        row = jnp.take(out, at[None], axis=0, mode="clip")  # a row out of range is not written
        return set_at(out, at[None], lax.div(row, value[None])), None

    return lax.scan(divide, rows, (segments, values))[0]


@partial(jax.jit, static_argnums=2)  # jit makes one computation, so that the zeros are not copied again
def set_rows(values: Array, ids: Array, shape: tuple[int, ...]) -> Array:
    """Return zeros of a shape with the rows at `ids` set to values."""
    zeros = jnp.broadcast_to(constant(0, values.dtype), shape)
    return zeros if 0 in values.shape or 0 in shape else set_at(zeros, ids, values)


set_jitted = jax.jit(set_at)
set_donated = jax.jit(set_at, donate_argnums=0)
