"""MPI, through mpi4py, as an engine of `islices.distributed`: for NumPy, for MXNet, for whoever asks for it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from islices.distributed.group import Bytes, Group, RankError, RankTimeout

__all__ = ["MPIGroup", "default_group", "wrap"]

#: Seconds to wait for another rank: MPI itself would wait for ever.
TIMEOUT = 600.0


def default_group(timeout: float | None) -> Group:
    try:
        from mpi4py import MPI
    except ImportError as error:
        raise ModuleNotFoundError(
            f'group "mpi" needs mpi4py and an MPI library: pip install "islices[mpi]" mpich ({error})', name="mpi4py"
        ) from error
    return MPIGroup(MPI.COMM_WORLD, timeout)


def wrap(x: Any, timeout: float | None) -> Group | None:
    from mpi4py import MPI

    return MPIGroup(x, timeout) if isinstance(x, MPI.Intracomm) else None


class MPIGroup(Group):
    """The ranks of an intracommunicator."""

    engine = "MPI"

    def __init__(self, communicator: Any, timeout: float | None = None) -> None:
        super().__init__(communicator.rank, communicator.size)
        self.communicator = communicator
        self.timeout = TIMEOUT if timeout is None else float(timeout)

    def _all_gather(self, data: Bytes, lengths: Sequence[int]) -> list[Bytes]:
        from mpi4py import MPI

        out = np.empty(sum(lengths), np.uint8)
        self._wait(self.communicator.Iallgatherv([data, MPI.BYTE], [out, list(lengths), MPI.BYTE]))
        return np.split(out, np.cumsum(lengths)[:-1])

    def _all_to_all(self, parts: Sequence[Bytes], lengths: Sequence[int]) -> list[Bytes]:
        from mpi4py import MPI

        mine, out = np.concatenate(parts), np.empty(sum(lengths), np.uint8)
        sizes = [len(p) for p in parts]
        self._wait(self.communicator.Ialltoallv([mine, sizes, MPI.BYTE], [out, list(lengths), MPI.BYTE]))
        return np.split(out, np.cumsum(lengths)[:-1])

    def _wait(self, request: Any) -> None:
        until = time.monotonic() + self.timeout
        while not request.Test():
            if time.monotonic() > until:
                raise TimeoutError(f"nothing came for {self.timeout:g} s")
            time.sleep(0)  # another rank may need this core

    def _what_failed(self, error: Exception) -> RankError | None:
        if isinstance(error, TimeoutError):
            return RankTimeout(f"{self.engine}: another rank did not come in time: {error}")
        return RankError(f"{self.engine}: {error}")
