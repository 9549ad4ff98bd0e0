"""The container .safetensors, read and written by the library of that name, which checks what a header says.

May import: `numpy`, `safetensors`, `ml_dtypes`, `islices.arguments`, `islices.files.containers`.
The second and third are the extra `io`, and load when they are needed.
"""

from __future__ import annotations

import hashlib
import json
import os
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
    outgoing_chunks,
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
    """The header comes first in the file and holds the digests: it is written again, as long, once they are known."""
    _library()  # what is written can be read
    if any(array.dtype == "bfloat16" for array in arrays):
        _bfloat16()
    in_file = sorted(arrays, key=lambda array: -np.dtype(DTYPES[array.dtype][1]).itemsize)  # each is aligned then
    digests = dict.fromkeys((array.name for array in arrays), "0" * 64)

    def header() -> bytes:
        at = 0
        entries: dict[str, Any] = {"__metadata__": texts([digests[array.name] for array in arrays])}
        for array in in_file:
            place = [at, at := at + array.nbytes]
            entries[array.name] = {"dtype": DTYPES[array.dtype][0], "shape": array.shape, "data_offsets": place}
        text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
        text += b" " * (-len(text) % 8)
        check_header(len(text))
        return struct.pack("<Q", len(text)) + text

    with open(path, "wb") as file:
        file.write(header())
        for array in in_file:
            digest = hashlib.sha256()
            for chunk in outgoing_chunks(array):
                file.write(chunk)
                digest.update(chunk)
            digests[array.name] = digest.hexdigest()
        file.seek(0)
        file.write(header())


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
        # the file that is open, where the system names it: a save may have put another in its place meanwhile
        same = f"/dev/fd/{file.fileno()}"
        # read, not mapped into memory: the system ends a process whose mapped file shrinks
        opened = library.safe_open(same if os.path.exists(same) else path, "numpy", backend="pread")
        return _Archive(opened, library.SafetensorError, file, length)
    except library.SafetensorError as error:
        raise ValueError(str(error)) from None
    except TypeError:  # it does not know the backend
        raise ImportError(
            f'safetensors {library.__version__} only maps files into memory: pip install --upgrade "islices[io]"'
        ) from None


class _Archive(Archive):
    """The library has checked that the arrays cover the file, one after the other, and that each fits its shape."""

    def __init__(self, opened: Any, errors: type[Exception], file: IO[bytes], length: int) -> None:
        self.opened, self.errors, self.file, self.length = opened, errors, file, length
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
