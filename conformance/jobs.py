"""Run the suite in processes. At most two of these processes run at a time; in the variant "ranks", a process starts
further ones.

The variants of a backend in one interpreter share one process, with its imports and compiled programs. Each variant
with environment variables has a separate process instead.
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

#: The order in which the processes of backends start: the slowest first, so that all end at about the same time. NumPy
#: is second, because its process compiles the kernels for all backends. Other backends follow, and `Job.rank` puts
#: variants with environment variables last.
ORDER = ("jax", "numpy", "torch", "tensorflow", "mxnet")
#: If the report gets no new line for this many seconds, the process counts as hung.
PATIENCE = 300

#: The modules whose tests are cases of the suite.
TESTS = ("islices.conformance.test_checks", "islices.conformance.test_ranks", "islices.conformance.test_vectors")


class Job(NamedTuple):
    """The description of one process. All variants have the same environment variables. The process writes the file
    `report`."""

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
    """Run the jobs and show their progress. Return the runs, ordered by job and variant."""
    order = sorted(range(len(jobs)), key=lambda k: jobs[k].rank)
    with board([jobs[k].name for k in order]) as watched, ThreadPoolExecutor(max_workers=2) as pool:
        stopped = threading.Event()
        futures = {
            k: pool.submit(_run_any, jobs[k], selection, w, stopped) for k, w in zip(order, watched, strict=True)
        }
        try:
            return [run for k in range(len(jobs)) for run in futures[k].result()]
        except BaseException:  # after Ctrl-C, the pool would otherwise first run all waiting jobs
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
    settings.write_text("[pytest]\n", "utf-8")  # ignore the pytest settings of the caller
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
    """Add the runs and headers that a process did not write because it ended early. With these headers, the report
    lists every variant."""
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
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # the suite uses no other plug-ins of the environment
        "JAX_ENABLE_X64": "0",  # 64-bit types are a variant, whatever the shell has set
        **job.variants[0].environment,
    }


def programs_kept() -> dict[str, str]:
    """Return the environment variables that make JAX keep compiled programs in the user's cache; return {} if the path
    of the cache is not absolute.

    JAX compiles one program for each operation on each shape. Compiling a program takes 20 to 50 ms; loading a compiled
    program takes a quarter of this time.
    """
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    if not os.path.isabs(home):
        return {}
    return {
        "JAX_COMPILATION_CACHE_DIR": os.path.join(home, "islices", "xla"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }


def _follow(process: subprocess.Popen[Any], report: Path, watched: Watched, stopped: threading.Event) -> bool:
    """Wait for the process and show its progress. Return True if the process was killed because it hung or `stopped`
    was set."""
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
