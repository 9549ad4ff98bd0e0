"""The files of a checkpoint: blocks of rows, what each has to hold, and what is removed. SPEC clause 26."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import Any, TypeVar

import numpy as np

from islices.core.dtypes import host_dtype
from islices.core.trees import flatten
from islices.distributed.group import Group
from islices.distributed.shard_header import FILE, HEADER, Piece, ShardedHeader, folder_name, read_sharded_header
from islices.distributed.together import together
from islices.files.manifest import Dense, read_manifest
from islices.files.places import ABANDONED, opened, remove_left
from islices.files.safetensors import OWN, Archive

__all__ = [
    "block_rows",
    "checkpoint_errors",
    "digest",
    "named_files",
    "piece_blocks",
    "read_checkpoint",
    "remove",
    "remove_others",
    "row_forms",
]

#: Bytes of a block of rows, about, and how many blocks an array has at most: headers stay short.
BLOCK, MOST_BLOCKS = 1 << 22, 1024
#: What a save that was killed leaves in the folder.
LEFT = re.compile(rf"{FILE.pattern}|\.islices-[0-9a-f]{{16}}\.tmp")
#: How often a checkpoint is read at most, where each time another save replaces it meanwhile.
ATTEMPTS = 20
T = TypeVar("T")


def block_rows(count: int, row_bytes: int) -> int:
    """Rows of a block, of so many in all."""
    return max(1, BLOCK // max(1, row_bytes), -(-count // MOST_BLOCKS))


def digest(path: str) -> str:
    with opened(path) as archive:
        return archive.texts[OWN[1]]


def read_checkpoint(
    group: Group, call: str, folder: Any, read: Callable[[ShardedHeader], T], error: Exception | None = None
) -> tuple[ShardedHeader, T]:
    """Return the header and what `read` makes of it, from one checkpoint on all ranks. Collective.

    A save in another process removes the files of the checkpoint that it replaces. So all ranks read the header again
    where they saw different ones, or where a rank could not read and its header has changed since.
    """

    def attempt(header: ShardedHeader) -> list[T]:
        try:
            return [read(header)]
        except (OSError, ValueError):
            if read_sharded_header(folder).sha256 == header.sha256:
                raise
            return []

    for _ in range(ATTEMPTS):
        header, agreed = together(
            group, call, lambda: read_sharded_header(folder), lambda _: {},
            lambda found: np.frombuffer(bytes.fromhex(found.sha256), np.int64), error=error,
        )  # fmt: skip
        if all((other == agreed.counts[0]).all() for other in agreed.counts):
            done, agreed = together(
                group, call, partial(attempt, header), lambda _: {}, lambda found: np.array([len(found)])
            )
            if all(int(count[0]) for count in agreed.counts):
                return header, done[0]
    raise ValueError(
        f"{folder_name(folder)}: {ATTEMPTS} times a save replaced the checkpoint while it was read, or ranks saw "
        "different ones; accepted is one that stays while it is read"
    )


def named_files(folder: str) -> list[str]:
    """The files of the checkpoint that is there."""
    try:
        return [piece.name for piece in read_sharded_header(folder).files]
    except (OSError, ValueError):  # none, or a damaged one, whose files are nobody's
        return []


def remove_others(folder: str, before: set[str], kept: set[str]) -> None:
    """The shards of the checkpoint before, and what saves that never ended have left. Others' young files stay: they
    may belong to a save that runs now, of a job that should have ended, and whose header would name them."""
    for name in before - kept:
        remove(os.path.join(folder, name))
    with contextlib.suppress(OSError):  # what stays harms nobody
        now = os.stat(os.path.join(folder, HEADER)).st_mtime  # by the folder's own clock
        remove_left(folder, lambda name: name not in kept and LEFT.fullmatch(name), now, ABANDONED)


def remove(path: str) -> None:
    with contextlib.suppress(OSError):  # a file that stays harms nobody
        os.unlink(path)


def row_forms(header: ShardedHeader) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
    """array -> (shape of a row, dtype)"""
    forms: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] = {"weights": (header.row_shape, host_dtype(header.dtype))}
    for name, (dtype, per_row) in header.state.items():
        forms[f"state.{name}"] = (() if per_row else header.row_shape, host_dtype(dtype))
    return forms


def piece_blocks(archive: Archive, piece: Piece, names: Collection[str]) -> dict[str, list[Dense]]:
    """array -> its blocks in a file of the checkpoint; ValueError for another file."""
    if archive.texts.get(OWN[1]) != piece.sha256:
        raise ValueError("it is not the file that the checkpoint names: its manifest has another SHA-256")
    manifest = read_manifest(archive)
    tree: Any = None if manifest is None else manifest.tree
    if not isinstance(tree, dict) or tree.keys() != set(names):
        raise ValueError("it does not hold the arrays that the checkpoint names")
    return {name: [leaf for leaf in flatten(tree[name]) if isinstance(leaf, Dense)] for name in names}


@contextlib.contextmanager
def checkpoint_errors(path: str) -> Iterator[None]:
    """A file that is not there is a checkpoint that is not whole."""
    try:
        yield
    except FileNotFoundError:
        raise ValueError(f"{path}: it is not there, though the checkpoint names it") from None
