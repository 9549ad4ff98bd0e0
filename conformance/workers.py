"""Run worker processes, and read their output during or after a run."""

from __future__ import annotations

import importlib.metadata
import json
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

#: library -> a distribution of the library with another name
DISTRIBUTIONS = {"tensorflow": "tensorflow-cpu", "fbgemm_gpu": "fbgemm-gpu-cpu", "paddle": "paddlepaddle"}


def whole_lines(path: Path, position: int) -> bytes:
    """Return the complete lines of a growing file, starting at byte `position`. If the file does not exist yet, return
    b""."""
    if not path.exists():
        return b""
    with path.open("rb") as file:
        file.seek(position)
        news = file.read()
    return news[: news.rfind(b"\n") + 1]


def last_lines(path: Path, count: int) -> str:
    """Return the last lines of a log. Bytes that are not UTF-8 are replaced."""
    return "\n".join(path.read_text("utf-8", "replace").splitlines()[-count:])


def run_worker(
    command: Sequence[str], environment: Mapping[str, str], limit: float
) -> tuple[list[dict[str, Any]], str]:
    """Run a process that prints JSON lines, and return (the lines, a description of the process's end).

    The description is "" if the process ended with exit code 0. If the process printed no line, a nonempty description
    also contains the end of standard error. `limit` is in seconds.
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
    """Describe how a process ended, given its exit code; return "" for exit code 0."""
    if code >= 0:
        return f"the process ended with exit code {code}" if code else ""
    return f"the process ended by {signal.Signals(-code).name}"


def version_of(library: str) -> str:
    """Return the installed version of a library, or "?" if its distribution is not found."""
    for name in (DISTRIBUTIONS.get(library, library), library):
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return "?"
