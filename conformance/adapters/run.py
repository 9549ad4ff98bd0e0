"""Run the golden cases on an adapter, one after the other, and write a report. The adapter gets a column in the matrix.

`grade` decides the outcome of a valid answer. If the adapter crashes, hangs or gives an invalid answer in a call, the
case counts as a harness error. After a crash or a hang, the suite starts the adapter again. After `MOST` harness
errors, or if the adapter cannot start, the whole run counts as a harness error. If the adapter does not have the
operation, or the protocol cannot represent an argument, the case counts as unsupported.

May import: this folder, `islices`.
"""

from __future__ import annotations

import json
import math
import platform
import threading
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, NamedTuple

import islices
from islices.conformance.adapters.grade import grade
from islices.conformance.data import SPEC_VERSION, Case, map_leaves, vectors_hash
from islices.conformance.progress import Watched
from islices.conformance.protocol import CallError, Client, StartError, WireError
from islices.conformance.report import Run, read_runs
from islices.conformance.selection import COMMAND, Selection

#: The run is abandoned after this many calls in which the adapter crashes, hangs or gives an invalid answer.
MOST = 10


class AdapterJob(NamedTuple):
    """The description of one adapter run: the command as text and as words, the time limit for a call, and the file for
    the report."""

    text: str
    command: tuple[str, ...]
    limit: float
    report: Path

    @property
    def name(self) -> str:
        return self.text

    @property
    def rank(self) -> tuple[bool, int]:
        return False, -1  # the first job to start, because it takes only seconds


class _Lines:
    """The writer of the report. The writer also passes each line to the progress board."""

    def __init__(self, file: IO[str], watched: Watched) -> None:
        self._file, self._watched = file, watched

    def write(self, kind: str, /, **fields: Any) -> None:
        line = json.dumps({"type": kind, **fields}) + "\n"
        self._file.write(line)
        self._watched.take(line.encode())


def run_adapter(job: AdapterJob, selection: Selection, watched: Watched, stopped: threading.Event) -> list[Run]:
    """Run the cases on an adapter. Return a list with the run, because the jobs of backends also return lists of
    runs."""
    watched.begin()
    watched.now("its handshake")
    name, broke = job.text, ""
    with job.report.open("w", encoding="utf-8") as file:
        lines = _Lines(file, watched)
        try:
            with Client(job.command, spec=SPEC_VERSION, limit=job.limit) as client:
                name = client.hello.name
                broke = _cases(client, selection, lines, stopped)
        except StartError as error:
            broke = f"{job.text}: {error}"
    runs = read_runs(name, job.report)
    if not runs[-1].header:
        runs = [Run(name)]
        runs[0].give_header()
    if broke:
        runs[-1].broke(broke)
    watched.end("broke" if broke else "")
    return runs


def _cases(client: Client, selection: Selection, lines: _Lines, stopped: threading.Event) -> str:
    """Call the adapter with each case, and write the outcomes. If the run was abandoned, return the reason. Otherwise
    return ""."""
    items, hello = selection.golden([COMMAND]), client.hello
    counts: Counter[str] = Counter()
    lines.write(
        "header", spec=SPEC_VERSION, vectors=vectors_hash(), islices=islices.__version__, backend=hello.name,
        variant="", says="over the line protocol", time=datetime.now(UTC).isoformat(timespec="seconds"),
        version=hello.version or "?", python=platform.python_version(), platform=platform.platform(),
        profile=selection.profile, total=len(items), planned=len(items),
    )  # fmt: skip
    broken: list[str] = []
    for item in items:
        if stopped.is_set():
            return "stopped"
        place = {"id": item.id, "clause": item.clause, "group": item.group, "mode": item.mode}
        lines.write("start", **place)
        case, started = item.subject.case, time.perf_counter()  # type: ignore[union-attr]
        try:
            outcome, details = _attempt(client, case)
        except CallError as error:
            broken.append(f"{item.id}: {error}")
            outcome, details = "harness error", {"reason": str(error)}
        seconds = round(time.perf_counter() - started, 6)
        # an unsupported case has no call in the report
        call = {} if outcome == "unsupported" else {"call": case.call}
        lines.write("case", outcome=outcome, **place, seconds=seconds, **call, **details)
        counts[outcome] += 1
        if len(broken) >= MOST:
            return f"given up after {MOST} calls in which it broke, the last {broken[-1]}"
    failed = counts["fail"] + counts["harness error"]
    lines.write("footer", counts=dict(counts), exit=int(failed > 0), note=_note(client))
    return ""


def _attempt(client: Client, case: Case) -> tuple[str, dict[str, str]]:
    """Return (outcome, details) of a case, or raise CallError if the adapter crashed, hung or gave an invalid
    answer."""
    if client.hello.ops is not None and case.op not in client.hello.ops:
        return "unsupported", {"reason": "not among its operations"}
    try:
        answer = client.call(case.op, _numbers(case.args), _numbers(case.kwargs))
    except WireError as error:
        return "unsupported", {"reason": str(error)}
    return grade(case, answer)


def _numbers(x: Any) -> Any:
    """Replace the string "inf" in arguments with the float infinity. In the arguments of vector files, this string
    stands for infinity."""
    return map_leaves(lambda leaf: math.inf if leaf == "inf" else leaf, x)


def _note(client: Client) -> str:
    """Describe the restarts of the adapter, and the lines that it printed outside the protocol. Return "" if there were
    no restarts and no such lines."""
    reported = []
    if client.strays:
        count = f"{client.strays} line{'s' * (client.strays > 1)}"
        reported.append(f"it printed {count} that are none of the protocol's, the first: {client.stray[0]!r}")
    if client.restarts:
        reported.append(f"started anew {client.restarts} time{'s' * (client.restarts > 1)}")
    return "; ".join(reported)
