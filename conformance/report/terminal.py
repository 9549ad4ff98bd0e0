"""The report on a terminal, by rich."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from typing import IO, Any

from islices.conformance.report.grid import NOTHING, Grid, cell_parts, grid, problems, provenance, remarks, summary
from islices.conformance.report.runs import Run, run_names

__all__ = ["indented", "matrix", "new_console", "print_cases", "print_report", "problem_lines"]

STYLES = {
    "pass": "green", "fail": "bold red", "harness error": "bold magenta", "deviation": "yellow", "unsupported": "dim",
    "skipped": "dim italic",
}  # fmt: skip


def new_console(file: IO[str] | None = None) -> Any:
    """A console as wide as the terminal, or wide enough where there is none."""
    from rich.console import Console

    if file is None and isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # marks that an old terminal does not have are no reason to stop
    console = Console(file=file)
    if not console.is_terminal and not os.environ.get("COLUMNS"):
        console.width = 200  # a file or a pipe has no edge to wrap at
    return console


def print_report(runs: Sequence[Run], console: Any) -> None:
    """The matrix, what was declared, every case that fails, and the counts."""
    print_cases(runs, console)
    console.print(f"{summary(runs)}  ({provenance(runs)})", highlight=False, markup=False)


def print_cases(runs: Sequence[Run], console: Any, unless: str | tuple[str, ...] = ()) -> None:
    """The matrix, what was declared for reasons that do not end so, and every case that fails."""
    for table in matrix(runs, console.width):
        console.print(table)
        console.print()
    for run, name in zip(runs, run_names(runs), strict=True):
        for remark in remarks(run):
            if not remark.endswith(unless):
                console.print(f"{name}: {indented(remark)}", style="dim", markup=False, highlight=False)
        for line in problem_lines(run, name):
            console.print(line, highlight=False)


def problem_lines(run: Run, name: str) -> list[str]:
    """What failed in a run, in rich markup, with the call, what came and what was expected."""
    from rich.markup import escape

    lines = []
    for case in problems(run):
        style = STYLES[case["outcome"]]
        where = escape(f"{name} {case['mode']}  {case['id']}, clause {case['clause']}")
        lines.append(f"[{style}]{case['outcome']}[/] {where}")
        lines += [
            f"  {field}: {escape(indented(case[field]))}"
            for field in ("call", "reason", "got", "expected")
            if case.get(field)
        ]
    if run.error:
        lines.append(f"[{STYLES['harness error']}]harness error[/] {escape(name)}: {escape(indented(run.error))}")
    return lines


def indented(text: str) -> str:
    """A text of several lines that cannot be taken for lines of the report."""
    return text.replace("\n", "\n    ")


def matrix(runs: Sequence[Run], width: int) -> list[Any]:
    """Tables (rich) of clause by column; more than one where the columns do not fit the width."""
    whole = grid(runs)
    left = max([len(row.title) for row in whole.rows], default=10) + 14
    widths = [max(*map(len, label), 6) + 2 for label in whole.labels]
    tables, begin = [], 0
    while begin < len(widths):
        end = begin + 1
        while end < len(widths) and left + sum(widths[begin : end + 1]) <= width:
            end += 1
        tables.append(_table(whole, range(begin, end)))
        begin = end
    return tables


def _table(whole: Grid, chosen: range) -> Any:
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("group")
    table.add_column("clause of the spec")
    for k in chosen:
        table.add_column(escape("\n".join(whole.labels[k])), justify="right", no_wrap=True)
    last = None
    for row in whole.rows:
        cells = [
            " ".join(f"[{STYLES[outcome]}]{part}[/]" for outcome, part in cell_parts(whole.cell(row, k)))
            or f"[dim]{NOTHING}[/]"
            for k in chosen
        ]
        table.add_row("" if row.group == last else escape(row.group), escape(row.title), *cells)
        last = row.group
    return table
