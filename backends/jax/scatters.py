"""Group, sum and scatter rows with XLA, for traced code and for ``execution("framework")``.

On CPUs, XLA's scatter applies the updates in order, so a scatter-add sums from left to right. This module calls XLA's
scatter directly, because ``x.at[ids]`` interprets -1 as the last row. Here, a negative row is dropped like every other
row out of range. No function declares indices as sorted, because the results on GPUs would be wrong.

On CPUs, XLA scatters in place even if the operand and the indices are the same array. Then XLA reads indices that it
has just overwritten. So `fold` never passes an operand and indices that XLA could merge into one array.
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
    """Return `rows`, the index that marks an empty slot. Raise ValueError if `rows` is unknown, or if the dtype cannot
    represent it."""
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


#: signed kind of integers -> unsigned kind, and the reverse. Sums of both kinds have the same bits.
_OTHER_SIGN = {"i": "u", "u": "i"}


# ---------------------------------------------------------------------- grouping
def group(indices: Array, rows: int | None) -> tuple[Array, Array]:
    """Group traced indices, and return (ids, places).

    `ids` is as long as `indices`. The distinct indices in ascending order come first, and all unused entries after them
    contain `rows`. `places` contains the position of each slot's index in `ids`. Indices out of range count as the
    additional row `rows`.
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
    """Return x, but with the value `nowhere` in slots whose indices are out of range."""
    inside = (indices >= constant(0, indices.dtype)) & (indices < constant(rows, indices.dtype))
    return jnp.where(inside, x, constant(nowhere, x.dtype))


def _sort(indices: Array, rows: int) -> tuple[Array, Array]:
    """Sort indices, and return (the sorted indices, their original positions). The indices must be between 0 and
    `rows`."""
    n = indices.shape[0]
    shift = n.bit_length()
    positions = lax.iota(np.int32, n)
    if indices.dtype != np.int32 and rows >= 1 << (63 - shift):  # with int32, positions always fit
        return tuple(lax.sort((indices, positions), num_keys=1, is_stable=True))  # type: ignore[return-value]
    # keys that contain the index and the position sort four times faster than pairs, and the sort is stable
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
    """Return x with the rows `ids` replaced by `updates`. Equal ids must have equal updates. Ids out of range change
    nothing."""
    return lax.scatter(x, ids[:, None], updates, _dimensions(updates), mode="drop")


def add_at(x: Array, ids: Array, updates: Array) -> Array:
    """Add `updates` to the rows `ids` of x, in order on CPUs, and return the result. Ids out of range change
    nothing."""
    return lax.scatter_add(x, ids[:, None], updates, _dimensions(updates), mode="drop")


@partial(jax.jit, static_argnums=2, inline=True)
def fold(values: Array, segments: Array, count: int) -> Array:
    """Sum the values of each segment. On CPUs, the values are added from left to right."""
    dtype = values.dtype
    if dtype == segments.dtype:
        # The initial sums are zeros, and so are the segments of a single bag. If their shapes agree, which may happen
        # under vmap, XLA merges them into one array. In JAX 0.10, every count then became 1. So sum integers of the
        # other signedness, whose sums have the same bits, because XLA does not merge arrays of different types.
        values = values.astype(_OTHER_SIGN[dtype.kind] + str(dtype.itemsize))
    zeros = jnp.broadcast_to(constant(0, values.dtype), (count, *values.shape[1:]))
    if 0 in values.shape or count == 0:
        return zeros.astype(dtype)
    return apart(add_at(zeros, segments, values)).astype(dtype)


@partial(jax.jit, static_argnames=("count", "least"), inline=True)
def maximum(values: Array, segments: Array, count: int, *, least: float | None = None) -> Array:
    """Return the largest value of each segment, or NaN if the segment contains NaN. Each other result is at least
    `least`, which is by default -inf, or the smallest integer. For an empty segment, the result is `least`."""
    if least is None:
        least = -np.inf if jnp.issubdtype(values.dtype, np.floating) else np.iinfo(values.dtype).min
    start = jnp.broadcast_to(constant(least, values.dtype), (count, *values.shape[1:]))
    if 0 in values.shape or count == 0:
        return start
    return lax.scatter_max(start, segments[:, None], values, _dimensions(values), mode="drop")


def fold_rows(op: str, rows: Array, values: Array, segments: Array) -> Array:
    """Multiply or divide each row by the values of its segment, one value after the other."""
    if 0 in values.shape or 0 in rows.shape:
        return rows
    if op == "mul":  # on CPUs, XLA's scatter applies the updates in order
        return lax.scatter_mul(rows, segments[:, None], values, _dimensions(values), mode="drop")

    def divide(out: Array, slot: tuple[Array, Array]) -> tuple[Array, None]:
        at, value = slot
        row = jnp.take(out, at[None], axis=0, mode="clip")  # a row out of range is not written
        return set_at(out, at[None], lax.div(row, value[None])), None

    return lax.scan(divide, rows, (segments, values))[0]


@partial(jax.jit, static_argnums=2)  # in a single computation, the zeros are not copied
def set_rows(values: Array, ids: Array, shape: tuple[int, ...]) -> Array:
    """Make an array of zeros, and set its rows `ids` to `values`."""
    zeros = jnp.broadcast_to(constant(0, values.dtype), shape)
    return zeros if 0 in values.shape or 0 in shape else set_at(zeros, ids, values)


set_jitted = jax.jit(set_at)
set_donated = jax.jit(set_at, donate_argnums=0)
