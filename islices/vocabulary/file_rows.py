"""Rows of tables in files, on their way into a new file.

May import: `numpy`, the core below `islices.vocabulary`, this folder.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from islices.files import InPieces, StoredRows
from islices.vocabulary.fills import Fill, Rows, mean_of_rows, rows_of
from islices.vocabulary.mapping import RowMap
from islices.vocabulary.memory import piece_of, place_rows

__all__ = ["file_fill", "new_rows"]

Host = np.ndarray[Any, Any]


def file_fill(stored: StoredRows, found: RowMap, fill: Fill, argument: str, chunk: int, padding: int | None) -> Rows:
    """What the new rows are, once all old ones have been read and held against their SHA-256."""
    mean = None
    if isinstance(fill, str) and fill == "mean" and found.count_added:
        mean = mean_of_rows(stored.pieces(chunk), stored.row_shape, padding)
    else:
        stored.check(chunk)
    return rows_of(fill, argument, found.count_added, stored.row_shape, stored.dtype, lambda: mean)  # type: ignore[return-value, arg-type]


def new_rows(
    stored: StoredRows, found: RowMap, first: int, stop: int, fill: Rows, chunk: int, done: int = 0
) -> InPieces:
    """The rows first to stop - 1 of the new table, ahead of which so many new ones have been made."""
    shape = (stop - first, *stored.row_shape)

    def pieces() -> Iterator[Host]:
        size = piece_of(shape, chunk // stored.host.itemsize)
        made = done
        for begin in range(first, stop, size):
            part = np.empty((min(size, stop - begin), *stored.row_shape), stored.host)
            made = place_rows(part, found.part(begin, begin + len(part)), fill, made, stored.dtype, stored.read)
            yield part

    return InPieces(stored.dtype, shape, pieces)
