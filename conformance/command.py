"""Define `islices conform`: select cases and backends, run them as jobs, and show the report."""

from __future__ import annotations

import argparse
import functools
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from islices.backend import TO_DO
from islices.cli import Command, UsageError
from islices.conformance.adapters.command_line import seconds, split_command
from islices.conformance.adapters.run import AdapterJob
from islices.conformance.interpreters import here, look_at
from islices.conformance.jobs import Job, run_all
from islices.conformance.new_backend import to_do
from islices.conformance.outputs import check_backends, check_writable, write
from islices.conformance.report import Run, summary
from islices.conformance.report.merging import json_lines
from islices.conformance.report.terminal import print_cases, report_console
from islices.conformance.selection import COMMAND as COMMAND_MODE
from islices.conformance.selection import PROFILES, Selection, how_many, nearest
from islices.conformance.variants import VARIANTS
from islices.core.registry import BUILTIN

#: profile -> the variants that run in this environment without --variant. In environments from --python, only
#: "standard" then runs.
USUAL = {"quick": ("standard", "cuda"), "full": ("standard", "kernels off", "read-only", "cuda", "ranks")}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "examples:\n"
        "  islices conform  every installed backend, the quick profile\n"
        "  islices conform -b torch -k clip  one backend, the cases whose id contains 'clip'\n"
        "  islices conform --clause 7 --group norms  the cases of one clause of the specification, in one group\n"
        "  islices conform --profile full --variant all  every case in every variant: most of an hour\n"
        "  islices conform --python ../new/bin/python  also the frameworks of another environment\n"
        "  islices conform --command 'node adapter.js'  a program in any language, over standard input and output\n"
        "  islices conform --json r.jsonl && islices report r.jsonl -o r.html\n\n"
        "profiles:\n"
        "  quick  the cases that find most faults in little time\n"
        "  full   all cases. -k, --clause and --group choose among the cases of a profile.\n\n"
        "variants:\n"
        "  standard       eager and compiled code, on CPUs\n"
        "  'kernels off'  without compiled kernels\n"
        "  read-only      NumPy arrays that cannot be written to\n"
        "  cuda           on a GPU\n"
        "  x64            JAX with 64-bit types\n"
        "  ranks          2 processes over torch.distributed, JAX, TensorFlow or MPI; 4 with --profile full\n"
        "Without --variant, conform runs standard and cuda; with --profile full it runs all but x64; with --python "
        "only standard.\n\n"
        "adapters:\n"
        "A --command runs alone, or together with the backends that -b names. A result passes if its bits are equal. "
        "It counts as ≈ if it is within a bound of the specification (sums in another order, fused multiply-adds), "
        "which is not a failure. A call is a harness error if the program exits, exceeds --time-limit, or answers with "
        "something that is not a value. A program that exited starts again; after 10 such calls the run ends.\n\n"
        "marks in the matrix, with the number of cases except for ✓:\n"
        "  ✓  pass\n"
        "  ✗  fail\n"
        "  d  declared deviation\n"
        "  u  unsupported\n"
        "  !  harness error\n\n"
        "exit codes: 0 all cases conform, 1 failures or an unfinished backend, 2 usage error, 3 harness error (a "
        "backend or the suite crashed or hung)"
    )
    add = parser.add_argument
    add("-b", "--backend", action="append", metavar="NAME", help="only this backend (may be repeated)")
    add("-k", metavar="EXPR", default="", help="only cases whose id matches pytest's -k expression")
    add("--clause", action="append", default=[], metavar="N", help="only this clause of the specification")
    add("--group", action="append", default=[], metavar="NAME", help="only this group of cases")
    add("--profile", choices=PROFILES, default="quick", help="quick (default) or full")
    add("--variant", action="append", metavar="NAME", help="only this variant, or all (may be repeated)")
    add(
        "--python", action="append", default=[], metavar="PATH",
        help="the interpreter of another environment, which needs numpy, pytest and its frameworks (may be repeated)",
    )  # fmt: skip
    add(
        "--command", action="append", default=[], metavar="LINE", dest="command_line",
        help="an adapter in any language that speaks the line protocol of docs/protocol.md (may be repeated)",
    )  # fmt: skip
    add(
        "--time-limit",
        type=float,
        default=10.0,
        metavar="SECONDS",
        help="how long a call of an adapter may take (default 10)",
    )
    add("--json", metavar="PATH", help="write the results as JSON lines to PATH (- for stdout)")


def conform(options: argparse.Namespace) -> int:
    try:
        import pytest  # noqa: F401
        import rich  # noqa: F401
    except ModuleNotFoundError as error:
        raise UsageError(f'needs {error.name}: pip install "islices[conformance]"') from None
    quiet = options.json == "-"
    if options.json is not None and not quiet:
        check_writable("--json", options.json)  # report an unwritable file before a minute of work, not after
    selection = _selection(options)
    console = report_console(sys.stderr if quiet else None)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="islices-conform-") as folder:
        planned = _plan(options, selection, Path(folder))
        runs = run_all(planned, selection)
    if not any(run.cases or run.error for run in runs):
        raise UsageError(f"nothing ran: {_why_nothing(runs)}")
    if options.json:
        write("--json", options.json, json_lines(runs))
    _show(console, runs)
    if options.backend is None and not options.python and not options.command_line:
        for name, line in BUILTIN.items():
            if name not in {run.backend for run in runs}:
                console.print(f"{name} is not installed: {line}", markup=False, highlight=False)
    seconds = time.monotonic() - started
    console.print(f"{summary(runs)}  ({len(runs)} runs, {seconds:.0f} s)", highlight=False)
    if any(run.counts()["harness error"] for run in runs):
        return 3
    return 1 if any(run.counts()["fail"] for run in runs) or _unwritten(runs) else 0


