"""Compile handlers for XLA's C API. A handler reads a call frame, and distributes work over XLA's threads.

The docstring of `islices.backends.jax.host_calls` lists the properties of XLA on which this code relies. A *handler* is
a C function that gets the address of a call frame. Each operation has a *task*, another C function, which runs parts of
the operation. The handler runs the task in several threads. A *block* is a small piece of memory that counts the parts.
Threads claim parts in the block, and the last thread frees it. The calling thread also runs parts, and waits only for
parts that other threads have begun. So handlers make progress even if they occupy all of XLA's threads. Parts write to
separate memory or add integers, so the bits do not depend on the number of threads. The number of threads is at most
`islices.config.get_num_threads()` at the time when the program runs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import jax
import numpy as np
from llvmlite import binding, ir
from numba import carray, types
from numba.core import typing
from numba.extending import intrinsic

from islices.core.locks import Lock
from islices.kernels import threads
from islices.kernels.compiling import compile_callback, fingerprint, inline

#: The positions below are correct in this version of the API. XLA rejects a handler whose major version is not XLA's.
VERSION = (0, 1)
#: Positions in XLA_FFI_CallFrame, in words of 8 bytes.
EXTENSION, API, CONTEXT, ARGUMENTS, RESULTS, ATTRIBUTES = 1, 2, 3, 9, 14, 20
#: `KIND` and `METADATA` are positions in XLA_FFI_Metadata_Extension, in words of 8 bytes. `MAJOR`, `MINOR` and `TRAITS`
#: are positions in XLA_FFI_Metadata, in words of 4 bytes. `ASKS_METADATA` is the kind of a call for metadata.
KIND, METADATA, ASKS_METADATA, MAJOR, MINOR, TRAITS = 1, 3, 1, 6, 7, 8
#: Positions in XLA_FFI_Buffer, XLA_FFI_Scalar and XLA_FFI_Api.
DATA, RANK, DIMENSIONS, VALUE, DESTROY_ERROR, SCHEDULE = 3, 4, 5, 1, 8, 17
#: The words of a block: the number of references, the next part, the number of ended parts, the number of all parts,
#: and the frame. After these words come arguments for XLA. A block has `WORDS` words.
REFERENCES, NEXT, ENDED, COUNT, FRAME, GIVEN, WORDS = 0, 1, 2, 3, 4, 5, 10
#: The number of parts is at most `PARTS` times the number of threads.
PARTS = 4

_WORD = ir.IntType(64)
#: The signature of handlers and tasks. The argument is the address of a frame or block, and the result is the address
#: of an error, or 0.
_SIGNATURE = types.int64(types.int64)


# ---------------------------------------------------------------------- machine code
def _machine(result: Any, *arguments: Any) -> Callable[..., Any]:
    """Return a decorator that makes a numba intrinsic from a function that builds LLVM instructions. Compiled code
    calls the intrinsic with arguments of the types `arguments`, and gets a result of the type `result`."""

    def called(build: Callable[..., Any]) -> Any:
        @wraps(build)  # numba reads the parameters of build
        def typed(context: Any, *_: Any) -> Any:
            return result(*arguments), lambda context, builder, signature, given: build(builder, *given)

        return intrinsic(typed)

    return called


@_machine(types.CPointer(types.int64), types.int64)
def words(builder: Any, address: Any) -> Any:
    """Convert an address to a pointer to words of 8 bytes."""
    return builder.inttoptr(address, _WORD.as_pointer())


@_machine(types.voidptr, types.int64)
def memory(builder: Any, address: Any) -> Any:
    """Convert an address to the type that `numba.carray` accepts."""
    return builder.inttoptr(address, ir.IntType(8).as_pointer())


@_machine(types.int64, types.int64, types.int64, types.int64)
def add(builder: Any, address: Any, position: Any, value: Any) -> Any:
    """Add a value atomically to the word at a position, and return the word's old value."""
    place = builder.gep(builder.inttoptr(address, _WORD.as_pointer()), [position])
    return builder.atomic_rmw("add", place, value, "seq_cst")


@_machine(types.int64, types.int64, types.int64)
def call(builder: Any, function: Any, argument: Any) -> Any:
    """Call the C function at the address `function` with one argument, and return its result."""
    kind = ir.FunctionType(_WORD, [_WORD])
    return builder.call(builder.inttoptr(function, kind.as_pointer()), [argument])


def _symbol(name: str, address: int) -> Any:
    """Make an intrinsic that returns an address in this process. Compiled code contains the name of the address instead
    of the address, so the code can be stored on disk."""
    binding.add_symbol(name, address)

    def build(builder: Any) -> Any:
        known = builder.module.globals.get(name) or ir.GlobalVariable(builder.module, ir.IntType(8), name)
        return builder.ptrtoint(known, _WORD)

    build.__name__ = name  # numba stores code on disk under this name
    return _machine(types.int64)(build)


