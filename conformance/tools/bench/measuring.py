"""One process of the bench: ``python -m islices.conformance.tools.bench.measuring JOB``.

It measures the part and the backend in the JSON argument, and prints each record as a line of JSON.
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
    """Measure the part that the job names, whose module has `run(job, emit)`."""
    job = json.loads(text)
    name, threads = job["backend"], job["threads"]
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, cores[:threads])  # which every framework's pool of threads looks at as well
    islices.config.set_num_threads(threads)
    version, others = islices.get_backend(name).version(), Others()

    def emit(**found: Any) -> None:
        # a line of its own, whatever a framework has written meanwhile
        record = {"backend": name, "version": version, "part": job["part"], "others": others.cores(), **found}
        print("\n" + json.dumps(record), flush=True)

    importlib.import_module(f"islices.conformance.tools.bench.{job['part']}").run(job, emit)
    sys.stdout.flush()
    os._exit(0)  # not by way of the interpreter's end, where frameworks' threads may wait


if __name__ == "__main__":
    main(sys.argv[1])
