"""A run as JSON, with its machine and its records.

    {"form": 2, "date", "islices", "machine": {...}, "threads", "versions": {backend: version}, "seconds",
     "failures": [text], "records": [record]}

A record has "backend", "version", "part", "operation" and "others", the cores that other processes used meanwhile.
Measured records have the "title" of their table, and "milliseconds" and "quartiles" by label. "own" is the
framework's fastest implementation, and a second one if it is faster and does less. "times_as_fast", by label, is
relative to the first of these: the median of the ratios within a round. Some have "limit" {"bytes", "bandwidth",
"milliseconds"}, and "remarks" by label.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
from pathlib import Path

import numpy as np

import islices
from islices.cli import UsageError
from islices.conformance.tools.bench.rounds import Record
from islices.kernels.threads import cores

#: The version of the JSON; readers raise for another one.
FORM = 2


def new_run(threads: int) -> Record:
    """Return a run in which nothing has been measured yet."""
    return {
        "form": FORM,
        "date": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        "islices": islices.__version__,
        "machine": machine(),
        "threads": threads,
        "versions": {},
        "seconds": 0.0,
        "failures": [],
        "records": [],
    }


def machine() -> Record:
    """Return the facts on which a measurement depends: the system, its processor and memory, and the interpreter."""
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": cores(),
        "memory": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "python": platform.python_version(),
        "numpy": np.__version__,
    }


def read_run(path: str) -> Record:
    """Return a run that was written with --json. Raise UsageError for any other file."""
    try:
        run = json.loads(Path(path).read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: {error}") from None
    form = run.get("form") if isinstance(run, dict) else None
    if form != FORM:
        raise UsageError(f"{path}: got form {form!r}; accepted is what `islices bench --json` writes, form {FORM}")
    return run  # type: ignore[no-any-return]


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
