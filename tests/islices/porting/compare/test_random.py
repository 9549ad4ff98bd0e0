"""Test that `islices.diff` names no wrong cause. The differences are, for example, rounding noise, or have few elements
or few bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import islices
from islices import IndexedSlices


def slices(r: np.random.Generator, n: int, row: tuple[int, ...], ids: Any, dtype: str, rows: int) -> IndexedSlices:
    return IndexedSlices(r.standard_normal((n, *row)).astype(dtype), np.asarray(ids, np.int64), (rows, *row))


@pytest.mark.parametrize("duplicates", [False, True], ids=["coalesced", "duplicates"])
def test_noise_of_a_few_ulps_is_rounding_and_no_cause(duplicates: bool) -> None:
    for seed, dtype, ulps in ((0, "float32", 1), (1, "float32", 4), (2, "float64", 4)):
        r = np.random.default_rng(seed)
        ids = r.integers(0, 50, 120) if duplicates else r.permutation(200)[:120]
        a = slices(r, 120, (6,), ids, dtype, 200)
        c = islices.coalesce(a)
        noise = r.integers(-ulps, ulps + 1, c.values.shape)
        b = c.replace(values=(c.values + noise * np.spacing(c.values)).astype(dtype))
        found = islices.diff(a, b)
        assert not found.equal
        assert found.rounding
        assert found.causes == (), str(found)


def test_what_holds_for_one_tensor_and_not_for_the_others_is_no_cause() -> None:
    """Check that a factor is a cause only if it holds for all tensors, because a loss or a clip scales all of them."""
    r = np.random.default_rng(4)
    a = {name: slices(r, 40, (4,), r.permutation(90)[:40], "float32", 90) for name in "uvw"}
    b = {"u": a["u"] * 0.5, "v": a["v"] * 0.25, "w": a["w"]}
    assert islices.diff(a, b, batch_size=2, tokens=4).causes == ()
    assert islices.diff(a, {**a, "u": a["u"] * -1}).causes == ()


def test_a_factor_in_few_bits_is_not_given_a_name_it_may_not_have() -> None:
    """Check that a division by 8.1 in float16 is not reported as a mean over a batch of 8."""
    for seed in range(20):
        r = np.random.default_rng(seed)
        a = slices(r, 60, (6,), r.permutation(90)[:60], "float16", 90)
        found = islices.diff(a, a.replace(values=(a.values / np.float16(8.1)).astype("float16")), batch_size=8)
        assert [e.names for e in found.causes] == [("factor",)], str(found)


def test_an_infinity_is_near_nothing_else() -> None:
    """Check that an infinity on one side does not count as rounding. If both sides have the infinity, other elements
    may differ by rounding."""
    a = np.random.default_rng(0).standard_normal((20, 4)).astype("f4")
    b, c = a.copy(), np.nextafter(a, np.float32(9))
    a[3, 1] = c[3, 1] = np.inf
    for x, y in ((a, b), (b, a), (a, b / np.float32(8)), (b, a / np.float32(8))):
        found = islices.diff(x, y, batch_size=8)
        assert (found.rounding, found.causes) == (False, ()), str(found)
    assert islices.diff(a, c).rounding


def test_one_element_is_never_enough() -> None:
    """Check that one element never proves a cause. By chance, any number may be half of another, or its negative."""
    a = IndexedSlices(np.array([[0.123456789012345]]), np.array([3]), (5, 1))
    for b in (a * -1, a * 0.5, IndexedSlices(a.values, a.indices + 1, (5, 1))):
        assert islices.diff(a, b, batch_size=2).causes == ()
