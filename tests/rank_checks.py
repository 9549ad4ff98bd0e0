"""What the tests of the engines do on every rank: bytes that no two ranks share, and sums worked out by NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from islices.distributed import Group


def payload(source: int, to: int, length: int) -> Any:
    """The bytes that a rank has for another one: no two alike."""
    return np.random.default_rng([source, to, length]).integers(0, 256, length, np.uint8)


def gathers(group: Group, lengths: Sequence[int]) -> None:
    got = group.all_gather(payload(group.rank, 0, lengths[group.rank]), lengths)
    for rank, length in enumerate(lengths):
        np.testing.assert_array_equal(got[rank], payload(rank, 0, length))


def exchanges(group: Group, lengths: Sequence[Sequence[int]]) -> None:
    """lengths[a][b] bytes from rank a to rank b."""
    parts = [payload(group.rank, to, length) for to, length in enumerate(lengths[group.rank])]
    got = group.all_to_all(parts, [lengths[source][group.rank] for source in range(group.size)])
    for source in range(group.size):
        np.testing.assert_array_equal(got[source], payload(source, group.rank, lengths[source][group.rank]))


def folded(parts: Sequence[tuple[Any, Any]]) -> tuple[Any, Any]:
    """(indices, sums) of (indices, values), left folds in the order given; -0.0 + x is x to the bit."""
    ids = np.concatenate([ids for ids, _ in parts])
    values = np.concatenate([values for _, values in parts])
    distinct, places = np.unique(ids, return_inverse=True)
    sums = np.full((len(distinct), *values.shape[1:]), -0.0, values.dtype)
    np.add.at(sums, places, values)
    return distinct, sums
