"""The matrix as data: clauses by columns, what came of the cases in each cell, and the marks that all renderers use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from islices.conformance.data import GROUPS
from islices.conformance.report.runs import OUTCOMES, PROBLEMS, Column, Run, column_labels, columns, title

__all__ = [
    "MARKS",
    "NOTHING",
    "RUN",
    "Grid",
    "Row",
    "cell_parts",
    "grid",
    "problems",
    "provenance",
    "remarks",
    "row_place",
    "summary",
]

#: outcome -> its mark before the count, in the order of a cell
MARKS = {"pass": "", "fail": "✗", "harness error": "!", "deviation": "d", "unsupported": "u", "skipped": "skipped"}
NOTHING = "·"


class Row(NamedTuple):
    """A row of the matrix: a clause of the spec in a group of cases."""

    group: str
    clause: str

    @property
    def title(self) -> str:
        return title(self.clause) if self.clause else "the run itself"


#: The row of what befell a run as a whole; there is none where nothing did.
RUN = Row("run", "")


@dataclass
class Grid:
    rows: list[Row]
    columns: list[Column]
    labels: list[list[str]]
    first: list[bool]
    """Which columns are the first of their run."""
    counts: dict[tuple[Row, int], Counter[str]]

    def cell(self, row: Row, column: int) -> Counter[str]:
        return self.counts.get((row, column), Counter())


def grid(runs: Sequence[Run]) -> Grid:
    """Count the cases of each clause in each column."""
    found = columns(runs)
    counts: dict[tuple[Row, int], Counter[str]] = {}
    for k, column in enumerate(found):
        for case in column.cases:
            counts.setdefault((Row(case["group"], case["clause"]), k), Counter())[case["outcome"]] += 1
        befell, _ = column.run.befell
        if befell:
            counts[RUN, k] = Counter([befell])
    first = [k == 0 or found[k - 1].run is not column.run for k, column in enumerate(found)]
    return Grid(sorted({row for row, _ in counts}, key=row_place), found, column_labels(found), first, counts)


def row_place(row: Row) -> tuple[Any, ...]:
    """The order of rows: the run itself, then groups as in the vectors, then clauses by number; the unknown last."""
    group = -1 if row == RUN else GROUPS.index(row.group) if row.group in GROUPS else len(GROUPS)
    number = int(row.clause) if row.clause.isdecimal() and len(row.clause) < 9 else 10**9
    return group, row.group, number, row.clause


def cell_parts(counts: Counter[str]) -> list[tuple[str, str]]:
    """A cell as (outcome, text): passes, then whatever is not one: "14", "u24"."""
    return [
        (outcome, mark if outcome == "skipped" else f"{mark}{counts[outcome]}")
        for outcome, mark in MARKS.items()
        if counts[outcome]
    ]


# ---------------------------------------------------------------------- in words
def summary(runs: Sequence[Run]) -> str:
    """One line of counts over all runs."""
    counts: Counter[str] = sum((run.counts() for run in runs), Counter())
    skipped = sum(run.befell[0] == "skipped" for run in runs)
    parts = [f"{counts[word]} {word}" for word in OUTCOMES] + (
        [f"{skipped} skipped run{'s' if skipped > 1 else ''}"] if skipped else []
    )
    return ", ".join(parts)


def remarks(run: Run) -> list[str]:
    """What was declared rather than passed, by reason: "unsupported, 6 cases: ..."."""
    reasons = Counter(
        (case["outcome"], case.get("reason", ""))
        for case in run.cases
        if case["outcome"] in ("unsupported", "deviation")
    )
    found = [
        f"{outcome}, {count} case{'s' if count > 1 else ''}: {reason}"
        for (outcome, reason), count in sorted(reasons.items())
    ]
    return [f"skipped: {run.skipped}", *found] if run.skipped else found


def problems(run: Run) -> list[dict[str, Any]]:
    """The cases that fail, or on which the harness broke."""
    return [case for case in run.cases if case["outcome"] in PROBLEMS]


def provenance(runs: Sequence[Run]) -> str:
    """Where the runs come from: "spec 1.4, vectors a31b0d8d379b, islices 0.1.0, Python 3.11.7, Linux x86_64, ..."."""
    facts = (
        [f"spec {run.fact('spec')}" for run in runs],
        [f"vectors {run.fact('vectors')[:12]}" for run in runs],
        [f"islices {run.fact('islices')}" for run in runs],
        [f"Python {run.fact('python')}" for run in runs],
        [run.system for run in runs],
        [f"{run.fact('profile')} profile" for run in runs],
    )
    return ", ".join(" and ".join(dict.fromkeys(fact)) for fact in facts)
