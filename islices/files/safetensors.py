"""The container .safetensors, read and written by the library of that name, which checks what a header says.

May import: `numpy`, `safetensors`, `ml_dtypes`, `islices.arguments`, `islices.files.containers`.
The second and third are the extra `io`, and load when they are needed.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Sequence
from typing import IO, Any

import numpy as np

from islices.arguments import show
from islices.files.containers import (
    DTYPES,
    Archive,
    Container,
    Host,
    Outgoing,
    Stored,
    Texts,
    check_array,
    check_header,
    chunks,
    exactly,
    outgoing_bytes,
)

__all__ = ["SAFETENSORS"]

DTYPE_OF = {tag: dtype for dtype, (tag, _) in DTYPES.items()}


def _library() -> Any:
    try:
        import safetensors.numpy
    except ImportError:
        raise ModuleNotFoundError(
            'a .safetensors file needs safetensors: pip install "islices[io]" (an .npz needs nothing)',
            name="safetensors",
        ) from None
    return safetensors


def _write(path: str, arrays: Sequence[Outgoing], texts: Texts) -> None:
    library = _library()
    held, digests = {}, []
    for array in arrays:  # the header, which holds the digests, comes first in the file
        data = outgoing_bytes(array)
        digests.append(hashlib.sha256(data.reshape(-1).view(np.uint8).data).hexdigest())
        held[array.name] = data.view(_bfloat16()) if array.dtype == "bfloat16" else data
    found = texts(digests)
    try:
        library.numpy.save_file(held, path, metadata=found)
    except library.SafetensorError as error:
        raise OSError(str(error)) from None
    with open(path, "rb") as file:
        check_header(struct.unpack("<Q", file.read(8))[0])  # what is written can be read


def _bfloat16() -> Any:
    try:
        from ml_dtypes import bfloat16
    except ImportError:
        raise ModuleNotFoundError(
            "bfloat16 in a .safetensors file needs ml_dtypes: pip install ml_dtypes (an .npz needs nothing)",
            name="ml_dtypes",
        ) from None
    return bfloat16


def _open(path: str, file: IO[bytes], size: int) -> Archive:
    library = _library()
    if size < 8:
        raise ValueError(f"got {size} bytes; a .safetensors file has at least 8")
    (length,) = struct.unpack("<Q", exactly(file, 0, 8))
    if length > size - 8:
        raise ValueError(f"the header is to take {length} bytes, the file has {size}: truncated, or no .safetensors")
    check_header(length)
    try:
        # read, not mapped into memory: the system ends a process whose mapped file shrinks
        return _Archive(library.safe_open(path, "numpy", backend="pread"), library.SafetensorError)
    except library.SafetensorError as error:
        raise ValueError(str(error)) from None
    except TypeError:  # it does not know the backend
        raise ImportError(
            f'safetensors {library.__version__} only maps files into memory: pip install --upgrade "islices[io]"'
        ) from None


class _Archive(Archive):
    """The library has checked that the arrays cover the file, one after the other, and that each fits its shape."""

    def __init__(self, opened: Any, errors: type[Exception]) -> None:
        self.opened, self.errors = opened, errors
        super().__init__(opened.metadata() or {}, map(self._entry, opened.keys()))

    def _entry(self, name: str) -> Stored:
        entry = self.opened.get_slice(name)
        tag, shape = entry.get_dtype(), tuple(entry.get_shape())
        if tag not in DTYPE_OF:
            raise ValueError(f"{name!r}: got dtype {show(tag)}; accepted are {', '.join(DTYPE_OF)}")
        check_array(name, DTYPE_OF[tag], shape)
        if tag == "BF16":
            _bfloat16()
        return Stored(name, DTYPE_OF[tag], shape, plain=True)

    def fetch(self, array: Stored, seen: Callable[[Any], object]) -> Host:
        try:
            out: Host = self.opened.get_tensor(array.name)
        except self.errors as error:
            raise ValueError(f"{array.name!r}: {error}") from None
        out = out.view(np.uint16) if array.dtype == "bfloat16" else out
        for chunk in chunks(out):
            seen(chunk)
        return out


SAFETENSORS = Container(_write, _open)
