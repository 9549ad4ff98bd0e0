"""Compile plain Python functions to machine code.

If possible, the machine code is stored on disk next to the module, or in the user's cache folder. A kernel is compiled
from a *template*, which is a function of arrays, and from a signature of types. Many templates are closures: the parts
that differ between kernels (the widening of a 16-bit float, an optimizer's rule) are variables of the enclosing scope.
Kernels release the GIL, raise no exceptions and start no threads; `islices.kernels.threads` runs a kernel in several
threads. May import: `numba`, `llvmlite`, `numpy`, `islices.core.locks`, `islices.kernels.expanding`.
"""

from __future__ import annotations

import hashlib
import mmap
import os
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.compiler_lock import global_compiler_lock
from numba.extending import intrinsic

from islices.core.locks import hold_innermost, without_collector
from islices.kernels.expanding import code_bytes, enclosed_by, expand

#: a Python function that runs compiled machine code
Kernel = Callable[..., Any]
#: the type of a Python int
INTEGER = types.int64

#: 0 and 1 in the type of positions: numba computes a uint64 plus an int64 in float64
ZERO, ONE = np.uint64(0), np.uint64(1)

#: the number of bytes that must be free to compile or load a kernel
ROOM = 1 << 26

_PACKAGE = Path(__file__).resolve().parent
_NAMES = ("core/row_operators.py", "optim/operators.py", "optim/rules.py")
_BESIDE = tuple(_PACKAGE.parent / name for name in _NAMES)
#: the files that a template depends on; numba's cache checks only the file that defines the template
_SOURCES = (*sorted(_PACKAGE.glob("*.py")), *_BESIDE)

_njit: Any = numba.njit
#: release the GIL, raise no exceptions, and neither contract nor reorder floating-point operations
_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "boundscheck": False, "fastmath": False}


def inline(function: Callable[..., Any]) -> Any:
    """Return a numba function that is inlined wherever a kernel calls the function.

    A call that is not inlined would change the reference counts of all array arguments, which takes time.
    """
    return _njit(inline="always", **_OPTIONS)(function)


def called(function: Any, arguments: tuple[str, ...], constants: Mapping[str, bool | None]) -> Any:
    """Compile a function of numbers. The parameters of the result have the order of `arguments`.

    `expand` describes `arguments` and `constants`. Kernels call the result with an unpacked tuple.
    """
    return _njit(**_OPTIONS)(expand(function, _inlined, arguments, constants))


def _prefetch(context: Any, array: Any, row: Any, column: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = signature.args[0]
        matrix = context.make_array(kind)(context, builder, arguments[0])
        tools: Any = cgutils
        shape, strides = (tools.unpack_tuple(builder, x, 2) for x in (matrix.shape, matrix.strides))
        place = tools.get_item_pointer2(context, builder, matrix.data, shape, strides, kind.layout, arguments[1:])
        place = builder.bitcast(place, ir.IntType(8).as_pointer())
        number = ir.IntType(32)
        kinds = ir.FunctionType(ir.VoidType(), [place.type, number, number, number])
        function = builder.module.declare_intrinsic("llvm.prefetch", [place.type], kinds)
        builder.call(function, [place, number(0), number(3), number(1)])  # for reading, to keep in the caches, as data
        return context.get_dummy_value()

    return types.void(array, row, column), generate


#: prefetch(array, row, column) makes the processor load that element's cache line; the element need not exist
prefetch: Any = intrinsic(_prefetch)


def scalar(dtype: Any) -> Any:
    return numba.from_dtype(np.dtype(dtype))


def vector(dtype: Any, *, readonly: bool = False) -> Any:
    """Return numba's type of a contiguous array of one axis. If `readonly` is True, the type accepts read-only arrays
    too."""
    return types.Array(scalar(dtype), 1, "C", readonly=readonly)


def matrix(dtype: Any, *, readonly: bool = False) -> Any:
    """Return numba's type of a C-ordered array of two axes. If `readonly` is True, the type accepts read-only arrays
    too."""
    return types.Array(scalar(dtype), 2, "C", readonly=readonly)


#: the type of arrays of positions, such as order and starts, that a kernel reads
PLACES = vector(np.uint64, readonly=True)


def tuple_of(kind: Any, count: int) -> Any:
    return types.UniTuple(kind, count)


def compile_kernel(template: Callable[..., Any], arguments: tuple[Any, ...]) -> Kernel:
    """Return the template compiled for argument types; raise MemoryError if too little memory is free."""
    return _compiled(_njit, [arguments], template)  # type: ignore[no-any-return]


def compile_callback(template: Callable[..., Any], signature: Any, *sources: Path) -> Any:
    """Return the template compiled as a C function, whose memory address is the attribute ``address``.

    A change of the contents of `sources` also makes numba compile the template again.
    """
    return _compiled(numba.cfunc, signature, template, *sources)


def _compiled(compiler: Any, signature: Any, template: Callable[..., Any], *sources: Path) -> Any:
    _check_room()
    function = expand(template, _inlined)  # type: ignore[arg-type]
    # numba finds the machine code on disk by this name
    function.__qualname__ = f"{template.__name__}_{fingerprint(template, *sources)}"
    # no destructor may run while numba's lock is held: it could wait for a thread that needs the lock
    with without_collector(), global_compiler_lock:
        try:
            return compiler(signature, cache=True, **_OPTIONS)(function)
        except (RuntimeError, OSError):  # there is no folder for the cache, or no space on the disk
            return compiler(signature, **_OPTIONS)(function)


def _check_room() -> None:
    """Raise MemoryError if too little memory is free for a kernel. Without memory, LLVM would end the process."""
    try:
        mmap.mmap(-1, ROOM).close()
    except OSError:
        raise MemoryError(
            f"{ROOM >> 20} MiB for a compiled kernel are not free; accepted is islices.config.use_kernels(False)"
        ) from None


def _inlined(x: Any) -> FunctionType | None:
    """Return the function that was passed to `inline` if `x` is a result of `inline`, else None."""
    options = getattr(x, "targetoptions", {})
    return x.py_func if options.get("inline") == "always" else None


def fingerprint(template: Callable[..., Any], *sources: Path) -> str:
    """Return a digest of a template with its enclosed values, the kernels' source files, and the files in `sources`."""
    return hashlib.sha256(contents((*_SOURCES, *sources)) + _identity(template)).hexdigest()[:16]


@cache
def contents(paths: tuple[Path, ...]) -> bytes:
    """Return a digest of the files' contents, or random bytes if a file cannot be read."""
    digest = hashlib.sha256()
    try:
        for path in paths:
            digest.update(path.read_bytes())
    except OSError:  # there is only bytecode, or an archive: nothing shows that cached code is valid
        return os.urandom(32)
    return digest.digest()


def _identity(x: Any) -> bytes:
    """Return bytes that identify a value. The bytes of a function cover its code and its enclosed variables."""
    function = getattr(x, "py_func", x)
    if not isinstance(function, FunctionType):
        return repr(x).encode()
    template = getattr(function, "template", function)  # the source of the expansion
    enclosed = [f"{name}=".encode() + _identity(value) for name, value in sorted(enclosed_by(template).items())]
    return b";".join([code_bytes(function.__code__), *enclosed])


hold_innermost(global_compiler_lock)  # a child forked while another thread compiles would wait for the lock for ever
