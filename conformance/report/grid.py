"""Compute the matrix as data: the counts of outcomes for each clause and column. The module also defines the marks that
all renderers use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from islices.conformance.data import GROUPS
from islices.conformance.report.runs import OUTCOMES, PROBLEMS, Column, Run, column_labels, columns, named, title

#: outcome -> the mark before its count, in the order of the parts of a cell
MARKS = {"pass": "", "bound": "≈", "fail": "✗", "harness error": "!", "deviation": "d", "unsupported": "u"}
#: The outcomes that a summary shows only if they occur, because only programs in other languages have them.
SELDOM = ("bound",)
NOTHING = "·"


class Row(NamedTuple):
    """A row of the matrix: one clause of the specification in one group of cases."""

    group: str
    clause: str

    @property
    def title(self) -> str:
        return title(self.clause) if self.clause else "the run itself"


#: The row for faults of a whole run; the matrix has it only if there is such a fault.
RUN = Row("run", "")


@dataclass
class Grid:
    runs: list[Run]
    """The runs that have columns: all runs except those in `folded`."""
    rows: list[Row]
    columns: list[Column]
    labels: list[list[str]]
    first: list[bool]
    """True for each column that is the first of its run."""
    counts: dict[tuple[Row, int], Counter[str]]

    def cell(self, row: Row, column: int) -> Counter[str]:
        return self.counts.get((row, column), Counter())


def grid(runs: Sequence[Run]) -> Grid:
    """Return the matrix of the runs. Runs without cases and without an error have no column."""
    shown = [run for run in runs if not _empty(run)]
    found = columns(shown)
    counts: dict[tuple[Row, int], Counter[str]] = {}
    for k, column in enumerate(found):
        for case in column.cases:
            counts.setdefault((Row(case["group"], case["clause"]), k), Counter())[case["outcome"]] += 1
        if column.run.error:
            counts[RUN, k] = Counter(["harness error"])
    first = [k == 0 or found[k - 1].run is not column.run for k, column in enumerate(found)]
    return Grid(shown, sorted({row for row, _ in counts}, key=row_place), found, column_labels(found), first, counts)


def row_place(row: Row) -> tuple[Any, ...]:
    """Return a key that sorts the rows: the row for whole runs, then groups in the order of `GROUPS`, then clauses by
    number. Unknown groups and clauses are last."""
    group = -1 if row == RUN else GROUPS.index(row.group) if row.group in GROUPS else len(GROUPS)
    number = int(row.clause) if row.clause.isdecimal() and len(row.clause) < 9 else 10**9
    return group, row.group, number, row.clause


def cell_parts(counts: Counter[str]) -> list[tuple[str, str]]:
    """Return the parts (outcome, text) of a cell, with passes first. A text consists of a mark (which may be empty) and
    a count, such as "14" or "u24"."""
    return [(outcome, f"{mark}{counts[outcome]}") for outcome, mark in MARKS.items() if counts[outcome]]


# ---------------------------------------------------------------------- runs without a column
def _empty(run: Run) -> bool:
    return not run.cases and not run.error


def folded(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """Return (description of the runs, reason) for the runs without a case and without an error, one pair per reason.
    Examples:

    ("skipped: cuda of torch, jax", "finds no CUDA device here"), or ("no case: kernels off of torch; x64 of jax", "").
    """
    found: dict[str, dict[str, dict[str, None]]] = {}
    for run in runs:
        if _empty(run):
            why = run.skipped.removeprefix(f"{run.backend} {run.version} ")  # one line per reason
            found.setdefault(why, {}).setdefault(run.variant, {})[run.backend] = None
    return [(f"{'skipped' if why else 'no case'}: {_owner_of(variants)}", why) for why, variants in found.items()]


def _owner_of(variants: dict[str, dict[str, None]]) -> str:
    return "; ".join(
        f"{variant} of {', '.join(names)}" if variant else ", ".join(names) for variant, names in variants.items()
    )


# ---------------------------------------------------------------------- in words
def summary(runs: Sequence[Run]) -> str:
    """Return one line with the counts of outcomes and of skipped runs."""
    counts: Counter[str] = sum((run.counts() for run in runs), Counter())
    skipped = sum(run.befell[0] == "skipped" for run in runs)
    parts = [f"{counts[word]} {word}" for word in OUTCOMES if counts[word] or word not in SELDOM] + (
        [f"{skipped} skipped run{'s' if skipped > 1 else ''}"] if skipped else []
    )
    return ", ".join(parts)


def remarks(runs: Sequence[Run]) -> list[tuple[str, str, str]]:
    """Return remarks on unsupported cases, deviations and cases within a bound. A remark is (names of runs, outcome and
    number of cases, reason). The notes on runs follow, each as (name of the run, "note", text).

    For each backend, each pair of an outcome and a reason occurs in only one remark. An example of a remark:

    ("torch@2.13.0, kernels off", "unsupported, 6, 3 cases", "no sparse type of rank 3").
    """
    found: dict[tuple[str, str, str], dict[str, int]] = {}
    for name, run in named(runs):
        reasons = Counter(
            (case["outcome"], case.get("reason", ""))
            for case in run.cases
            if case["outcome"] in ("bound", "unsupported", "deviation")
        )
        for (outcome, reason), count in sorted(reasons.items()):
            found.setdefault((run.backend, outcome, reason), {})[name] = count
    declared = [
        (_listed(list(counts)), f"{outcome}, {_each(list(counts.values()))}", reason)
        for (_, outcome, reason), counts in found.items()
    ]
    notes = [(name, "note", run.footer["note"]) for name, run in named(runs) if run.footer.get("note")]
    return declared + notes


def _listed(names: list[str]) -> str:
    """Return the names of several runs of one backend as one text. If a later name begins with the first name, this
    beginning is omitted."""
    return ", ".join([names[0], *(name.removeprefix(f"{names[0]} ") for name in names[1:])])


def _each(counts: list[int]) -> str:
    """Return counts such as "6 cases", "6, 3 cases" or "6 cases each"."""
    different = set(counts)
    words = "case" if different == {1} else "cases"
    if len(different) == 1:
        return f"{counts[0]} {words}{' each' if len(counts) > 1 else ''}"
    return f"{', '.join(map(str, counts))} {words}"


def problems(run: Run) -> list[dict[str, Any]]:
    return [case for case in run.cases if case["outcome"] in PROBLEMS]


def provenance(runs: Sequence[Run]) -> str:
    """Return the origin of the runs as a text: "spec 1.4, vectors a31b0d8d379b, islices 0.1.0, Python 3.11.7, ..."."""
    facts = (
        (f"spec {run.fact('spec')}", f"vectors {run.fact('vectors')[:12]}", f"islices {run.fact('islices')}",
         f"Python {run.fact('python')}", run.system, f"{run.fact('profile')} profile")
        for run in runs
    )  # fmt: skip
    return ", ".join(" and ".join(dict.fromkeys(fact)) for fact in zip(*facts, strict=True))
