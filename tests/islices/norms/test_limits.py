"""Test limits that are arrays. The limits are under a tape, traced or invalid, or belong to functions that the suite
does not test with arrays as limits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from comparing import host
from gradient_tapes import FRAMEWORKS, MODES, Tape

import islices

X = np.array([[3, 4], [1, 0]], np.float32)


def clips(x: Any, limit: Any) -> list[Any]:
    """Clip `x` with the functions that the suite does not test with array limits."""
    return [
        islices.clip_by_norm(x, limit, axes=0),
        islices.norms.clip_by_block_rms(x, limit),
        islices.clip_per_sample([x], limit)[0][0],
        islices.clip_by_global_norm([x], limit, semantics="torch")[0][0],
    ]


@pytest.mark.parametrize(("framework", "mode"), [x for x in MODES if x[1] != "framework"])
def test_an_array_clips_as_its_number(framework: str, mode: str) -> None:
    tape = Tape(framework, mode)
    with tape.running():
        run = tape.backend.trace(clips) if mode == "compiled" else clips
        for got, expected in zip(run(tape.array(X), tape.array(np.float32([1.25]))), clips(X, 1.25), strict=True):
            np.testing.assert_array_equal(host(got), expected)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_no_gradient_flows_to_a_limit(framework: str) -> None:
    """Check that the values' gradient is the same as for a constant limit (SPEC clause 10)."""
    tape, g = Tape(framework), np.array([[1, -2], [3, 1]], np.float32)

    def loss(x: Any, limit: Any) -> Any:
        clipped = [islices.clip_by_norm(x, limit), islices.clip_by_value(x, -1.0, limit)]
        return tape.weighted([*((y, tape.array(g)) for y in clipped), (limit, tape.array(np.float32([3])))])

    of_values, of_limit = tape.gradients(loss, X, np.float32([1.25]))
    (expected,) = tape.gradients(lambda x: loss(x, tape.array(np.float32([1.25]))), X)
    np.testing.assert_array_equal(of_values, expected)
    assert of_limit == 3


@pytest.mark.parametrize("framework", [name for name, mode in MODES if mode == "compiled"])
def test_traced_limits_that_are_no_limits(framework: str) -> None:
    tape = Tape(framework, "compiled")
    with tape.running():
        clip = tape.backend.trace(lambda x, m: islices.clip_by_norm(x, m))
        negative, nan = (host(clip(tape.array(X), tape.array(np.float32([v])))) for v in (-1, np.nan))
        np.testing.assert_array_equal(negative, 0 * X)
        assert np.isnan(nan).all()
        limited = tape.backend.trace(lambda x, lo, hi: islices.clip_by_value(x, lo, hi))
        got = host(limited(*(tape.array(v) for v in (X, np.float32([2]), np.float32([1])))))
        np.testing.assert_array_equal(got, np.ones_like(X))
