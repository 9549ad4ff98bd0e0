"""Write named arrays to a .safetensors file, and read them with the library safetensors.

The reader does not trust a file. This module checks the header's length, and safetensors checks the arrays' sizes,
before either allocates arrays. No data are unpickled or evaluated. The reader raises ValueError for every fault in a
file. The extra `io` installs safetensors, which is imported on first use. May import: `numpy`, `safetensors`,
`ml_dtypes`, `islices.backend`, `islices.core.arguments`, `islices.core.shapes`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any, NamedTuple

import numpy as np

from islices.backend import Host
from islices.core.arguments import LARGEST, show
from islices.core.shapes import COMMON_NDIM

#: dtype -> (the dtype's name in the file, NumPy's code for the bytes of one element). For bfloat16 the code is that of
#: the bit pattern.
DTYPES = {
    "bool": ("BOOL", "|b1"), "int8": ("I8", "|i1"), "uint8": ("U8", "|u1"), "int16": ("I16", "<i2"),
    "uint16": ("U16", "<u2"), "int32": ("I32", "<i4"), "uint32": ("U32", "<u4"), "int64": ("I64", "<i8"),
    "uint64": ("U64", "<u8"), "float16": ("F16", "<f2"), "bfloat16": ("BF16", "<u2"), "float32": ("F32", "<f4"),
    "float64": ("F64", "<f8"),
}  # fmt: skip
DTYPE_OF = {tag: dtype for dtype, (tag, _) in DTYPES.items()}
#: The names of the two texts that islices adds to a file. No array that islices writes has these names.
OWN = ("islices.json", "islices.sha256")
#: The largest number of bytes in a header, enough for some 100,000 arrays. A header is read whole, and parsed JSON
#: needs many times as much memory as the text.
LONGEST_HEADER = 1 << 24


class Outgoing(NamedTuple):
    name: str
    dtype: str
    shape: tuple[int, ...]
    #: a function that returns the array in host memory
    data: Callable[[], Host]


@dataclass(frozen=True)
class ArrayEntry:
    name: str
    dtype: str
    shape: tuple[int, ...]
    #: None in a file of another program
    sha256: str | None = None


@contextlib.contextmanager
def named(subject: str) -> Iterator[None]:
    """Prefix the messages of ValueError, TypeError and IndexError with a subject: the file, or the place in the
    tree."""
    try:
        yield
    except (ValueError, TypeError, IndexError) as error:
        kind = next(kind for kind in (ValueError, TypeError, IndexError) if isinstance(error, kind))
        raise kind(f"{subject}: {error}") from error.__cause__


def parse_json(text: str, subject: str) -> Any:
    """Parse JSON. Raise ValueError for invalid or too deeply nested JSON. Also raise ValueError for repeated keys, NaN
    and infinities, because readers of JSON disagree on them."""

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
        raise ValueError(f"{subject} is no valid JSON: {error}") from None


def write_arrays(path: str, arrays: Sequence[Outgoing], texts: Callable[[Sequence[str]], dict[str, str]]) -> None:
    """Write arrays, and the texts that the function `texts` makes from the arrays' digests.

    The library safetensors would need all arrays in memory; this function needs one at a time. The header comes before
    the data and contains the digests. So the header is written again, with the same length, when the digests are known.
    """
    _library(array.dtype for array in arrays)  # import what a reader needs, so that the file can be read here
    in_file = sorted(arrays, key=lambda array: -np.dtype(DTYPES[array.dtype][1]).itemsize)  # so each is aligned
    digests = dict.fromkeys((array.name for array in arrays), "0" * 64)

    def header() -> bytes:
        at = 0
        entries: dict[str, Any] = {"__metadata__": texts([digests[array.name] for array in arrays])}
        for array in in_file:
            place = [at, at := at + _nbytes(array.name, array.dtype, array.shape)]
            entries[array.name] = {"dtype": DTYPES[array.dtype][0], "shape": array.shape, "data_offsets": place}
        text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
        text += b" " * (-len(text) % 8)
        _check_header(len(text))
        return struct.pack("<Q", len(text)) + text

    with open(path, "wb") as file:
        file.write(header())
        for array in in_file:
            data = _bytes(array.data().astype(DTYPES[array.dtype][1], order="C", casting="equiv", copy=False))
            declared = _nbytes(array.name, array.dtype, array.shape)
            if len(data) != declared:
                raise ValueError(
                    f"{array.name!r}: {len(data)} bytes came in place of {declared} while the file was written"
                )
            file.write(data)
            digests[array.name] = hashlib.sha256(data).hexdigest()
        file.seek(0)
        file.write(header())


class Archive:
    """An open file with a checked header: its texts, and its arrays by name."""

    def __init__(self, path: str, file: IO[bytes], size: int) -> None:
        library = _library()
        if size < 8:
            raise ValueError(f"got {size} bytes; a .safetensors file has at least 8")
        (length,) = struct.unpack("<Q", file.read(8).ljust(8, b"\xff"))
        if length > size - 8:
            raise ValueError(
                f"the header is to take {length} bytes, the file has {size}: truncated, or no .safetensors"
            )
        _check_header(length)
        try:
            # the name of the open file itself, if the system has one: a save may have replaced the file at the path
            # meanwhile
            same = f"/dev/fd/{file.fileno()}"
            # read, not mapped into memory: the system kills a process when its mapped file shrinks
            self.opened = library.safe_open(same if os.path.exists(same) else path, "numpy", backend="pread")
        except library.SafetensorError as error:
            raise ValueError(str(error)) from None
        except TypeError:  # this version of safetensors has no argument backend
            raise ImportError(
                f'safetensors {library.__version__} only maps files into memory: pip install --upgrade "islices[io]"'
            ) from None
        self.texts: dict[str, str] = self.opened.metadata() or {}
        self.arrays = {name: self._entry(name) for name in self.opened.keys()}  # noqa: SIM118
        _library(array.dtype for array in self.arrays.values())

    def _entry(self, name: str) -> ArrayEntry:
        """Return the `ArrayEntry` of an array. safetensors has checked that the arrays' bytes cover the file, and
        that an array's number of bytes fits its shape and dtype."""
        entry = self.opened.get_slice(name)
        tag, shape = entry.get_dtype(), tuple(entry.get_shape())
        if tag not in DTYPE_OF:
            raise ValueError(f"{name!r}: got dtype {show(tag)}; accepted are {', '.join(DTYPE_OF)}")
        _nbytes(name, DTYPE_OF[tag], shape)
        return ArrayEntry(name, DTYPE_OF[tag], shape)

    def read(self, array: ArrayEntry) -> Host:
        """Read an array into writable memory; uint16 stores the bits of bfloat16. Raise ValueError for damaged data,
        such as data with a wrong SHA-256."""
        try:
            out: Host = self.opened.get_tensor(array.name)
        except _library().SafetensorError as error:
            raise ValueError(f"{array.name!r}: {error}") from None
        if array.sha256 is not None and hashlib.sha256(_bytes(out)).hexdigest() != array.sha256:
            raise ValueError(f"the data of {array.name!r} are damaged: their SHA-256 is not what the file states")
        if array.dtype == "bool" and (out.view(np.uint8) > 1).any():
            raise ValueError(f"the data of {array.name!r} are no booleans")
        return out.view(np.uint16) if array.dtype == "bfloat16" else out


