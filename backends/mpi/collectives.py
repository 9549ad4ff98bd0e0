"""Use MPI as an engine of `islices.distributed`, for arrays of any framework outside of traced code. This module calls
MPI through mpi4py.

MPI's blocking calls wait for ever, and most MPI libraries keep a core busy while they wait. So this module makes
requests that do not block, and polls them until the timeout: at first without a pause, then with short sleeps. Each
pair of ranks exchanges messages with Isend and Irecv, for two reasons. First, MPICH's Allgatherv sends unequal lengths
in small pieces. For 64 MB from one of two ranks, Allgatherv needs 0.4 to 10 s, while Send and Recv need 0.02 to 0.05 s.
Second, the error after a timeout can then list the ranks that did not answer.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from islices.core.host_memory import empty
from islices.distributed.group import Bytes, Group, RankError, RankTimeout

#: The number of seconds to wait for another rank if get_group gets no timeout.
TIMEOUT = 600.0
#: For the first `SPIN` seconds, this rank polls without sleeping, and only yields the core. Later, this rank sleeps for
#: `NAP` seconds between polls, and so uses an eighth of a core. MPICH transfers data only while it is polled. For 64 MB
#: it needs a second with sleeps of 1 ms, and 0.04 s with these sleeps.
SPIN, NAP = 100e-6, 100e-6
#: The tag that distinguishes these messages from the user's messages. Every MPI library allows tags of this size.
TAG = 0x15C5
#: The largest number of bytes that MPI can count before version 4.
LARGEST_INT = 2**31 - 1
#: Environment variables in which launchers store the number of processes.
LAUNCHED = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE")

_offer_core: Callable[[], None] = getattr(os, "sched_yield", lambda: time.sleep(0))
#: Abandoned requests and their arrays, which are kept because MPI may still write to the arrays.
_abandoned: list[Any] = []
#: The key of the MPI attribute in which a communicator stores its MPIGroup. The list is empty until the key exists.
_keyval: list[int] = []


def default_group(timeout: float | None) -> Group:
    """Return the group of all ranks that the launcher has started. Raise ModuleNotFoundError if mpi4py or an MPI
    library is missing. Raise RuntimeError if MPI is not running or rejects calls from this thread, or if mpi4py has
    loaded another MPI library than the launcher's.

    If `timeout` is not None, it becomes the group's timeout in seconds.
    """
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:  # RuntimeError: mpi4py finds no MPI library
        raise ModuleNotFoundError(
            'group "mpi" needs mpi4py and an MPI library: pip install "islices[mpi]" mpich '
            f"({' '.join(str(error).split()):.200})",
            name="mpi4py",
        ) from error
    _check_running(MPI)
    for name in LAUNCHED:
        if MPI.COMM_WORLD.size == 1 and int(os.environ.get(name, "1")) > 1:
            raise RuntimeError(
                f"MPI: the launcher has started {os.environ[name]} processes ({name}), but this one is alone: mpi4py "
                "has loaded another MPI library than the launcher's; take the mpiexec that came with the library"
            )
    return _group_of(MPI.COMM_WORLD, timeout)


def running() -> Group | None:
    """Return the group of all ranks if MPI is running, else None. This function does not import mpi4py.MPI, because the
    import would start MPI."""
    MPI = sys.modules.get("mpi4py.MPI")
    if MPI is None or not MPI.Is_initialized() or MPI.Is_finalized():
        return None
    return _group_of(MPI.COMM_WORLD, None)


def launched() -> bool:
    """Return True if a launcher of MPI has started this process together with others."""
    return any(os.environ.get(name, "1") not in ("", "0", "1") for name in LAUNCHED)


def wrap(x: Any, timeout: float | None) -> Group | None:
    """Return the group for an intracommunicator. Return None for an object that is not a communicator. Raise ValueError
    for an intercommunicator and for MPI.COMM_NULL. Raise RuntimeError if MPI is not running, or rejects calls from this
    thread."""
    from mpi4py import MPI

    if not isinstance(x, MPI.Comm):
        return None
    _check_running(MPI)
    if x == MPI.COMM_NULL:
        raise ValueError("group: got MPI.COMM_NULL; accepted is a communicator that this process belongs to")
    if x.is_inter:
        raise ValueError("group: got an MPI intercommunicator; accepted is an intracommunicator: see its Merge()")
    return _group_of(x, timeout)


def _group_of(communicator: Any, timeout: float | None) -> MPIGroup:
    """Return the MPIGroup of a communicator. The communicator stores this object, so all callers share its errors and
    its traffic."""
    if not _keyval:
        _keyval.append(type(communicator).Create_keyval())
    group: MPIGroup | None = communicator.Get_attr(_keyval[0])
    if group is None:
        group = MPIGroup(communicator)
        communicator.Set_attr(_keyval[0], group)
    if timeout is not None:
        group.timeout = float(timeout)
    return group


def _check_running(MPI: Any) -> None:
    """Raise RuntimeError if MPI is not running, or does not support calls from this thread. Without this check, the
    next call of MPI could end the process."""
    if not MPI.Is_initialized() or MPI.Is_finalized():
        state = "has ended (MPI_Finalize)" if MPI.Is_initialized() else "has not been started: call MPI.Init() first"
        raise RuntimeError(f"MPI {state}")
    if MPI.Query_thread() < MPI.THREAD_SERIALIZED and not MPI.Is_thread_main():
        raise RuntimeError(
            "MPI has been started for calls from its main thread alone; mpi4py.rc.thread_level = 'serialized' lets "
            "another one make them"
        )


def check_counts(version: tuple[int, int], nbytes: int) -> None:
    """Raise ValueError if a message has more bytes than this version of MPI can count."""
    if nbytes > LARGEST_INT and version < (4, 0):
        raise ValueError(
            f"MPI {version[0]}.{version[1]}: {nbytes} bytes in one message; accepted are {LARGEST_INT}: take an MPI "
            "library of version 4 (mpich from 4.0), or fewer rows at a time"
        )


class _LateError(TimeoutError):
    """The error that is raised after the timeout. The error contains the ranks that did not answer."""

    def __init__(self, ranks: set[int]) -> None:
        super().__init__("late")
        self.ranks = ranks


class MPIGroup(Group):
    """The ranks of an intracommunicator.

    The messages have a special tag, but a receive with any tag (``MPI.ANY_TAG``) would also receive them. If your
    program receives with any tag on the communicator, pass a copy of it (``Dup()``) to islices.
    """

    engine = "MPI"

    def __init__(self, communicator: Any) -> None:
        super().__init__(communicator.rank, communicator.size)
        self.communicator = communicator
        self.timeout = TIMEOUT

    def _all_to_all(self, parts: Sequence[Bytes], lengths: Sequence[int]) -> list[Bytes]:
        from mpi4py import MPI

        _check_running(MPI)
        check_counts(MPI.Get_version(), max(*lengths, *map(len, parts)))
        outs = [empty((length,), np.uint8) for length in lengths]
        outs[self.rank] = parts[self.rank]
        others = [(self.rank + step) % self.size for step in range(1, self.size)]  # each rank starts with another one
        sources, to = [r for r in others if lengths[r]], [r for r in others if len(parts[r])]
        requests: list[Any] = []
        try:
            # a generator, so that the list contains the requests that were started even if the next one fails
            requests.extend(self.communicator.Irecv([outs[r], MPI.BYTE], r, TAG) for r in sources)
            requests.extend(self.communicator.Isend([parts[r], MPI.BYTE], r, TAG) for r in to)
            self._wait(requests, [*sources, *to])
        except BaseException:
            _abandoned.append((requests, parts, outs))
            raise
        return outs

    def _wait(self, requests: list[Any], ranks: Sequence[int]) -> None:
        """Wait until all requests are done. Raise _LateError after the timeout. `ranks` contains the other rank of each
        request."""
        from mpi4py import MPI

        started = time.monotonic()
        while not MPI.Request.Testall(requests):
            waited = time.monotonic() - started
            if waited > self.timeout:
                raise _LateError({r for request, r in zip(requests, ranks, strict=True) if not request.Test()})
            if waited < SPIN:
                _offer_core()
            else:
                time.sleep(NAP)

    def _failure_of(self, error: Exception) -> RankError | None:
        if isinstance(error, _LateError):
            ranks = sorted(error.ranks)
            who = f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
            return RankTimeout(f"{self.engine}: {who} did not come within {self.timeout:g} s", ranks=ranks)
        from mpi4py import MPI

        names = ("ERR_PROC_FAILED", "ERR_PROC_FAILED_PENDING", "ERR_PROC_ABORTED", "ERR_REVOKED")  # some may be missing
        gone = {getattr(MPI, name) for name in names if hasattr(MPI, name)}
        if isinstance(error, MPI.Exception) and error.Get_error_class() in gone:
            return RankError(f"{self.engine}: another rank has ended: {error}")
        return None
