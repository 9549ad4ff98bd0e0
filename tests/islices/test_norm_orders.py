"""Norms of orders other than 1, 2 and inf: within clause 7's bound of the exact norm, and what NumPy gives.

The golden cases hold the bits; here is what these are worth.
"""

from __future__ import annotations

import decimal
import math
from decimal import Decimal

import numpy as np
import pytest

import islices
from islices import IndexedSlices

ORDERS = (
    3, 4, 7, 100, 2.5, 1.5, 1000.5, 0.5, 0.25, 2.7, 1 / 3, 0.3, 0.1, 0.01, 1e-3, 1.0000001, 2.0000001, 1e6 + 1 / 3,
    2.0**31 - 0.3, 2.0**32, 2.0**32 + 0.5, 1e15, 1e300,
)  # fmt: skip


def bound(p: float) -> float:
    """Clause 7's, in units of 2^-53."""
    fraction, ones = p - int(p), 0
    while fraction:
        fraction *= 2
        ones += fraction >= 1
        fraction -= int(fraction)
    return (6 if 0.25 <= p <= 2.0**32 else 100) + (6 * ones + 1) / p


def exact(x: np.ndarray, p: float) -> Decimal:
    """The norm to 60 digits."""
    with decimal.localcontext() as context:
        context.prec, context.Emax, context.Emin = 80, decimal.MAX_EMAX, decimal.MIN_EMIN
        top = Decimal(float(np.abs(x).max()))
        total = sum((Decimal(abs(float(v))) / top) ** Decimal(p) for v in x.flat if v)
        return top * total ** (1 / Decimal(p))


@pytest.mark.parametrize("p", ORDERS)
def test_the_error_is_within_the_bound(p: float) -> None:
    rng = np.random.default_rng(0)
    for n in (1, 2, 3, 10, 80):
        for spread in (0.0, 1.0, 60.0):
            x = rng.choice([-1, 1], n) * np.exp(rng.normal(0, spread, n)) * (1 + rng.random(n))
            got, true = islices.norm(x, p), exact(x, p)
            if true > Decimal(np.finfo(float).max):
                assert got == math.inf
                continue
            off = abs(Decimal(float(got)) - true) / true * 2**53
            assert off <= bound(p), f"order {p}, n {n}, spread {spread}: got {got!r}, exactly {true}: {off:.3f} u"


@pytest.mark.parametrize("p", [3, 0.5, 2.7, 0.1])
def test_a_power_of_two_scales_the_norm_and_nothing_else(p: float) -> None:
    x = np.random.default_rng(1).normal(size=50)
    for exponent in (-900, -300, 300, 900):
        assert islices.norm(np.ldexp(x, exponent), p) == np.ldexp(islices.norm(x, p), exponent)


@pytest.mark.parametrize("p", [3.0, 0.5, 2.7, 1.5, 10.0])
def test_numpy_says_the_same_of_the_dense_array(p: float) -> None:
    rng = np.random.default_rng(2)
    s = IndexedSlices(rng.normal(size=(40, 3)), rng.integers(0, 9, 40), (12, 3))
    np.testing.assert_allclose(islices.norm(s, p), np.linalg.norm(islices.to_dense(s).ravel(), p), rtol=1e-14)


def test_orders_near_those_that_are_exact_are_continuous() -> None:
    x = np.random.default_rng(3).normal(size=20)
    for p in (1.0, 2.0):
        for beside in (np.nextafter(p, 0), np.nextafter(p, 3)):
            assert islices.norm(x, beside) == pytest.approx(float(islices.norm(x, p)), rel=400 * 2.0**-53)
    assert islices.norm(x, 1e18) == islices.norm(x, math.inf)


def test_an_order_may_be_any_real_number_type() -> None:
    from fractions import Fraction

    x = np.array([3.0, 4.0])
    assert islices.norm(x, Fraction(2)) == islices.norm(x, np.float32(2)) == islices.norm(x, np.int64(2)) == 5.0
    assert islices.norm(x, Fraction(5, 2)) == islices.norm(x, 2.5)
    assert islices.norm(x, 10**400) == 4.0
