"""The ids of a lookup, and masks over them: which arrays they may be, and which rows they may name.

SPEC clauses 2 and 12. May import: `numpy`, the core below `islices.core.conversion`.
"""

from __future__ import annotations

import math
from typing import Any, Literal, TypeAlias

import numpy as np

from islices.backend import INDEX_NAMES, INDICES, Array, Backend
from islices.core import modes
from islices.core.arguments import check_name
from islices.core.registry import describe
from islices.core.shapes import same_shape, size_of
from islices.core.slices import check_indices

#: What a mask may be of.
MASKS = ("bool", *INDICES, "uint8")
#: Narrower integers that ids may be of, and what they count as.
WIDENED = {"int8": "int32", "int16": "int32", "uint8": "int32", "uint16": "int32", "uint32": "int64"}
ID_NAMES = ", ".join((*INDICES, *WIDENED))
#: What becomes of a negative id: it raises, or it is absent.
Invalid: TypeAlias = Literal["raise", "drop"]
INVALID = ("raise", "drop")


def check_invalid(invalid: object) -> bool:
    """Return True if negative ids are absent: "drop", not "raise"."""
    if isinstance(invalid, str) and invalid == "raise":  # at most calls
        return False
    return check_name(invalid, INVALID, "invalid") == "drop"


def check_ids(B: Backend, ids: Any, like: Array, argument: str = "ids") -> Array:
    """ids (or offsets, or lengths) as int32 or int64 of the backend."""
    if isinstance(ids, np.ndarray):
        ids = ids.astype(WIDENED.get(ids.dtype.name, ids.dtype), copy=False)
        if not B.is_array(ids):
            if ids.dtype.name not in INDICES:
                raise TypeError(f"{argument}: got {describe(ids)}; accepted dtypes are {ID_NAMES}")
            with B.scope():
                return B.asarray(ids, like)
    if B.is_array(ids):
        dtype = B.dtype(ids)
        if dtype in INDICES:
            return ids
        if dtype in WIDENED:
            return _widened(B, ids, WIDENED[dtype])
        if B.whole_floats and dtype in B.float_dtypes:
            whole = _whole(B, ids, argument, f"an {INDEX_NAMES} array, or whole numbers as floats")
            if (np.abs(whole) >= 2.0**63).any():
                position = int(np.argmax(np.abs(whole) >= 2.0**63))
                raise IndexError(f"{argument}: got {whole[position]:g} at position {position}; accepted is an int64")
            return B.from_host(whole.astype(np.int64).reshape(B.shape(ids)), ids)  # pyright: ignore[reportArgumentType, reportCallIssue]
    raise TypeError(
        f"{argument}: got {describe(ids)}; accepted is an {INDEX_NAMES} array of {B.name} or NumPy, or one of "
        "narrower integers"
    )


def _widened(B: Backend, ids: Array, dtype: str) -> Array:
    """ids of a narrower dtype as int32, or as int64, which JAX without x64 holds as int32."""
    with B.scope():
        if dtype == "int32":
            return B.astype(ids, dtype)
        if B.is_traced(ids):
            return B.astype(ids, B.dtype(B.asarray(np.empty(0, np.int64), ids)))
        return B.asarray(B.to_numpy(ids).astype(np.int64), ids)


def _whole(B: Backend, x: Array, argument: str, accepted: str) -> np.ndarray[Any, Any]:
    """The whole numbers that floats stand for, in one dimension, in float64."""
    with B.scope():
        flat = B.to_numpy(B.astype(x, "float64")).reshape(-1)
    whole = np.isfinite(flat) & (np.trunc(flat) == flat)
    if not whole.all():
        position = int(np.argmin(whole))
        raise TypeError(
            f"{argument}: got {describe(x)} with {flat[position]:g} at position {position}; accepted is {accepted}"
        )
    return flat


