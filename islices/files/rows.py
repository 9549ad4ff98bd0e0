"""Rows of arrays in files, read where they lie: memory follows what is asked for, not the array.

May import: `numpy`, this folder.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from typing import IO, Any, NamedTuple

import numpy as np

from islices.files.containers import DTYPES, Archive, Host, fill
from islices.files.manifest import Dense

__all__ = ["StoredRows", "stored_pieces"]

#: Bytes that are read at once, at most, and that are read in vain between two rows rather than read twice.
SPAN, GAP = 1 << 20, 1 << 14


class _Segment(NamedTuple):
    """Rows that lie one after the other in a file."""

    first: int
    stop: int
    file: IO[bytes]
    start: int
    leaf: Dense


class StoredRows:
    """The rows of an array that lies in one file, or in several pieces; ValueError where they cannot be read singly."""

    def __init__(self, parts: Sequence[tuple[Archive, Dense]]) -> None:
        leaf = parts[0][1]
        self.dtype, self.row_shape = leaf.dtype, leaf.shape[1:]
        self.host = np.dtype(DTYPES[leaf.dtype][1])
        self.row_bytes = self.host.itemsize * math.prod(self.row_shape)
        self.segments: list[_Segment] = []
        at = 0
        for archive, piece in parts:
            start = archive.start(piece.array)
            if start is None:
                raise ValueError(
                    f"{piece.array.name!r} is compressed, or lies in another order, so that no row is found without "
                    "reading it whole; accepted are files of islices.save, np.savez and safetensors"
                )
            stop = at + piece.shape[0]
            self.segments.append(_Segment(at, stop, archive.file, start, piece))
            at = stop
        self.shape = (at, *self.row_shape)

    def pieces(self, nbytes: int) -> Iterator[Host]:
        """All rows in order, so many bytes at a time; ValueError at the end of a part whose SHA-256 is another."""
        size = max(1, nbytes // max(1, self.row_bytes))
        for segment in self.segments:
            digest = hashlib.sha256()
            for first in range(segment.first, segment.stop, size):
                rows = self._rows(segment, first, min(first + size, segment.stop))
                digest.update(_bytes(rows))
                yield rows
            wanted = segment.leaf.sha256
            if wanted is not None and digest.hexdigest() != wanted:
                name = segment.leaf.array.name
                raise ValueError(f"the data of {name!r} are damaged: their SHA-256 is not what the file states")

    def check(self, nbytes: int) -> None:
        """Hold all rows against their SHA-256, so many bytes at a time."""
        for _ in self.pieces(nbytes):
            pass

    def read(self, rows: Host, into: Host) -> None:
        """Rows of any numbers, in any order."""
        order = np.argsort(rows, kind="stable")
        ordered = rows[order]
        for segment in self.segments:
            begin, end = np.searchsorted(ordered, (segment.first, segment.stop)).tolist()
            while begin < end:
                stop = self._span(ordered, begin, end)
                first = int(ordered[begin])
                found = self._rows(segment, first, int(ordered[stop - 1]) + 1)
                into[order[begin:stop]] = found[ordered[begin:stop] - first]
                begin = stop

    def _span(self, ordered: Host, begin: int, end: int) -> int:
        """How far, from begin, rows lie so near to each other that one read brings them."""
        width = max(1, self.row_bytes)
        stop = int(np.searchsorted(ordered[begin:end], ordered[begin] + max(1, SPAN // width))) + begin
        gaps = np.diff(ordered[begin:stop]) > max(1, GAP // width)
        return begin + 1 + int(np.argmax(gaps)) if gaps.any() else stop

    def _rows(self, segment: _Segment, first: int, stop: int) -> Host:
        out = np.empty((stop - first, *self.row_shape), self.host)
        segment.file.seek(segment.start + (first - segment.first) * self.row_bytes)
        if fill(segment.file, _bytes(out)) < out.nbytes:
            raise ValueError(f"the data of {segment.leaf.array.name!r} end too early: the file was truncated")
        return out


def _bytes(x: Host) -> memoryview:
    return x.reshape(-1).view(np.uint8).data


def stored_pieces(archive: Archive, leaf: Dense, nbytes: int) -> Iterator[Any]:
    """An array in order, so many bytes at a time where it lies so, checked against its SHA-256."""
    if leaf.shape and archive.start(leaf.array) is not None and leaf.dtype != "bool":
        yield from StoredRows([(archive, leaf)]).pieces(nbytes)
    else:
        yield archive.read(leaf.array, leaf.sha256)
