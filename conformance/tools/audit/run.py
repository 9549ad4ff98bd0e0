"""Runs the probes: each module in a process, two at a time; isolated probes in processes of their own.

A process that ends or hangs in the middle of a probe is that probe's finding; another process runs the rest.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from islices.conformance.logs import last_lines

__all__ = ["run_all"]

#: Seconds after which a process counts as hung. Imports of frameworks on a busy machine are within.
PATIENCE = 300

Finding = dict[str, Any]


def run_all(
    modules: Sequence[str], expression: str, done: Callable[[str], None], patience: float = PATIENCE
) -> list[Finding]:
    """Return the findings of all modules, by module and number; done(module) is called as each ends."""

    def run(module: str) -> list[Finding]:
        found = list(run_module(module, expression, patience))
        done(module)
        return found

    with ThreadPoolExecutor(max_workers=2) as pool:
        try:
            return [finding for found in pool.map(run, modules) for finding in found]
        except BaseException:  # Ctrl-C above all: the pool would first run all modules that wait
            pool.shutdown(cancel_futures=True)
            raise


def run_module(module: str, expression: str, patience: float) -> Iterator[Finding]:
    first: int | None = 1
    while first is not None:
        lines, end = work([module, expression, str(first)], patience)
        found = {line["number"]: line for line in lines if "outcome" in line}
        after = lines[-1] if lines and "next" in lines[-1] else None
        first = after["next"] if after else None
        if end and not found:
            found[module] = {"number": module, "module": module, "outcome": "broken", "got": end}
        elif end:
            number = [*found][-1]
            found[number] |= {"outcome": "corrupts", "got": end, "error": ""}
            first = int(number.rpartition("-")[2]) + 1
        for finding in found.values():
            yield finding | {"status": status(finding)}


def status(finding: Finding) -> str:
    """Return "as measured"; "gone" if the trap is no more; "changed" if another answer is wrong; or ""."""
    outcome = finding["outcome"]
    if outcome in ("broken", "not run"):
        return ""
    return "as measured" if outcome == finding["trap"] else "gone" if outcome == "agrees" else "changed"


def work(arguments: Sequence[str], patience: float) -> tuple[list[Finding], str]:
    """Run a worker and return (what it printed, how it ended: "" if well)."""
    command = [sys.executable, "-m", "islices.conformance.tools.audit.worker", *arguments]
    environment = {"TF_CPP_MIN_LOG_LEVEL": "3", **os.environ}
    with tempfile.TemporaryDirectory(prefix="islices-audit-") as folder:
        out, log = Path(folder) / "out", Path(folder) / "log"
        with out.open("wb") as file, log.open("wb") as errors:
            try:
                code = subprocess.run(
                    command, stdout=file, stderr=errors, cwd=folder, env=environment, timeout=patience
                ).returncode
                end = ended(code)
            except subprocess.TimeoutExpired:
                end = f"no answer within {patience:.0f} s"
        lines = [json.loads(line) for line in out.read_text("utf-8").splitlines()]
        return lines, end if lines or not end else f"{end}\n{last_lines(log, 5)}"


def ended(code: int) -> str:
    """Say how a process ended; "" if well."""
    if code == -signal.SIGINT:
        raise KeyboardInterrupt
    if code >= 0:
        return f"the process ended with exit code {code}" if code else ""
    return f"the process ended by {signal.Signals(-code).name}"
