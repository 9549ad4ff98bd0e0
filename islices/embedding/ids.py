"""Check a lookup's ids and masks: their dtypes and shapes, and the row numbers in ids.

SPEC clauses 2 and 12. May import: `numpy`, the core below `islices.core.conversion`.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import numpy as np

from islices.backend import INDEX_NAMES, INDICES, Array, Backend, Host
from islices.core import modes
from islices.core.arguments import check_name
from islices.core.registry import describe
from islices.core.shapes import same_shape, size_of
from islices.core.slices import check_indices

#: the dtypes that masks may have, apart from floats on backends with `Backend.whole_floats`
MASKS = ("bool", *INDICES, "uint8")
#: a dtype that ids may have, other than int32 and int64 -> the dtype to which such ids are converted
WIDENED = {"int8": "int32", "int16": "int32", "uint8": "int32", "uint16": "int32", "uint32": "int64"}
ID_NAMES = ", ".join((*INDICES, *WIDENED))
#: the treatment of a negative id: "raise" an error, or "drop" the id as absent
Invalid: TypeAlias = Literal["raise", "drop"]
INVALID = ("raise", "drop")


def check_invalid(invalid: object) -> bool:
    """Return True if `invalid` is "drop", which makes negative ids absent, and False if it is "raise"."""
    return check_name(invalid, INVALID, "invalid") == "drop"


def check_ids(B: Backend, ids: Any, like: Array, argument: str = "ids") -> Array:
    """Return ids, offsets or lengths as an int32 or int64 array of the backend. Raise TypeError if the conversion is
    impossible.

    If `Backend.whole_floats` is set, float arrays of the backend that contain whole numbers are accepted; a number
    beyond int64 raises IndexError.
    """
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
    """Convert ids of a dtype in `WIDENED` to int32 or int64. JAX without x64 stores int64 as int32."""
    with B.scope():
        if dtype == "int32":
            return B.astype(ids, dtype)
        if B.is_traced(ids):
            return B.astype(ids, B.dtype(B.asarray(np.empty(0, np.int64), ids)))
        return B.asarray(B.to_numpy(ids).astype(np.int64), ids)


def _whole(B: Backend, x: Array, argument: str, accepted: str) -> Host:
    """Return floats as a flat float64 array. Raise TypeError unless all floats are whole numbers."""
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
    """Raise IndexError for an id that is not a row number. Ids may have any shape; traced ids are not checked.

    If `absent` is True, negative ids count as absent and raise no error.
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


def flat_ids(B: Backend, ids: Array | None) -> Array | None:
    """Flatten ids, or an array with the shape of ids. None stays None."""
    if ids is None or len(B.shape(ids)) == 1:
        return ids
    with B.scope():
        return B.reshape(ids, (size_of(B.shape(ids)),))


def along_axis(B: Backend, ids: Array, axis: int = 0) -> Array:
    """Return the position of each id along an axis, as a flat int32 array of shape (n,)."""
    return modes.run(_along_axis, B, (ids,), axis=axis)


def _along_axis(B: Backend, ids: Array, *, axis: int) -> Array:
    return spread(B, B.astype(B.arange(axis_first(B, ids, axis)), "int32"), ids, axis)


def spread(B: Backend, numbers: Array, values: Array, axis: int = 0) -> Array:
    """Return a flat int32 array with one number per element of `values`: numbers[k] for each element at position k
    along `axis`.

    This function is an operation (see `islices.core.modes`).
    """
    shape = B.shape(values)
    if len(shape) == 1:
        return numbers
    column = B.reshape(numbers, [n if k == axis else 1 for k, n in enumerate(shape)])
    return B.reshape(column + B.astype(B.zeros_like(values), "int32"), (size_of(shape),))


def axis_first(B: Backend, x: Array, axis: int) -> Array:
    """Return x with one of its axes moved to the first place."""
    if axis == 0:
        return x
    with B.scope():
        return B.permute(x, [axis, *(k for k in range(len(B.shape(x))) if k != axis)])


def axis_back(B: Backend, x: Array, axis: int) -> Array:
    """Return x with its first axis moved to `axis`. This function is the inverse of `axis_first`. The caller enters
    `Backend.scope`."""
    return B.permute(x, [*range(1, axis + 1), 0, *range(axis + 1, len(B.shape(x)))]) if axis else x


def check_mask(B: Backend, mask: Any, ids: Array, like: Array) -> Array | None:
    """Return mask as an int32 array of the backend with the shape of ids: 0 for False, 1 for True. None stays None.

    Raise TypeError if the mask's type or dtype is not accepted, and ValueError if its shape differs from that of ids.
    """
    if mask is None:
        return None
    refused = TypeError(f"mask: got {describe(mask)}; accepted is a boolean array of {B.name} or NumPy")
    if isinstance(mask, np.ndarray) and not B.is_array(mask) and mask.dtype.name in MASKS:
        mask = B.asarray((mask != 0).astype(np.int32), like)
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
        return B.astype(mask if dtype == "bool" else B.logical_not(B.equal(mask, 0)), "int32")
