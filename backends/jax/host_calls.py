"""Compiled host kernels as XLA custom calls: what jitted programs on CPU reach without Python, its lock or a copy.

XLA calls a *handler*, a C function of one pointer to a call frame (xla/ffi/api/c_api.h, which jaxlib ships in
`jax.ffi.include_dir()`). numba compiles one for each kernel and types, so no C compiler is needed. It reads the frame
by the positions of its 8-byte words, which version 0.1 of the API fixes: XLA asks a handler for its version when it is
registered, and refuses one that it does not speak.

A handler raises nothing and allocates nothing: sizes are those of the operands, and the kernels' own memory comes from
XLA, as results that nobody uses.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import numpy as np
from llvmlite import ir
from numba import carray, types
from numba.core import typing as signatures
from numba.extending import intrinsic

from islices.kernels.compiling import INTEGER, Kernel, compile_callback, compile_kernel, inline, vector
from islices.kernels.folding import fold_kernel
from islices.kernels.grouping import group_kernel
from islices.kernels.halves import FORMATS
from islices.kernels.updating import step_kernel
from islices.locks import Lock
from islices.optim.formulas import Formula

__all__ = ["step_target", "target"]

# ---------------------------------------------------------------------- words of XLA's structs
#: XLA_FFI_CallFrame
EXTENSION, ARGUMENTS, RESULTS, ATTRIBUTES = 1, 9, 14, 20
#: XLA_FFI_Extension_Base, of which the metadata's has one word more
KIND, METADATA = 1, 3
ASKS_METADATA = 1
#: XLA_FFI_Metadata, in words of 4 bytes
MAJOR, MINOR, TRAITS = 6, 7, 8
#: XLA_FFI_Buffer
DATA, RANK, DIMENSIONS = 3, 4, 5
#: XLA_FFI_Scalar
VALUE = 1
#: The version of the API that all of these are written to.
VERSION = (0, 1)
#: Of a handler: the address of the frame, to that of an error, or 0.
SIGNATURE = types.int64(types.int64)

_WORD, _HALF = ir.IntType(64), ir.IntType(32)


@intrinsic  # type: ignore[untyped-decorator]
def _word(context: Any, address: Any, position: Any) -> Any:
    """The 8-byte word at a position from an address."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        start = builder.inttoptr(arguments[0], _WORD.as_pointer())
        return builder.load(builder.gep(start, [arguments[1]]))

    return types.int64(types.int64, types.int64), generate


@intrinsic  # type: ignore[untyped-decorator]
def _write_half(context: Any, address: Any, position: Any, value: Any) -> Any:
    """Set the 4-byte word at a position from an address."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        start = builder.inttoptr(arguments[0], _HALF.as_pointer())
        builder.store(builder.trunc(arguments[2], _HALF), builder.gep(start, [arguments[1]]))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@intrinsic  # type: ignore[untyped-decorator]
def _pointer(context: Any, address: Any) -> Any:
    """An address as `numba.carray` takes it."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(types.voidptr))

    return types.voidptr(types.int64), generate


@inline
def _introduced(frame: int) -> bool:
    """Whether XLA only asked what kind of handler this is, and has been told."""
    extension = _word(frame, EXTENSION)
    if extension == 0 or (_word(extension, KIND) & 0xFFFFFFFF) != ASKS_METADATA:
        return False
    metadata = _word(extension, METADATA)
    _write_half(metadata, MAJOR, VERSION[0])
    _write_half(metadata, MINOR, VERSION[1])
    _write_half(metadata, TRAITS, 0)
    return True


@inline
def _operand(frame: int, k: int) -> int:
    return _word(_word(frame, ARGUMENTS), k)  # type: ignore[no-any-return]


@inline
def _result(frame: int, k: int) -> int:
    return _word(_word(frame, RESULTS), k)  # type: ignore[no-any-return]


@inline
def _only_attribute(frame: int) -> int:
    return _word(_word(_word(_word(frame, ATTRIBUTES), 0), VALUE), 0)  # type: ignore[no-any-return]


@inline
def _size(buffer: int, start: int) -> int:
    """The product of a buffer's dimensions from start on."""
    size = 1
    for k in range(start, _word(buffer, RANK)):
        size *= _word(_word(buffer, DIMENSIONS), k)
    return size


@inline
def _last_axis(buffer: int) -> int:
    return _word(_word(buffer, DIMENSIONS), _word(buffer, RANK) - 1)  # type: ignore[no-any-return]


