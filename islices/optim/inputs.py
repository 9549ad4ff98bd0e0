"""Check a step's arguments (table, state, grad, apply), and an optimizer's argument frozen.

A step checks its arguments before it writes anything.
SPEC clause 16 and its table of bad input.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple, cast

import numpy as np

from islices.backend import FLOATS, INTEGERS, Array, Backend, Host, Look
from islices.core import modes
from islices.core.conversion import accept, without_padding
from islices.core.deferred import native_look
from islices.core.linear import wide_dtype
from islices.core.registry import describe, find_array_backend, find_backend
from islices.core.rows import rows_or_mask
from islices.core.scatter import accept_table, check_shape
from islices.core.shapes import size_of
from islices.core.slices import IndexedSlices, check_indices
from islices.core.slots import arrays_of
from islices.optim.formulas import Formula


def accept_float_table(table: Any) -> tuple[Backend, Array, str]:
    """Return (backend, weights, dtype of the weights) for a Table or an array; raise TypeError for integers."""
    B, weights, dtype = accept_table(table)
    if dtype in INTEGERS:
        raise TypeError(f"table: got {describe(weights)}; accepted is a floating dtype")
    return B, weights, dtype


class Tables(NamedTuple):
    """The checked arrays that a step changes: a table of floats and the table's state."""

    B: Backend
    table: Any  # the user's object
    weights: Array  # the table's array
    dtype: str
    shape: tuple[int, ...]
    arrays: dict[str, Array]  # the state: "step" first, and "master" last if it exists
    held: Look | None  # the `Look` at the weights and the state's arrays, or None after the full check


def accept_tables(table: Any, state: Any, formula: Formula, owner: object) -> Tables:
    """Return a table and its state after checking them; `owner`, the optimizer, appears in error messages."""
    plain = _plain(table, state, formula)
    if plain is not None:
        return plain
    B, weights, dtype = accept_float_table(table)
    shape: tuple[int, ...] = B.shape(weights)  # type: ignore[assignment]
    arrays = _check_state(B, weights, dtype, state, state_shapes(formula, shape), owner)
    return Tables(B, table, weights, dtype, shape, arrays, None)


def _plain(table: Any, state: Any, formula: Formula) -> Tables | None:
    """Return a table and its state after one fast check, or None if `Backend.plain_tables` does not support them.

    Also return None if the table is not an array of floats with a rows axis. Also return None if the state is not a
    dict, contains a master, or has an unexpected dtype, shape or name. If this function returns None, `accept_tables`
    checks each argument in full.
    """
    B = find_backend(table)
    if B is None or type(state) is not dict or len(state) != len(formula.state) + 1:
        return None
    arrays = {"step": state.get("step")}
    for spec in formula.state:
        arrays[spec.name] = state.get(spec.name)
    held = B.plain_tables((table, *arrays.values()))
    if held is None:
        return None
    dtype, shape = held.dtypes[0], cast("tuple[int, ...]", held.shapes[0])
    if (held.dtypes, held.shapes) != _expected(formula, dtype, shape):
        return None
    return Tables(B, table, table, dtype, shape, arrays, held)


@lru_cache(maxsize=256)
def _expected(formula: Formula, dtype: str, shape: tuple[int, ...]) -> tuple[list[str], list[tuple[int, ...]]] | None:
    """Return the expected (dtypes, shapes) of a table's weights, its step count and the other arrays of its state.

    Return None if the weights are not floats or have no rows axis.
    """
    if dtype not in FLOATS or not shape:
        return None
    shapes = state_shapes(formula, shape).values()
    return [dtype, "int32", *[wide_dtype(dtype)] * len(shapes)], [shape, (1,), *shapes]


@lru_cache(maxsize=256)
def state_shapes(formula: Formula, shape: tuple[int, ...]) -> Mapping[str, tuple[int, ...]]:
    """Return a dict from the names of the optimizer's arrays to their shapes, for weights of this shape."""
    return {spec.name: shape[:1] if spec.per_row else shape for spec in formula.state}


def _check_state(
    B: Backend, weights: Array, dtype: str, state: Any, shapes: Mapping[str, tuple[int, ...]], owner: object
) -> dict[str, Array]:
    """Check a state and return its arrays: "step", then the arrays in `shapes`, then "master" if it exists."""
    if not isinstance(state, Mapping):
        raise TypeError(f"state: got {describe(state)}; accepted is the dict that init returned")
    wide = wide_dtype(dtype)
    shapes = {"step": (1,), **shapes}
    if "master" in state and wide != dtype:
        shapes["master"] = B.shape(weights)  # type: ignore[assignment]
    if set(state) != set(shapes):
        came = ", ".join(map(repr, state)) or "an empty dict"
        raise ValueError(f"state: got {came}; {owner!r} has {', '.join(map(repr, shapes))}")
    in_place, arrays = B.in_place(weights), {}
    for name, shape in shapes.items():
        x, wanted = state[name], "int32" if name == "step" else wide
        if not B.is_array(x):
            raise TypeError(
                f"state[{name!r}]: got {describe(x)}; accepted is an array of {B.name}: "
                f"islices.convert(state, {B.name!r})"
            )
        found = B.dtype(x)
        if found != wanted:
            raise TypeError(f"state[{name!r}]: got {found}; accepted for a table of {dtype} is {wanted}")
        if B.shape(x) != shape:
            raise ValueError(f"state[{name!r}]: got shape {B.shape(x)}; accepted is {shape}")
        try:
            changes = B.in_place(x)
        except ValueError as error:
            raise ValueError(str(error).replace("table:", f"state[{name!r}]:", 1)) from None
        if changes != in_place:  # the step would change one of the two in place and return the other as a new array
            raise TypeError(
                f"state[{name!r}]: got {type(x).__name__} for a table that is a {type(weights).__name__}; accepted are "
                "both in place or neither (tf.Variable(x, trainable=False)). A tf.function gives back variables as "
                "tensors: do not return the table and the state from it, the step has changed them in place"
            )
        arrays[name] = x
    return arrays


