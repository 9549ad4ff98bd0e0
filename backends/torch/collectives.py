"""Use torch.distributed as an engine of `islices.distributed`: gloo on the CPU, or nccl on GPUs.

Each pair of ranks exchanges messages with isend and irecv, all pairs at the same time, and messages are not padded.
gloo's collectives have disadvantages. all_gather raises an error if the lengths are unequal. If messages are padded to
one length, all_gather on R ranks may send up to R times as many bytes as the messages contain.
broadcast and all_to_all_single send as many bytes as isend between pairs, but their errors do not show which rank is
missing.
"""

from __future__ import annotations

import datetime
import re
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from islices.core.host_memory import empty
from islices.distributed.group import Bytes, Group, RankError, RankTimeout

#: The tag of all messages that this module sends. Messages of the user have the tag 0 by default. nccl ignores tags.
TAG = 0x15C5

#: process group -> its TorchGroup. All callers with the same process group share one TorchGroup, so they share its
#: errors and its traffic.
_groups: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


def default_group(timeout: float | None) -> Group:
    """Return the group of all ranks. If torch.distributed is not initialized in this process, raise RuntimeError.

    If `timeout` is not None, it becomes the group's timeout in seconds.
    """
    if running() is None:
        raise RuntimeError(
            "torch.distributed has not been started on this process: call torch.distributed.init_process_group(...) "
            "first (torchrun sets what it needs), or give group="
        )
    return _group_of(dist.group.WORLD, timeout)


def running() -> Group | None:
    """Return the group of all ranks, or None if torch.distributed is not initialized in this process."""
    return _group_of(dist.group.WORLD, None) if dist.is_available() and dist.is_initialized() else None


def wrap(x: Any, timeout: float | None) -> Group | None:
    """Return the group for a ProcessGroup or a one-dimensional DeviceMesh. Return None for any other object.

    Raise ValueError for a DeviceMesh with several dimensions. If `timeout` is not None, it becomes the group's timeout
    in seconds.
    """
    if not dist.is_available():
        return None
    from torch.distributed.device_mesh import DeviceMesh

    if isinstance(x, DeviceMesh):
        if x.ndim != 1:
            raise ValueError(
                f"group: got a DeviceMesh of {x.ndim} dimensions; accepted is one of 1: mesh[name], for example"
            )
        x = x.get_group()
    return _group_of(x, timeout) if isinstance(x, dist.ProcessGroup) else None


def _group_of(process_group: Any, timeout: float | None) -> TorchGroup:
    group = _groups.get(process_group)
    if group is None:
        group = _groups[process_group] = TorchGroup(process_group)
    if timeout is not None:
        group.timeout = timeout
    return group


class _EngineError(RuntimeError):
    """An error of torch.distributed, without the source location and the advice in torch's message. `ranks` contains
    the other rank of the transfer that failed. For nccl, `ranks` is empty."""

    def __init__(self, error: RuntimeError, ranks: Sequence[int]) -> None:
        super().__init__(re.sub(r"^\[\S*\] *|\.? This is typically caused .*$", "", str(error), flags=re.DOTALL))
        self.ranks = tuple(ranks)