COMMAND = Command("run the conformance suite on every installed backend and show the matrix", arguments, conform)


# ---------------------------------------------------------------------- jobs
def _selection(options: argparse.Namespace) -> Selection:
    selection = Selection(options.profile, options.k, tuple(options.clause), tuple(options.group))
    try:
        selection.check()
    except ValueError as error:
        raise UsageError(str(error)) from None
    return selection


def _plan(options: argparse.Namespace, selection: Selection, folder: Path) -> list[Job | AdapterJob]:
    """Return the jobs, ordered as in the matrix: by interpreter, then backend, then variant. The jobs of --command are
    last.

    A variant without a selected case gets no job. This function imports no framework.
    """
    accepted = [*VARIANTS, "all"]
    for name in options.variant or ():
        if name not in accepted:
            raise UsageError(f"--variant: got {name!r}; accepted are {', '.join(accepted)}")
    everywhere = VARIANTS if "all" in (options.variant or ()) else options.variant
    adapters = _adapters(options, folder)
    # with --command, only the adapter runs unless the options also list backends or interpreters
    interpreters = [] if adapters and not (options.backend or options.python) else [here()]
    for other in (look_at(path, folder) for path in options.python):
        # each environment runs once, even if two paths lead to it
        if other.prefix not in {i.prefix for i in interpreters}:
            interpreters.append(other)
    check_backends(options.backend, [name for i in interpreters for name in i.backends])

    @functools.cache
    def has_cases(name: str) -> bool:
        return how_many(selection, VARIANTS[name]) > 0

    planned: list[Job | AdapterJob] = []
    wanted: set[str] = set()
    for k, interpreter in enumerate(interpreters):
        requested = everywhere or (USUAL[selection.profile] if k == 0 else ("standard",))
        for backend in interpreter.backends:
            if backend in (options.backend or [backend]):
                variants = [v for name, v in VARIANTS.items() if name in requested and v.applies(backend)]
                wanted.update(v.name for v in variants)
                found = [v for v in variants if has_cases(v.name)]
                for together in ([v for v in found if not v.environment], *([v] for v in found if v.environment)):
                    if together:
                        report = folder / f"{len(planned)}.jsonl"
                        planned.append(Job(interpreter, backend, tuple(together), report))
    planned += adapters if selection.golden([COMMAND_MODE]) else []
    if not planned:
        raise UsageError(
            f"nothing ran: {_why_nothing_matches(selection) if wanted or adapters else 'no backend has such a variant'}"
        )
    return planned


def _adapters(options: argparse.Namespace, folder: Path) -> list[AdapterJob]:
    """Return one job for each --command. Raise UsageError if a command line or the time limit is invalid."""
    limit = seconds(options.time_limit)
    return [
        AdapterJob(text, split_command(text), limit, folder / f"command{k}.jsonl")
        for k, text in enumerate(options.command_line)
    ]


def _why_nothing_matches(selection: Selection) -> str:
    options = [f"-k {selection.expression!r}"] if selection.expression else []
    options += [f"--clause {name}" for name in selection.clauses] + [f"--group {name}" for name in selection.groups]
    if selection.profile == "quick" and any(how_many(selection._replace(profile="full"), v) for v in VARIANTS.values()):
        return f"no case of the quick profile matches {' '.join(options)}; --profile full has such"
    like = nearest(selection.expression)
    return f"no case matches {' '.join(options)}" + (f"; the nearest are {', '.join(like)}" if like else "")


def _why_nothing(runs: Sequence[Run]) -> str:
    reasons = sorted({run.skipped for run in runs if run.skipped})
    return "; ".join(reasons) or "no backend has a mode in which such a case runs"


# ---------------------------------------------------------------------- results
def _unwritten(runs: Sequence[Run]) -> list[str]:
    """Return the primitives that a backend in these runs lacks although mode framework needs them."""
    return sorted({name for run in runs for name in run.header.get("unwritten", [])})


def _show(console: Any, runs: Sequence[Run]) -> None:
    print_cases(runs, console, unless=f": {TO_DO}")  # the list below already has these primitives
    for backend in dict.fromkeys(run.backend for run in runs):
        waiting = to_do(case for run in runs if run.backend == backend for case in run.cases)
        if waiting:
            console.print(f"{backend}: primitives to be written, by the number of cases that wait for them:")
        for primitive, count in waiting:
            console.print(f"  {count:6}  {primitive}", highlight=False)
        missing = _unwritten([run for run in runs if run.backend == backend])
        unmet = [name for name in missing if name not in dict(waiting)]
        if unmet:
            console.print(f"  {0:6}  {', '.join(unmet)}", highlight=False)
        if missing:
            console.print(f"{backend} is not finished: {len(missing)} primitives are to be written", highlight=False)
