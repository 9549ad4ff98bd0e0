"""Norms by compiled kernels, against exact arithmetic and against NumPy: to the last bit. SPEC clause 7."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import islices
from islices import IndexedSlices
from islices.norms import norm_of_stored

pytest.importorskip("numba", reason="numba is not installed")
operations = pytest.importorskip("islices.kernels.operations")
squares = pytest.importorskip("islices.kernels.squares")


def exact_norm(x: np.ndarray) -> float:
    """The root of the exact sum of squares, that sum and the root rounded to float64 (SPEC clause 7)."""
    total = sum((Fraction(float(v)) ** 2 for v in x.ravel()), Fraction(0))
    if not total:
        return 0.0
    shift = (total.numerator.bit_length() - total.denominator.bit_length()) // 2
    return math.ldexp(math.sqrt(float(total / Fraction(4) ** shift)), shift)


def in_numpy(x: Any) -> Any:
    with islices.use_kernels(False):
        return islices.norm(x)


def check_norm(x: np.ndarray, what: str = "") -> None:
    """The norm of x as a dense array, as coalesced slices and as slices, in one block and in several, is exact."""
    expected = exact_norm(x)
    rows = x.reshape(-1, 1)
    ids = np.random.default_rng(0).permutation(len(rows))
    sliced = IndexedSlices(rows[ids], ids, (len(rows), 1))
    for leaf in (x, sliced, islices.coalesce(sliced)):
        assert norm_of_stored(operations, [_leaf(leaf)], 2) == expected, what
        np.testing.assert_array_equal(islices.norm(leaf), np.asarray(expected).astype(x.dtype), what)
        np.testing.assert_array_equal(islices.norm(leaf), in_numpy(leaf), what)


def _leaf(x: Any) -> tuple[np.ndarray, np.ndarray | None, np.ndarray | None]:
    if isinstance(x, np.ndarray) or x.coalesced:
        return getattr(x, "values", x), None, None
    order, _, starts = operations.group(x.indices)
    return x.values, order, starts


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_norms_of_a_wide_range_are_exact(dtype: str) -> None:
    rng = np.random.default_rng(0)
    limit = 120 if dtype == "float32" else 1000
    for spread in (0, 10, 40, limit):
        for n in (1, 2, 100, squares.BLOCK + 1):
            for centre in {0, limit - spread, spread - limit}:
                x = np.ldexp(rng.uniform(0.5, 1, n), rng.integers(centre - spread, centre + spread + 1, n))
                x = (x * rng.choice([-1, 1], n)).astype(dtype)
                if exact_norm(x) < float(np.finfo(dtype).max):
                    check_norm(x, f"spread {spread}, n {n}, centre {centre}")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_norms_of_blocks_of_different_size_are_exact(dtype: str) -> None:
    """Each block has its bin: one of large numbers, one of small ones that still count, one that do not."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal(3 * squares.BLOCK + 7)
    for small in (2.0**-20, 2.0**-26, 2.0**-27, 2.0**-40, 2.0**-100):
        y = x.copy()
        y[: squares.BLOCK] *= small
        y[-7:] /= small
        check_norm(y.astype(dtype), str(small))


def test_norms_near_the_ends_of_float64() -> None:
    for x in (
        [1e200, 1e200],
        [1e-200, 3e-200],
        [1.5e308],
        [1e308, 1e308, 1e300],
        [2.3e-308, 2.3e-308],
        [1e200, 1e-200],
        [1e154, 1e-154],
    ):
        check_norm(np.array(x), str(x))
    beyond = np.full(4, 1.5e308)
    assert islices.norm(beyond) == math.inf == in_numpy(beyond)
    single = np.full(5, 3e38, np.float32)
    assert islices.norm(single) == math.inf, "beyond float32"
    (clipped,), norm = islices.clip_by_global_norm([single], 1.0)
    assert norm == math.inf
    assert np.isfinite(clipped).all(), "decided in float64"
    np.testing.assert_allclose(clipped, 5**-0.5, rtol=1e-6)


def test_norms_halfway_between_two_numbers() -> None:
    """Ties of float32 and float64, exact, and one unit of the smallest term above or below."""
    ulp = 2.0**-52
    # (2^26 + 1)^2 = 2^52 + 2^27 + 1, so that 1 more is a tie of the sum in the next binade
    for k in range(60):
        for extra in (0.0, 2.0**-k, 2.0 ** (-k / 2)):
            check_norm(np.array([2.0**26 + 1, 2.0**26 - 1, 1.0, extra]), f"{k} {extra}")
            check_norm(np.array([1.0, ulp**0.5, (ulp / 2) ** 0.5, extra * ulp]), f"{k} {extra}")
    # roots that are halfway between two float32: 3, 4, 5 and 5, 12, 13 scaled by odd numbers of 25 bits
    for a, b, c in ((3, 4, 5), (5, 12, 13), (8, 15, 17)):
        for odd in (2**22 + 1, 2**23 + 1, (2**25 + 1) // 3):
            x = np.array([a * odd, b * odd], np.float64)
            assert exact_norm(x) == c * odd
            check_norm(x)
            check_norm((x // 4 * 4).astype(np.float32))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_sums_of_sizes_are_rounded_once(dtype: str) -> None:
    """A tie, and what decides it: 17, 40 and 42 bits below it, on either side."""
    tie = 1.0 + 2.0**-52
    for far in (2.0**-70, 2.0**-93, 2.0**-95, 0.0):
        for sign in (1, -1):
            x = np.array([1.0, 2.0**-53, far, -0.0][::sign], dtype)
            expected = float(sum(Fraction(abs(float(v))) for v in x))
            assert expected == (tie if far else 1.0)
            assert norm_of_stored(operations, [(x, None, None)], 1) == expected, f"{far}"
            order, _, starts = operations.group(np.arange(4))
            assert norm_of_stored(operations, [(x.reshape(4, 1), order, starts)], 1) == expected, f"{far}"
    rng = np.random.default_rng(0)
    for n in (1, 3, 100, 3 * squares.BLOCK):
        x = np.ldexp(rng.standard_normal(n), rng.integers(-30, 30, n)).astype(dtype)
        assert norm_of_stored(operations, [(x, None, None)], 1) == float(sum(Fraction(abs(float(v))) for v in x)), (
            f"{n}"
        )


@pytest.mark.parametrize("ord", [1, 2])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_norms_of_what_is_not_finite(dtype: str, ord: int) -> None:
    nan, inf = math.nan, math.inf
    for bad, expected in (([inf], inf), ([-inf, 1], inf), ([nan], nan), ([inf, nan], nan)):
        for place in (0, 5, 2 * squares.BLOCK):
            x = np.ones(2 * squares.BLOCK + 3, dtype)
            x[place : place + len(bad)] = bad
            np.testing.assert_array_equal(islices.norm(x, ord), expected)