def accept_gradient(B: Backend, dtype: str, shape: tuple[int, ...], grad: Any) -> tuple[IndexedSlices | Array, Look]:
    """Return the checked gradient, and B's `Look` at its arrays.

    The returned gradient is a dense array or slices. Slices that are not traced have no padding, and all their indices
    are in range.
    """
    leaf = accept(grad, "grad")
    sparse = isinstance(leaf, IndexedSlices)
    backend = leaf.backend if sparse else B
    if backend is not B or not (sparse or B.is_array(leaf)):
        raise TypeError(f"grad: got {describe(grad)} for a table of {B.name}; accepted is one framework")
    known = native_look(leaf) if sparse else None
    look = known or B.look(arrays_of(leaf) if sparse else (leaf,))
    if look.dtypes[0] not in (dtype, wide_dtype(dtype)):
        accepted = dtype if dtype == wide_dtype(dtype) else f"{dtype} or {wide_dtype(dtype)}"
        raise TypeError(f"grad: got {look.dtypes[0]} for a table of {dtype}; accepted is {accepted}")
    if not sparse:
        if look.shapes[0] != shape:
            raise ValueError(f"grad: got shape {look.shapes[0]} for a table of shape {shape}; accepted is one shape")
        return leaf, look
    if leaf.dense_shape != shape:
        check_shape(leaf, shape, "grad")
    if True not in look.traced:
        if leaf.padded:
            leaf = without_padding(leaf)
            look = B.look((leaf.values, leaf.indices))
        # check even trusted indices, because a write must stay inside the table; `accept` checked native ones
        if known is None or leaf.dense_shape[0] is None:
            check_indices(B, leaf.indices, shape[0], look=look)
    if leaf.dense_shape[0] is None:
        leaf = leaf._like(leaf.values, dense_shape=shape)
    return leaf, look


def is_taken(B: Backend, apply: Any) -> bool | Array:
    """Return the argument `apply` as a bool; False means that the step changes nothing.

    If `apply` is traced, return 1 or 0 as an int32 array of B with shape (1,).
    """
    if isinstance(apply, (bool, np.bool_)):
        return bool(apply)
    backend = find_array_backend(apply)
    if backend is None or backend.dtype(apply) not in ("bool", *INTEGERS):
        raise TypeError(f"apply: got {describe(apply)}; accepted is a bool, or a boolean or integer array of one")
    if size_of(backend.shape(apply)) != 1:
        raise ValueError(f"apply: got shape {backend.shape(apply)}; accepted is an array of one")
    if not backend.is_traced(apply):
        return bool(backend.to_numpy(apply).reshape(()))
    with B.scope():
        number = B.reshape(B.astype(apply, "int32"), (1,))
        return B.astype(B.logical_not(B.equal(number, 0)), "int32")


# ---------------------------------------------------------------------- frozen rows
def frozen_rows(frozen: Any) -> tuple[Host | None, int | None]:
    """Return (rows, mask length) for the argument `frozen`.

    The row numbers are ascending and unique. If `frozen` is None, or an empty sequence or array other than a mask, the
    result contains None instead of row numbers. The length is None unless `frozen` is a mask.
    """
    empty = isinstance(frozen, np.ndarray) and frozen.shape == (0,) and frozen.dtype != bool  # np.array([]) is float64
    if frozen is None or empty:
        return None, None
    rows = rows_or_mask(frozen, "frozen")
    if rows.dtype == bool:
        return np.flatnonzero(rows), len(rows)
    check_indices(modes.HOST, rows, None, argument="frozen")
    return (np.unique(rows.astype(np.int64)) if len(rows) else None), None


def frozen_argument(rows: Host | None, mask_length: int | None) -> Host | None:
    """Return an argument `frozen` for which `frozen_rows` returns (rows, mask_length)."""
    return rows if rows is None or mask_length is None else np.isin(np.arange(mask_length), rows)


def check_frozen(frozen: Host | None, mask_length: int | None, rows: int) -> Host | None:
    """Return the frozen rows, or None if there are none.

    Raise IndexError if a table with `rows` rows lacks a frozen row, and ValueError if the mask's length is not `rows`.
    """
    if mask_length not in (None, rows):
        raise ValueError(f"frozen: got a mask of length {mask_length}; accepted is one entry a row, {rows}")
    if frozen is None or len(frozen) == 0:
        return None
    if frozen[-1] >= rows:
        raise IndexError(f"frozen: got {frozen[-1]} for a table of {rows} rows; accepted is 0 <= row < {rows}")
    return frozen
