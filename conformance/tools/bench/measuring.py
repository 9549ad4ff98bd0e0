"""Run one measuring process of the bench: ``python -m islices.conformance.tools.bench.measuring JOB``.

JOB is JSON with the part, the backend and the settings of the measurement. The process prints each record as a line of
JSON.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from typing import Any

import islices
from islices.conformance.tools.bench.load import Others


def main(text: str) -> None:
    """Measure the part that the job names, with the function `run(job, emit)` of the part's module."""
    job = json.loads(text)
    name, threads = job["backend"], job["threads"]
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, cores[:threads])  # limits the frameworks' thread pools as well
    islices.config.set_num_threads(threads)
    version, others = islices.get_backend(name).version(), Others()

    def emit(**found: Any) -> None:
        # on a new line, because a framework may have written a part of a line
        record = {"backend": name, "version": version, "part": job["part"], "others": others.cores(), **found}
        print("\n" + json.dumps(record), flush=True)

    importlib.import_module(f"islices.conformance.tools.bench.{job['part']}").run(job, emit)
    sys.stdout.flush()
    os._exit(0)  # skip the interpreter's exit, where threads of frameworks may hang


if __name__ == "__main__":
    main(sys.argv[1])
