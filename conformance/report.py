"""Reports of the suite: read the JSON lines of one run, and show several as a matrix.

A run is one backend in one process. What a run without a footer says is not believed: the process crashed or hung, and
that is a harness error, whatever passed before it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from islices.conformance.data import GROUPS

__all__ = ["CLAUSES", "Run", "matrix", "read_run", "remarks", "summary"]

#: clause -> its title in the matrix
CLAUSES = {
    "1": "meaning", "2": "indices", "3": "sums", "4": "coalesce", "5": "to_dense", "6": "linear operations",
    "7": "norms", "8": "global_norm", "9": "clip_by_value", "10": "clip by norm", "11": "presets", "12": "padding",
    "13": "row selection", "14": "per sample", "15": "row updates", "16": "optimizers", "19": "bags",
}  # fmt: skip
MODES = ("host", "native", "traced")


@dataclass
class Run:
    """What one backend's process reported."""

    backend: str
    header: dict[str, Any] = field(default_factory=dict)
    cases: list[dict[str, Any]] = field(default_factory=list)
    footer: dict[str, Any] = field(default_factory=dict)
    started: str = ""
    error: str = ""

    @property
    def name(self) -> str:
        return f"{self.backend}@{self.header.get('version', '?')}"

    @property
    def modes(self) -> list[str]:
        seen = {case["mode"] for case in self.cases}
        return [mode for mode in MODES if mode in seen] or ["host"]

    def counts(self) -> Counter[str]:
        counts = Counter(case["outcome"] for case in self.cases)
        counts["harness error"] += bool(self.error)
        return counts


def read_run(backend: str, path: Path) -> Run:
    """The run a report file holds, as far as it got. A last line cut short by a crash is left out."""
    run = Run(backend)
    if not path.exists():
        return run
    for line in path.read_text("utf-8").splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            break
        kind = entry.pop("type")
        if kind == "header":
            run.header = entry
        elif kind == "footer":
            run.footer = entry
        elif kind == "start":
            run.started = f"{entry['id']} ({entry['mode']})"
        else:
            run.cases.append(entry)
    return run


def _cell(cases: list[dict[str, Any]]) -> str:
    """A cell in rich markup: passes, then whatever is not one."""
    if not cases:
        return "[dim]·[/]"
    counts = Counter(case["outcome"] for case in cases)
    marks = (
        ("fail", "bold red", "✗"), ("harness error", "bold magenta", "!"), ("deviation", "yellow", "d"),
        ("unsupported", "dim", "u"),
    )  # fmt: skip
    parts = [f"[green]{counts['pass']}[/]"] if counts["pass"] else []
    parts += [f"[{style}]{mark}{counts[outcome]}[/]" for outcome, style, mark in marks if counts[outcome]]
    return " ".join(parts)


def matrix(runs: Sequence[Run], width: int) -> list[Any]:
    """Tables (rich) of clause by backend and mode; more than one where the backends do not fit the width."""
    from rich.table import Table

    rows = sorted({(GROUPS.index(case["group"]), int(case["clause"])) for run in runs for case in run.cases})
    label = max([len(f"{CLAUSES[str(clause)]} ({clause})") for _, clause in rows], default=10) + 14
    tables, begin = [], 0
    while begin < len(runs):
        end, used = begin, label
        while end < len(runs) and (end == begin or used + _width(runs[end]) <= width):
            used += _width(runs[end])
            end += 1
        columns = [(run, mode) for run in runs[begin:end] for mode in run.modes]
        table = Table(box=None, pad_edge=False, header_style="bold")
        table.add_column("group")
        table.add_column("clause of the spec")
        for run, mode in columns:
            table.add_column(f"{run.backend}\n@{_short_version(run)}\n{mode}", justify="right", no_wrap=True)
        last = None
        for group, clause in rows:
            cells = [
                _cell(
                    [c for c in run.cases if (c["group"], c["clause"], c["mode"]) == (GROUPS[group], str(clause), mode)]
                )
                for run, mode in columns
            ]
            table.add_row("" if group == last else GROUPS[group], f"{CLAUSES[str(clause)]} ({clause})", *cells)
            last = group
        tables.append(table)
        begin = end
    return tables


def _short_version(run: Run) -> str:
    return str(run.header.get("version", "?")).partition("+")[0]


def _width(run: Run) -> int:
    return sum(max(len(run.backend), len(_short_version(run)) + 1, len(mode), 6) + 2 for mode in run.modes)


def remarks(run: Run) -> list[str]:
    """What was declared rather than passed, by reason: "unsupported, 6 cases: ..."."""
    reasons = Counter(
        (case["outcome"], case.get("reason", ""))
        for case in run.cases
        if case["outcome"] in ("unsupported", "deviation")
    )
    return [f"{outcome}, {count} cases: {reason}" for (outcome, reason), count in sorted(reasons.items())]


def summary(runs: Sequence[Run]) -> str:
    """One line of counts over all runs."""
    counts: Counter[str] = sum((run.counts() for run in runs), Counter())
    words = ("pass", "deviation", "unsupported", "fail", "harness error")
    return ", ".join(f"{counts[word]} {word}" for word in words)
