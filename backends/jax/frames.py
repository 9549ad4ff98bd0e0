"""What XLA hands a compiled host kernel: a frame of 8-byte words, read by their positions.

A *handler* is a C function of one pointer to a call frame (xla/ffi/api/c_api.h, which jaxlib ships in
`jax.ffi.include_dir()`). Version 0.1 of the API fixes the positions: XLA asks a handler for its version when it is
registered, and refuses one that it does not speak. May import: `llvmlite`, `numba`, `islices.kernels.compiling`.
"""

from __future__ import annotations

import sys
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import typing as signatures
from numba.extending import intrinsic

from islices.kernels.compiling import inline

__all__ = [
    "API",
    "CONTEXT",
    "DATA",
    "SIGNATURE",
    "attribute",
    "axis",
    "data",
    "huge",
    "introduced",
    "operand",
    "operands",
    "pointer",
    "rank",
    "result",
    "size",
    "word",
]

# ---------------------------------------------------------------------- words of XLA's structs
#: XLA_FFI_CallFrame
EXTENSION, API, CONTEXT, COUNT, ARGUMENTS, RESULTS, ATTRIBUTES = 1, 2, 3, 7, 9, 14, 20
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
def word(context: Any, address: Any, position: Any) -> Any:
    """The 8-byte word at a position from an address."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        start = builder.inttoptr(arguments[0], _WORD.as_pointer())
        return builder.load(builder.gep(start, [arguments[1]]))

    return types.int64(types.int64, types.int64), generate


@intrinsic  # type: ignore[untyped-decorator]
def write_half(context: Any, address: Any, position: Any, value: Any) -> Any:
    """Set the 4-byte word at a position from an address."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        start = builder.inttoptr(arguments[0], _HALF.as_pointer())
        builder.store(builder.trunc(arguments[2], _HALF), builder.gep(start, [arguments[1]]))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@intrinsic  # type: ignore[untyped-decorator]
def pointer(context: Any, address: Any) -> Any:
    """An address as `numba.carray` takes it."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(types.voidptr))

    return types.voidptr(types.int64), generate


@inline
def introduced(frame: int) -> bool:
    """Whether XLA only asked what kind of handler this is, and has been told."""
    extension = word(frame, EXTENSION)
    if extension == 0 or (word(extension, KIND) & 0xFFFFFFFF) != ASKS_METADATA:
        return False
    metadata = word(extension, METADATA)
    write_half(metadata, MAJOR, VERSION[0])
    write_half(metadata, MINOR, VERSION[1])
    write_half(metadata, TRAITS, 0)
    return True


@inline
def operands(frame: int) -> int:
    """How many operands there are."""
    return word(frame, COUNT)  # type: ignore[no-any-return]


@inline
def operand(frame: int, k: int) -> int:
    return word(word(frame, ARGUMENTS), k)  # type: ignore[no-any-return]


@inline
def result(frame: int, k: int) -> int:
    return word(word(frame, RESULTS), k)  # type: ignore[no-any-return]


@inline
def attribute(frame: int, k: int) -> int:
    """The number that is the k-th attribute by name."""
    return word(word(word(word(frame, ATTRIBUTES), k), VALUE), 0)  # type: ignore[no-any-return]


@inline
def size(buffer: int, start: int) -> int:
    """The product of a buffer's dimensions from start on."""
    product = 1
    for k in range(start, word(buffer, RANK)):
        product *= word(word(buffer, DIMENSIONS), k)
    return product


@inline
def rank(buffer: int) -> int:
    return word(buffer, RANK)  # type: ignore[no-any-return]


@inline
def axis(buffer: int, k: int) -> int:
    return word(word(buffer, DIMENSIONS), k)  # type: ignore[no-any-return]


@inline
def data(buffer: int) -> Any:
    return pointer(word(buffer, DATA))


# ---------------------------------------------------------------------- huge pages
#: From this many bytes on, memory is asked for in huge pages: what XLA allocates is new to the process each time, and
#: its pages of 4 KiB took three times as long to come as the sums to form.
ADVISE = 1 << 22
PAGE = 4096
MADV_HUGEPAGE = 14

if sys.platform == "linux":
    madvise = types.ExternalFunction("madvise", signatures.signature(types.int32, types.intp, types.intp, types.int32))

    @inline
    def huge(buffer: int, itemsize: int) -> None:
        nbytes, start = size(buffer, 0) * itemsize, (word(buffer, DATA) + PAGE - 1) & -PAGE
        if nbytes >= ADVISE:
            madvise(start, (nbytes - PAGE) & -PAGE, MADV_HUGEPAGE)

else:

    @inline
    def huge(buffer: int, itemsize: int) -> None:
        pass
