"""Compare norms with exact arithmetic (SPEC clause 7). Compiled kernels and NumPy compute the norms."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import islices
from islices import IndexedSlices
from islices.kernels.squares import BLOCK
from tests.shared.tied import exact_norm, tied


def check_norm(x: np.ndarray[Any, Any], ord: int = 2) -> None:
    """Check that the float64 norm of `x` is right to the last bit, with and without kernels. `x` is given as an array,
    as slices, and as two halves."""
    expected, ids = exact_norm(x, ord), np.random.default_rng(0).permutation(len(x))
    sliced = IndexedSlices(x[ids, None], ids, (len(x), 1))
    half = len(x) // 2
    for on in (True, False):
        with islices.config.use_kernels(on):
            for leaves in ([x], [sliced], [x[:half], IndexedSlices(x[half:, None], ids[half:], (len(x), 1))]):
                found = islices.global_norm([*leaves, np.zeros(1)], ord)  # float64, like the last leaf
                assert found == expected, (x.tolist()[:9], ord, on)


@pytest.mark.parametrize("ord", [1, 2])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_sums_on_midpoints_and_next_to_them(dtype: str, ord: int) -> None:
    rng = np.random.default_rng(ord)
    for _ in range(25):
        check_norm(tied(rng, dtype, ord, 48), ord)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_wide_ranges_and_blocks_of_different_size(dtype: str) -> None:
    rng = np.random.default_rng(0)
    limit = 120 if dtype == "float32" else 500
    for spread in (0, 40, limit):
        for n in (1, 100, BLOCK + 1):
            x = np.ldexp(rng.uniform(-1, 1, n), rng.integers(-spread, spread + 1, n))
            check_norm(x.astype(dtype))
    for small in (2.0**-26, 2.0**-100):  # with 2^-26, the first block counts next to the others
        x = rng.standard_normal(2 * BLOCK + 7)
        x[:BLOCK] *= small
        check_norm(x.astype(dtype))


def test_the_ends_of_float64() -> None:
    largest = np.finfo(float).max
    for x in ([largest / 2] * 3, [5e-324] * 3, [1.0, 2.0**-27, 2.0**-27, 5e-324], [0.0, 0.0], [-1e-308, 1e-310]):
        for ord in (1, 2):
            check_norm(np.array(x), ord)
    single = np.full(5, 3e38, np.float32)
    (clipped,), norm = islices.clip_by_global_norm([single], 1.0)
    assert norm == math.inf, "beyond float32"
    np.testing.assert_allclose(clipped, 5**-0.5, rtol=1e-6)  # the clip compares in float64


def test_a_clip_decides_by_the_exact_norm() -> None:
    x, limit = np.full(7, 0.9999999999999998), 2.6457513110645903
    for on in (True, False):
        with islices.config.use_kernels(on):
            assert islices.clip_by_norm(x, limit) is x
            assert islices.clip_by_norm(x, math.nextafter(limit, 0)) is not x


@pytest.mark.parametrize("ord", [1, 2])
def test_what_is_not_finite(ord: int) -> None:
    nan, inf = math.nan, math.inf
    for bad, expected in (([-inf, 1], inf), ([nan], nan), ([inf, nan], nan)):
        for place in (0, 2 * BLOCK):
            x = np.ones(2 * BLOCK + 3, np.float32)
            x[place : place + len(bad)] = bad
            np.testing.assert_array_equal(islices.norm(x, ord), expected)
