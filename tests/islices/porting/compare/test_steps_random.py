"""Test that reports name no cause for unrelated steps and gradients, even if the difference looks like that of a
cause."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from unrelated import ADVERSARIAL, Near, adversarial_pair, random_pair

#: number of pairs in one soak test
CHUNK = 250


@pytest.mark.parametrize("seed", range(20))
def test_random_pairs_have_no_cause(seed: int) -> None:
    found = random_pair(seed)
    assert found.equal or not found.causes, str(found)


@pytest.mark.parametrize("made", ADVERSARIAL, ids=lambda made: made.__name__)
def test_what_looks_like_a_cause_is_none(made: Callable[[Near], Any]) -> None:
    found = made(Near(np.random.default_rng(9)))
    assert not found.equal
    assert not found.causes, str(found)


@pytest.mark.soak
@pytest.mark.parametrize("start", range(0, 10_000, CHUNK))
def test_ten_thousand_random_pairs_have_no_cause(start: int) -> None:
    wrong = {seed: found.causes for seed in range(start, start + CHUNK) if (found := random_pair(seed)).causes}
    assert not wrong, f"{len(wrong)} of {CHUNK}: {list(wrong.items())[:3]}"


@pytest.mark.soak
@pytest.mark.parametrize("start", range(0, 500, 50))
def test_five_hundred_adversarial_pairs_have_no_cause(start: int) -> None:
    wrong = {seed: found.causes for seed in range(start, start + 50) if (found := adversarial_pair(seed)).causes}
    assert not wrong, f"{len(wrong)} of 50: {list(wrong.items())[:3]}"
