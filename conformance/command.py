"""`islices conform`: every installed backend through the suite, each in a process of its own, two at a time."""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from islices.cli import UsageError
from islices.conformance.report import Run, matrix, read_run, remarks, summary
from islices.registry import BUILTIN, list_backends

__all__ = ["arguments", "conform"]

#: Slowest first, so that two at a time end together.
ORDER = ("jax", "tensorflow", "mxnet", "torch", "numpy")
#: Seconds without a case starting or ending after which a process counts as hung.
PATIENCE = 300


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "examples:\n"
        "  islices conform                     every installed backend, the default profile\n"
        "  islices conform -b torch -k clip    one backend, the cases whose id holds 'clip'\n"
        "  islices conform --full --json r.jsonl\n\n"
        "a cell counts the cases that pass; ✗ fails, d declared deviations, u unsupported, ! harness errors\n"
        "exit codes: 0 conform, 1 fails, 2 usage, 3 harness error (a backend crashed or hung, the suite broke)"
    )
    parser.add_argument("-b", "--backend", action="append", metavar="NAME", help="only this backend (may be repeated)")
    parser.add_argument("-k", metavar="EXPR", help="only cases whose id matches pytest's -k expression")
    parser.add_argument("--full", action="store_true", help="every case, not only the default profile")
    parser.add_argument("--json", metavar="PATH", help="write the results as JSON lines to PATH (- for stdout)")


def conform(options: argparse.Namespace) -> int:
    try:
        import pytest  # noqa: F401
        from rich.console import Console
    except ModuleNotFoundError as error:
        raise UsageError(f'needs {error.name}: pip install "islices[conformance]"') from None
    names = _chosen(options.backend)
    if options.json not in (None, "-"):
        _write_json(options.json, "")  # what cannot be written is said before a minute of work, not after
    quiet = options.json == "-"
    console = Console(stderr=quiet)
    if not console.is_terminal and not os.environ.get("COLUMNS"):
        console.width = 200  # a file or a pipe has no edge to wrap at
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="islices-conform-") as folder:
        runs = _run_all(names, options, Path(folder))
        if options.json:
            _write_json(options.json, _join_reports(names, Path(folder)))
    if options.k and not any(run.cases or run.error for run in runs):
        raise UsageError(f"-k: no case matches {options.k!r}")
    for table in matrix(runs, console.width):
        console.print(table)
        console.print()
    for run in runs:
        for remark in remarks(run):
            console.print(f"{run.name}: {remark}", style="dim", markup=False, highlight=False)
        _print_problems(console, run)
    console.print(f"{summary(runs)}  ({len(runs)} backends, {time.monotonic() - started:.0f} s)", highlight=False)
    if options.backend is None:
        for name, line in BUILTIN.items():
            if name not in names:
                console.print(f"{name} is not installed: {line}", markup=False, highlight=False)
    if any(run.counts()["harness error"] for run in runs):
        return 3
    return 1 if any(run.counts()["fail"] for run in runs) else 0


def _chosen(wanted: list[str] | None) -> list[str]:
    installed = list_backends()
    if wanted is None:
        return installed
    for name in wanted:
        if name not in installed:
            hint = f"install it: {BUILTIN[name]}" if name in BUILTIN else f"installed are {', '.join(installed)}"
            raise UsageError(f"--backend: got {name!r}, which is not installed; {hint}")
    return list(dict.fromkeys(wanted))


# ---------------------------------------------------------------------- running
def _run_all(names: list[str], options: argparse.Namespace, folder: Path) -> list[Run]:
    order = sorted(names, key=lambda name: ORDER.index(name) if name in ORDER else -1)
    with _progress(order) as advance, ThreadPoolExecutor(max_workers=2) as pool:
        futures = {name: pool.submit(_run_one, name, options, folder, advance) for name in order}
        return [futures[name].result() for name in names]


