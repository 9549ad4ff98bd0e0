"""Damaged, forged and hostile files: whatever is in one, `islices.load` raises ValueError or gives what was saved.

``python -m islices.conformance.properties.files`` makes and loads 10,000 of them, in a process whose memory is limited.
A file follows from its seed and number alone: ``--only NUMBER`` makes that one, loads it and keeps it. A process that
dies or hangs is reported with the number of its file, and another process takes the next.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import islices
from islices.conformance.progress import bars
from islices.conformance.properties.hostile_files import handmade
from islices.conformance.properties.mutations import Mutant, mutant
from islices.io import read_header

__all__ = ["Outcome", "attack", "main", "same", "trees"]

#: Bytes of address space that a worker may take beyond what it has when it starts.
MEMORY = 1 << 30
#: What may come of a file.
FINE = ("refused", "same", "valid")
#: Seconds for one file.
PATIENCE = 60


# ---------------------------------------------------------------------- what is saved, and whether it came back
def trees() -> list[Any]:
    """What the files hold before they are changed: every kind of leaf."""
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
    """Whether two trees over NumPy have the same structure, types and bits."""
    if isinstance(a, dict):
        return isinstance(b, dict) and list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, islices.IndexedSlices):
        return (
            isinstance(b, islices.IndexedSlices)
            and (a.dense_shape, a.coalesced) == (b.dense_shape, b.coalesced)
            and same(a.values, b.values)
            and same(a.indices, b.indices)
        )
    if isinstance(a, islices.Table):
        options = (a.padding_idx, a.scale_by_freq)
        return (
            isinstance(b, islices.Table) and options == (b.padding_idx, b.scale_by_freq) and same(a.weights, b.weights)
        )
    if a is None or b is None:
        return a is b
    if not isinstance(b, (np.ndarray, np.generic)):
        return False
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()  # type: ignore[no-any-return]


# ---------------------------------------------------------------------- the process that loads
def loaded(path: Path, made: Mutant, original: Any, *, foreign: bool = False) -> str:
    """What came of loading a file: "refused", "same", "valid" (forged, or somebody else's), or else what is wrong."""
    try:
        got = islices.load(path, foreign=foreign)
    except ValueError as error:
        return "refused" if str(error).startswith(str(path)) else f"the message does not name the file: {error}"
    except Exception as error:
        return f"raised {type(error).__name__}: {error}"
    if same(original, got):
        return "same"
    if foreign and made.foreign:
        return "valid" if not read_header(path, foreign=True).own else f"loaded a hostile file of ours: {got!r:.500}"
    return "valid" if made.forged else f"loaded something else: {got!r:.500}"


def outcome_of(path: Path, made: Mutant, original: Any) -> str:
    """The same, as a file of ours and as one that may be somebody else's: what is wrong in either, or the former."""
    path.write_bytes(made.data)
    result, other = (loaded(path, made, original, foreign=foreign) for foreign in (False, True))
    if result not in FINE or other not in FINE:
        return result if result not in FINE else f"foreign=True: {other}"
    return result


class Files:
    """The files of a seed, by number: first those made by hand, then changed ones."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.seed, self.trees = seed, trees()
        self.path = folder / "mutant.safetensors"
        self.good = []
        for i, tree in enumerate(self.trees):
            path = folder / f"good{i}.safetensors"
            islices.save(path, tree, metadata={"step": "12", "é": "ü"})
            self.good.append(path.read_bytes())
        self.good.append(_somebody_elses())
        self.handmade = list(handmade().items())

    def make(self, number: int) -> tuple[Mutant, Any]:
        """The file of a number, and the tree it was made of."""
        if number < len(self.handmade):
            name, data = self.handmade[number]
            return Mutant(name, data, foreign=True), object()  # there is nothing that it might load as
        rng = random.Random(f"{self.seed}, {number}, .safetensors")
        which = rng.randrange(len(self.good))
        made = mutant(rng, self.good[which])
        if which < len(self.trees):
            return made, self.trees[which]
        return made._replace(foreign=True), object()  # it has no digest to be held against


def _somebody_elses() -> bytes:
    from safetensors.numpy import save

    arrays: dict[str, np.ndarray[Any, Any]] = {
        "w": np.arange(12, dtype=np.float32).reshape(3, 4),
        "b": np.zeros((2, 3)),
        "n": np.arange(3),
    }
    return bytes(save(arrays, {"format": "pt"}))


def work(seed: int, first: int, last: int) -> None:
    """Load files, telling of each on stdout before and after."""
    faulthandler.enable()
    with tempfile.TemporaryDirectory(prefix="islices-files-") as folder:
        files = Files(seed, Path(folder))
        _limit_memory()
        for number in range(first, last):
            made, tree = files.make(number)
            print(json.dumps([number, made.kind]), flush=True)
            faulthandler.dump_traceback_later(PATIENCE, exit=True)
            outcome = outcome_of(files.path, made, tree)
            faulthandler.cancel_dump_traceback_later()
            print(json.dumps([number, made.kind, outcome]), flush=True)


def _limit_memory() -> None:
    with contextlib.suppress(ImportError):  # systems without it run without the limit
        import resource

        with open("/proc/self/statm", encoding="ascii") as statm:
            pages = int(statm.read().split()[0])
        limit = pages * resource.getpagesize() + MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


# ---------------------------------------------------------------------- the process that watches
@dataclass
class Outcome:
    """Counts of what came of the files, and the findings."""

    files: int = 0
    seconds: float = 0.0
    #: outcome -> how many
    counts: Counter[str] = field(default_factory=Counter)
    #: (number, kind of change, what is wrong)
    findings: list[tuple[int, str, str]] = field(default_factory=list)


def attack(count: int, seed: int, advance: Callable[[str, int], None] | None = None) -> Outcome:
    """Load ``count`` files, in other processes."""
    outcome, started, first = Outcome(), time.monotonic(), 0
    while first < count:
        at = None
        for number, kind, *rest in _lines(seed, first, count):
            at = (number, kind)
            if not rest:
                continue
            result, first, at = rest[0], number + 1, None
            outcome.files += 1
            outcome.counts[result if result in FINE else "wrong"] += 1
            if result not in FINE:
                outcome.findings.append((number, kind, result))
            if advance:
                advance("files", first)
        if first < count:
            if at is None:
                raise RuntimeError(f"the process that loads files ended before file {first}")
            outcome.files += 1
            outcome.counts["crash"] += 1
            outcome.findings.append((*at, "the process ended, or hung"))
            first = at[0] + 1
    outcome.seconds = time.monotonic() - started
    return outcome


def _lines(seed: int, first: int, last: int) -> Iterator[list[Any]]:
    module = "islices.conformance.properties.files"
    command = [sys.executable, "-m", module, "--work", str(seed), str(first), str(last)]
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, encoding="utf-8", env=environment) as process:
        assert process.stdout is not None
        yield from map(json.loads, process.stdout)


# ---------------------------------------------------------------------- the command
def main(argv: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if argv is None else argv
    if arguments[:1] == ["--work"]:
        work(*map(int, arguments[1:]))
        return 0
    parser = argparse.ArgumentParser(
        prog="python -m islices.conformance.properties.files", description=(__doc__ or "").split("\n")[0],
        epilog="exit codes: 0 nothing found, 1 something found, 2 usage",
    )  # fmt: skip
    parser.add_argument("--count", type=int, default=10_000, help="files (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="what they follow from (%(default)s)")
    parser.add_argument("--only", metavar="NUMBER", type=int, help="make this file, load it, and keep it")
    options = parser.parse_args(arguments)
    if options.count < 0:
        parser.error(f"--count: got {options.count}; accepted is 0 or more")
    if options.only is not None:
        return _only(options.only, options.seed)
    with bars(("files",), options.count) as advance:
        outcome = attack(options.count, options.seed, advance)
    _show(outcome, options.seed)
    return int(bool(outcome.findings))


def _show(outcome: Outcome, seed: int) -> None:
    counts = ", ".join(f"{n} {kind}" for kind, n in outcome.counts.most_common())
    rate = outcome.files / max(outcome.seconds, 1e-9)
    print(f"{outcome.files} files in {outcome.seconds:.0f} s ({rate:.0f}/s): {counts}", flush=True)
    for number, kind, what in outcome.findings:
        print(f"  file {number} ({kind}): {what}")
        print(f"    again: python -m islices.conformance.properties.files --seed {seed} --only {number}")


def _only(number: int, seed: int) -> int:
    folder = Path(tempfile.mkdtemp(prefix="islices-files-"))
    files = Files(seed, folder)
    made, tree = files.make(number)
    _limit_memory()
    outcome = outcome_of(files.path, made, tree)
    print(f"{files.path} ({made.kind}): {outcome}")
    if outcome == "refused":
        try:
            islices.load(files.path)
        except ValueError as error:
            print(error)
    return int(outcome not in FINE)


if __name__ == "__main__":
    sys.exit(main())
