"""Write the tables of a run in Markdown, with one line per implementation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from islices.conformance.tools.bench.load import is_disturbed
from islices.conformance.tools.bench.rounds import Record

HEADS = ("backend", "what", "program", "ms", "x copy", "x other")
#: The number of columns with words; the other columns have numbers.
WORDS = 3


class TextTable(NamedTuple):
    """A table with a title, and with rows of texts in the columns `HEADS`. If there are no rows, the title is
    text without a table."""

    title: str
    rows: list[list[str]]


def tables(run: Record) -> list[TextTable]:
    """Return all tables of a run. The first table has no rows, and its title describes the machine."""
    machine, disturbed = run["machine"], [r["others"] for r in run["records"] if is_disturbed(r)]
    text = (
        f"{run['date'][:10]}, {machine['system']}, {machine['processor']}, {machine['cores']} cores, "
        f"{run['threads']} threads, Python {machine['python']}, NumPy {machine['numpy']}, islices {run['islices']}; "
        f"medians, {run['seconds']:.0f} s"
    )
    if disturbed:
        text += (
            f"\ndisturbed (*): other processes used up to {max(disturbed):.1f} cores during {len(disturbed)} of "
            f"{len(run['records'])} measurements"
        )
    return [TextTable(text, []), *measured(run)]


def measured(run: Record) -> Iterator[TextTable]:
    """Yield one table per title, with the timed records of this title. If there are remarks, also yield them as the
    title of a table without rows."""
    found: dict[str, list[list[str]]] = {}
    remarks: dict[str, None] = {}
    for record in run["records"]:
        about = f"{record['backend']} {record['operation']}"
        if "milliseconds" in record:
            found.setdefault(record["title"], []).extend(_lines(record))
        remarks |= {f"{about}, {label}: {statement}": None for label, statement in record.get("remarks", {}).items()}
    yield from (TextTable(title, rows) for title, rows in found.items())
    if remarks:
        yield TextTable("\n".join(remarks), [])


def _lines(record: Record) -> list[list[str]]:
    words = (record["backend"], record["version"].partition("+")[0], "*" if is_disturbed(record) else "")
    start, times, limit = (
        [" ".join(filter(None, words)), record["operation"]],
        record["milliseconds"],
        record.get("limit"),
    )
    lines = []
    for label in sorted(times, key=times.__getitem__):
        copies, factor = times[label] / limit["milliseconds"] if limit else None, record["times_as_fast"].get(label)
        numbers = ("" if x is None else f"{x:.{digits}f}" for x, digits in ((copies, 1), (factor, 2)))
        lines.append([*start, label, _figures(times[label]), *numbers])
        start = ["", ""]
    if limit:
        copy = f"a copy of {limit['bytes'] / 1e6:.1f} MB"
        lines.append([*start, copy, _figures(limit["milliseconds"]), "1.0", ""])
    return lines


def _figures(number: float) -> str:
    return f"{number:.0f}" if number >= 100 else f"{number:.1f}" if number >= 10 else f"{number:.3g}"


def markdown(table: TextTable) -> list[str]:
    """Return a table as lines of Markdown, with the title first."""
    if not table.rows:
        return table.title.splitlines()
    widths = [max(map(len, column)) for column in zip(HEADS, *table.rows, strict=True)]

    def line(row: list[str]) -> str:
        cells = (c.ljust(w) if k < WORDS else c.rjust(w) for k, (c, w) in enumerate(zip(row, widths, strict=True)))
        return f"| {' | '.join(cells)} |"

    rule = ["-" * w if k < WORDS else "-" * (w - 1) + ":" for k, w in enumerate(widths)]
    return [table.title, "", line(list(HEADS)), f"| {' | '.join(rule)} |", *map(line, table.rows)]
