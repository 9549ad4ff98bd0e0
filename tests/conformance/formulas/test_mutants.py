"""Test that every known mistake lies far outside the bound of its formula, and that the judge names a cause for the
mistake."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache

import numpy as np
import pytest

from islices.conformance.formulas.causes import cause_of, wrong_steps
from islices.conformance.formulas.evaluate import Trajectory
from islices.conformance.formulas.formula import Formula
from islices.conformance.formulas.mutants import MUTANTS, mutants, pairs
from islices.conformance.formulas.records import FORMULAS
from islices.conformance.formulas.scores import Got, score_of
from islices.conformance.formulas.trajectories import trajectories

#: A mistake does not count in a trajectory in which it changes only the last digits of float64.
SAME = 1e-9


def differs(got: Got, right: Got) -> bool:
    """Return True if two arrays of the same name, step and shape differ by more than `SAME`."""
    return any(
        x.shape == right[t][name].shape and not np.allclose(x, right[t][name], rtol=SAME, atol=0.0, equal_nan=True)
        for t, arrays in got.items()
        for name, x in arrays.items()
        if name in right[t]
    )


def _alone(got: Got, name: str) -> Got:
    """Return only the array `name` of each step, as float32. The other arrays are states, whose meaning or shape may
    differ."""
    return {t: {name: arrays[name].astype(np.float32)} for t, arrays in got.items()}


def _score(trajectory: Trajectory, wrong: Formula) -> tuple[float, float] | None:
    """Return the scores of the results in a trajectory, one per grade, or None if the mistake changes nothing."""
    got = wrong_steps(wrong, trajectory)
    if not differs(got, wrong_steps(trajectory.formula, trajectory)):
        return None
    with np.errstate(over="ignore"):
        (score,) = score_of(trajectory.name, _alone(got, wrong.gives), trajectory.expected)
    return score.by_grade


def highest(formula: Formula) -> Iterator[tuple[str, tuple[float, float]]]:
    """Yield each mistake that changes a trajectory of the formula, with the highest score per grade over all
    trajectories."""
    own = list(trajectories(formula))
    for title, wrong in mutants(formula):
        found = [score for one in own if (score := _score(one, wrong)) is not None]
        if found:
            yield title, (max(x for x, _ in found), max(x for _, x in found))


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
    """Return each trajectory with the results of a step that makes the mistake `wrong`. The results contain float32
    weights, but no state."""
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
        ("torch.Adam", "decay decoupled, not joined to the gradient; amsgrad ignored"),  # in bitsandbytes's Adam
        (
            "fbgemm.ADAM",  # in Paddle's sparse Adam
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
