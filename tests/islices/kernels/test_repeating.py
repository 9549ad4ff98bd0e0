"""Test a step that reuses the grouping of indices which a norm has computed. The step has NumPy's bits, even if indices
change in between."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from comparing import assert_same

import islices
from islices import IndexedSlices
from islices.kernels import repeating

pytest.importorskip("numba")

COUNT, ROWS = repeating.FEWEST, 300


def slices() -> IndexedSlices:
    rng = np.random.default_rng(5)
    return IndexedSlices(rng.standard_normal((COUNT, 3), np.float32), rng.integers(0, ROWS, COUNT), (ROWS, 3))


def stepped(between: Callable[[IndexedSlices], Any], s: IndexedSlices) -> list[np.ndarray[Any, Any]]:
    table = np.ones((ROWS, 3), np.float32)
    optimizer = islices.optim.adam(0.1)
    state = optimizer.init(table)
    clipped, _ = islices.clip_by_global_norm([s], 0.5)
    between(clipped[0])
    table, state = optimizer.step(table, clipped[0], state)
    return [table, state["m"], state["v"]]


def changed(s: IndexedSlices) -> None:
    s.indices[7] = (int(s.indices[7]) + 1) % ROWS  # not one of the indices by which kernels recognise the groups


@pytest.mark.parametrize("between", [lambda s: None, changed, lambda s: islices.coalesce(s)])
def test_a_step_after_a_norm_has_the_bits_of_numpy(between: Callable[[IndexedSlices], Any]) -> None:
    got = stepped(between, slices())
    with islices.config.use_kernels(False):
        assert_same(got, stepped(between, slices()))
