"""Tables in files with other rows, a piece at a time: `renumber_file`.

May import: `numpy`, the core below `islices.vocabulary`, this folder.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np

from islices import modes
from islices.arguments import check_flag, show, whole_number
from islices.files import (
    Archive,
    Contents,
    Dense,
    InPieces,
    StoredRows,
    StoredSlices,
    StoredTable,
    Written,
    container_of,
    flat,
    named,
    opened,
    read_manifest,
    replacing,
    stored_pieces,
)
from islices.registry import describe
from islices.slices import check_indices
from islices.trees import named_leaves, rebuild
from islices.vocabulary.file_rows import file_fill, new_rows
from islices.vocabulary.fills import Fill, Rows, fill_of_state
from islices.vocabulary.folders import renumber_folder
from islices.vocabulary.mapping import RowMap, as_map
from islices.vocabulary.memory import Patterns, chosen, is_counter, listed, renumbered_padding

__all__ = ["renumber_file"]

Host = np.ndarray[Any, Any]
Leaf = Any
#: Bytes of rows that are in memory at a time.
CHUNK = 1 << 24


def renumber_file(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    mapping: Any,
    *,
    rows: int | None = None,
    tables: Patterns = None,
    states: Patterns = None,
    fill: Fill = 0.0,
    state_fill: Fill = None,
    foreign: bool = False,
    chunk: int = CHUNK,
) -> RowMap:
    """`renumber` from one file to another, whose tables need not fit into memory.

    Parameters
    ----------
    source : str or path
        A file of `islices.save`, or a folder of `save_sharded`.
    target : str or path
        Ending in .npz or .safetensors, also where source ends in the other; a folder for a folder. It may be source:
        what was there is replaced once the new file is complete.
    mapping : RowMap, 1-D integers, mapping of int to int, or None
        As `renumber` takes it. None keeps each row in its place.
    rows : int, optional
        With mapping None: how many the new table has.
    tables, states : str, or sequence of them, optional
        Names of the file's leaves, as in ``"optimizer.*"``: keys and positions joined by dots. By default the tables
        are its `Table`, or its only leaf. states has to be given where other leaves have as many rows; [] leaves them.
    fill, state_fill
        As `renumber` takes them. What a function returns, and an array, are held as a whole.
    foreign : bool
        As `islices.load` takes it. The new file is one of islices, which others read as they did.
    chunk : int
        Bytes of rows that are held at a time, about.

    Returns
    -------
    RowMap
        What was done: its ``ids`` renumbers those of batches.

    Raises
    ------
    TypeError, ValueError, IndexError, OSError
        As `renumber` and `islices.load`; what was at target is still there.

    Notes
    -----
    What is read is held against its SHA-256 first. Memory: a few chunks, and 8 bytes a row for a mapping that is given.
    All other leaves, and the metadata, are copied. SPEC clause 27.

    Examples
    --------
    >>> import os, tempfile, numpy as np, islices
    >>> from islices import vocabulary
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     old, new = os.path.join(folder, "old.npz"), os.path.join(folder, "new.npz")
    ...     islices.save(old, {"words": islices.Table(np.array([[1.0], [2.0], [4.0]])), "bias": np.zeros(1)})
    ...     vocabulary.renumber_file(old, new, [2, -1, 0], fill="mean")
    ...     islices.load(new)["words"].weights.ravel().tolist()
    RowMap(3 rows of 3, 1 new)
    [4.0, 2.3333333333333335, 1.0]
    """
    size = whole_number(chunk)
    if size is None or size < 1:
        raise ValueError(f"chunk: got {show(chunk)}; accepted is a number of bytes >= 1")
    if (mapping is None) == (rows is None):
        raise TypeError("mapping: accepted is either one, or None and rows=, the number of rows to grow to")

    def map_for(old_rows: int) -> RowMap:
        return as_map(mapping, old_rows) if mapping is not None else RowMap.grown(old_rows, rows)  # type: ignore[arg-type]

    if _is_folder(source):
        if tables is not None or states is not None:
            raise ValueError("tables: a folder of save_sharded holds one table with its state; accepted is None")
        return renumber_folder(source, target, map_for, fill, state_fill, size)
    place, container = container_of(target)
    with opened(source, check_flag(foreign, "foreign")) as archive:
        manifest = read_manifest(archive)
        tree = flat(archive) if manifest is None else manifest.tree
        metadata = archive.texts if manifest is None else manifest.metadata
        work = _Work(archive, named_leaves(tree, "tree"), size)
        made = work.renumbered(map_for, tables, states, fill, state_fill)
        contents = Contents(rebuild(tree, iter(made)))
        with named(place), replacing(place) as beside:
            container.write(beside, contents.arrays, lambda digests: contents.texts(digests, metadata))
        return work.found


def _is_folder(source: Any) -> bool:
    try:
        return os.path.isdir(source)
    except TypeError:
        raise TypeError(f"source: got {describe(source)}; accepted is a str or a path") from None


class _Work:
    """The leaves of a file that is being renumbered."""

    found: RowMap

    def __init__(self, archive: Archive, leaves: dict[str, Leaf], chunk: int) -> None:
        self.archive, self.leaves, self.chunk = archive, leaves, chunk

    def renumbered(
        self, map_for: Callable[[int], RowMap], tables: Patterns, states: Patterns, fill: Fill, state_fill: Fill
    ) -> list[Written | None]:
        """What is to be written of each leaf; all of them have been looked at then, and read once."""
        own = self._tables(tables)
        rows = _shape(self.leaves[own[0]])[0]
        if rows is None:
            raise ValueError(f"tables: {own[0]!r} is a gradient of an unknown number of rows; accepted is a known one")
        self.found = map_for(rows)
        of_state = self._states(states, own, rows)
        for name in (*own, *of_state):
            shape = _shape(self.leaves[name])
            if not shape or shape[0] != rows:
                raise ValueError(f"{name!r} has shape {shape}; accepted is one of {rows} rows, as the table has")
        made: dict[str, Written] = {}
        fills: dict[str, Rows] = {}
        for name in own:
            made[name] = self._one(name, fill, "fill", fills)
        for name in of_state:
            last = name.rpartition(".")[2]
            if last == "master" and self.found.count_added:
                shape = _shape(self.leaves[name])
                fitting = [table for table in fills if table in own and _shape(self.leaves[table]) == shape]
                if len(fitting) != 1:
                    raise ValueError(f"{name!r} is the master of {len(fitting)} tables; accepted is one")
                made[name] = self._one(name, fill, "fill", fills, fills[fitting[0]])
            else:
                own_fill = fill_of_state(state_fill, last, self.found.count_added)
                made[name] = self._one(name, own_fill, "state_fill", fills)
        return [made.get(name) or self._copied(leaf) for name, leaf in self.leaves.items()]

    def _tables(self, patterns: Patterns) -> list[str]:
        names = [name for name, leaf in self.leaves.items() if leaf is not None]
        if patterns is not None:
            own = chosen(names, patterns, "tables")
        else:
            own = [name for name in names if isinstance(self.leaves[name], StoredTable)] or names
            if len(own) > 1 and not isinstance(self.leaves[own[0]], StoredTable):
                own = []
        if not own:
            raise ValueError(f"tables: got {show(patterns)}; {listed(names)}, the leaves of the file")
        return own

    def _states(self, patterns: Patterns, own: list[str], rows: int) -> list[str]:
        shapes = {name: _shape(leaf) for name, leaf in self.leaves.items() if leaf is not None and name not in own}
        with_rows = [
            name for name, x in shapes.items() if x[:1] == (rows,) and not is_counter(name.rpartition(".")[2], x, rows)
        ]
        if patterns is None:
            if with_rows:
                known = ", ".join(map(repr, with_rows[:20]))
                raise ValueError(
                    f"states: got None, and {known} have as many rows; accepted are names of what belongs to the "
                    "table, or [] for none"
                )
            return []
        picked = chosen(list(shapes), patterns, "states")
        return [name for name in picked if not is_counter(name.rpartition(".")[2], shapes[name], rows)]

    def _one(self, name: str, fill: Fill, argument: str, fills: dict[str, Rows], rows: Rows | None = None) -> Written:
        leaf = self.leaves[name]
        if isinstance(leaf, StoredSlices):
            return self._slices(leaf)
        dense = leaf.weights if isinstance(leaf, StoredTable) else leaf
        padding = leaf.padding_idx if isinstance(leaf, StoredTable) else None
        stored = StoredRows([(self.archive, dense)])
        if rows is None:
            rows = file_fill(stored, self.found, fill, argument, self.chunk, padding)
        else:
            stored.check(self.chunk)
        fills[name] = rows
        made = new_rows(stored, self.found, 0, self.found.rows, rows, self.chunk)
        if dense is leaf:
            return Written("array", {"": made})
        padding = None if padding is None else renumbered_padding(self.found, padding)
        return Written("table", {"weights": made}, {"padding_idx": padding, "scale_by_freq": leaf.scale_by_freq})

    def _slices(self, leaf: StoredSlices) -> Written:
        indices = self.archive.read(leaf.indices.array, leaf.indices.sha256)
        check_indices(modes.HOST, indices, leaf.dense_shape[0], coalesced=leaf.coalesced)
        stay, new, coalesced = self.found._kept(indices, leaf.coalesced, repr(leaf.indices.array.name))
        stored = StoredRows([(self.archive, leaf.values)])
        stored.check(self.chunk)
        picked = RowMap(stay, len(indices))
        parts = {
            "values": new_rows(stored, picked, 0, picked.rows, lambda first, stop: new, self.chunk),
            "indices": InPieces(leaf.indices.dtype, new.shape, lambda: [new]),
        }
        shape = [self.found.rows, *leaf.dense_shape[1:]]
        return Written("slices", parts, {"dense_shape": shape, "coalesced": coalesced})

    def _copied(self, leaf: Leaf) -> Written | None:
        if leaf is None:
            return None
        if isinstance(leaf, StoredTable):
            options = {"padding_idx": leaf.padding_idx, "scale_by_freq": leaf.scale_by_freq}
            return Written("table", {"weights": self._as_it_is(leaf.weights)}, options)
        if isinstance(leaf, StoredSlices):
            parts = {"values": self._as_it_is(leaf.values), "indices": self._as_it_is(leaf.indices)}
            return Written("slices", parts, {"dense_shape": list(leaf.dense_shape), "coalesced": leaf.coalesced})
        return Written("array", {"": self._as_it_is(leaf)})

    def _as_it_is(self, leaf: Dense) -> InPieces:
        return InPieces(leaf.dtype, leaf.shape, lambda: stored_pieces(self.archive, leaf, self.chunk))


def _shape(leaf: Leaf) -> tuple[int | None, ...]:
    if isinstance(leaf, StoredSlices):
        return leaf.dense_shape
    shape: tuple[int | None, ...] = leaf.weights.shape if isinstance(leaf, StoredTable) else leaf.shape
    return shape
