"""Groupings that are kept: used for equal indices alone, whatever was written in between, and few."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

operations: Any = pytest.importorskip("islices.kernels.operations", reason="numba is not installed")
from islices.kernels import recent  # noqa: E402

N = operations.ROUSED


def test_equal_indices_are_grouped_once() -> None:
    ids = np.random.default_rng(0).integers(0, 50, N)
    first = operations.group(ids)
    assert operations.group(ids) is first
    assert operations.group(ids[:-1]) is not first


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_what_is_written_in_between_is_seen(dtype: str) -> None:
    ids = np.random.default_rng(1).integers(0, 50, N).astype(dtype)
    for position in (0, N // 2, N - 1):
        operations.group(ids)
        ids[position] = 77 + position
        order, found, starts = operations.group(ids)
        assert np.array_equal(found, np.unique(ids))
        assert np.array_equal(order, np.argsort(ids, kind="stable"))
        assert np.array_equal(np.diff(starts), np.unique(ids, return_counts=True)[1])
    other = ids.view("int32" if dtype == "int64" else "int64")[: len(ids)]
    if len(other) == len(ids) and other.min() >= 0:
        assert np.array_equal(operations.group(other)[1], np.unique(other))


def test_few_are_kept() -> None:
    held = [np.random.default_rng(k).integers(0, 50, N) for k in range(2 * recent.MOST // N)]
    for ids in held:
        operations.group(ids)
    assert sum(len(x) for x, _ in recent._kept.values()) <= recent.MOST
    assert recent.find(held[-1]) is not None
    assert recent.find(held[0]) is None
    large = np.zeros(recent.MOST + 1, np.int64)
    operations.group(large)
    assert recent.find(large) is None
