"""Runs the probes: each module in a process of its own, two at a time, isolated probes in processes of their own.

A process that ends, or hangs, in the middle of a probe is that probe's finding; a fresh process goes on with the next.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from islices.conformance.logs import last_lines
from islices.conformance.tools.audit.choose import LONGEST

__all__ = ["run_all", "verdict"]

#: Seconds without a line after which a process counts as hung. Imports of frameworks on a busy machine are within.
PATIENCE = 120

Finding = dict[str, Any]
Tell = Callable[[int, int], None]


def run_all(modules: Sequence[str], expression: str, tell: Tell, patience: float = PATIENCE) -> list[Finding]:
    """The findings of all modules, by module and number; tell(planned, found) is called as they grow."""
    findings: list[Finding] = []
    workers = Workers(patience)
    with ThreadPoolExecutor(max_workers=2) as pool:
        try:
            first = sorted(modules, key=lambda name: name not in LONGEST)
            running = {pool.submit(_run_module, name, expression, tell, workers) for name in first}
            isolated = set()
            for future in as_completed(running):
                done, left = future.result()
                findings += done
                isolated |= {pool.submit(_run_isolated, question, tell, workers) for question in left}
            findings += [future.result() for future in as_completed(isolated)]
        except BaseException:  # Ctrl-C above all: the pool would first run everything that waits
            pool.shutdown(wait=False, cancel_futures=True)
            workers.stop()
            raise
    findings.sort(key=lambda f: (modules.index(f["module"]), _place(f["number"])))
    return [finding | {"status": verdict(finding)} for finding in findings]


def _place(number: str) -> int:
    """3 for "torch-3", 0 for what is said of a module."""
    place = number.rpartition("-")[2]
    return int(place) if place.isdigit() else 0


def verdict(finding: Finding) -> str:
    """How a finding relates to what was once measured.

    "as measured"; "gone": the trap is no more; "changed": something else is wrong than was, or something is that was
    not; "" where nothing was found.
    """
    outcome, trap = finding["outcome"], finding.get("trap", "")
    if outcome in ("broken", "not run"):
        return ""
    if outcome == (trap or "agrees"):
        return "as measured"
    return "gone" if outcome == "agrees" else "changed"


# ---------------------------------------------------------------------- one process
class Workers:
    """Starts workers; once stopped, it has ended those that ran and starts no more."""

    def __init__(self, patience: float) -> None:
        self.patience = patience
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[str]] = set()
        self._stopped = False

    @contextlib.contextmanager
    def started(self, command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
        with self._lock:
            if self._stopped:
                raise RuntimeError("the audit was stopped")
            process = subprocess.Popen(command, encoding="utf-8", errors="replace", **options)
            self._running.add(process)
        try:
            yield process
        finally:
            with self._lock:
                self._running.discard(process)

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
            for process in self._running:
                process.kill()


@dataclass
class Told:
    """What a worker said, and how it ended."""

    plan: list[Finding] = field(default_factory=list)
    missing: str = ""
    found: dict[str, Finding] = field(default_factory=dict)
    started: str = ""
    done: bool = False
    end: str = ""
    log: str = ""


def _run_module(module: str, expression: str, tell: Tell, workers: Workers) -> tuple[list[Finding], list[Finding]]:
    """(findings, the isolated probes, described and not yet run)"""
    told = _work([module, "-k", expression], tell, workers)
    if told.missing:
        return [_unnumbered(module, "not run", told.missing)], []
    if not told.plan:
        return [] if told.done else [_unnumbered(module, "broken", f"{told.end}\n{told.log}")], []
    found, isolated = dict(told.found), [q for q in told.plan if q["isolated"]]
    questions = {q["number"]: q for q in told.plan if not q["isolated"]}
    while not told.done:
        if not told.started:
            found[f"{module}-0"] = _unnumbered(module, "broken", f"{told.end}\n{told.log}")
            break
        found[told.started] = _ended(told)
        tell(0, 1)
        left = [number for number in questions if number not in found]
        if not left:
            break
        told = _work([module, *left], lambda planned, n: tell(0, n), workers)
        found |= told.found
    described = [questions.get(number, {}) | finding | {"module": module} for number, finding in found.items()]
    return described, [question | {"module": module} for question in isolated]


def _run_isolated(question: Finding, tell: Tell, workers: Workers) -> Finding:
    told = _work([question["module"], question["number"]], lambda planned, n: None, workers)
    tell(0, 1)
    answer = told.found.get(question["number"], {})
    if told.end or not answer:  # a crash after the answer is one, too
        answer = answer | (_ended(told) if told.started else {"outcome": "broken", "got": f"{told.end}\n{told.log}"})
    return question | answer


def _ended(told: Told) -> Finding:
    """The finding that a process which ended, or was stopped, in a probe has made."""
    return {"number": told.started, "outcome": "corrupts", "got": told.end, "error": "", "log": told.log}


def _unnumbered(module: str, outcome: str, got: str) -> Finding:
    return {"number": module, "module": module, "library": module, "outcome": outcome, "got": got.strip()}


def _work(arguments: Sequence[str], tell: Tell, workers: Workers) -> Told:
    command = [sys.executable, "-m", "islices.conformance.tools.audit.worker", *arguments]
    with tempfile.TemporaryDirectory(prefix="islices-audit-") as folder:
        log = Path(folder) / "log"
        options: dict[str, Any] = {"stdout": subprocess.PIPE, "cwd": folder, "env": _environment()}
        with log.open("wb") as errors, workers.started(command, stderr=errors, **options) as process:
            told, hung = _listen(process, tell, workers.patience)
        told.log = last_lines(log, 5)
        told.end = f"no answer within {workers.patience:.0f} s" if hung else _how(process.returncode)
    return told


def _listen(process: subprocess.Popen[str], tell: Tell, patience: float) -> tuple[Told, bool]:
    """Everything a worker says until it ends; (it, True) where it was killed because nothing came any more."""
    lines: queue.Queue[str | None] = queue.Queue()

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            lines.put(line)
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    told = Told()
    while True:
        try:
            line = lines.get(timeout=patience)
        except queue.Empty:
            process.kill()
            process.wait()
            return told, True
        if line is None:
            process.wait()
            return told, False
        _note(told, json.loads(line), tell)


def _note(told: Told, line: Finding, tell: Tell) -> None:
    if "plan" in line:
        told.plan, told.missing = line["plan"], line.get("missing", "")
        tell(len(told.plan), 0)
    elif line["outcome"] == "started":
        told.started = line["number"]
    elif line["outcome"] == "done":
        told.done = True
    else:
        told.found[line["number"]] = line
        tell(0, 1)


def _how(code: int) -> str:
    """How a process ended, in words; "" where all was well."""
    if code == 0:
        return ""
    if code > 0:
        return f"the process ended with exit code {code}"
    try:
        return f"the process ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"the process ended by signal {-code}"


def _environment() -> dict[str, str]:
    return {"TF_CPP_MIN_LOG_LEVEL": "3", **os.environ}
