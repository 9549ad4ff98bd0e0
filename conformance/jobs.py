"""Run the suite, with each backend of each interpreter in a separate process, two at a time.

The variants of a backend share its process, and so its imports and compiled programs. Variants that need a separate
environment have a separate process.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from islices.conformance.adapters.run import AdapterJob, run_adapter
from islices.conformance.interpreters import Interpreter
from islices.conformance.progress import Watched, board
from islices.conformance.report import Run, read_runs
from islices.conformance.selection import Selection
from islices.conformance.variants import Variant
from islices.conformance.workers import last_lines, whole_lines

#: Slowest first, so that two at a time end together; but NumPy, next to the slowest, compiles the kernels for all.
ORDER = ("jax", "numpy", "torch", "tensorflow", "mxnet")
#: Seconds without a case starting or ending after which a process counts as hung.
PATIENCE = 300

#: The modules whose tests are cases.
TESTS = ("islices.conformance.test_checks", "islices.conformance.test_ranks", "islices.conformance.test_vectors")


class Job(NamedTuple):
    """One process, the file for its report, and the modes of its cases."""

    interpreter: Interpreter
    backend: str
    variants: tuple[Variant, ...]
    report: Path

    @property
    def name(self) -> str:
        return " ".join([self.backend, *(self.variants[0].name for v in self.variants[:1] if v.environment)])

    @property
    def rank(self) -> tuple[bool, int]:
        place = ORDER.index(self.backend) if self.backend in ORDER else len(ORDER)
        return bool(self.variants[0].environment), place


def run_all(jobs: Sequence[Job | AdapterJob], selection: Selection) -> list[Run]:
    """Return the runs of the jobs, ordered by job and variant, and report their progress."""
    order = sorted(range(len(jobs)), key=lambda k: jobs[k].rank)
    with board([jobs[k].name for k in order]) as watched, ThreadPoolExecutor(max_workers=2) as pool:
        stopped = threading.Event()
        futures = {
            k: pool.submit(_run_any, jobs[k], selection, w, stopped) for k, w in zip(order, watched, strict=True)
        }
        try:
            return [run for k in range(len(jobs)) for run in futures[k].result()]
        except BaseException:  # Ctrl-C above all: the pool would first run everything that waits
            stopped.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _run_any(job: Job | AdapterJob, selection: Selection, watched: Watched, stopped: threading.Event) -> list[Run]:
    run = run_adapter if isinstance(job, AdapterJob) else _run
    return run(job, selection, watched, stopped)  # type: ignore[arg-type]


def _run(job: Job, selection: Selection, watched: Watched, stopped: threading.Event) -> list[Run]:
    watched.begin()
    report, folder = job.report, job.report.parent
    settings = report.with_suffix(".ini")
    settings.write_text("[pytest]\n", "utf-8")  # the caller's own pytest settings are not ours
    command = [
        job.interpreter.path, "-m", "pytest", "-c", str(settings), "--rootdir", str(folder), "-p", "no:cacheprovider",
        "-p", "islices_pytest", "--import-mode=importlib", "-q", "--no-header", "--tb=short", "--pyargs",
        *TESTS, "--islices-backend", job.backend, "--islices-variant", ",".join(v.name for v in job.variants),
        "--islices-report", str(report), "--islices-phases", "--islices-profile", selection.profile,
        f"--islices-select={selection.expression}",
        *(f"--islices-clause={clause}" for clause in selection.clauses),
        *(f"--islices-group={group}" for group in selection.groups),
    ]  # fmt: skip
    log = report.with_suffix(".log")
    with log.open("w", encoding="utf-8") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, cwd=folder, env=_environment(job))
        hung = _follow(process, report, watched, stopped)
    phase = watched.says
    watched.now("reading the report")
    runs = read_runs(job.backend, report)
    _give_headers(runs, job)
    last = next((run for run in runs if not run.footer), runs[-1])
    if hung:
        last.broke(f"hung: nothing for {PATIENCE} s in {last.started or phase}")
    elif not last.footer:
        early = f"before the first case ({phase}), run by {job.interpreter.path},"
        where = f"in {last.started}" if last.started else early
        last.broke(f"the process ended {where} (exit {process.returncode})\n{last_lines(log, 15)}")
    elif process.returncode not in (0, 1, 5):
        last.broke(f"pytest ended with {process.returncode}\n{last_lines(log, 15)}")
    for run in runs:
        if not run.footer and run is not last:
            run.broke(f"not run: the process had ended, see {last.name}")
    if not stopped.is_set():
        watched.end("broke" if last.error else "skipped" if all(run.skipped for run in runs) else "")
    return runs


def _give_headers(runs: list[Run], job: Job) -> None:
    """Add headers for runs whose process ended before it reported them, so that the report still lists them."""
    runs += [Run(job.backend) for _ in range(len(job.variants) - len(runs))]
    for run, variant in zip(runs, job.variants, strict=True):
        if not run.header:
            run.give_header(variant=variant.label)


def _environment(job: Job) -> dict[str, str]:
    return {
        "TF_CPP_MIN_LOG_LEVEL": "3",
        **programs_kept(),
        **job.interpreter.environment(),
        "PYTHONFAULTHANDLER": "1",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # other plug-ins of an environment are none of the suite's
        "JAX_ENABLE_X64": "0",  # whatever the caller's shell says: 64 bits are a variant
        **job.variants[0].environment,
    }


def programs_kept() -> dict[str, str]:
    """Return the settings by which JAX keeps compiled programs in the user's cache.

    Each operation on each shape is a program, which compiles in 20 to 50 ms and loads in a quarter of that time."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    if not os.path.isabs(home):
        return {}
    return {
        "JAX_COMPILATION_CACHE_DIR": os.path.join(home, "islices", "xla"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }


def _follow(process: subprocess.Popen[Any], report: Path, watched: Watched, stopped: threading.Event) -> bool:
    """Wait for the process and report its progress. Return True if it was killed, because it hung or all jobs stop."""
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
