"""The one handler that XLA calls: it reads a call frame of XLA's C API and calls a Python function on NumPy views.

May import: `jax`, `numpy`, `islices.backend`, `islices.core.locks`.
"""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from ctypes import CFUNCTYPE, addressof, c_char, c_int32, c_int64, c_void_p, cast, create_string_buffer
from typing import Any

import jax
import numpy as np

from islices.backend import Array
from islices.core.locks import without_collector

__all__ = ["AVAILABLE", "call"]

#: The version of the API that the positions below are of: XLA asks for it, and refuses another.
VERSION = (0, 1)
#: The name by which XLA knows the handler.
TARGET = "islices"
#: XLA_FFI_CallFrame, in words of 8 bytes.
EXTENSION, API, ARGUMENTS, RESULTS, ATTRIBUTES = 1, 2, 9, 14, 20
#: XLA_FFI_Extension_Base and the metadata behind it; XLA_FFI_Metadata, in words of 4 bytes.
KIND, METADATA, ASKS_METADATA, MAJOR, MINOR, TRAITS = 1, 3, 1, 6, 7, 8
#: XLA_FFI_Buffer, XLA_FFI_Scalar, XLA_FFI_Api, XLA_FFI_Error_Code.
DATA, VALUE, CREATE_ERROR, INTERNAL = 3, 1, 6, 13

#: (shape, dtype, memory) of an operand or a result.
Kind = tuple[tuple[int, ...], np.dtype[Any], Any]
#: Number of a call -> the function, its operands and its results.
_calls: dict[int, tuple[Callable[..., None], Sequence[Kind], Sequence[Kind]]] = {}


def call(
    name: str,
    function: Callable[..., None],
    operands: Sequence[Array],
    results: Sequence[tuple[Any, Any]],
    aliases: dict[int, int] | None = None,
) -> list[Array]:
    """Call function(*operands, *results) on NumPy views when the program runs.

    Parameters
    ----------
    name : str
        Tells the function from all others, in other processes too: compiled programs are kept on disk under it.
    results : sequence of (shape, dtype)
        The arrays that the function fills.
    aliases : dict of int to int, optional
        Operand -> the result that has its memory.
    """
    kinds = _kinds((x.shape, x.dtype) for x in operands), _kinds(results)
    # shapes and dtypes are the program's own
    number = int.from_bytes(hashlib.sha256(repr((name, kinds)).encode()).digest()[:8], "little", signed=True)
    _calls[number] = (function, *kinds)
    bound: Any = jax.ffi.ffi_call(TARGET, [jax.ShapeDtypeStruct(*x) for x in results], input_output_aliases=aliases)
    return list(bound(*operands, number=np.int64(number)))


def _kinds(some: Iterable[tuple[Any, Any]]) -> list[Kind]:
    """Shapes, and dtypes as kernels have them: bfloat16 as uint16."""
    kinds = []
    for shape, dtype in some:
        stored = np.dtype(np.uint16 if np.dtype(dtype).name == "bfloat16" else dtype)
        kinds.append((tuple(shape), stored, c_char * (math.prod(shape) * stored.itemsize)))
    return kinds


def _registered() -> bool:
    """Whether XLA takes the handler: it refuses one that is written to another version of its API."""
    try:
        jax.ffi.register_ffi_target(TARGET, jax.ffi.pycapsule(cast(_HANDLER, c_void_p).value), platform="cpu")
    except (RuntimeError, TypeError, ValueError) as error:
        warnings.warn(f"islices computes without compiled kernels in jitted code: {error}", stacklevel=2)
        return False
    return True


def _word(address: int, position: int) -> int:
    return c_int64.from_address(address + 8 * position).value


def _handle(frame: int) -> int | None:
    """Answer XLA; return None, or the address of an error."""
    extension = _word(frame, EXTENSION)
    if extension and c_int32.from_address(extension + 8 * KIND).value == ASKS_METADATA:
        metadata = _word(extension, METADATA)
        for position, number in ((MAJOR, VERSION[0]), (MINOR, VERSION[1]), (TRAITS, 0)):
            c_int32.from_address(metadata + 4 * position).value = number
        return None
    try:
        number = _word(_word(_word(_word(frame, ATTRIBUTES), 0), VALUE), 0)
        function, operands, results = _calls[number]
        with without_collector():  # whose destructors may wait for XLA
            function(*_views(_word(frame, ARGUMENTS), operands), *_views(_word(frame, RESULTS), results))
    except Exception as error:
        return _error(_word(frame, API), f"{type(error).__name__}: {error}")
    return None


#: What XLA calls.
_HANDLER = CFUNCTYPE(c_void_p, c_void_p)(_handle)


def _views(buffers: int, kinds: Sequence[Kind]) -> list[np.ndarray[Any, Any]]:
    views = []
    for (shape, dtype, memory), buffer in zip(kinds, (c_int64 * len(kinds)).from_address(buffers), strict=True):
        views.append(np.ndarray(shape, dtype, memory.from_address(_word(buffer, DATA))))
    return views


def _error(api: int, message: str) -> int:
    text = create_string_buffer(message.encode())
    arguments = (c_int64 * 4)(32, 0, addressof(text), INTERNAL)
    created: int = CFUNCTYPE(c_void_p, c_void_p)(_word(api, CREATE_ERROR))(addressof(arguments))
    return created


#: Whether XLA has taken the handler.
AVAILABLE = _registered()
