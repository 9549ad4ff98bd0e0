"""Checks of engines on every rank, with different bytes on each rank and expected sums from NumPy."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from islices.distributed import Group

SIZE = 4


def meet(folder: str, group: Group) -> None:
    """Write a file for this rank, and wait until every rank has written a file.

    A rank may receive its bytes of a collective before it has sent all bytes to the others. So a rank that is about to
    be killed waits for files that show that all ranks have finished the last collective.
    """
    (Path(folder) / str(group.rank)).touch()
    deadline = time.monotonic() + 60
    while len(list(Path(folder).iterdir())) < group.size:
        assert time.monotonic() < deadline, "some rank did not come"
        time.sleep(0.005)


def payload(source: int, to: int, length: int) -> Any:
    """Return the bytes that one rank sends to another rank. The bytes differ from pair to pair."""
    return np.random.default_rng([source, to, length]).integers(0, 256, length, np.uint8)


def gathers(group: Group, lengths: Sequence[int]) -> None:
    got = group.all_gather(payload(group.rank, 0, lengths[group.rank]), lengths)
    for rank, length in enumerate(lengths):
        np.testing.assert_array_equal(got[rank], payload(rank, 0, length))


def exchanges(group: Group, lengths: Sequence[Sequence[int]]) -> None:
    """Exchange lengths[a][b] bytes from each rank a to each rank b, and check the received bytes."""
    parts = [payload(group.rank, to, length) for to, length in enumerate(lengths[group.rank])]
    got = group.all_to_all(parts, [lengths[source][group.rank] for source in range(group.size)])
    for source in range(group.size):
        np.testing.assert_array_equal(got[source], payload(source, group.rank, lengths[source][group.rank]))


# ---------------------------------------------------------------------- bytes, on four ranks
def check_unequal_lengths(group: Group) -> None:
    gathers(group, [5, 0, 100_003, 1])
    gathers(group, [0, 0, 0, 1])
    gathers(group, [0, 0, 0, 0])
    gathers(group, [1, 1, 1, 1])
    exchanges(group, [[1, 2, 3, 4], [0, 0, 0, 0], [100_003, 0, 1, 0], [0, 7, 0, 8]])
    exchanges(group, [[0] * SIZE] * SIZE)


def check_many_bytes(group: Group) -> None:
    gathers(group, [1 << 24, 3, 1 << 24, 0])
    exchanges(group, [[0, 1 << 24, 0, 9]] + [[1 << 20] * SIZE] * 3)


def check_traffic(group: Group) -> None:
    group.traffic.reset()
    gathers(group, [5, 0, 100, 1])
    mine = [5, 0, 100, 1][group.rank]
    assert (group.traffic.sent, group.traffic.received) == (3 * mine, 106 - mine)


# ---------------------------------------------------------------------- sums of (values, indices)
def wide(x: Any) -> Any:
    return x.astype(np.float32) if x.dtype.itemsize == 2 else x


def left_fold(values: Any, indices: Any) -> tuple[Any, Any]:
    """Return (sums, rows), with ascending rows. The slices of a row are added in order of occurrence (SPEC clauses 3
    and 4)."""
    rows, place = np.unique(indices, return_inverse=True)
    sums = np.zeros((len(rows), *values.shape[1:]), wide(values).dtype)
    np.add.at(sums, place, wide(values))
    return sums.astype(values.dtype), rows


def over_ranks(parts: Sequence[tuple[Any, Any]]) -> tuple[Any, Any]:
    """Return the sparse result that SPEC clause 25 requires for the ranks' parts."""
    folded = [left_fold(*part) for part in parts]
    return left_fold(np.concatenate([v for v, _ in folded]), np.concatenate([i for _, i in folded]))


def dense_over_ranks(parts: Sequence[Any]) -> Any:
    """Return the dense result that SPEC clause 25 requires for the ranks' arrays."""
    total = wide(parts[0])
    for part in parts[1:]:
        total = total + wide(part)
    return total.astype(parts[0].dtype)


def mean(x: Any, ranks: int) -> Any:
    return (wide(x) / wide(x).dtype.type(ranks)).astype(x.dtype)
