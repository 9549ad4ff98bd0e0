"""Print a report on a terminal with rich."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import IO, Any

from islices.conformance.outputs import wrapped
from islices.conformance.report.compact import Compact, compact, legend
from islices.conformance.report.grid import MARKS, NOTHING, folded, problems, provenance, remarks, summary
from islices.conformance.report.runs import Run, details, named

#: The spaces between columns.
GAP = 2
#: The largest length of a row's head and of a line in a column's label. Longer texts are cut, because the author of a
#: report can choose any text.
LONGEST = 24
#: The largest number of entries about failures for each run. Cases with the same outcome and reason share an entry.
ENTRIES = 20
PASSED = "passed in"

STYLES = {
    "pass": "green", "bound": "cyan", "fail": "bold red", "harness error": "bold magenta", "deviation": "yellow",
    "unsupported": "dim",
}  # fmt: skip


def new_console(file: IO[str] | None = None, *, edge: int = 200) -> Any:
    """Return a rich console. The console is as wide as the terminal, or as the variable COLUMNS requires. If there is
    neither a terminal nor this variable, the width is `edge`."""
    from rich.console import Console

    console = Console(file=file)
    if not console.is_terminal and not os.environ.get("COLUMNS"):
        console.width = edge
    return console


def report_console(file: IO[str] | None = None) -> Any:
    """Return a console for a report. If there is neither a terminal nor COLUMNS, the width is 100."""
    return new_console(file, edge=100)


def print_report(runs: Sequence[Run], console: Any) -> None:
    """Print a whole report: the output of `print_cases`, then a line with the counts of outcomes and the origin."""
    print_cases(runs, console)
    _say(console, f"{summary(runs)}  ({provenance(runs)})")


def print_cases(runs: Sequence[Run], console: Any, unless: str | tuple[str, ...] = ()) -> None:
    """Print the matrix, its legend, runs without a column, remarks, and the failures. Omit remarks whose reason ends
    with a text in `unless`."""
    for table in matrix(runs, console.width):
        console.print(table)
        console.print()
    for line in legend(compact(runs)):
        _say(console, line, "dim")
    for owner, why in folded(runs):
        _say(console, f"{owner}: {why}" if why else owner, "dim")
    for owner, count, why in remarks(runs):
        if not why.endswith(unless):
            _say(console, f"{owner}: {count}: {why}", "dim")
    for name, run in named(runs):
        for line in problem_lines(run, name):
            console.print(line, highlight=False, soft_wrap=_edgeless(console))


def _edgeless(console: Any) -> bool:
    """Return True for an output without a width, such as a pipe or a file. Lines of these outputs are not wrapped."""
    return not console.is_terminal and not os.environ.get("COLUMNS")


def _say(console: Any, text: str, style: str = "") -> None:
    """Print a text. All lines after the first are indented, so that the start of each text is visible."""
    for line in indented(text).split("\n"):
        for piece in [line] if _edgeless(console) else wrapped(line, console.width):
            console.print(piece, style=style, markup=False, highlight=False, soft_wrap=_edgeless(console))


def problem_lines(run: Run, name: str) -> list[str]:
    """Return the failures of a run as lines of rich markup, each with the call, the reason, the result and the expected
    result.

    Cases with the same outcome and reason share one entry, because one fault often breaks many cases. At most `ENTRIES`
    entries are listed; a further line gives the number of remaining cases. If the whole run is a harness error, the
    last line gives the reason.
    """
    from rich.markup import escape

    alike: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for case in problems(run):
        alike.setdefault((case["outcome"], case.get("reason") or case["id"]), []).append(case)
    lines, entries = [], list(alike.values())
    for case, *others in entries[:ENTRIES]:
        more = f", and {len(others):,} more cases" if others else ""
        style = STYLES[case["outcome"]]
        where = escape(f"{name} {case['mode']}  {case['id']}, clause {case['clause']}{more}")
        lines.append(f"[{style}]{case['outcome']}[/] {where}")
        lines += [f"  {escape(indented(line))}" for line in details(case)]
    if left := sum(map(len, entries[ENTRIES:])):
        lines.append(f"{left:,} more cases fail in {escape(name)}: all are in --json")
    if run.error:
        lines.append(f"[{STYLES['harness error']}]harness error[/] {escape(name)}: {escape(indented(run.error))}")
    return lines


def indented(text: str) -> str:
    """Indent all lines of a text after the first, so that they differ from lines of the report."""
    return text.replace("\n", "\n    ")


# ---------------------------------------------------------------------- groups by backends
def matrix(runs: Sequence[Run], width: int) -> list[Any]:
    """Return the compact matrix as rich tables. There are several tables if the columns do not fit the width."""
    whole = compact(runs)
    return _tables(whole, width) if whole.labels else []


def _chunks(widths: Sequence[int], room: int) -> Iterator[range]:
    """Yield groups of columns that fit the width. A group has at least one column."""
    begin = 0
    while begin < len(widths):
        end = begin + 1
        while end < len(widths) and sum(widths[begin : end + 1]) <= room:
            end += 1
        yield range(begin, end)
        begin = end


def _tables(whole: Compact, width: int) -> list[Any]:
    """Return rich tables. The upper rows stand for groups of cases. The lower rows contain the counts of outcomes per
    variant."""
    from rich.table import Table
    from rich.text import Text

    lines = [*whole.groups, *whole.settings]
    margin = "  " * any(line.fails for line in lines)
    heads = [f"{MARKS['fail']} {_cut(line.head)}" if line.fails else margin + _cut(line.head) for line in lines]
    places = [_place(whole, k) for k in range(len(whole.labels))]
    left = max(map(cell_len, [margin + PASSED, *heads])) + GAP + max(5, *(len(str(line.cases)) for line in lines))
    widths = [GAP + max(cell_len(line) for text in place for line in text.plain.split("\n")) for place in places]
    tables = []
    for chosen in _chunks(widths, width - left):
        table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
        table.add_column(f"{margin}group" if whole.groups else "", no_wrap=True)
        table.add_column("cases", justify="right")
        for k in chosen:
            table.add_column(places[k][0], no_wrap=True)
        for n, (line, head) in enumerate(zip(lines, heads, strict=True)):
            if n == len(whole.groups):
                table.add_row()
                table.add_row(Text(margin + PASSED, style="bold"))
            styled = Text(head, style=STYLES["fail"] if line.fails else "")
            table.add_row(styled, str(line.cases), *(places[k][n + 1] for k in chosen))
        tables.append(table)
    return tables


def _place(whole: Compact, k: int) -> list[Any]:
    """Return the texts of a column: the label with the letters of the modes, then the cell of each row. The parts of
    cells are aligned by mode."""
    from rich.text import Text

    count = max(1, len(whole.modes[k]))
    rows = [[_styled(parts) for parts in [*line.cells[k], *[[]] * count][:count]] for line in whole.groups]
    letters = [Text(mode[0]) for mode in whole.modes[k]] or [Text()]
    for column in zip(letters, *rows, strict=True):
        widest = max(text.cell_len for text in column)
        for text in column:
            text.align("left", widest)
    marks = [Text(" ").join(row) for row in [letters, *rows]]
    totals = [_styled(parts) for line in whole.settings for parts in line.cells[k] or [[]]]
    label = [Text(_cut(line)) for line in whole.labels[k]] + marks[: bool(rows)]
    return [Text("\n").join(label), *marks[1:], *totals]


def _styled(parts: Sequence[tuple[str, str]]) -> Any:
    from rich.text import Text

    return Text.assemble(*((text, STYLES.get(outcome, "dim")) for outcome, text in parts or [("", NOTHING)]))


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def cell_len(text: str) -> int:
    from rich.cells import cell_len as counted

    return counted(text)
