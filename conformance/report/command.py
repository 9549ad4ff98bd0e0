"""Define `islices report`, which shows reports of `islices conform`, merges reports, or shows the changes between two
reports."""

from __future__ import annotations

import argparse
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from islices.cli import Command, UsageError
from islices.conformance.outputs import need_rich, write
from islices.conformance.report.differences import KINDS, Differences, ReportChange, compare
from islices.conformance.report.grid import NOTHING
from islices.conformance.report.html import html_page
from islices.conformance.report.markdown import markdown
from islices.conformance.report.merging import join, json_lines
from islices.conformance.report.reading import read
from islices.conformance.report.runs import Run
from islices.conformance.report.terminal import indented, new_console, print_report, report_console

FORMATS = ("terminal", "markdown", "html")
EXTENSIONS = {".txt": "terminal", ".md": "markdown", ".html": "html", ".htm": "html"}
#: The largest number of changes of each kind that a terminal shows; --json writes all changes.
SHOWN = 50
HEADS = {
    "regression": "regressions", "vanished": "vanished", "improvement": "improvements", "new": "new",
    "reason": "changed reasons",
}  # fmt: skip


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = (
        "islices report FILE... [--format FORMAT] [-o PATH] [--replace]\n"
        "       islices report merge FILE... -o PATH [--replace]\n"
        "       islices report diff OLD NEW [--common] [--json]"
    )
    parser.epilog = (
        "examples:\n"
        "  islices conform --json run.jsonl            write a report, which the next lines show\n"
        "  islices report run.jsonl                    the matrix in the terminal\n"
        "  islices report run.jsonl -o matrix.html     one page with details in each cell; also .md, .txt\n"
        "  islices report linux.jsonl mac.jsonl -o all.md\n"
        "  islices report merge linux.jsonl mac.jsonl -o all.jsonl\n"
        "  islices report diff main.jsonl branch.jsonl\n\n"
        "report combines and compares only reports of the same vectors and specification. Write a file named merge or "
        "diff as ./merge or ./diff; - is standard input or output.\n\n"
        "diff orders outcomes: pass > bound > deviation > unsupported > fail > harness error. A regression is a case "
        "with a worse outcome, a new case that fails, or a run that ends early. Cases that vanished have a list of "
        "their names, and count like regressions.\n\n"
        "exit codes: 0 done (diff: no regressions), 1 diff: regressions or vanished cases, 2 usage error, or a file "
        "that is not a report"
    )
    add = parser.add_argument
    add("words", nargs="+", metavar="FILE", help="reports (JSON lines), or an action before them")
    add("--format", choices=FORMATS, help="default: by the extension of the output, else terminal")
    add("-o", "--output", metavar="PATH", help="write to PATH (default: stdout)")
    add("--replace", action="store_true", help="a repeated column replaces the earlier one")
    add("--common", action="store_true", help="diff: only the columns and cases that both have")
    add("--json", action="store_true", help="diff: one JSON object on stdout")


def report(options: argparse.Namespace) -> int:
    action = options.words[0] if options.words[0] in ("merge", "diff") else "show"
    _refuse(options, action)
    if action == "diff":
        return _diff(options)
    runs = join([run for path in _files(options, action) for run in read(path)], replace=options.replace)
    if action == "merge":
        write("--output", options.output or "-", json_lines(runs))
    else:
        _show(runs, options)
    return 0


COMMAND = Command("show, merge or compare the results of conform: terminal, Markdown, one HTML page", arguments, report)


def _refuse(options: argparse.Namespace, action: str) -> None:
    """Raise UsageError if an option does not belong to the action, or if merge has no -o."""
    foreign = {
        "show": ("common", "json"), "merge": ("common", "json", "format"),
        "diff": ("format", "output", "replace"),
    }  # fmt: skip
    for name in foreign[action]:
        if getattr(options, name):
            raise UsageError(f"--{name} means nothing {'here' if action == 'show' else f'to {action}'}; see --help")
    if action == "merge" and options.output is None:
        raise UsageError("merge: -o PATH is missing (- for stdout)")


def _files(options: argparse.Namespace, action: str) -> list[str]:
    files: list[str] = options.words if action == "show" else options.words[1:]
    if not files or (action == "diff" and len(files) != 2):
        raise UsageError(
            f"{action}: got {len(files)} files; accepted {'are 2' if action == 'diff' else 'is 1 or more'}"
        )
    if files.count("-") > 1:
        raise UsageError("-: standard input can be read once")
    return files


# ---------------------------------------------------------------------- show
def _show(runs: list[Run], options: argparse.Namespace) -> None:
    form = _format(options)
    if form == "terminal":
        need_rich()
        if options.output in (None, "-"):
            print_report(runs, report_console())
            return
        text = io.StringIO()
        print_report(runs, report_console(text))
        write("--output", options.output or "-", text.getvalue())
    else:
        write("--output", options.output or "-", {"markdown": markdown, "html": html_page}[form](runs))


def _format(options: argparse.Namespace) -> str:
    if options.format:
        return str(options.format)
    if options.output in (None, "-"):
        return "terminal"
    extension = Path(options.output).suffix.lower()
    if extension not in EXTENSIONS:
        raise UsageError(
            f"--output: {options.output} does not say the format; accepted are {', '.join(EXTENSIONS)}, or --format"
        )
    return EXTENSIONS[extension]


# ---------------------------------------------------------------------- diff
def _diff(options: argparse.Namespace) -> int:
    old, new = (read(path) for path in _files(options, "diff"))
    for runs in (old, new):
        join(runs)
    found = compare(old, new, common=options.common)
    if not found.compared and not found.changes:
        raise UsageError("diff: the reports have no case to compare")
    if options.json:
        print(json.dumps({"old": options.words[1], "new": options.words[2], **found.as_json()}))
    else:
        need_rich()
        print_differences(found, new_console())
    return 1 if found.regressed else 0


def print_differences(found: Differences, console: Any) -> None:
    """Print the versions, a table of counts by clause, the changes, and the total counts. The worst kind of change
    comes first."""
    from rich.markup import escape
    from rich.table import Table

    for line in found.versions:
        console.print(line, style="dim", markup=False, highlight=False)
    if found.changes:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for head in ("group", "clause of the spec"):
            table.add_column(head)
        for kind in KINDS:
            table.add_column(HEADS[kind], justify="right")
        for row, of_row in found.by_clause().items():
            table.add_row(escape(row.group), escape(row.title), *(str(of_row[kind] or NOTHING) for kind in KINDS))
        console.print(table)
        console.print()
    for kind in KINDS:
        _print_changes(found.of_kind(kind), kind, console)
    counts = found.counts()
    line = ", ".join(f"{counts[kind]} {HEADS[kind]}" for kind in KINDS)
    console.print(f"{line}  ({found.compared} cases compared)", highlight=False)


def _print_changes(changes: Sequence[ReportChange], kind: str, console: Any) -> None:
    from rich.markup import escape

    style = "bold red" if kind in ("regression", "vanished") else "bold"
    for change in changes[:SHOWN]:
        steps = " -> ".join(filter(None, (change.old, change.new))) if kind != "vanished" else f"was {change.old}"
        console.print(
            f"[{style}]{kind}[/] {escape(change.column)}  {escape(change.id)}  {escape(steps)}", highlight=False
        )
        if change.reason:
            console.print(f"  {indented(change.reason)}", markup=False, highlight=False)
    if len(changes) > SHOWN:
        console.print(f"... and {len(changes) - SHOWN} more ({kind}); --json has them all", highlight=False)
