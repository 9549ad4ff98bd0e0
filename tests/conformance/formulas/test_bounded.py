"""Test the error bound of SPEC clause 28 with cases checked by hand, and with a float32 evaluation of a decay as a
factor."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from typing import Any

import numpy as np
import pytest

from islices.conformance.formulas import rules
from islices.conformance.formulas.bounded import CONTEXT, TINY, Real, U, shrink
from islices.conformance.formulas.numbers import BoundedNumbers

single = np.float32


def real(x: float) -> Real:
    return Real.of(float(single(x)))


# ---------------------------------------------------------------------- by hand
@pytest.mark.parametrize(
    ("made", "value", "error"),
    [
        (lambda: real(3.0) * real(5.0), 15.0, 15.0 * U),
        (lambda: real(3.0) + real(5.0), 8.0, 8.0 * U),
        (lambda: real(3.0) - real(3.0), 0.0, 6.0 * U),
        (lambda: real(1.0) + real(2.0) + real(4.0), 7.0, 2 * 7.0 * U),  # two roundings in either order
        (lambda: real(0.0) + real(5.0), 5.0, 0.0),
        (lambda: real(0.0) * real(5.0), 0.0, 0.0),
        (lambda: real(15.0) / real(5.0), 3.0, 2 * 3.0 * U),
        (lambda: real(9.0).sqrt(), 3.0, 2 * 3.0 * U),
        (lambda: abs(real(-2.0)), 2.0, 0.0),
        (lambda: real(-2.0).sign(), -1.0, 0.0),
        (lambda: (real(3.0) - real(3.0)).sign(), 1.0, 2.0),  # the rounded sign may be -1, 0 or 1
        (lambda: shrink(real(3.0), real(1.0)), 2.0, 2.0 * U),
        (lambda: shrink(real(-0.5), real(1.0)), 0.0, 0.0),
        (lambda: real(2.0).maximum(real(3.0)), 3.0, 0.0),
    ],
)
def test_an_operation_by_hand(made: Any, value: float, error: float) -> None:
    with localcontext(CONTEXT):
        found = made()
    assert float(found.value) == value
    assert error <= found.error <= error * (1 + 1e-5) + 2 * TINY * (error > 0)


@pytest.mark.parametrize(
    "made",
    [
        lambda: real(1.0) / (real(1.0) - real(1.0)),
        lambda: real(3e38) * real(2.0),
        lambda: real(3e38) + real(3e38),
        lambda: (real(1.0) - real(1.0)).sqrt(positive=False),
        lambda: real(-1.0).sqrt(),
    ],
)
def test_what_may_overflow_or_be_nan_is_not_judged(made: Any) -> None:
    with localcontext(CONTEXT):
        assert math.isinf(made().error)


# ---------------------------------------------------------------------- float32 evaluations


def test_decay_as_a_factor_needs_its_rounding() -> None:
    """Check that the rounding errors of (1 - c) w - s exceed the bound of w - c w - s, but not the bound of
    `shrunk`."""
    rate, decay, w, s = (
        single(float.fromhex(x)) for x in ("0x1.99999ap-3", "0x1.47ae14p-7", "0x1.009e32p+0", "0x1.07afe6p-12")
    )
    with localcontext(CONTEXT):
        c, numbers = real(rate) * real(decay), BoundedNumbers({}, 1)
        terms = real(w) - c * real(w) - real(s)
        bound = rules.shrunk(numbers, np.array([[real(w)]], object), c)[0, 0] - real(s)
        exact = (1 - Decimal(float(rate)) * Decimal(float(decay))) * Decimal(float(w)) - Decimal(float(s))
        got = single(1.0 - float(rate) * float(decay)) * w - s
        error = abs(Decimal(float(got)) - exact)
    assert terms.error < error <= bound.error
