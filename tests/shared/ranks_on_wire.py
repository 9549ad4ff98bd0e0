"""What ranks run for tests/islices/distributed/test_ranks.py: all_reduce and all-gather of raw slices, and bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import islices
from islices.distributed import Group, all_reduce
from islices.distributed.wire import pack

ROWS, DIM, ZIPF, COUNT, ROUNDS = 10**6, 64, 1.1, 32_768, 3


def zipf_slices(rank: int) -> Any:
    """A batch's gradient: ids of rank k drawn with probability proportional to k^-ZIPF."""
    r = np.random.default_rng(rank)
    reached = np.cumsum(np.arange(1, ROWS + 1) ** -ZIPF)
    ids = np.searchsorted(reached, r.random(COUNT) * reached[-1])
    return islices.IndexedSlices(r.standard_normal((COUNT, DIM), np.float32), ids, (ROWS, DIM))


def loopback_bytes() -> int:
    """Bytes that the loopback interface has carried; 0 where the system does not tell."""
    path = Path("/proc/net/dev")
    if not path.exists():
        return 0
    (line,) = (line for line in path.read_text().splitlines() if line.strip().startswith("lo:"))
    return int(line.split(":")[1].split()[0])


def found_by_its_arrays() -> list[Any]:
    """all_reduce without group=, of a sparse and a dense tensor: the engine of the leaves' framework."""
    import torch

    rank = torch.distributed.get_rank()
    x = {"w": torch.sparse_coo_tensor([[rank, 3]], torch.ones(2, 2), (5, 2)), "b": torch.ones(2)}
    out = all_reduce(x)
    return [out["w"].is_coalesced(), out["w"].to_dense().tolist(), out["b"].tolist()]


def by_arrays_and_by_bytes(group: Group) -> tuple[list[Any], dict[str, tuple[int, int]]]:
    return found_by_its_arrays(), weigh(group)


def weigh(group: Group) -> dict[str, tuple[int, int]]:
    """way -> (payload bytes that this rank received, bytes over the loopback meanwhile): the least of some rounds,
    since whatever else runs on this machine counts as well."""
    s = zipf_slices(group.rank)
    sent = pack([s.values, s.indices])
    nothing = np.zeros(1, np.uint8)
    ways = {"raw": lambda: group.all_gather(sent), "all_reduce": lambda: all_reduce(s, group=group)}
    found: dict[str, tuple[int, int]] = {}
    for _ in range(ROUNDS):
        for name, way in ways.items():
            group.all_gather(nothing)
            before = loopback_bytes()
            group.all_gather(nothing)  # nobody begins before all have looked
            group.traffic.reset()
            way()
            payload = group.traffic.received
            group.all_gather(nothing)  # all have everything
            wire = loopback_bytes() - before
            group.all_gather(nothing)
            found[name] = (payload, min(wire, found[name][1]) if name in found else wire)
    return found
