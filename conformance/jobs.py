"""Runs the suite: each backend, variant and interpreter in a process of its own, two at a time."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from islices.cli import UsageError
from islices.conformance.data import SPEC_VERSION, vectors_hash
from islices.conformance.interpreters import Interpreter
from islices.conformance.logs import last_lines, whole_lines
from islices.conformance.progress import Watched, board
from islices.conformance.report import Run, read_run
from islices.conformance.variants import STANDARD, Variant

__all__ = ["Job", "Options", "run_all"]

#: Slowest first, so that two at a time end together.
ORDER = ("jax", "tensorflow", "mxnet", "torch")
#: Seconds without a case starting or ending after which a process counts as hung.
PATIENCE = 300

#: How pytest refuses a -k expression.
WRONG_EXPRESSION = re.compile(r"Wrong expression passed to '-k': (.*)")


class Job(NamedTuple):
    """One process, and the file it reports to."""

    interpreter: Interpreter
    backend: str
    variant: Variant
    report: Path

    @property
    def name(self) -> str:
        return self.backend if self.variant is STANDARD else f"{self.backend} {self.variant.name}"

    @property
    def rank(self) -> tuple[bool, int]:
        place = ORDER.index(self.backend) if self.backend in ORDER else len(ORDER)
        return bool(self.variant.modes), place


class Options(NamedTuple):
    """What all jobs of a call have in common."""

    full: bool = False
    expression: str | None = None


def run_all(jobs: Sequence[Job], options: Options) -> list[Run]:
    """The runs of the jobs, in their order; what each does is told meanwhile."""
    order = sorted(range(len(jobs)), key=lambda k: jobs[k].rank)
    with board([jobs[k].name for k in order]) as told, ThreadPoolExecutor(max_workers=2) as pool:
        stopped = threading.Event()
        futures = {k: pool.submit(_run, jobs[k], options, w, stopped) for k, w in zip(order, told.jobs, strict=True)}
        try:
            return [futures[k].result() for k in range(len(jobs))]
        except BaseException:  # Ctrl-C above all: the pool would first run everything that waits
            stopped.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _run(job: Job, options: Options, watched: Watched, stopped: threading.Event) -> Run:
    watched.begin()
    report, folder = job.report, job.report.parent
    settings = report.with_suffix(".ini")
    settings.write_text("[pytest]\n", "utf-8")  # the caller's own pytest settings are not ours
    command = [
        job.interpreter.path, "-m", "pytest", "-c", str(settings), "--rootdir", str(folder), "-p", "no:cacheprovider",
        "-p", "islices.conformance.plugin", "--import-mode=importlib", "-q", "--no-header", "--tb=short", "--pyargs",
        "islices.conformance", "--islices-backend", job.backend, "--islices-variant", job.variant.name,
        "--islices-report", str(report), "--islices-phases",
    ]  # fmt: skip
    command += ["--islices-full"] if options.full else []
    command += ["-k", options.expression] if options.expression else []
    log = report.with_suffix(".log")
    with log.open("w", encoding="utf-8") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, cwd=folder, env=_environment(job))
        hung = _follow(process, report, watched, stopped)
    phase = watched.says
    watched.now("reading the report")
    if process.returncode == 4 and (wrong := WRONG_EXPRESSION.search(log.read_text("utf-8", "replace"))):
        raise UsageError(f"-k: got {wrong[1]}")
    run = read_run(job.backend, report)
    if not run.header:
        _give_header(run, job)
    if hung:
        run.broke(f"hung: nothing for {PATIENCE} s in {run.started or phase}")
    elif not run.footer:
        early = f"before the first case ({phase}), run by {job.interpreter.path},"
        where = f"in {run.started}" if run.started else early
        run.broke(f"the process ended {where} (exit {process.returncode})\n{last_lines(log, 15)}")
    elif process.returncode not in (0, 1, 5):
        run.broke(f"pytest ended with {process.returncode}\n{last_lines(log, 15)}")
    if not stopped.is_set():
        watched.end("broke" if run.error else "skipped" if run.skipped else "")
    return run


def _give_header(run: Run, job: Job) -> None:
    """What is known of a run whose process ended before it said anything, so that it is not missing from a report."""
    known = {"spec": SPEC_VERSION, "vectors": vectors_hash(), "backend": job.backend, "variant": job.variant.label}
    run.header = known
    run.lines.insert(0, json.dumps({"type": "header", **known}))


def _environment(job: Job) -> dict[str, str]:
    return {
        "TF_CPP_MIN_LOG_LEVEL": "3",
        **job.interpreter.environment(),
        "PYTHONFAULTHANDLER": "1",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # other plug-ins of an environment are none of the suite's
        "JAX_ENABLE_X64": "0",  # whatever the caller's shell says: 64 bits are a variant
        **job.variant.environment,
    }


def _follow(process: subprocess.Popen[Any], report: Path, watched: Watched, stopped: threading.Event) -> bool:
    """Wait for the process, telling how far its report is; True if it was killed: nothing moved, or all is stopped."""
    read, moved = 0, time.monotonic()
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=0.25)
        news = whole_lines(report, read)
        if news:
            read, moved = read + len(news), time.monotonic()
            watched.take(news)
        if process.returncode is not None:
            return False
        if stopped.is_set() or time.monotonic() - moved > PATIENCE:
            process.kill()
            process.wait()
            return True
