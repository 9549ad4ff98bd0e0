"""Test `islices.load` with damaged, forged and hostile files. `islices.load` must raise ValueError or return the saved
tree. For a forged file, `islices.load` may also return another valid tree. With foreign=True, a file without the mark
of islices may load, too.

``python -m islices.conformance.properties files`` loads handmade files and, by default, 10,000 files that Hypothesis
draws, in a process with limited memory. The command keeps a file that breaks the promise. Hypothesis first shrinks this
file, unless it is handmade.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

import islices
from islices.conformance.data import map_leaves
from islices.conformance.properties.hostile import noted
from islices.conformance.properties.hostile_files import handmade
from islices.conformance.properties.mutations import FileMutant, mutant
from islices.conformance.properties.running import search
from islices.files import read_header

#: The bytes of address space that loading may use in addition to those in use at the start.
MEMORY = 1 << 30
#: The allowed outcomes of loading a file.
FINE = ("refused", "same", "valid")


# ---------------------------------------------------------------------- saved trees and their comparison
def trees() -> list[Any]:
    """Return the trees that the undamaged files of islices contain. Together, the trees have every kind of leaf."""
    rng = np.random.default_rng(7)
    values = rng.standard_normal((5, 2, 3)).astype(np.float32)
    repeated = islices.IndexedSlices(values, np.array([4, 1, 4, 0, 999_999_999]), (10**9, 2, 3))
    half = rng.standard_normal((3, 2)).astype(np.float16)
    sorted_ = islices.IndexedSlices(half, np.array([0, 2, 5], np.int32), (6, 2), coalesced=True)
    empty = islices.IndexedSlices(np.zeros((0, 4)), np.zeros(0, np.int64), (None, 4))
    bits = islices.get_backend("numpy").asarray(rng.integers(0, 1 << 15, (4, 2), np.uint16))  # bfloat16
    table = islices.Table(rng.standard_normal((4, 2)), padding_idx=1)
    dense = np.arange(6).reshape(2, 3)
    return [
        {"encoder": {"weight": repeated}, "bias": np.float64(0.5), "list": [None, sorted_, (dense,)]},
        {3: empty, "a.b/c": np.array([True, False]), "bits": bits, "table": table},
        [rng.standard_normal((40, 30)), np.arange(5, dtype=np.uint8)],
    ]


def same(a: Any, b: Any) -> bool:
    """Return True if two trees of NumPy arrays have the same structure, types and bits."""
    return repr(map_leaves(_contents, a)) == repr(map_leaves(_contents, b))


def _contents(x: Any) -> Any:
    if isinstance(x, islices.IndexedSlices):
        return "slices", x.dense_shape, x.coalesced, _contents(x.values), _contents(x.indices)
    if isinstance(x, islices.Table):
        return "table", x.padding_idx, x.scale_by_freq, _contents(x.weights)
    return (x.dtype, x.shape, x.tobytes()) if isinstance(x, (np.ndarray, np.generic)) else x


# ---------------------------------------------------------------------- whether a file keeps the promise
def loaded(path: Path, made: FileMutant, original: Any, *, foreign: bool = False) -> str:
    """Load a file. Return the outcome (a word in FINE) or a description of the fault. `original` is the saved tree, or
    an object that equals no tree."""
    try:
        got = islices.load(path, foreign=foreign)
    except ValueError as error:
        return "refused" if str(error).startswith(str(path)) else f"the message does not name the file: {error}"
    except Exception as error:
        return f"raised {type(error).__name__}: {error}"
    if same(original, got):
        return "same"
    if foreign and (made.foreign or made.kind == "edit_header"):  # the edit may remove the mark of islices
        return "valid" if not read_header(path, foreign=True).own else f"loaded a hostile file of ours: {got!r:.500}"
    return "valid" if made.forged else f"loaded something else: {got!r:.500}"


def outcome_of(path: Path, made: FileMutant, original: Any) -> str:
    """Load a file with foreign=False and with foreign=True. Return the first fault; without a fault, return the outcome
    with foreign=False."""
    path.write_bytes(made.data)
    result, other = (loaded(path, made, original, foreign=foreign) for foreign in (False, True))
    if result not in FINE or other not in FINE:
        return result if result not in FINE else f"foreign=True: {other}"
    return result


def good_files(folder: Path) -> list[tuple[bytes, Any]]:
    """Return undamaged files as (bytes, tree). The tree is None for a file of another program."""
    from safetensors.numpy import save

    found: list[tuple[bytes, Any]] = []
    for tree in trees():
        path = folder / "good.safetensors"
        islices.save(path, tree, metadata={"step": "12", "é": "ü"})
        found.append((path.read_bytes(), tree))
    arrays: dict[str, Any] = {
        "w": np.arange(12, dtype=np.float32).reshape(3, 4),
        "b": np.zeros((2, 3)),
        "n": np.arange(3),
    }
    return [*found, (bytes(save(arrays, {"format": "pt"})), None)]


def attack(examples: int, seed: int, log: Path | None = None) -> tuple[Counter[str], str]:
    """Load hostile files. Return (counts of the outcomes, description of the smallest file that breaks the promise, or
    "").

    Loading may end the process. So the function first writes each file to disk, and its path to the log.
    """
    came: Counter[str] = Counter()
    folder = Path(tempfile.mkdtemp(prefix="islices-files-"))
    path, good = folder / "mutant.safetensors", good_files(folder)

    def problem_of(drawn: tuple[FileMutant, Any]) -> str:
        made, tree = drawn
        text = f"{path} ({made.kind})"
        with noted(text, log):
            outcome = outcome_of(path, made, tree)
        came[outcome if outcome in FINE else "wrong"] += 1
        return "" if outcome in FINE else f"{text}: {outcome}"

    def changed(which: int, source: Any) -> tuple[FileMutant, Any]:
        data, tree = good[which]
        made = mutant(source, data)
        return (made, tree) if tree is not None else (made._replace(foreign=True), object())

    drawn = st.builds(changed, st.integers(0, len(good) - 1), st.randoms(use_true_random=False))
    for name, data in handmade().items():
        if problem := problem_of((FileMutant(name, data, foreign=True), object())):
            return came, problem
    found = search(drawn, examples, seed, problem_of)
    if not found:
        return came, ""
    path.write_bytes(found[0][0].data)
    return came, found[1]


def limit_memory() -> None:
    """Limit the address space of this process to `MEMORY` bytes more than the present use. Without the module
    `resource`, set no limit."""
    with contextlib.suppress(ImportError):  # systems without this module run without the limit
        import resource

        with open("/proc/self/statm", encoding="ascii") as statm:
            pages = int(statm.read().split()[0])
        limit = pages * resource.getpagesize() + MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
