"""Hostile input: random public calls whose arguments are wrong, odd or share memory.

``python -m islices.conformance.properties.hostile -b torch --count 10000`` makes so many calls in a process of their
own. Whatever a call is given, it returns or raises one of `ACCEPTED`, with a message that names an argument, and a call
that raises leaves every array as it was. A process that dies or hangs is reported with the number of its input, and
another process takes the next. An input follows from backend, seed and number alone: ``--only NUMBER`` makes that one
call and shows it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from islices.conformance.logs import last_lines, whole_lines
from islices.conformance.progress import bars
from islices.registry import list_backends

__all__ = ["Outcome", "attack", "main"]

#: Seconds without a sign of life before a process counts as hung: at its start (frameworks load), and later.
PATIENCE = (300.0, 60.0)
#: A process is ended after so many inputs: what frameworks compile and keep adds up.
SEGMENT = 25_000


Advance = Callable[[str, int], None]


@dataclass
class Outcome:
    """What came of the inputs of one backend."""

    name: str
    inputs: int = 0
    seconds: float = 0.0
    #: kind of outcome -> how many
    counts: Counter[str] = field(default_factory=Counter)
    #: what broke a promise, one of each kind: (number of the input, text, how many alike)
    findings: dict[str, list[Any]] = field(default_factory=dict)
    error: str = ""

    def find(self, number: int, key: str, text: str) -> None:
        self.findings.setdefault(key, [number, text, 0])[2] += 1


# ---------------------------------------------------------------------- the process that watches
def attack(name: str, count: int, seed: int, advance: Advance | None = None, *, share: float = 0.05) -> Outcome:
    """Make ``count`` hostile calls on a backend, in processes of their own, whatever becomes of these."""
    outcome, started = Outcome(name), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="islices-hostile-") as folder:
        first = 0
        while first < count:
            last = min(count, first + SEGMENT)
            first = _watch(outcome, Path(folder), seed, first, last, share, advance)
            if outcome.error:
                break
    outcome.seconds = time.monotonic() - started
    return outcome


def _watch(
    outcome: Outcome, folder: Path, seed: int, first: int, last: int, share: float, advance: Advance | None
) -> int:
    """Run inputs first to last in one process; the number of the first input that it did not come to."""
    log, errors = folder / "log", folder / "errors"
    log.write_bytes(b"")
    command = [
        sys.executable, "-m", "islices.conformance.properties.hostile_worker", outcome.name, str(seed), str(first),
        str(last), str(share), str(log),
    ]  # fmt: skip
    with errors.open("wb") as stderr:
        process = subprocess.Popen(command, stdout=stderr, stderr=subprocess.STDOUT, env=_environment())
        reader, hung = _Reader(log, outcome), False
        moved = time.monotonic()
        while process.poll() is None and not hung:
            time.sleep(0.1)
            if reader.read():
                moved = time.monotonic()
                if advance and reader.at is not None:
                    advance(outcome.name, reader.at)
            hung = time.monotonic() - moved > PATIENCE[reader.at is not None]
        if hung:
            process.kill()
        process.wait()
    reader.read()
    outcome.inputs += reader.done
    if process.returncode == 0 and not hung:
        return last
    said = last_lines(errors, 12)
    if reader.at is None:
        outcome.error = f"the process ended before its first input (exit {process.returncode})\n{said}"
        return last
    kind = "hangs" if hung else f"ends the process (exit {process.returncode})"
    outcome.counts["hang" if hung else "crash"] += 1
    outcome.find(reader.at, f"{kind} at {_where(said)}", f"{kind}\n{said}")
    return reader.at + 1


def _where(said: str) -> str:
    """The frames of faulthandler's traceback that are the library's."""
    frames = [line.strip() for line in said.splitlines() if "File " in line and "properties" not in line]
    return frames[0] if frames else "an unknown place"


def _environment() -> dict[str, str]:
    return {"TF_CPP_MIN_LOG_LEVEL": "3", **os.environ, "PYTHONFAULTHANDLER": "1", "PYTHONWARNINGS": "ignore"}


class _Reader:
    """Follows the log of a worker: a line with its number before each input, one with what came of it where it is of
    interest, and counts at the end and now and then."""

    def __init__(self, log: Path, outcome: Outcome) -> None:
        self.log, self.outcome, self.position = log, outcome, 0
        self.at: int | None = None
        self.done = 0

    def read(self) -> bool:
        whole = whole_lines(self.log, self.position)
        self.position += len(whole)
        for line in whole.splitlines():
            if line[:1] != b"{":
                self.at = int(line)
                self.done += 1
                continue
            entry = json.loads(line)
            self.outcome.counts.update(entry.get("counts", {}))
            if "key" in entry:
                self.outcome.find(entry["number"], entry["key"], entry["text"])
        return bool(whole)


# ---------------------------------------------------------------------- the command
def main(argv: list[str] | None = None) -> int:
    settings = tomllib.loads((resources.files("islices.conformance") / "soak.toml").read_text("utf-8"))["hostile"]
    parser = argparse.ArgumentParser(
        prog="python -m islices.conformance.properties.hostile", description=(__doc__ or "").split("\n")[0],
        epilog="exit codes: 0 nothing found, 1 something found, 2 usage, 3 a process that did not start",
    )  # fmt: skip
    parser.add_argument("-b", "--backend", action="append", metavar="NAME", help="only this backend (may be repeated)")
    parser.add_argument("--count", type=int, default=settings["count"], help="inputs a backend (%(default)s)")
    parser.add_argument("--seed", type=int, default=settings["seed"], help="what they follow from (%(default)s)")
    parser.add_argument(
        "--framework", type=float, default=settings["framework"], metavar="SHARE", help="of calls in mode framework"
    )
    parser.add_argument("--only", type=int, metavar="NUMBER", help="make this one call, and show it")
    options = parser.parse_args(argv)
    names = options.backend or list_backends()
    unknown = set(names) - set(list_backends())
    if unknown:
        parser.error(f"--backend: got {', '.join(sorted(unknown))}; installed are {', '.join(list_backends())}")
    if options.count < 0:
        parser.error(f"--count: got {options.count}; accepted is 0 or more")
    if options.only is not None:
        return _only(names, options)
    outcomes = []
    with bars(names, options.count) as advance, ThreadPoolExecutor(max_workers=2) as pool:

        def one(name: str) -> Outcome:
            return attack(name, options.count, options.seed, advance, share=options.framework)

        for outcome in pool.map(one, names):
            outcomes.append(outcome)
            _show(outcome, options)
    if any(o.error for o in outcomes):
        return 3
    return int(any(o.findings for o in outcomes))


def _show(outcome: Outcome, options: argparse.Namespace) -> None:
    rate = outcome.inputs / max(outcome.seconds, 1e-9)
    counts = ", ".join(f"{n} {kind}" for kind, n in outcome.counts.most_common())
    print(f"{outcome.name}: {outcome.inputs} inputs in {outcome.seconds:.0f} s ({rate:.0f}/s): {counts}", flush=True)
    for key, (number, text, alike) in outcome.findings.items():
        print(f"  input {number}{f' and {alike - 1} more' if alike > 1 else ''}: {key}")
        print("    " + text.replace("\n", "\n    "))
        print(
            f"    again: python -m islices.conformance.properties.hostile -b {outcome.name} --seed {options.seed} "
            f"--framework {options.framework} --only {number}"
        )
    if outcome.error:
        print(f"  {outcome.error}")


def _only(names: list[str], options: argparse.Namespace) -> int:
    command = [sys.executable, "-m", "islices.conformance.properties.hostile_worker"]
    found = 0
    for name in names:
        rest = [name, str(options.seed), str(options.only), str(options.only + 1), str(options.framework), "-"]
        code = subprocess.run([*command, *rest], env=_environment(), check=False).returncode
        found |= code != 0
        if code < 0:
            print(f"{name}: the process ended by signal {-code}")
    return int(found)


if __name__ == "__main__":
    sys.exit(main())
