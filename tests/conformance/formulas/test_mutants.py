"""Every known mistake lands far outside the bound of its formula, and is named as the cause."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest

from islices.conformance.formulas.__main__ import highest
from islices.conformance.formulas.causes import cause_of, wrong_steps
from islices.conformance.formulas.evaluate import Trajectory
from islices.conformance.formulas.formula import Formula
from islices.conformance.formulas.mutants import MUTANTS, mutants, pairs
from islices.conformance.formulas.records import FORMULAS
from islices.conformance.formulas.scores import Got
from islices.conformance.formulas.trajectories import trajectories


@cache
def scores(name: str) -> dict[str, tuple[float, float]]:
    return dict(highest(FORMULAS[name]))


@pytest.mark.parametrize("name", FORMULAS)
def test_every_mistake_scores_above_100(name: str) -> None:
    assert {title: found for title, found in scores(name).items() if found[0] <= 100.0} == {}


def test_every_mistake_of_the_catalogue_shows_somewhere() -> None:
    shown = {title for name in FORMULAS for title in scores(name)}
    assert {mutant.title for mutant in MUTANTS} - shown == set()


def given(own: Sequence[Trajectory], wrong: Formula) -> list[tuple[Trajectory, Got]]:
    """What a step that makes a mistake gives: weights in float32, and no state."""
    found = []
    for one in own:
        arrays = wrong_steps(wrong, one)
        found.append((one, {t: {wrong.gives: x[wrong.gives].astype(np.float32)} for t, x in arrays.items()}))
    return found


@pytest.mark.parametrize("name", ["torch.AdamW", "keras.SGD", "torch.RMSprop", "fbgemm.EXACT_ROWWISE_ADAGRAD"])
def test_a_mistake_is_named(name: str) -> None:
    formula = FORMULAS[name]
    own = list(trajectories(formula))
    for title, wrong in mutants(formula):
        if title in scores(name):
            assert cause_of(formula, given(own, wrong)) is not None, title


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("torch.Adam", "decay decoupled, not joined to the gradient; amsgrad ignored"),  # bitsandbytes' Adam
        (
            "fbgemm.ADAM",  # Paddle's, sparse
            "bias correction of a step too late (t counted from 2); steps whose gradient names no row not counted",
        ),
        ("fbgemm.EXACT_ROWWISE_ADAGRAD", "decay missing; squares taken of each duplicate"),
    ],
)
def test_two_mistakes_at_once_are_named(name: str, title: str) -> None:
    formula = FORMULAS[name]
    assert cause_of(formula, given(list(trajectories(formula)), dict(pairs(formula))[title])) == title


@pytest.mark.parametrize("name", ["torch.Adam", "keras.Lion", "fbgemm.EXACT_SGD"])
def test_what_is_a_little_off_is_explained_by_no_mistake_that_gives_the_right_values(name: str) -> None:
    formula = FORMULAS[name]
    off = [
        (one, {t: {"weights": x["weights"] * np.float32(1 + 2**-19)} for t, x in got.items()})
        for one, got in given(list(trajectories(formula)), formula)
    ]
    assert cause_of(formula, off) is None
