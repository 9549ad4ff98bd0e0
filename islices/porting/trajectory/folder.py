"""Write and read recordings. A recording is a folder with one file per recorded step, in the format of `islices.save`.

Tables and states change little from step to step. So the file of a later step may omit tables and states that are
unchanged. If at most half of the rows of a float table or state have changed, the file may contain only the changed
rows, as slices.

May import: `numpy`, the core, this folder.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from islices.core.slices import IndexedSlices
from islices.core.trees import named_leaves
from islices.files import load, read_metadata, save
from islices.porting.trajectory.positions import BEFORE, POSITIONS, Leaf, Leaves, Step

FILE = re.compile(r"step-(\d+)\.safetensors")
#: The positions of tables and states. A recording may omit values that are the same as in the step before.
LASTING = (*BEFORE, *BEFORE.values())


def is_folder(x: Any) -> bool:
    """Return True if `x` is a path: a str, bytes or os.PathLike object."""
    return isinstance(x, (str, bytes, os.PathLike))


def step_files(folder: str | os.PathLike[str]) -> list[tuple[int, Path]]:
    """Return a list of (step number, file) for the steps of a recording, sorted by step number."""
    found = ((FILE.fullmatch(path.name), path) for path in Path(folder).iterdir())
    return sorted((int(match[1]), path) for match, path in found if match)


# ---------------------------------------------------------------------- writing
def write_step(folder: Path, step: Step, last: Mapping[str, Leaves], remarks: Mapping[str, str]) -> dict[str, Leaves]:
    """Write a step to its file. The file is complete or absent. Return the latest tables and states, which the next
    call needs as `last`."""
    trees: dict[str, Leaves] = {}
    now = dict(last)
    for position, leaves in step.trees.items():
        before = BEFORE.get(position, position)
        if position not in LASTING:
            trees[position] = leaves
            continue
        known = now.get(before, {})
        changed = {name: _changed(x, known.get(name)) for name, x in leaves.items()}
        trees[position] = {name: x for name, x in changed.items() if x is not None}
        now[before] = leaves
    metadata = {"step": str(step.number), **({"framework": step.framework} if step.framework else {}), **remarks}
    if step.optimizers:
        metadata["optimizer"] = json.dumps(step.optimizers, sort_keys=True)
    save(folder / f"step-{step.number:08d}.safetensors", trees, metadata=metadata)
    return now


def _changed(x: Leaf, known: Leaf | None) -> Leaf | None:
    """Return the part of a leaf that must be written: None if the leaf has not changed, else the whole leaf or slices.

    If at most half of the rows of a float leaf have changed, the result is slices with these rows. The exception is a
    leaf with fewer than two axes.
    """
    if isinstance(x, IndexedSlices) or not isinstance(known, np.ndarray) or x.dtype != known.dtype:
        return x
    if x.shape != known.shape:
        return x
    now, before = (np.ascontiguousarray(np.atleast_1d(y)).view(np.uint8) for y in (x, known))
    rows = np.flatnonzero((now != before).reshape(len(now), -1).any(axis=1)) if x.size else ()
    if not len(rows):
        return None
    if x.dtype.kind != "f" or x.ndim < 2 or 2 * len(rows) > len(x):
        return x
    return IndexedSlices(x[rows], rows, x.shape, coalesced=True)


# ---------------------------------------------------------------------- reading
def read_folder(folder: Any, argument: str) -> Iterator[Step]:
    """Return an iterator over the steps of a recording.

    Raise FileNotFoundError if the folder does not exist, and ValueError if it contains no step.
    """
    path = Path(os.fsdecode(folder))
    if not path.is_dir():
        raise FileNotFoundError(f"{argument}: got {str(path)!r}; accepted is a folder of steps")
    files = step_files(path)
    if not files:
        raise ValueError(
            f"{argument}: {str(path)!r} holds no step; accepted are files step-1.safetensors, step-2.safetensors ..."
        )
    return _steps(files, argument)


def _steps(files: list[tuple[int, Path]], argument: str) -> Iterator[Step]:
    now: dict[str, Leaves] = {}
    for number, path in files:
        tree = load(path)
        if not isinstance(tree, dict) or not set(tree) <= set(POSITIONS):
            raise ValueError(f"{argument}: {str(path)!r} holds other than {', '.join(POSITIONS)}")
        metadata = read_metadata(path)
        step = Step(number, {}, _described(metadata, path), metadata.get("framework", ""))
        for position in filter(tree.__contains__, POSITIONS):
            leaves = {name: x for name, x in named_leaves(tree[position], position).items() if x is not None}
            if position in LASTING:
                before = BEFORE.get(position, position)
                leaves = now[before] = _applied(now.get(before, {}), leaves, f"{path}: {position}")
            step.trees[position] = leaves
        yield step


def _applied(known: Leaves, leaves: Leaves, place: str) -> Leaves:
    """Return the arrays in `known` after an update. Slices in `leaves` replace only some rows of an array; arrays in
    `leaves` replace the whole array."""
    out = dict(known)
    for name, x in leaves.items():
        if isinstance(x, IndexedSlices):
            old = known.get(name)
            if not isinstance(old, np.ndarray) or old.shape != x.dense_shape or old.dtype != x.values.dtype:
                raise ValueError(f"{place}: {name!r} has rows of a table that no step before holds")
            new = old.copy()
            new[x.indices] = x.values
            out[name] = new
        else:
            out[name] = x
    return out


def _described(metadata: Mapping[str, str], path: Path) -> dict[str, Any]:
    text = metadata.get("optimizer")
    if text is None:
        return {}
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not all(isinstance(x, dict) for x in found.values()):
        raise ValueError(f"{path}: the metadata 'optimizer' are no JSON object of descriptions")
    return found
