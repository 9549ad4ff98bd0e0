"""Define the contents of a report: runs, their columns, and their labels.

A run contains the cases of one backend in one variant, run by one process. A column of the matrix is one mode of a run.
Unless a run was skipped, a run without a footer is a harness error: its process crashed or hung.
"""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from islices.conformance.data import SPEC_VERSION, vectors_hash

#: clause -> its title in the matrix
CLAUSES = {
    "1": "meaning", "2": "indices", "3": "sums", "4": "coalesce", "5": "to_dense", "6": "linear operations",
    "7": "norms", "8": "global_norm", "9": "clip_by_value", "10": "clip by norm", "11": "presets", "12": "padding",
    "13": "row selection", "14": "per sample", "15": "row updates", "16": "optimizers", "17": "traced code",
    "18": "scalars", "19": "bags", "20": "modes", "21": "files", "22": "differences", "23": "training from one start",
    "24": "fronts", "25": "gradients over ranks", "26": "tables over ranks",
}  # fmt: skip
MODES = ("host", "framework", "traced")
#: The outcomes of a case, with the best first.
OUTCOMES = ("pass", "bound", "deviation", "unsupported", "fail", "harness error")
PROBLEMS = ("fail", "harness error")


#: field -> the largest number of characters that terminals and Markdown show. Together with the title, these fields
#: fill at most 20 lines of 80 characters.
DETAILS = {"call": 560, "reason": 350, "got": 210, "expected": 210}


def details(case: dict[str, Any]) -> list[str]:
    """Return texts "field: text" for the call, the reason, the result and the expected result of a case. Each text is
    cut to the length in `DETAILS`."""
    return [f"{name}: {_cut(case[name], room)}" for name, room in DETAILS.items() if case.get(name)]