def _run_one(name: str, options: argparse.Namespace, folder: Path, advance: Any) -> Run:
    report = folder / f"{name}.jsonl"
    settings = folder / f"{name}.ini"
    settings.write_text("[pytest]\n", "utf-8")  # the caller's own pytest settings are not ours
    command = [
        sys.executable, "-m", "pytest", "-c", str(settings), "--rootdir", str(folder), "-p", "no:cacheprovider",
        "--import-mode=importlib", "-q", "--no-header", "--tb=short", "--pyargs", "islices.conformance",
        "--islices-backend", name, "--islices-report", str(report),
    ]  # fmt: skip
    command += ["--islices-full"] if options.full else []
    command += ["-k", options.k] if options.k else []
    log = folder / f"{name}.log"
    with log.open("w", encoding="utf-8") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, cwd=folder, env=_environment())
        hung = _follow(process, report, lambda done, total: advance(name, done, total))
    run = read_run(name, report)
    if hung:
        run.error = f"hung: nothing for {PATIENCE} s in {run.started or 'the start'}"
    elif not run.footer:
        where = f"in {run.started}" if run.started else "before the first case"
        run.error = f"the process ended {where} (exit {process.returncode})\n{_tail(log)}"
    elif process.returncode not in (0, 1, 5):
        run.error = f"pytest ended with {process.returncode}\n{_tail(log)}"
    return run


def _environment() -> dict[str, str]:
    return {"TF_CPP_MIN_LOG_LEVEL": "3", **os.environ, "PYTHONFAULTHANDLER": "1"}


def _follow(process: subprocess.Popen[Any], report: Path, advance: Any) -> bool:
    """Wait for the process, telling how far its report is; True if it was killed because nothing moved any more."""
    read, done, moved, total = 0, 0, time.monotonic(), None
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=0.25)
        news = _read_from(report, read)
        if news:
            read, moved = read + len(news), time.monotonic()
            done += news.count(b'{"type": "case"')
            if total is None:
                total = read_run("", report).header.get("total")
            advance(done, total)
        if process.returncode is not None:
            return False
        if time.monotonic() - moved > PATIENCE:
            process.kill()
            process.wait()
            return True


def _read_from(path: Path, position: int) -> bytes:
    """The whole lines of a growing file from a position on."""
    if not path.exists():
        return b""
    with path.open("rb") as file:
        file.seek(position)
        news = file.read()
    return news[: news.rfind(b"\n") + 1]


def _tail(log: Path) -> str:
    return "\n".join(log.read_text("utf-8", "replace").splitlines()[-15:])


@contextlib.contextmanager
def _progress(names: list[str]) -> Iterator[Any]:
    """advance(name, done, total): a bar for each backend on a terminal, nothing elsewhere."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        tasks = {name: progress.add_task(name, total=None, start=False) for name in names}
        lock = threading.Lock()

        def advance(name: str, done: int, total: int | None) -> None:
            with lock:
                if not progress.tasks[tasks[name]].started:
                    progress.start_task(tasks[name])
                progress.update(tasks[name], completed=done, total=total)

        yield advance


# ---------------------------------------------------------------------- what came of it
def _print_problems(console: Any, run: Run) -> None:
    from rich.markup import escape

    for case in run.cases:
        if case["outcome"] not in ("fail", "harness error"):
            continue
        console.print(f"[bold red]{case['outcome']}[/] {escape(run.name)} {case['mode']}  {escape(case['id'])}")
        for field in ("call", "reason", "got", "expected"):
            if case.get(field):
                console.print(f"  {field}: {escape(str(case[field]))}", highlight=False)
    if run.error:
        console.print(f"[bold magenta]harness error[/] {escape(run.name)}: {escape(run.error)}", highlight=False)


def _join_reports(names: list[str], folder: Path) -> str:
    parts = [folder / f"{name}.jsonl" for name in names]
    return "".join(part.read_text("utf-8") for part in parts if part.exists())


def _write_json(target: str, text: str) -> None:
    if target == "-":
        sys.stdout.write(text)
        return
    try:
        Path(target).write_text(text, "utf-8")
    except OSError as error:
        raise UsageError(f"--json: cannot write {target}: {error.strerror}") from None
