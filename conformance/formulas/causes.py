"""Which known mistake gives what a step gave.

May import: `numpy`, this folder.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from islices.conformance.formulas.bounded import TINY, U
from islices.conformance.formulas.evaluate import Trajectory, plain_steps
from islices.conformance.formulas.formula import Formula
from islices.conformance.formulas.mutants import mutants
from islices.conformance.formulas.scores import Got, ratios
from islices.conformance.formulas.trajectories import CHECKPOINTS
from islices.conformance.formulas.vectors import Expected, expected

__all__ = ["cause_of", "distance", "wrong_steps"]

Array = np.ndarray[Any, Any]
#: A mistake's own bound is not proven: that of the right formula, this many times, and this of its value stand for it.
MARGIN = 4.0
RELATIVE = 128 * U


def wrong_steps(wrong: Formula, trajectory: Trajectory) -> Got:
    """What a formula with a mistake gives in a trajectory, at the checkpoints, in float64."""
    found = enumerate(plain_steps(trajectory, wrong), 1)
    return {t: {wrong.gives: w, **state} for t, (w, state) in found if t in CHECKPOINTS}


def distance(got: Got, wrong: Got, right: dict[int, dict[str, Expected]]) -> float:
    """How far a result is from that of a mistake, in bounds."""
    largest = 0.0
    for t, arrays in got.items():
        for name, x in arrays.items():
            other = wrong[t].get(name)
            if name in right[t] and other is not None and other.shape == x.shape:
                bound = np.minimum(right[t][name].bounds[1], 1e300)
                admitted = MARGIN * (bound + TINY) + RELATIVE * np.abs(other)
                largest = max(largest, float(ratios(x, other, admitted).max(initial=0.0)))
    return largest


def cause_of(formula: Formula, gots: Sequence[tuple[Trajectory, Got]]) -> str | None:
    """The mistake that explains every trajectory; the nearest, if several do."""
    found = [(score, title) for title, score in _explaining(formula, gots) if score <= 1.0]
    return min(found)[1] if found else None


def _explaining(formula: Formula, gots: Sequence[tuple[Trajectory, Got]]) -> Iterator[tuple[str, float]]:
    for mutant, wrong in mutants(formula):
        largest = 0.0
        for trajectory, got in gots:
            right = expected(formula, trajectory.name)
            largest = max(largest, distance(got, wrong_steps(wrong, trajectory), right))
            if largest > 1.0:
                break
        yield mutant.title, largest
