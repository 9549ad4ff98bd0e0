"""Read JSON lines as runs. A report may come from an untrusted source, so this module checks the type of every field
that it keeps.

This module replaces unprintable characters with Python escapes, so that renderers write only printable text. Examples
of unprintable characters are the escape character of terminals, marks that change the direction of text, and halves of
surrogate pairs.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from islices.cli import UsageError
from islices.conformance.report.runs import OUTCOMES, Run, printable

MAX_FILE = 512 * 2**20
MAX_LINE = 2**20

NAME, TEXT, NUMBER, WHOLE, COUNTS, NAMES = "a name", "a text", "a number", "a whole number", "counts", "names"
#: type of a line -> the fields that a line of this type must have
REQUIRED = {
    "header": "spec vectors backend", "start": "id mode", "case": "id clause group mode outcome",
    "footer": "counts exit", "error": "reason", "phase": "",
}  # fmt: skip
#: kind of value -> the fields with this kind, in lines of any type. Texts may contain line breaks, names may not.
FIELDS = {
    NAME: "spec vectors backend version islices numpy python platform profile variant says time id clause group mode "
    "outcome kind",
    TEXT: "skipped call reason got expected issue note",
    WHOLE: "total planned exit",
    NAMES: "devices unwritten",
    COUNTS: "counts",
    NUMBER: "seconds",
}
KINDS = {field: kind for kind, fields in FIELDS.items() for field in fields.split()}
#: The names that must not be empty.
FILLED = ("spec", "vectors", "backend", "id", "clause", "group", "mode")
#: pytest's exit codes of a complete run: all tests passed, some failed, or no test was selected.
ENDED = (0, 1, 5)


def read(path: str | Path) -> list[Run]:
    """Return all runs of a report. The path "-" means standard input.

    Raises
    ------
    UsageError
        The file cannot be read or is not a report; the message names the file and the line.
    """
    with _opened(str(path)) as file:
        return _runs(file, str(path))


def read_runs(backend: str, path: Path) -> list[Run]:
    """Return the runs that a process has written to its file; one empty run if there are none. If the file is faulty,
    return only one run, whose ``error`` describes the fault."""
    if not path.exists() or not path.stat().st_size:
        return [Run(backend)]
    try:
        return read(path)
    except UsageError as problem:
        return [Run(backend, error=str(problem))]


@contextmanager
def _opened(path: str) -> Iterator[BinaryIO]:
    if path == "-":
        yield sys.stdin.buffer
        return
    try:
        file = Path(path).open("rb")  # noqa: SIM115 (errors of opening are separate from errors in the block)
    except (OSError, ValueError) as error:  # ValueError: a null byte in the name
        raise UsageError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
    with file:
        yield file


def _runs(file: BinaryIO, path: str) -> list[Run]:
    runs: list[Run] = []
    size = number = 0
    while line := file.readline(MAX_LINE + 1):
        number += 1
        size += len(line)
        if len(line) > MAX_LINE or size > MAX_FILE:
            raise UsageError(
                f"{path}, line {number}: too large; accepted are lines of {MAX_LINE >> 20} MiB, files of "
                f"{MAX_FILE >> 20} MiB"
            )
        if not line.strip():
            continue
        try:
            _take(runs, _entry(line), line.decode("utf-8").strip(), path)
        except _LineError as problem:
            if problem.broken and not line.endswith(b"\n") and runs and not runs[-1].footer:
                break  # the process may have been killed during writing
            raise UsageError(f"{path}, line {number}: {problem}") from None
    if not runs:
        raise UsageError(f"{path}: holds no run; accepted are the JSON lines that islices conform --json writes")
    for run in runs:
        run.error = run.error or _doubt(run)
    return runs


class _LineError(Exception):
    """The error for a faulty line. ``broken`` is True if the line may be the beginning of a valid line."""

    def __init__(self, problem: str, *, broken: bool = False) -> None:
        super().__init__(problem)
        self.broken = broken


def _take(runs: list[Run], entry: dict[str, Any], line: str, path: str) -> None:
    kind = entry.pop("type")
    if kind == "phase":
        return  # only the waiting command needs it; it may precede the header
    if kind == "header":
        runs.append(Run(entry["backend"], entry, origin=path, lines=[line]))
        return
    if not runs:
        raise _LineError(f"a {kind} line before any header; is it a report of islices conform --json?")
    run = runs[-1]
    if run.footer and kind != "error":  # a process may still fail while it ends
        raise _LineError(f"a {kind} line after the footer of {run.name}")
    run.lines.append(line)
    if kind == "start":
        run.started = f"{entry['id']} ({entry['mode']})"
    elif kind == "case":
        run.cases.append(entry)
    elif kind == "footer":
        run.footer = entry
    else:
        run.error = entry["reason"] or "harness error"


def _doubt(run: Run) -> str:
    """Return why a run is incomplete or inconsistent; "" if it is neither."""
    counted = Counter(case["outcome"] for case in run.cases)
    twice = [key for key, count in Counter((case["id"], case["mode"]) for case in run.cases).items() if count > 1]
    if run.skipped:
        return "it says that it was skipped, and holds cases" if run.cases else ""
    if not run.footer:
        return "no footer: the process ended " + (f"in {run.started}" if run.started else "before the first case")
    if run.footer["exit"] not in ENDED:
        return f"pytest ended with {run.footer['exit']}"
    if run.footer["counts"] != counted:
        return f"its footer counts {sum(run.footer['counts'].values())} cases, and {len(run.cases)} stand in the file"
    if twice:
        return f"{twice[0][0]} ({twice[0][1]}) stands in it twice"
    return ""


# ---------------------------------------------------------------------- a line
def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_no_constant)


def _entry(line: bytes) -> dict[str, Any]:
    """Return a line as a dict. The dict contains only known fields, whose values have the types in KINDS. All texts in
    the dict are printable, apart from line breaks. Raise _LineError if the line is faulty."""
    try:
        entry = _DECODER.decode(line.decode("utf-8").strip())
    except RecursionError:
        raise _LineError("nested too deeply") from None
    except ValueError as error:  # also for text that is not UTF-8, and for numbers with thousands of digits
        raise _LineError(f"not JSON: {_one_line(error)}", broken=True) from None
    if not isinstance(entry, dict):
        raise _LineError(f"got {_shown(entry)}; accepted is a JSON object with a type")
    kind = entry.get("type")
    if not isinstance(kind, str) or kind not in REQUIRED:
        raise _LineError(f"type: got {_shown(kind)}; accepted are {', '.join(REQUIRED)}")
    for name in REQUIRED[kind].split():
        if name not in entry:
            raise _LineError(f"{kind}: {name} is missing")
    # unknown fields come from later versions, and no renderer shows them
    entry = {"type": kind, **{name: _field(name, x, KINDS[name]) for name, x in entry.items() if name in KINDS}}
    if kind == "case" and entry["outcome"] not in OUTCOMES:
        raise _LineError(f"outcome: got {_shown(entry['outcome'])}; accepted are {', '.join(OUTCOMES)}")
    return entry


def _field(name: str, value: Any, accepted: str) -> Any:
    if accepted in (NAME, TEXT) and isinstance(value, str):
        if value or name not in FILLED:
            return printable(value, lines=accepted == TEXT)
    elif accepted == NUMBER and type(value) in (int, float) and 0 <= value <= sys.float_info.max:
        return float(value)
    elif accepted == WHOLE and type(value) is int:
        return value
    elif accepted == COUNTS and isinstance(value, dict) and all(type(v) is int for v in value.values()):
        return {printable(key): count for key, count in value.items() if count}
    elif accepted == NAMES and isinstance(value, list) and all(isinstance(v, str) for v in value):
        return [printable(v) for v in value]
    raise _LineError(f"{name}: got {_shown(value)}; accepted is {ACCEPTED[accepted]}")


ACCEPTED = {
    NAME: "a string that is not empty", TEXT: "a string", NUMBER: "a number, 0 or above", WHOLE: "a whole number",
    COUNTS: "an object of outcomes and whole numbers", NAMES: "a list of strings",
}  # fmt: skip


def _shown(value: Any) -> str:
    if isinstance(value, (dict, list)):
        return f"a JSON {'object' if isinstance(value, dict) else 'array'}"
    text = printable(json.dumps(value, ensure_ascii=False))
    return text if len(text) <= 60 else text[:60] + "…"


def _one_line(error: ValueError) -> str:
    return printable(str(error).partition("\n")[0])[:200]
