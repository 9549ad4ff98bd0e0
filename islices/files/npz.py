"""The container .npz: a zip of .npy arrays, read by Python's zipfile, and by a reader of .npy headers of our own.

NumPy's reader of those headers evaluates a Python literal, and unpickles what says that it holds objects; this one
knows plain arrays only. May import: `numpy`, `islices.arguments`, `islices.memory`, `islices.files.containers`.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any

import numpy as np

from islices.arguments import show
from islices.files.containers import (
    DTYPES,
    OWN,
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
    fill,
    no_digest,
    outgoing_chunks,
)
from islices.memory import empty

__all__ = ["NPZ"]

DTYPE_OF = {code[1:]: dtype for dtype, (_, code) in DTYPES.items() if dtype != "bfloat16"}
#: The flags of a member that a descriptor follows, and of one that is encrypted or patched.
DESCRIPTOR, UNREADABLE = 0x8, 0x2061
#: Compressed members (which others write) may hold so many times the file's size, beyond what is harmless.
EXPANSION, HARMLESS = 100, 1 << 26


def _write(path: str, arrays: Sequence[Outgoing], texts: Texts) -> None:
    digests = []
    with open(path, "wb") as file, zipfile.ZipFile(file, "w") as zipped:
        for array in arrays:
            head, digest = io.BytesIO(), hashlib.sha256()
            header = {"descr": DTYPES[array.dtype][1], "fortran_order": False, "shape": array.shape}
            np.lib.format.write_array_header_1_0(head, header)
            with zipped.open(_member(f"{array.name}.npy", head.tell() + array.nbytes), "w") as out:
                out.write(head.getvalue())
                for chunk in outgoing_chunks(array):
                    out.write(chunk)
                    digest.update(chunk)
            digests.append(digest.hexdigest())
        found = texts(digests)
        for name in OWN:
            text = found[name].encode()
            check_header(len(text))
            with zipped.open(_member(name, len(text)), "w") as out:
                out.write(text)


def _member(name: str, size: int) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))  # equal trees make equal archives
    info.file_size = size  # decides whether sizes are written with 64 bits
    return info


#: What NumPy writes at the head of an array (a literal of Python's, which is not evaluated here).
NPY_HEADER = re.compile(
    r"\{'descr': '([<>|])([a-zA-Z])(\d*)', 'fortran_order': (False|True), "
    r"'shape': \(((?:\d{1,19}, ?)*(?:\d{1,19})?)\), ?\} *\n"
)


def _open(path: str, file: IO[bytes], size: int) -> Archive:
    directory, count = _directory(file, size)
    with _zip_errors():
        zipped = zipfile.ZipFile(file)
        if len(zipped.infolist()) != count:
            raise ValueError(f"the zip archive is damaged: of {count} members {len(zipped.infolist())} are found")
        starts = _check_members(file, zipped.infolist(), directory, size)
        texts: dict[str, str] = {}
        arrays: list[_Stored] = []
        for member in zipped.infolist():
            with zipped.open(member) as stream:
                if member.filename in OWN:
                    check_header(member.file_size)
                    texts[member.filename] = stream.read().decode("utf-8")
                else:
                    arrays.append(_npy(member, stream, starts[member.filename]))
    return _Archive(texts, arrays, file, zipped)


@dataclass(frozen=True)
class _Stored(Stored):
    member: zipfile.ZipInfo
    skip: int  # bytes of the member ahead of the array's
    start: int  # of the array's bytes in the file, if they are not compressed
    swapped: bool
    fortran: bool


class _Archive(Archive):
    def __init__(
        self, texts: dict[str, str], arrays: Iterable[Stored], file: IO[bytes], zipped: zipfile.ZipFile
    ) -> None:
        super().__init__(texts, arrays)
        self.file, self.zipped = file, zipped

    def fetch(self, array: _Stored, seen: Callable[[Any], object]) -> Host:
        out = empty(array.shape[::-1] if array.fortran else array.shape, np.dtype(DTYPES[array.dtype][1]))
        with _zip_errors(), self._stream(array, hashed=seen is not no_digest) as stream:
            for chunk in chunks(out):
                if fill(stream, chunk) < len(chunk):
                    raise ValueError(f"the data of {array.name!r} end too early: the file was truncated")
                seen(chunk)
        if array.swapped:
            out.byteswap(inplace=True)
        ordered = out.astype(out.dtype.newbyteorder("="), copy=False)
        return np.ascontiguousarray(ordered.T) if array.fortran else ordered

    @contextlib.contextmanager
    def _stream(self, array: _Stored, *, hashed: bool) -> Iterator[IO[bytes]]:
        if hashed and array.member.compress_type == zipfile.ZIP_STORED:
            self.file.seek(array.start)  # what has a digest needs no second checksum
            yield self.file
            return
        with self.zipped.open(array.member) as stream:
            stream.read(array.skip)
            yield stream


@contextlib.contextmanager
def _zip_errors() -> Iterator[None]:
    """Everything zipfile says of a bad archive, as ValueError."""
    try:
        yield
    except (zipfile.BadZipFile, zlib.error, struct.error, EOFError, RuntimeError, OverflowError) as error:
        raise ValueError(f"the zip archive is damaged: {error}") from None


def _directory(file: IO[bytes], size: int) -> tuple[int, int]:
    """Where the zip's directory begins, and how many members it has. It is read whole: its length is checked here."""
    tail = exactly(file, max(0, size - 98), min(size, 98))
    if len(tail) < 22 or tail[-22:-18] != b"PK\x05\x06":
        raise ValueError("it does not end as an .npz file does: truncated, or no zip archive")
    disk, first, here, count, length, start, comment = struct.unpack("<4H2LH", tail[-18:])
    end = size - 22
    if tail[-42:-38] == b"PK\x06\x07":  # numbers of 64 bits, in a record ahead
        if tail[-98:-94] != b"PK\x06\x06":
            raise ValueError("the zip archive is damaged: its 64-bit end record is missing")
        disk, first, here, count, length, start = struct.unpack("<2L4Q", tail[-82:-42])
        end = size - 98
    if disk or first or comment or here != count or start + length != end:
        raise ValueError("the zip archive is damaged: its directory is not where its end says")
    check_header(length)
    return start, count