@inline
def _data(buffer: int) -> Any:
    return _pointer(_word(buffer, DATA))


# ---------------------------------------------------------------------- huge pages
#: From this many bytes on, memory is asked for in huge pages: what XLA allocates is new to the process each time, and
#: its pages of 4 KiB took three times as long to come as the sums to form.
ADVISE = 1 << 22
PAGE = 4096
MADV_HUGEPAGE = 14

if sys.platform == "linux":
    _madvise = types.ExternalFunction("madvise", signatures.signature(types.int32, types.intp, types.intp, types.int32))

    @inline
    def _huge(buffer: int, itemsize: int) -> None:
        nbytes, start = _size(buffer, 0) * itemsize, (_word(buffer, DATA) + PAGE - 1) & -PAGE
        if nbytes >= ADVISE:
            _madvise(start, (nbytes - PAGE) & -PAGE, MADV_HUGEPAGE)

else:

    @inline
    def _huge(buffer: int, itemsize: int) -> None:
        pass


# ---------------------------------------------------------------------- kernels
def _group_named(indices: Any, rows: Any, ids: Any, order: Any, starts: Any, within: Any) -> Any:
    """How many rows have slots: their numbers are first in ids, the rest of which holds rows. order and starts as
    `islices.kernels.grouping` has them, what names no row last. within, as indices, is memory to work in."""
    n = len(indices)
    for i in range(n):
        within[i] = indices[i] if 0 <= indices[i] < rows else rows
    count = group(within, order, starts, ids)
    named = count - 1 if ids[count - 1] == rows else count
    for i in range(named, n):
        ids[i] = rows
    return named


group: Any = None  # what `_group_named` leaves open


@cache
def _group_named_kernel(index: str) -> Kernel:
    row, place = vector(np.dtype(index)), vector(np.uint64)
    return compile_kernel(
        _group_named,
        (vector(np.dtype(index), readonly=True), INTEGER, row, place, place, row),
        group=group_kernel(index),
    )


# ---------------------------------------------------------------------- handlers
# The leading axes of indices are mapped ones: a call for each, in the same memory.
def _group(frame: Any) -> Any:
    """(indices; rows) to (ids, places) and memory: see `islices.backends.jax.grouping.group`."""
    if _introduced(frame):
        return 0
    n, rows = _last_axis(_operand(frame, 0)), _only_attribute(frame)
    calls = _size(_operand(frame, 0), 0) // n
    indices = carray(_data(_operand(frame, 0)), (calls, n), INDEX)
    ids, places = carray(_data(_result(frame, 0)), (calls, n), INDEX), carray(_data(_result(frame, 1)), (calls, n), I32)
    order, starts = carray(_data(_result(frame, 2)), n, U64), carray(_data(_result(frame, 3)), n + 1, U64)
    within = carray(_data(_result(frame, 4)), n, INDEX)
    for c in range(calls):
        named, place = group_named(indices[c], rows, ids[c], order, starts, within), places[c]
        for r in range(named):
            for k in range(starts[r], starts[r + 1]):
                place[order[k]] = r
        for k in range(starts[named], n):
            place[order[k]] = named
    return 0


def _sum_rows(frame: Any) -> Any:
    """(values, indices; rows) to (sums, ids) and memory: see `islices.backends.jax.grouping.sum_rows`."""
    if _introduced(frame):
        return 0
    n, rows = _last_axis(_operand(frame, 1)), _only_attribute(frame)
    calls = _size(_operand(frame, 1), 0) // n
    shape = (calls, n, _size(_operand(frame, 0), _word(_operand(frame, 1), RANK)))
    values, indices = (
        carray(_data(_operand(frame, 0)), shape, VALUES),
        carray(_data(_operand(frame, 1)), shape[:2], INDEX),
    )
    sums, ids = carray(_data(_result(frame, 0)), shape, VALUES), carray(_data(_result(frame, 1)), shape[:2], INDEX)
    order, starts = carray(_data(_result(frame, 2)), n, U64), carray(_data(_result(frame, 3)), n + 1, U64)
    within = carray(_data(_result(frame, 4)), n, INDEX)
    _huge(_result(frame, 0), sums.itemsize)
    for c in range(calls):
        named = group_named(indices[c], rows, ids[c], order, starts, within)
        fold(values[c], order, starts, starts[:0], sums[c], 0, named)
        sums[c, named:] = 0
    return 0