_threads = _symbol("islices_num_threads", threads.address())
_allocate = types.ExternalFunction("PyMem_RawMalloc", typing.signature(types.int64, types.int64))
_free = types.ExternalFunction("PyMem_RawFree", typing.signature(types.void, types.int64))
_yield = types.ExternalFunction(
    "SwitchToThread" if sys.platform == "win32" else "sched_yield", typing.signature(types.int32)
)


# ---------------------------------------------------------------------- frames
@inline
def operand(frame, k):
    return words(words(frame)[ARGUMENTS])[k]


@inline
def result(frame, k):
    return words(words(frame)[RESULTS])[k]


@inline
def attribute(frame, k):
    """Return the k-th attribute, which is a number. Attributes are sorted by their names."""
    return words(words(words(words(frame)[ATTRIBUTES])[k])[VALUE])[0]


@inline
def size(buffer, first):
    """Multiply the dimensions of a buffer from dimension `first` to the last, and return the product."""
    product = 1
    for k in range(first, words(buffer)[RANK]):
        product *= words(words(buffer)[DIMENSIONS])[k]
    return product


@inline
def vector(buffer, dtype):
    """Return a one-dimensional array that shares the memory of a buffer."""
    return carray(memory(words(buffer)[DATA]), size(buffer, 0), dtype)


@inline
def matrix(buffer, dtype):
    """Return a two-dimensional array that shares the memory of a buffer. Each row is a flattened row of the buffer."""
    shape = (words(words(buffer)[DIMENSIONS])[0], size(buffer, 1))
    return carray(memory(words(buffer)[DATA]), shape, dtype)


# ---------------------------------------------------------------------- what XLA calls, and its threads run
@inline
def release(block):
    """Remove one reference to a block. If no reference is left, free its memory."""
    if add(block, REFERENCES, -1) == 1:
        _free(block)


def _task_of(part: Any) -> Any:
    run_part = inline(part)

    def task(block):
        """Run parts of a block until all parts are claimed."""
        k = add(block, NEXT, 1)
        while k < words(block)[COUNT]:
            run_part(words(block)[FRAME], k, words(block)[COUNT])
            add(block, ENDED, 1)
            k = add(block, NEXT, 1)
        release(block)
        return 0

    return compile_callback(task, _SIGNATURE, *_SOURCES)


def _handler_of(task: Any) -> Any:
    major, minor = VERSION

    def handle(frame):
        """Handle a call from XLA. If the call is for metadata, write the version. Otherwise run the parts of the
        operation. The handler uses several threads if XLA has threads, there are several parts, and
        `islices.config.get_num_threads()` is above 1."""
        extension = words(frame)[EXTENSION]
        if extension != 0 and words(extension)[KIND] & 0xFFFFFFFF == ASKS_METADATA:
            metadata = carray(memory(words(extension)[METADATA]), TRAITS + 1, np.int32)
            metadata[MAJOR], metadata[MINOR], metadata[TRAITS] = major, minor, 0
            return 0
        workers, api, address = words(_threads())[0], words(frame)[API], _allocate(8 * WORDS)
        parts = min(attribute(frame, 0), workers * PARTS)
        block, given = words(address), words(address + 8 * GIVEN)
        block[REFERENCES], block[NEXT], block[ENDED] = 2, 0, 0  # referenced by this thread's task and the wait below
        block[COUNT], block[FRAME] = parts, frame
        for _ in range(1, min(parts, workers)):
            add(address, REFERENCES, 1)
            given[0], given[1], given[2], given[3], given[4] = 40, 0, words(frame)[CONTEXT], task(), address
            error = call(words(api)[SCHEDULE], address + 8 * GIVEN)
            if error != 0:  # XLA has no threads
                given[0], given[2] = 24, error
                call(words(api)[DESTROY_ERROR], address + 8 * GIVEN)
                add(address, REFERENCES, -1)
                break
        call(task(), address)
        while add(address, ENDED, 0) < parts:
            _yield()
        release(address)
        return 0

    return compile_callback(handle, _SIGNATURE, *_SOURCES)


#: numba compiles tasks and handlers again if the contents of these files change.
_SOURCES = tuple(Path(__file__).with_name(name) for name in ("frames.py", "parts.py"))
_lock = Lock()
#: name -> the compiled task and handler, which live as long as XLA may call them
_kept: dict[str, Any] = {}


def target(part: Callable[..., Any]) -> str:
    """Register an XLA handler that calls the template `part` for each part of the work. Return the name of the handler
    in XLA.

    The arguments of the template are the frame, the number of the part, and the number of parts.

    Compiled code is stored on disk under this name. So the name depends on the values of all variables in the
    template's closure.
    """
    name = f"islices_{part.__name__}_{fingerprint(part, *_SOURCES)}"
    with _lock:
        if name not in _kept:
            task = _task_of(part)
            handler = _handler_of(_symbol(name, task.address))
            jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(handler.address), platform="cpu")
            _kept[name] = task, handler
    return name
