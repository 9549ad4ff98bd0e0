"""Test slices whose values are computed when they are first read. Results have the bits of ordinary slices."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
from comparing import assert_same

import islices
from islices import IndexedSlices, optim
from islices.backend import Slots
from islices.core.slots import SlotValues, slots_in

ROWS, WIDTH = 12, 3
POSITIONS = {"mixed": [2, 0, 1, 0, 2, 1], "none": []}
DTYPES = ("float16", "float32")


def deferred(
    positions: str, dtype: str, index: str, factor: float | None = None
) -> tuple[IndexedSlices, IndexedSlices]:
    """Return slices whose values are not computed yet, and the same slices with computed values. Rows repeat, and some
    cancel."""
    rng = np.random.default_rng(3)
    base = rng.standard_normal((3, WIDTH)).astype(dtype)
    base[1] = -base[0]
    places = np.array(POSITIONS[positions], np.int32)
    indices = rng.integers(0, 4, len(places)).astype(index)
    values = base[places]
    if factor is not None:
        wide = np.float32 if dtype == "float16" else dtype
        values = (values.astype(wide) * np.asarray(factor, wide)).astype(dtype)
    slots = Slots(base, indices, ROWS, places, factor)
    backend = islices.get_backend("numpy")
    return IndexedSlices._trusted(backend, SlotValues(slots), indices, (ROWS, WIDTH)), IndexedSlices(
        values, indices, (ROWS, WIDTH)
    )


def steps() -> list[Any]:
    return [optim.adagrad(0.1, frozen=[1]), optim.adam(0.1, semantics="keras", rows="all", duplicates="raw")]


@pytest.mark.parametrize("kernels", [True, False])
@pytest.mark.parametrize("factor", [None, 0.37])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("positions", POSITIONS)
def test_nothing_shows_whether_values_are_there(
    positions: str, dtype: str, factor: float | None, kernels: bool
) -> None:
    for index in ("int32", "int64"):
        with islices.config.use_kernels(kernels):
            for operation in (islices.norm, islices.coalesce, islices.to_dense, lambda s: s.values):
                late, now = deferred(positions, dtype, index, factor)
                assert_same(operation(late), operation(now))
            late, now = deferred(positions, dtype, index, factor)
            assert_same(islices.clip_by_global_norm([late], 0.5), islices.clip_by_global_norm([now], 0.5))
            left = slots_in(late)
            assert left is None or left.factor == factor, "what is clipped stays"
            for optimizer in (
                steps() if (index, dtype) == ("int32", "float32") else ()
            ):  # a kernel needs a second to compile
                late, now = deferred(positions, dtype, index, factor)
                results = []
                for s in (late, now):
                    table = np.random.default_rng(4).standard_normal((ROWS, WIDTH)).astype(dtype)
                    results.append(optimizer.step(table, s, optimizer.init(table)))
                assert_same(*results)


def test_values_are_computed_once_and_are_the_callers() -> None:
    s, _ = deferred("mixed", "float32", "int64", 2.0)
    assert (s.dtype, s.shape, repr(s)) == (
        np.float32,
        (ROWS, WIDTH),
        "IndexedSlices(n=6, dense_shape=(12, 3), float32, int64, numpy)",
    )
    assert slots_in(s) is not None, "looking at it computes nothing"
    clipped = islices.clip_by_norm([s], 0.1)
    values = s.values
    assert values is s.values
    values[:] = 0.0  # in place, like the values of other slices
    assert float(islices.norm(s)) == 0.0
    assert float(islices.norm(clipped[0])) > 0.0, "what was made of it before keeps its own"
    with pytest.raises(AttributeError, match="no attribute 'value'"):
        _ = s.value


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda s: pickle.loads(pickle.dumps(s))])
def test_copies_hold_values(copied: Any) -> None:
    late, now = deferred("mixed", "float32", "int64", 0.5)
    assert_same(copied(late), now)
