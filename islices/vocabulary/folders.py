"""A folder of `islices.distributed.save_sharded` with other rows, in one process: what `renumber_file` does of one.

May import: `numpy`, the core below `islices.vocabulary`, this folder.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
from collections.abc import Callable
from typing import Any

import numpy as np

from islices.distributed.group import Alone
from islices.distributed.ranges import even_bounds
from islices.distributed.shard_files import (
    block_rows,
    checkpoint_errors,
    digest,
    named_files,
    piece_blocks,
    read_checkpoint,
    remove,
    remove_others,
    row_forms,
)
from islices.distributed.shard_header import (
    ShardedHeader,
    folder_name,
    write_header,
)
from islices.files import CONTAINERS, Archive, Contents, Dense, InPieces, StoredRows, Written, opened, replacing
from islices.vocabulary.file_rows import file_fill, new_rows
from islices.vocabulary.fills import Fill, Random, Rows, fill_of_state
from islices.vocabulary.mapping import NEW, RowMap
from islices.vocabulary.memory import renumbered_padding

__all__ = ["renumber_folder"]

Host = np.ndarray[Any, Any]


def renumber_folder(
    source: Any, target: Any, map_for: Callable[[int], RowMap], fill: Fill, state_fill: Fill, chunk: int
) -> RowMap:
    """See `islices.vocabulary.renumber_file`. As many shards are written as are read."""
    folder, place = folder_name(source), folder_name(target)

    def stored(header: ShardedHeader) -> dict[str, StoredRows]:
        stack.close()  # of an attempt before
        return _stored(folder, header, stack)

    with contextlib.ExitStack() as stack:
        header, arrays = read_checkpoint(Alone(), "renumber_file", folder, stored)
        found = map_for(header.num_rows)
        padding = None if header.padding_idx is None else renumbered_padding(found, header.padding_idx)
        fills = _fills(arrays, found, header, fill, state_fill, chunk)
        os.makedirs(place, exist_ok=True)
        before = named_files(place)
        token, suffix = secrets.token_hex(8), os.path.splitext(header.files[0].name)[1]
        bounds = even_bounds(found.rows, len(header.files)).tolist()
        files: list[list[Any]] = []
        try:
            done = 0
            for number, (start, stop) in enumerate(itertools.pairwise(bounds)):
                name = f"shard-{token}-{number}-of-{len(header.files)}{suffix}"
                files.append([name, start, stop, ""])
                tree, done = _shard(arrays, found, start, stop, fills, chunk, done)
                files[-1][3] = _write(os.path.join(place, name), suffix, tree, {"rows": f"{start}:{stop}"})
            write_header(place, _content(header, found, padding, files))
        except BaseException:
            for name, *_ in files:
                remove(os.path.join(place, name))
            raise
    remove_others(place, set(before), {name for name, *_ in files})
    return found


def _content(header: ShardedHeader, found: RowMap, padding: int | None, files: list[list[Any]]) -> dict[str, Any]:
    return {
        "rows": found.rows, "row_shape": list(header.row_shape), "dtype": header.dtype, "padding_idx": padding,
        "scale_by_freq": header.scale_by_freq, "steps": header.steps,
        "state": {name: list(kind) for name, kind in header.state.items()}, "metadata": header.metadata, "files": files,
    }  # fmt: skip


def _stored(folder: str, header: ShardedHeader, stack: contextlib.ExitStack) -> dict[str, StoredRows]:
    """Each array of the checkpoint, in the files that hold its rows, which stay open."""
    names = ["weights", *(f"state.{name}" for name in header.state)]
    parts: dict[str, list[tuple[Archive, Dense]]] = {name: [] for name in names}
    for piece in header.files:
        path = os.path.join(folder, piece.name)
        with checkpoint_errors(path):
            archive = stack.enter_context(opened(path))
            for name, leaves in piece_blocks(archive, piece, names).items():
                parts[name] += [(archive, leaf) for leaf in leaves]
    forms = row_forms(header)
    made = {}
    for name, (shape, dtype) in forms.items():
        for _, leaf in parts[name]:
            if leaf.shape[1:] != shape or leaf.array.dtype != dtype.name:
                raise ValueError(f"{folder}: {leaf.array.name!r} is no part of the table that the checkpoint describes")
        if not parts[name]:
            raise ValueError(f"{folder}: the table has no rows; accepted is one with some")
        made[name] = StoredRows(parts[name])
        if made[name].shape[0] != header.num_rows:
            raise ValueError(f"{folder}: its files have {made[name].shape[0]} rows of {name!r}, not {header.num_rows}")
    return made


def _fills(
    arrays: dict[str, StoredRows], found: RowMap, header: ShardedHeader, fill: Fill, state_fill: Fill, chunk: int
) -> dict[str, Rows]:
    fills: dict[str, Rows] = {}
    for name, stored in arrays.items():
        last = name.removeprefix("state.")
        own = fill if name == "weights" or last == "master" else fill_of_state(state_fill, last, found.count_added)
        argument = "fill" if own is fill else "state_fill"
        made = file_fill(stored, found, own, argument, chunk, header.padding_idx)
        # a master's are the table's before they are rounded; random ones are drawn again, in their own order
        fills[name] = made if last != "master" or isinstance(fill, Random) else fills["weights"]
    return fills


def _shard(
    arrays: dict[str, StoredRows], found: RowMap, start: int, stop: int, fills: dict[str, Rows], chunk: int, done: int
) -> tuple[dict[str, list[Written]], int]:
    """The new rows start to stop - 1 of all arrays in blocks, and how many of the rows up to there are new."""
    tree: dict[str, list[Written]] = {}
    after = done
    for name, stored in arrays.items():
        size, after = block_rows(stop - start, stored.row_bytes), done
        blocks: list[InPieces] = []
        for first in range(start, stop, size):
            last = min(first + size, stop)
            blocks.append(new_rows(stored, found, first, last, fills[name], chunk, after))
            after += int(np.count_nonzero(found.part(first, last) == NEW))
        tree[name] = [Written("array", {"": block}) for block in blocks]
    return tree, after


def _write(path: str, suffix: str, tree: Any, metadata: dict[str, str]) -> str:
    """A shard's file, and the SHA-256 of its manifest."""
    contents = Contents(tree)
    with replacing(path) as beside:
        CONTAINERS[suffix].write(beside, contents.arrays, lambda digests: contents.texts(digests, metadata))
    return digest(path)
