"""Named arrays in a file: what the two containers, .safetensors and .npz, have in common.

Files are not trusted: what one declares is held against its real size before anything is allocated, and no byte of it
is ever unpickled or evaluated. Everything wrong with one is a ValueError. May import: `numpy`, `islices.arguments`,
`islices.shapes`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any, NamedTuple

import numpy as np

from islices.arguments import LARGEST, show
from islices.shapes import COMMON_NDIM

__all__ = [
    "DTYPES",
    "OWN",
    "Archive",
    "Container",
    "Host",
    "Outgoing",
    "Stored",
    "Texts",
    "check_array",
    "check_header",
    "chunks",
    "exactly",
    "fill",
    "named",
    "no_digest",
    "outgoing_chunks",
    "parse_json",
]

Host = np.ndarray[Any, Any]
#: What makes the texts of a file, given the SHA-256 of each array.
Texts = Callable[[Sequence[str]], dict[str, str]]

#: dtype -> its name in .safetensors, and how .npy spells the bytes of one element (bfloat16: its bit pattern).
DTYPES = {
    "bool": ("BOOL", "|b1"), "int8": ("I8", "|i1"), "uint8": ("U8", "|u1"), "int16": ("I16", "<i2"),
    "uint16": ("U16", "<u2"), "int32": ("I32", "<i4"), "uint32": ("U32", "<u4"), "int64": ("I64", "<i8"),
    "uint64": ("U64", "<u8"), "float16": ("F16", "<f2"), "bfloat16": ("BF16", "<u2"), "float32": ("F32", "<f4"),
    "float64": ("F64", "<f8"),
}  # fmt: skip
#: The texts of our own among a container's; no tensor is named so.
OWN = ("islices.json", "islices.sha256")
#: Headers are read whole, and what JSON becomes in memory is many times as long: some 100,000 tensors.
LONGEST_HEADER = 1 << 24
#: Bytes moved at a time: read or written, and hashed while they are in the caches.
CHUNK = 1 << 20


class Outgoing(NamedTuple):
    """An array to be written."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    #: its rows a piece at a time, or all at once
    pieces: Callable[[], Iterable[Host]]

    @property
    def nbytes(self) -> int:
        return check_array(self.name, self.dtype, self.shape)


@dataclass(frozen=True)
class Stored:
    """An array in a file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    #: False if its bytes are not in C order and little-endian, as those of our own files are
    plain: bool


class Archive:
    """A file whose header has been read and checked: its texts, and its arrays by name.

    Every way of being wrong is a ValueError.
    """

    file: IO[bytes]

    def __init__(self, texts: dict[str, str], arrays: Iterable[Stored]) -> None:
        self.texts = texts
        self.arrays = {array.name: array for array in arrays}

    def read(self, array: Stored, sha256: str | None = None) -> Host:
        """The array, writable and in memory of its own, bfloat16 as uint16; ValueError if it has another SHA-256."""
        digest = hashlib.sha256()
        out = self.fetch(array, digest.update if sha256 is not None else no_digest)
        if sha256 is not None and digest.hexdigest() != sha256:
            raise ValueError(f"the data of {array.name!r} are damaged: their SHA-256 is not what the file states")
        if array.dtype == "bool" and (out.view(np.uint8) > 1).any():
            raise ValueError(f"the data of {array.name!r} are no booleans")
        return out

    def fetch(self, array: Any, seen: Callable[[Any], object]) -> Host:
        """The array, of whose bytes each has been shown to `seen`, in order."""
        raise NotImplementedError


@contextlib.contextmanager
def named(what: str) -> Iterator[None]:
    """Errors say what they are about: the file, or the place in the tree."""
    try:
        yield
    except (ValueError, TypeError, IndexError) as error:
        kind = next(kind for kind in (ValueError, TypeError, IndexError) if isinstance(error, kind))
        raise kind(f"{what}: {error}") from error.__cause__


def no_digest(chunk: Any) -> None:
    """What looks at the bytes of an array without a digest."""


class Container(NamedTuple):
    """A kind of file: how arrays and texts are written to one and found in one."""

    #: (path of a file that may be overwritten, arrays, texts given the arrays' digests)
    write: Callable[[str, Sequence[Outgoing], Texts], None]
    #: (path, the same file opened, its size)
    open: Callable[[str, IO[bytes], int], Archive]


def parse_json(text: str, what: str) -> Any:
    """JSON without what readers disagree on: no key twice, no NaN. ValueError, however deep it goes."""

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(items)
        if len(found) < len(items):
            raise ValueError("a key occurs twice")
        return found

    def constant(name: str) -> Any:
        raise ValueError(f"{name} is no JSON")

    try:
        return json.loads(text, object_pairs_hook=pairs, parse_constant=constant)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{what} is no valid JSON: {error}") from None


def check_array(name: str, dtype: str, shape: Any) -> int:
    """The number of bytes, where the shape is one that NumPy can make."""
    if not isinstance(shape, (list, tuple)) or any(type(n) is not int or n < 0 for n in shape):
        raise ValueError(f"{name!r}: got shape {show(shape)}; accepted is a list of whole numbers, none negative")
    itemsize = int(DTYPES[dtype][1][-1])
    if len(shape) > COMMON_NDIM or math.prod(n for n in shape if n) * itemsize > LARGEST:
        raise ValueError(f"{name!r}: got shape {show(shape)}; accepted are {COMMON_NDIM} dimensions, 2^63 - 1 bytes")
    return math.prod(shape) * itemsize


def fill(stream: IO[bytes], into: memoryview) -> int:
    """Read until `into` is full; the number of bytes there were."""
    at = 0
    while at < len(into):
        got = stream.readinto(into[at:])  # type: ignore[attr-defined]
        if not got:
            break
        at += got
    return at


def exactly(file: IO[bytes], start: int, length: int) -> bytes:
    file.seek(start)
    out = bytearray(length)
    if fill(file, memoryview(out)) < length:
        raise ValueError(f"{length} bytes at {start} are not there: the file was truncated")
    return bytes(out)


def outgoing_chunks(array: Outgoing) -> Iterator[memoryview]:
    """The array's bytes, a chunk at a time: in C order, little-endian, bfloat16 as uint16."""
    written = 0
    for piece in array.pieces():
        for chunk in chunks(piece.astype(DTYPES[array.dtype][1], order="C", casting="equiv", copy=False)):
            written += len(chunk)
            yield chunk
    if written != array.nbytes:
        raise ValueError(f"{array.name!r}: {written} bytes came in place of {array.nbytes} while the file was written")


def chunks(data: Host) -> Iterator[memoryview]:
    """An array's bytes, a piece at a time."""
    view = data.reshape(-1).view(np.uint8).data
    return (view[at : at + CHUNK] for at in range(0, len(view), CHUNK))


def check_header(length: int) -> None:
    if length > LONGEST_HEADER:
        raise ValueError(f"the header takes {length} bytes; accepted are {LONGEST_HEADER}, some 100,000 arrays")