def _check_members(file: IO[bytes], members: Sequence[zipfile.ZipInfo], directory: int, size: int) -> dict[str, int]:
    """Where each member's bytes begin, if each is what it claims, and they lie one after the other from 0 on."""
    starts: dict[str, int] = {}
    at = declared = behind = 0
    for member in sorted(members, key=lambda m: m.header_offset):
        name = member.filename
        if name in starts or name != member.orig_filename:
            raise ValueError(f"the member {name!r} is there twice, or its name is not what it seems")
        if name not in OWN and not name.endswith(".npy"):
            raise ValueError(f"got a member {name!r}; accepted are arrays, .npy")
        stored = member.compress_type == zipfile.ZIP_STORED
        if member.flag_bits & UNREADABLE or not (stored or member.compress_type == zipfile.ZIP_DEFLATED):
            raise ValueError(f"{name!r} is encrypted, or compressed by another method than deflate")
        if stored and member.file_size != member.compress_size:
            raise ValueError(f"{name!r} is not compressed, yet states two sizes")
        _check_gap(member.header_offset - at, behind, name)
        local = exactly(file, member.header_offset, 30)
        start = member.header_offset + 30 + sum(struct.unpack("<2H", local[26:30]))
        at = start + member.compress_size
        if local[:4] != b"PK\x03\x04" or at > directory:
            raise ValueError(f"{name!r} is not where the archive says, or longer than the archive")
        behind = member.flag_bits & DESCRIPTOR
        starts[name] = start
        declared += member.file_size
    _check_gap(directory - at, behind, "the directory")
    if declared > HARMLESS + EXPANSION * size:
        raise ValueError(
            f"the archive's {size} bytes are to become {declared}; accepted is {EXPANSION} times as much "
            "(if you trust it, save it again uncompressed)"
        )
    return starts


def _check_gap(gap: int, behind: int, name: str) -> None:
    """Nothing lies between members, but for a descriptor where one is announced; nor are two in one place."""
    if gap != 0 and not (behind and gap in (12, 16, 20, 24)):
        problem = "lies over another member" if gap < 0 else f"begins {gap} bytes behind what comes before it"
        raise ValueError(f"the zip archive is damaged: {name!r} {problem}")


def _npy(member: zipfile.ZipInfo, stream: IO[bytes], start: int) -> _Stored:
    """The array in a member, from the head of its bytes."""
    name = member.filename.removesuffix(".npy")
    head = stream.read(10)
    if len(head) < 10 or head[:6] != b"\x93NUMPY" or head[6] not in (1, 2, 3):
        raise ValueError(f"{name!r} is no .npy array of version 1, 2 or 3")
    length, skip = struct.unpack("<H", head[8:])[0], 10
    if head[6] > 1:
        length, skip = struct.unpack("<L", head[8:] + stream.read(2).ljust(2, b"\0"))[0], 12
    if length > min(member.file_size, 10_000):
        raise ValueError(
            f"{name!r}: its header is to take {length} bytes; accepted are 10,000, and no more than it has"
        )
    text = stream.read(length).decode("latin-1")
    found = NPY_HEADER.fullmatch(text)
    if found is None:
        why = "; arrays of objects are pickles, which are never loaded" if "O" in text else ""
        raise ValueError(f"{name!r}: got the header {show(text)}; accepted is that of a plain array{why}")
    order, kind, width, fortran, dims = found.groups()
    dtype = DTYPE_OF.get(kind + width)
    if dtype is None:
        why = "objects are pickles, which are never loaded" if kind == "O" else f"accepted are {', '.join(DTYPE_OF)}"
        raise ValueError(f"{name!r}: got dtype {order}{kind}{width}; {why}")
    shape = tuple(map(int, re.findall(r"\d+", dims)))
    skip += length
    nbytes = check_array(name, dtype, shape)
    if nbytes != member.file_size - skip:
        raise ValueError(f"{name!r}: {dtype} of shape {shape} takes {nbytes} bytes, not {member.file_size - skip}")
    swapped, columns = order == ">", fortran == "True"
    return _Stored(name, dtype, shape, not (swapped or columns), member, skip, start + skip, swapped, columns)


NPZ = Container(_write, _open)