class TorchGroup(Group):
    """The ranks of a process group. The group's CPU backend sends the bytes. If the group has no CPU backend, its GPU
    backend sends them.

    The default timeout is the timeout of the process group (``init_process_group(timeout=)``). If nccl is the only
    backend, the bytes are copied to the current CUDA device and back. If a rank is late, nccl's watchdog ends the
    process, or nccl raises an error if ``TORCH_NCCL_BLOCKING_WAIT=1`` is set. So prefer a process group with the
    backends "cpu:gloo,cuda:nccl". The code for nccl was written from torch's documentation, and has not been run.
    """

    def __init__(self, process_group: Any) -> None:
        super().__init__(dist.get_rank(process_group), dist.get_world_size(process_group))
        engines = dict(pair.split(":") for pair in dist.get_backend_config(process_group).split(","))
        device = "cpu" if "cpu" in engines else next(iter(engines))
        self.engine = f"torch.distributed ({engines[device]})"
        self.timeout: float | None = None
        #: The sends and receives that have been started, each with the other rank (with no rank for nccl). After one
        #: of them fails, the others continue, so that healthy ranks get their data and do not report this rank as
        #: missing.
        self._pending: list[tuple[Any, tuple[int, ...]]] = []
        self._device = torch.device(device)  # without a device number, the current device
        self._process_group = weakref.ref(process_group)  # a weak reference, so that the process group can end first
        self._global = [dist.get_global_rank(process_group, rank) for rank in range(self.size)]

    @property
    def process_group(self) -> Any:
        """Return torch's process group. Raise RuntimeError if the process group has been destroyed."""
        found = self._process_group()
        if found is None:
            raise RuntimeError(f"{self.engine}: this process group has been destroyed")
        return found

    def _all_to_all(self, parts: Sequence[Bytes], lengths: Sequence[int]) -> list[Bytes]:
        others = [(self.rank + step) % self.size for step in range(1, self.size)]  # each rank starts with the next one
        to = [r for r in others if len(parts[r])]
        staged = {}  # all parts may be the same array
        for part in (parts[r] for r in to):  # torch would warn about read-only bytes
            writable = part if part.flags.writeable else part.copy()
            staged[id(part)] = torch.from_numpy(writable).to(self._device)
        outs = {r: self._empty(lengths[r]) for r in others if lengths[r]}
        # Wait for sends first. If a rank dies during a transfer, gloo usually reports this immediately to ranks that
        # send to it, but only after the timeout to ranks that receive from it.
        sends = [(dist.isend, staged[id(parts[r])], r) for r in to]
        self._run([*sends, *((dist.irecv, out, r) for r, out in outs.items())])
        nothing = np.empty(0, np.uint8)
        got = [outs[r].cpu().numpy() if r in outs else nothing for r in range(self.size)]
        got[self.rank] = parts[self.rank]
        return got

    def _empty(self, length: int) -> torch.Tensor:
        if self._device.type == "cpu":
            return torch.from_numpy(empty((length,), np.uint8))
        return torch.empty(length, dtype=torch.uint8, device=self._device)

    def _run(self, moves: Sequence[tuple[Callable[..., Any], torch.Tensor, int]]) -> None:
        """Start all sends and receives, and wait until all are done. Each item of `moves` is (isend or irecv, the
        tensor, the other rank).

        Raise `_EngineError` for the first send or receive that fails.
        """
        group = self.process_group
        failed: list[_EngineError] = []
        if self._device.type == "cpu":
            for move, x, rank in moves:
                try:
                    self._pending.append((move(x, self._global[rank], group, TAG), (rank,)))
                except RuntimeError as error:  # other ranks still wait for this rank's data
                    failed.append(_EngineError(error, (rank,)))
        elif moves:  # nccl returns one work object for all moves
            ops = [dist.P2POp(move, x, self._global[rank], group, TAG) for move, x, rank in moves]
            self._pending = [(work, ()) for work in dist.batch_isend_irecv(ops)]
        if failed:
            raise failed[0]
        for work, ranks in self._pending:
            try:
                work.wait() if self.timeout is None else work.wait(datetime.timedelta(seconds=self.timeout))
            except RuntimeError as error:
                raise _EngineError(error, ranks) from error
        self._pending = []

    def _failure_of(self, error: Exception) -> RankError | None:
        if not isinstance(error, _EngineError):
            return None
        who = f"rank {error.ranks[0]}" if error.ranks else "another rank"
        if re.search("timed out|timeout", str(error), re.IGNORECASE):
            return RankTimeout(f"{self.engine}: {who} did not come in time: {error}", ranks=error.ranks)
        return RankError(f"{self.engine}: {who} has ended, or given up waiting: {error}", ranks=error.ranks)
