"""numba: its types, and its threads where several threads or processes call."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

import numba
import numpy as np

from islices.conformance.operations import UnsupportedError
from islices.conformance.tools.audit.probe import Probe

KERNELS = "islices' own functions: their kernels survive several callers, and forks"
X = np.ones(100_000)


def total(layer: str) -> Any:
    """Return a compiled parallel sum that runs on the threads of that layer."""
    numba.config.THREADING_LAYER = layer

    @numba.njit(parallel=True)  # type: ignore[untyped-decorator]
    def summed(x: Any) -> float:
        out = 0.0
        for k in numba.prange(len(x)):
            out += x[k]
        return out

    try:
        summed(X)
    except ValueError as error:
        raise UnsupportedError(f"numba has no {layer} threads here") from error
    return summed


def called_by_four() -> Any:
    summed = total("workqueue")
    callers = [threading.Thread(target=lambda: [summed(X) for _ in range(1000)]) for _ in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    return summed(X)


def forked() -> str:
    summed = total("omp")
    child = os.fork()
    if child == 0:
        summed(X)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    return f"it is killed by {signal.Signals(status).name}" if os.WIFSIGNALED(status) else "it goes on"


# fmt: off
PROBES = [
    Probe("numba.njit over float16", "1", "it has no 16-bit floats", "islices.coalesce(gradient)",
          "x[0]", lambda: numba.njit(lambda x: x[0])(np.ones(2, np.float16)), 1, "raises"),
    Probe("numba.njit(parallel=True), workqueue threads, several callers", "20", "two callers at once end the process",
          KERNELS, "four Python threads", called_by_four, 100_000, "corrupts", "numba/numba#9327", True),
    Probe("numba.njit(parallel=True), OpenMP threads, os.fork", "20",
          "a forked child, for instance of a data loader, is killed at its first parallel call",
          KERNELS, "a child that sums", forked, "it goes on", isolated=True),
]