def _cut(text: str, room: int) -> str:
    lines = text.splitlines()[: room // 70]
    kept = "\n".join(lines)[: room - 60]
    left = len(text) - len(kept)
    return text if left <= 60 and len(lines) == len(text.splitlines()) else f"{kept} … ({left:,} more in --json)"


def printable(text: str, *, lines: bool = False) -> str:
    """Return a text with Python escapes for unprintable characters. With `lines`, line breaks stay."""
    if text.isprintable():
        return text
    kept = "\n" if lines else ""
    return "".join(c if c.isprintable() or c in kept else c.encode("unicode_escape").decode() for c in text)


def title(clause: str) -> str:
    """Return the title of a clause, such as "clip by norm (10)". The title of an unknown clause is only the number,
    such as "(99)"."""
    return f"{CLAUSES[clause]} ({clause})" if clause in CLAUSES else f"({clause})"


@dataclass(eq=False)
class Run:
    """The cases and outcomes of one backend in one variant, run by one process."""

    backend: str
    header: dict[str, Any] = field(default_factory=dict)
    cases: list[dict[str, Any]] = field(default_factory=list)
    footer: dict[str, Any] = field(default_factory=dict)
    started: str = ""
    error: str = ""
    """The reason why the whole run is a harness error; "" for other runs."""
    origin: str = ""
    """The file from which the run was read."""
    lines: list[str] = field(default_factory=list, repr=False)
    """The original JSON lines of the run, without "phase" lines and without an incomplete last line."""

    def fact(self, name: str) -> str:
        """Return a field of the header as text; "?" if the header does not have the field."""
        return str(self.header.get(name, "?"))

    def broke(self, reason: str) -> None:
        """Record in `error` and in the run's JSON lines why the whole run is a harness error."""
        self.error = printable(reason, lines=True)
        self.lines.append(json.dumps({"type": "error", "reason": reason}))

    def give_header(self, **more: str) -> None:
        """Add the header that the process did not write because it ended early. The report then lists the run."""
        self.header = {"spec": SPEC_VERSION, "vectors": vectors_hash(), "backend": self.backend, **more}
        self.lines.insert(0, json.dumps({"type": "header", **self.header}))

    @property
    def version(self) -> str:
        return self.fact("version")

    @property
    def variant(self) -> str:
        return str(self.header.get("variant", ""))

    @property
    def skipped(self) -> str:
        """Return why the variant could not run on the machine, or "". A skipped run never counts as passed."""
        return str(self.header.get("skipped", ""))

    @property
    def befell(self) -> tuple[str, str]:
        """Return (outcome, reason) of the whole run. The outcome is "harness error", "skipped" or ""."""
        return ("harness error", self.error) if self.error else ("skipped" if self.skipped else "", self.skipped)

    @property
    def name(self) -> str:
        return f"{self.backend}@{self.version}" + (f" {self.variant}" if self.variant else "")

    @property
    def modes(self) -> list[str]:
        """Return the modes of the run's cases; [""] if there are no cases."""
        seen = {case["mode"] for case in self.cases}
        return [mode for mode in MODES if mode in seen] + sorted(seen - set(MODES)) or [""]

    @property
    def system(self) -> str:
        """Return the operating system and the processor, without versions."""
        parts = self.fact("platform").split("-")
        return " ".join([parts[0], *[p for p in parts[1:] if p in ("x86_64", "AMD64", "aarch64", "arm64", "ppc64le")]])

    @property
    def seconds(self) -> float:
        return float(sum(case.get("seconds", 0) for case in self.cases))

    def counts(self) -> Counter[str]:
        counts = Counter(case["outcome"] for case in self.cases)
        counts["harness error"] += bool(self.error)
        return counts


@dataclass(frozen=True, eq=False)
class Column:
    """A column of the matrix: one mode of a run."""

    run: Run
    mode: str

    @functools.cached_property
    def cases(self) -> list[dict[str, Any]]:
        return [case for case in self.run.cases if case["mode"] == self.mode]

    @property
    def key(self) -> tuple[str, str, str]:
        """Return the key by which columns of two reports match. Versions are not part of the key."""
        return self.run.backend, self.run.variant, self.mode


def columns(runs: Sequence[Run]) -> list[Column]:
    return [Column(run, mode) for run in runs for mode in run.modes]


# ---------------------------------------------------------------------- names
T = TypeVar("T")


def _with_facts(runs: Sequence[Run]) -> Iterator[tuple[Run, list[str]]]:
    """Yield (run, texts). The texts distinguish the run from other runs with the same label."""
    return zip(runs, _added(runs, lambda run: run, lambda run: (run.backend, run.version, run.variant)), strict=True)


def run_labels(runs: Sequence[Run]) -> list[list[str]]:
    """Return the label of each run as lines: backend, @version, variant, and distinguishing facts."""
    return [_lines(run, *more) for run, more in _with_facts(runs)]


def named(runs: Sequence[Run]) -> list[tuple[str, Run]]:
    """Return (name, run) for each run. A name is one line with the whole version, such as "torch@2.13.0+cpu kernels
    off"."""
    return [(" ".join([run.name, *more]), run) for run, more in _with_facts(runs)]


def column_labels(columns: Sequence[Column]) -> list[list[str]]:
    """Return the label of each column as lines: the label of the run, and the mode."""
    added = _added(columns, lambda c: c.run, lambda c: (c.key, c.run.version))
    return [_lines(c.run, c.mode, *more) for c, more in zip(columns, added, strict=True)]


def _lines(run: Run, *more: str) -> list[str]:
    return [run.backend, "@" + run.version.partition("+")[0], *filter(None, (run.variant, *more))]


def _added(items: Sequence[T], run_of: Callable[[T], Run], key: Callable[[T], Hashable]) -> list[list[str]]:
    """Return one list per item with the texts that distinguish the item from items with the same key. The texts are the
    facts that differ, and a number if the facts do not suffice."""
    groups: dict[Hashable, list[int]] = {}
    for k, item in enumerate(items):
        groups.setdefault(key(item), []).append(k)
    added: list[list[str]] = [[] for _ in items]
    for members in (group for group in groups.values() if len(group) > 1):
        facts = [
            (f"NumPy {run.fact('numpy')}", f"Python {run.fact('python')}", f"islices {run.fact('islices')}", run.system,
             f"{run.fact('profile')} profile")
            for run in (run_of(items[k]) for k in members)
        ]  # fmt: skip
        telling = [f for f in range(len(facts[0])) if len({fact[f] for fact in facts}) > 1]
        seen: Counter[tuple[str, ...]] = Counter()
        for k, fact in zip(members, facts, strict=True):
            words = tuple(fact[f] for f in telling)
            seen[words] += 1
            added[k] = [*words, *([f"#{seen[words]}"] if seen[words] > 1 or not telling else [])]
    return added
