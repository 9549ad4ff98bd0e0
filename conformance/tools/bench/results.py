"""Create and read the JSON record of a benchmark run: the machine, the versions, and all measurements.

    {"form": 2, "date", "islices", "machine": {...}, "threads", "versions": {backend: version}, "seconds",
     "failures": [text], "records": [record]}

A record has "backend", "version", "part", "operation" and "others", the number of cores that other processes used
during the measurement. Measured records have the "title" of their table, the number of "rounds", and "milliseconds" and
"quartiles" by label. "own" lists labels of the framework's calls: first the fastest call that does the same as islices,
if there is one. If a call that does less is even faster, its label follows. "times_as_fast" by label is the median,
over all rounds, of the time of the first label in "own" divided by the time of the label. Some records have
"limit" {"bytes", "bandwidth", "milliseconds"}, "bytes" by kind, "remarks" by label, or "error".
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

#: The version of the JSON form; reading another version raises an error.
FORM = 2


def new_run(threads: int) -> Record:
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
    """Return the facts on which measurements depend: the system, the processor, the number of cores, the memory, and
    the versions of Python and NumPy."""
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": cores(),
        "memory": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "python": platform.python_version(),
        "numpy": np.__version__,
    }


def read_run(path: str) -> Record:
    """Read a run that `islices bench --json` wrote. Raise UsageError if the file cannot be read or has another form."""
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