def _library(dtypes: Iterable[str] = ()) -> Any:
    """Import and return safetensors; also import ml_dtypes if bfloat16 is among the dtypes."""
    try:
        import safetensors.numpy

        if "bfloat16" in dtypes:
            import ml_dtypes  # noqa: F401
    except ImportError as error:
        missing = "safetensors" if error.name is None else error.name.partition(".")[0]
        raise ModuleNotFoundError(
            f'a .safetensors file needs {missing}: pip install "islices[io]"', name=missing
        ) from None
    return safetensors


def _nbytes(name: str, dtype: str, shape: tuple[int, ...]) -> int:
    """Return an array's number of bytes; raise ValueError for more dimensions or bytes than NumPy 1 allows."""
    itemsize = np.dtype(DTYPES[dtype][1]).itemsize
    if len(shape) > COMMON_NDIM or math.prod(n for n in shape if n) * itemsize > LARGEST:
        raise ValueError(f"{name!r}: got shape {show(shape)}; accepted are {COMMON_NDIM} dimensions, 2^63 - 1 bytes")
    return math.prod(shape) * itemsize


def _bytes(data: Host) -> memoryview:
    return data.reshape(-1).view(np.uint8).data


def _check_header(length: int) -> None:
    if length > LONGEST_HEADER:
        raise ValueError(f"the header takes {length} bytes; accepted are {LONGEST_HEADER}, some 100,000 arrays")