def check_range(B: Backend, ids: Array, rows: int | None, *, absent: bool = False) -> None:
    """Raise IndexError for one of the ids, of any shape, that is no row; in traced code nothing is known.

    absent: negative ids name nothing, and are none.
    """
    if B.is_traced(ids):
        return
    flat = flat_ids(B, ids)
    if not absent:
        check_indices(B, flat, rows, argument="ids")
        return
    beyond = B.to_numpy(flat) >= (np.inf if rows is None else rows)
    if beyond.any():
        position = int(np.argmax(beyond))
        raise IndexError(
            f"ids: got {int(B.to_numpy(flat)[position])} at position {position}; accepted is index < {rows} "
            "(with invalid='drop' negative ones are absent)"
        )


def flat_ids(B: Backend, ids: Array) -> Array:
    """ids in one dimension."""
    if len(B.shape(ids)) == 1:
        return ids
    with B.scope():
        return B.reshape(ids, (size_of(B.shape(ids)),))


def first_axis(B: Backend, ids: Array) -> Array:
    """The first position of each of the ids, flattened: int32, shape (n,)."""
    shape = B.shape(ids)
    if modes.host_views(B, (ids,)) is not None:
        n, *rest = map(int, shape)  # type: ignore[arg-type]  # of memory that is there
        return B.from_host(np.repeat(np.arange(n, dtype=np.int32), math.prod(rest)), ids)
    with B.scope():
        number = B.astype(B.arange(ids), "int32")
        if len(shape) == 1:
            return number
        return B.reshape(B.as_column(number, ids) + B.astype(B.zeros_like(ids), "int32"), (size_of(shape),))


def along_axis(B: Backend, ids: Array, axis: int) -> Array:
    """The position along an axis of each of the ids, flattened: int32, shape (n,)."""
    if axis == 0:
        return first_axis(B, ids)
    moved = axis_first(B, ids, axis)
    numbers = first_axis(B, moved)
    with B.scope():
        return flat_ids(B, axis_back(B, B.reshape(numbers, B.shape(moved)), axis))


def axis_first(B: Backend, x: Array, axis: int) -> Array:
    """x with one of its axes in front of the others."""
    if axis == 0:
        return x
    with B.scope():
        return B.permute(x, [axis, *(k for k in range(len(B.shape(x))) if k != axis)])


def axis_back(B: Backend, x: Array, axis: int) -> Array:
    """x with its first axis where `axis_first` found it; within `Backend.scope`."""
    return B.permute(x, [*range(1, axis + 1), 0, *range(axis + 1, len(B.shape(x)))]) if axis else x


def check_mask(B: Backend, mask: Any, ids: Array, like: Array) -> Array | None:
    """mask as int32 of the backend, 0 where it is False, of ids' shape; None stays None."""
    if mask is None:
        return None
    refused = TypeError(f"mask: got {describe(mask)}; accepted is a boolean array of {B.name} or NumPy")
    if isinstance(mask, np.ndarray) and not B.is_array(mask) and mask.dtype.name in MASKS:
        wide = mask.dtype == np.int64  # of which JAX, too, would keep the lower half
        mask = B.asarray((mask != 0).astype(np.int32) if wide or mask.dtype == bool else mask, like)
    if not B.is_array(mask):
        raise refused
    given, wanted = B.shape(mask), B.shape(ids)
    if not same_shape(given, wanted):
        raise ValueError(f"mask: got shape {given}; accepted is ids' shape {wanted}")
    if B.whole_floats and B.dtype(mask) in B.float_dtypes:
        whole = _whole(B, mask, "mask", "a boolean array, or whole numbers as floats")
        return B.from_host((whole != 0).astype(np.int32).reshape(given), mask)
    dtype = B.dtype(mask)
    if dtype not in MASKS:
        raise refused
    with B.scope():
        return B.astype(B.logical_not(B.equal(mask, 0)) if dtype == "int64" else mask, "int32")
