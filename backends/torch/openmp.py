"""Run compiled kernels in the threads that torch uses.

After an operation, OpenMP's threads spin for some milliseconds while they wait for the next operation, unless
OMP_WAIT_POLICY is PASSIVE. If kernels used separate threads, the spinning threads would occupy cores that the kernels
need. So if the main thread calls a kernel, the kernel runs in the main thread's team. The team consists of the OpenMP
threads that run torch's operations for the main thread. All other Python threads have separate teams, which may not
exist yet. If another thread calls a kernel, or if `serves` returns False for another reason, the kernel runs in the
pool of `islices.kernels.threads`. This pool also runs the kernels in a forked child process, and if torch's OpenMP has
no GOMP_parallel. May import: `torch`, `islices.kernels.threads`.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from islices.kernels.threads import share

_Work: Any = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def _entry() -> Any:
    """Return GOMP_parallel, the OpenMP function that torch's libraries call, or None if the process does not have it.
    Intel's and LLVM's OpenMP also have this function. Also return None if torch was built without OpenMP."""
    if not torch.backends.openmp.is_available():
        return None
    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    for name in (None, str(library)):  # None searches the whole process first, as torch's libraries do
        try:
            entry = ctypes.CDLL(name).GOMP_parallel
        except (OSError, AttributeError, TypeError):  # TypeError: Windows rejects the name None
            continue
        entry.argtypes, entry.restype = (_Work, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint), None
        return entry
    return None


def serves() -> bool:
    """Return True if kernels that this thread calls run in the main thread's team. The thread must be the main thread,
    torch must use at least two threads, and the interpreter must not be ending."""
    main = threading.get_ident() == threading.main_thread().ident and not sys.is_finalizing()
    return main and torch.get_num_threads() > 1


def run_shared(work: Callable[[], None], threads: int) -> bool:
    """Run work() in at most `threads` threads of the main thread's team, and return True. If work() raises an error,
    raise this error.

    Raise MemoryError if no thread could begin work(). If `serves` returns False, run nothing and return False.
    """
    if not serves():
        return False
    team = torch.get_num_threads()  # with a different number, OpenMP would end or start threads
    tickets = itertools.count()
    # the lists have an element from the start, because an append or the call from C may fail if memory is short
    result: list[BaseException | None] = [MemoryError("no thread could begin its part of a kernel's work")]
    failed: list[BaseException | None] = [None]

    def one(_: Any) -> None:
        try:
            if next(tickets) < threads:
                work()
                result[0] = None
        except BaseException as error:  # no exception may pass through C
            failed[0] = error

    _parallel(_Work(one), None, team, 0)
    for error in (failed[0], result[0]):
        if error is not None:
            raise error
    return True


def lend() -> None:
    """Make kernels run in torch's threads whenever `serves` returns True, provided that torch's OpenMP has
    GOMP_parallel."""
    if _parallel is not None:
        share(run_shared, serves)


_parallel = _entry()
if _parallel is not None:
    # a forked child does not have the team's threads, so a call would never return
    os.register_at_fork(after_in_child=lambda: share(None))
