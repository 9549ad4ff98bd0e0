"""Compute the compact matrix, which has a row for each group of cases and a column for each backend. A cell has one
part per mode.

Twenty columns of counts do not fit a terminal of 80 characters, so all modes of a backend share a column. For each
mode, a cell shows the counts of all outcomes except passes. If no case of the mode fails, one mark stands for all
passes. Each variant (kernels off, read-only, ...) has a further row with the counts of each backend.

Like grid.py, this module does not render: a cell contains pairs (outcome, text).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from islices.conformance.data import GROUPS
from islices.conformance.report.grid import MARKS, NOTHING, cell_parts, grid
from islices.conformance.report.runs import MODES, PROBLEMS, Run, run_labels

#: The name of the standard variant in a list of variants.
STANDARD = "standard"
PASS = "✓"

#: The pairs (outcome, text) of one mode in a cell.
Parts = list[tuple[str, str]]


@dataclass(eq=False)
class BackendColumn:
    """A column: one backend in one version and one environment. `runs` maps variants to runs."""

    key: Hashable
    runs: dict[str, Run] = field(default_factory=dict)

    @property
    def lead(self) -> Run:
        """Return the run whose groups the column shows: the standard run, or the first run if there is no standard
        run."""
        return self.runs.get("") or next(iter(self.runs.values()))


class Line(NamedTuple):
    """A row of the compact matrix. The row contains a head, the number of distinct cases, and one cell per column. In
    the row of a group, a cell has one part per mode; in the row of a variant, a cell has one part."""

    head: str
    cases: int
    cells: list[list[Parts]]

    @property
    def fails(self) -> bool:
        return any(outcome in PROBLEMS for cell in self.cells for parts in cell for outcome, _ in parts)


@dataclass
class Compact:
    labels: list[list[str]]
    """The label of each column, as lines, without the modes."""
    modes: list[list[str]]
    """The modes of each column, in the order of the parts in its cells."""
    groups: list[Line]
    settings: list[Line]
    """The rows with totals. There is one row per variant, and its cells have one part for all modes."""


def compact(runs: Sequence[Run]) -> Compact:
    whole = grid(runs)
    places = _places(whole.runs)
    leads = [place.lead for place in places]
    counted = [_by_group(run) for run in leads]
    found = {group for groups, _ in counted for group in groups}
    groups = [
        Line(
            group,
            len(set().union(*(ids.get(group, ()) for _, ids in counted))),
            [[_marks(groups[group][mode]) if group in groups else [] for mode in run.modes]
             for run, (groups, _) in zip(leads, counted, strict=True)],
        )
        for group in sorted(found, key=_group_place)
    ]  # fmt: skip
    variants = dict.fromkeys(variant for place in places for variant in place.runs)
    settings = [
        Line(
            variant or STANDARD,
            len({case["id"] for place in places if variant in place.runs for case in place.runs[variant].cases}),
            [[_spaced(place.runs[variant].counts())] if variant in place.runs else [] for place in places],
        )
        for variant in sorted(variants, key=bool)
    ]
    labels = [[line.removeprefix("@") for line in label] for label in run_labels(leads)]
    return Compact(labels, [[mode for mode in run.modes if mode] for run in leads], groups, settings)


def _places(runs: Sequence[Run]) -> list[BackendColumn]:
    places: list[BackendColumn] = []
    for run in runs:
        key = (
            tuple(run.fact(name) for name in ("backend", "version", "python", "numpy", "islices", "profile")),
            run.system,
        )
        free = [place for place in places if run.variant not in place.runs]
        same = [place for place in free if place.key == key]
        if "version" not in run.header:  # its process ended before its first line
            same += [place for place in free if place.lead.backend == run.backend]
        if not same:
            places.append(BackendColumn(key))
        (same or places[-1:])[0].runs[run.variant] = run
    return places


def _by_group(run: Run) -> tuple[dict[str, dict[str, Counter[str]]], dict[str, set[str]]]:
    """Return ({group: {mode: counts of outcomes}}, {group: ids of cases}) of a run."""
    counts: dict[str, dict[str, Counter[str]]] = {}
    ids: dict[str, set[str]] = {}
    for case in run.cases:
        of_group = counts.setdefault(case["group"], {mode: Counter() for mode in run.modes})
        of_group[case["mode"]][case["outcome"]] += 1
        ids.setdefault(case["group"], set()).add(case["id"])
    return counts, ids


def _group_place(group: str) -> tuple[int, str]:
    return GROUPS.index(group) if group in GROUPS else len(GROUPS), group


def _spaced(counts: Counter[str]) -> Parts:
    """Return the counts of all outcomes as parts, with a space before each part except the first."""
    return [(outcome, f"{' ' if n else ''}{text}") for n, (outcome, text) in enumerate(cell_parts(counts))]


def _marks(counts: Counter[str]) -> Parts:
    """Return parts with the counts of all outcomes except passes. If cases pass and no case fails, a mark for the
    passes comes first."""
    others = [(outcome, text) for outcome, text in cell_parts(counts) if outcome != "pass"]
    if counts["pass"] and not any(counts[outcome] for outcome in PROBLEMS):
        return [("pass", PASS), *others]
    return others


# ---------------------------------------------------------------------- in words
#: outcome -> its text in the legend
SAYS = {
    "bound": "N within a bound", "fail": "N fail", "harness error": "N harness errors",
    "deviation": "N declared deviations", "unsupported": "N unsupported",
}  # fmt: skip


def legend(table: Compact) -> list[str]:
    """Return at most two lines, which explain the modes and the marks that occur in the table."""
    modes = [mode for mode in MODES if any(mode in modes for modes in table.modes)]
    modes += sorted({mode for modes in table.modes for mode in modes} - set(modes))
    cells = [parts for line in table.groups for cell in line.cells for parts in cell]
    used = {outcome for parts in cells for outcome, _ in parts}
    used |= {outcome for line in table.settings for cell in line.cells for parts in cell for outcome, _ in parts}
    partly = any(len(parts) > 1 and parts[0][0] == "pass" for parts in cells)
    marks = [f"{PASS} all{', or all others,' if partly else ''} pass"] if "pass" in used else []
    marks += [f"{MARKS[outcome]}N {says}" for outcome, says in SAYS.items() if outcome in used]
    if not all(cells) or any(len(cell) < len(modes) for line in table.groups for cell in line.cells):
        marks.append(f"{NOTHING} no case")
    named = ", ".join(f"{mode[0]} {mode}" for mode in modes)
    return [f"modes: {named}"] * bool(named) + [f"marks: {'; '.join(marks)}"] * bool(marks)
