"""The header of a checkpoint of shards: which files belong together, and what is in them. SPEC clause 26.

It is one JSON file in the checkpoint's folder, and holds its own SHA-256. Nothing in it is believed: every entry is
checked before a file that it names is opened.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from islices.backend import FLOATS
from islices.core.arguments import LARGEST, show
from islices.core.linear import wide_dtype
from islices.core.registry import describe
from islices.files.places import replacing
from islices.files.safetensors import named, parse_json

__all__ = ["FILE", "Piece", "ShardedHeader", "folder_name", "read_sharded_header", "write_header"]

#: The header's file, and how the shards' are named: the checkpoint's token, the rank, the ranks.
HEADER = "islices-shards.json"
FILE = re.compile(r"shard-[0-9a-f]{16}-\d+-of-\d+\.safetensors")
VERSION = 1
ENTRIES = ("rows", "row_shape", "dtype", "padding_idx", "scale_by_freq", "steps", "state", "files", "metadata")


class Piece(NamedTuple):
    """A rank's file: rows start to stop - 1. sha256 is that of the file's own manifest, which has its arrays'."""

    name: str
    start: int
    stop: int
    sha256: str


class ShardedHeader(NamedTuple):
    """What a checkpoint says about itself: see `read_sharded_header`."""

    num_rows: int
    row_shape: tuple[int, ...]
    dtype: str
    padding_idx: int | None
    scale_by_freq: bool
    #: steps taken; None where no state was saved
    steps: int | None
    #: the state's arrays beside the step count: name -> (dtype, whether it has one number a row)
    state: dict[str, tuple[str, bool]]
    files: list[Piece]
    metadata: dict[str, str]
    sha256: str


def folder_name(folder: Any) -> str:
    """The folder as a text, or TypeError."""
    try:
        return os.fsdecode(folder)
    except TypeError:
        raise TypeError(f"folder: got {describe(folder)}; accepted is a str or a path") from None


def write_header(folder: str, content: Mapping[str, Any]) -> None:
    text = json.dumps({"format": "islices-sharded", "version": VERSION, **content})
    whole = json.dumps({"manifest": text, "sha256": hashlib.sha256(text.encode()).hexdigest()})
    with replacing(os.path.join(folder, HEADER)) as beside, open(beside, "w", encoding="utf-8") as file:
        file.write(whole)


def read_sharded_header(folder: str | os.PathLike[str]) -> ShardedHeader:
    """What a checkpoint of `save_sharded` holds, without reading its data. Not collective.

    Parameters
    ----------
    folder : str or path

    Returns
    -------
    ShardedHeader

    Raises
    ------
    ValueError
        There is no manifest, or it is damaged, or of another version. SPEC clause 26.

    Examples
    --------
    >>> import tempfile, numpy as np
    >>> from islices.distributed import Alone, ShardedTable, read_sharded_header, save_sharded
    >>> table = ShardedTable.from_full(np.zeros((2, 3)), Alone())
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_sharded(folder, table, metadata={"epoch": "7"})
    ...     header = read_sharded_header(folder)
    >>> header.num_rows, header.row_shape, header.dtype, len(header.files), header.metadata
    (2, (3,), 'float64', 1, {'epoch': '7'})
    """
    path = os.path.join(folder_name(folder), HEADER)
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except (FileNotFoundError, NotADirectoryError):
        raise ValueError(f"{path}: it is not there: the folder holds no complete checkpoint of save_sharded") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: {error}") from None
    with named(path):
        return _checked_header(text)


def _checked_header(text: str) -> ShardedHeader:
    outer = parse_json(text, "the manifest")
    inner = outer.get("manifest") if isinstance(outer, dict) else None
    if (
        not isinstance(inner, str)
        or outer.get("sha256") != hashlib.sha256(inner.encode("utf-8", "replace")).hexdigest()
    ):
        raise ValueError("the manifest is damaged: its SHA-256 is not what it states")
    found = parse_json(inner, "the manifest")
    if not isinstance(found, dict) or found.get("format") != "islices-sharded":
        raise ValueError("it is no manifest of save_sharded")
    if found.get("version") != VERSION:
        raise ValueError(f"it has version {show(found.get('version'))}; this islices reads {VERSION}: upgrade islices")
    if set(found) != {"format", "version", *ENTRIES}:
        raise ValueError("the manifest holds other entries than it should")
    rows, shape, dtype, padding = found["rows"], found["row_shape"], found["dtype"], found["padding_idx"]
    if not _is_count(rows) or not isinstance(shape, list) or not all(map(_is_count, shape)) or dtype not in FLOATS:
        raise ValueError(f"got rows {show(rows)} of shape {show(shape)} and dtype {show(dtype)}: no table")
    by_freq = found["scale_by_freq"]
    if (padding is not None and (not _is_count(padding) or padding >= rows)) or type(by_freq) is not bool:
        raise ValueError(f"got padding_idx {show(padding)}, scale_by_freq {show(by_freq)}")
    if found["steps"] is not None and not (_is_count(found["steps"]) and found["steps"] < 2**31):
        raise ValueError(f"got steps {show(found['steps'])}")
    metadata = found["metadata"]
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise ValueError("the metadata are no object of texts")
    state = _checked_state(found["state"], dtype)
    files = _checked_files(found["files"], rows)
    digest = outer["sha256"]
    return ShardedHeader(rows, tuple(shape), dtype, padding, by_freq, found["steps"], state, files, metadata, digest)


def _checked_state(state: Any, dtype: str) -> dict[str, tuple[str, bool]]:
    entries: Any = state.items() if isinstance(state, dict) else [("state", None)]
    for name, kind in entries:
        if not isinstance(kind, list) or len(kind) != 2 or kind[0] != wide_dtype(dtype) or type(kind[1]) is not bool:
            raise ValueError(f"got {show(kind)} for the state's {name!r}; accepted is [{wide_dtype(dtype)!r}, per row]")
    return {name: (kind[0], kind[1]) for name, kind in entries}


def _checked_files(files: Any, rows: int) -> list[Piece]:
    """The files, whose ranges follow each other from 0 to rows."""
    pieces, at = [], 0
    for entry in files if isinstance(files, list) else [None]:
        if not isinstance(entry, list) or len(entry) != 4 or not all(isinstance(entry[k], str) for k in (0, 3)):
            raise ValueError(f"got {show(entry)} for a file; accepted is [name, start, stop, sha256]")
        piece = Piece(*entry)
        if not FILE.fullmatch(piece.name) or piece.start != at or not _is_count(piece.stop) or piece.stop < at:
            raise ValueError(
                f"got the file {show(piece.name)} of rows {show(piece.start)} to {show(piece.stop)}, after {at}"
            )
        pieces.append(piece)
        at = piece.stop
    if at != rows or not pieces:
        raise ValueError(f"its files have {at} rows; the table has {rows}")
    return pieces


def _is_count(n: Any) -> bool:
    return type(n) is int and 0 <= n <= LARGEST