def _step(frame: Any) -> Any:
    """(values, indices, numbers, table, *states; rows) to (table, *states) in the same place and memory: see
    `islices.backends.jax.stepping.step`."""
    if _introduced(frame):
        return 0
    n, k = _size(_operand(frame, 1), 0), STATES + 1
    values = carray(_data(_operand(frame, 0)), (n, _size(_operand(frame, 0), 1)), VALUES)
    numbers = carray(_data(_operand(frame, 2)), _size(_operand(frame, 2), 0), WIDE)
    table = carray(_data(_result(frame, 0)), (_size(_result(frame, 0), 0) // values.shape[1], values.shape[1]), TABLE)
    order, starts = carray(_data(_result(frame, k)), n, U64), carray(_data(_result(frame, k + 1)), n + 1, U64)
    within, ids = carray(_data(_result(frame, k + 2)), n, INDEX), carray(_data(_result(frame, k + 3)), n, INDEX)
    named = group_named(carray(_data(_operand(frame, 1)), n, INDEX), len(table), ids, order, starts, within)
    step(values, order, starts, ids, table, states(frame, len(table)), numbers, 0, named)
    return 0


def _state(frame: Any, rows: Any, k: Any) -> Any:
    return carray(_data(_result(frame, k)), (rows, _size(_result(frame, k), 1)), WIDE)


#: Handlers' states by their number: a tuple's length belongs to its type.
_STATES = (
    lambda frame, rows: (),
    lambda frame, rows: (state(frame, rows, 1),),
    lambda frame, rows: (state(frame, rows, 1), state(frame, rows, 2)),
    lambda frame, rows: (state(frame, rows, 1), state(frame, rows, 2), state(frame, rows, 3)),
)

# what the handlers leave open
fold: Any = None
group_named: Any = None
state: Any = None
states: Any = None
step: Any = None
STATES = 0
VALUES = INDEX = TABLE = WIDE = I32 = np.int32
U64 = np.uint64


# ---------------------------------------------------------------------- targets
_lock = Lock()
#: name -> the handler, which lives as long as XLA may call it; None for one that XLA refused
_handlers: dict[str, Any] = {}


def target(operation: str, index: str, dtype: str | None = None) -> str | None:
    """The name by which XLA calls an operation ("group", "sum_rows") on such indices and values; None if it cannot."""
    name = "_".join(["islices", operation, index, *([dtype] if dtype else [])])

    def compiled() -> Any:
        names: dict[str, Any] = {"INDEX": np.dtype(index), "group_named": _group_named_kernel(index)}
        if dtype is not None:
            names |= {"VALUES": np.dtype(FORMATS[dtype].stored), "fold": fold_kernel(dtype)}
        return compile_callback({"group": _group, "sum_rows": _sum_rows}[operation], SIGNATURE, **names)

    return _named(name, compiled)


def step_target(formula: Formula, table: str, gradient: str, index: str) -> str | None:
    """The name by which XLA calls a step of an optimizer on such a table, gradient and indices; None if it cannot."""
    step, states = step_kernel(formula, table, gradient, index), len(formula.state)

    def compiled() -> Any:
        wide = np.dtype(FORMATS[table].wide)
        form = inline(_state, WIDE=wide)
        return compile_callback(
            _step, SIGNATURE, step=step, group_named=_group_named_kernel(index),
            states=inline(_STATES[states], state=form), STATES=states, INDEX=np.dtype(index), WIDE=wide,
            VALUES=np.dtype(FORMATS[gradient].stored), TABLE=np.dtype(FORMATS[table].stored),
        )  # fmt: skip

    # programs are kept on disk under this name: that of the kernel tells its rule, too
    return _named(f"islices_{formula.rule.__name__}_{table}_{gradient}_{index}{step.__qualname__}", compiled)


def _named(name: str, compiled: Callable[[], Any]) -> str | None:
    with _lock:
        if name not in _handlers:
            _handlers[name] = _registered(name, compiled())
        return None if _handlers[name] is None else name


def _registered(name: str, handler: Any) -> Any:
    try:
        jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(handler.address), platform="cpu")
    except (RuntimeError, TypeError, ValueError) as error:  # a version of the API that this jaxlib does not speak
        warnings.warn(f"islices computes without compiled kernels in jitted code: {error}", stacklevel=2)
        return None
    return handler
