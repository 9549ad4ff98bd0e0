"""Processes of their own: the output so far of a watched one, and runs of one that prints JSON lines."""

from __future__ import annotations

import importlib.metadata
import json
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

#: library -> the distribution that has its version, where the names differ
DISTRIBUTIONS = {"tensorflow": "tensorflow-cpu", "fbgemm_gpu": "fbgemm-gpu-cpu", "paddle": "paddlepaddle"}


def whole_lines(path: Path, position: int) -> bytes:
    """Return the complete lines of a growing file from a position on; none while it does not exist."""
    if not path.exists():
        return b""
    with path.open("rb") as file:
        file.seek(position)
        news = file.read()
    return news[: news.rfind(b"\n") + 1]


def last_lines(path: Path, count: int) -> str:
    """Return the last lines of a log with any bytes."""
    return "\n".join(path.read_text("utf-8", "replace").splitlines()[-count:])


def run_worker(
    command: Sequence[str], environment: Mapping[str, str], limit: float
) -> tuple[list[dict[str, Any]], str]:
    """Run a process that prints JSON lines, and return (the lines, how it ended: "" if well).

    If there is no line, the end includes what the process wrote to its error output last. limit: seconds.
    """
    with tempfile.TemporaryDirectory(prefix="islices-worker-") as folder:
        out, log = Path(folder, "out"), Path(folder, "log")
        with out.open("wb") as file, log.open("wb") as errors:
            try:
                done = subprocess.run(command, stdout=file, stderr=errors, cwd=folder, env=environment, timeout=limit)
                end = ended(done.returncode)
            except subprocess.TimeoutExpired:
                end = f"no answer within {limit:.0f} s"
        lines = [json.loads(line) for line in out.read_text("utf-8").splitlines()]
        return lines, end if lines or not end else f"{end}\n{last_lines(log, 8)}"


def ended(code: int) -> str:
    """Describe in words how a process ended; "" if well."""
    if code >= 0:
        return f"the process ended with exit code {code}" if code else ""
    return f"the process ended by {signal.Signals(-code).name}"


def version_of(library: str) -> str:
    """Return the installed version of a library, "?" if no distribution has its name."""
    for name in (DISTRIBUTIONS.get(library, library), library):
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return "?"
