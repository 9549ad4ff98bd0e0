"""Which known mistake gives what a step gave.

May import: `numpy`, this folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from islices.conformance.formulas.bounded import TINY, U
from islices.conformance.formulas.evaluate import Trajectory, plain_steps
from islices.conformance.formulas.formula import Formula
from islices.conformance.formulas.inputs import inputs
from islices.conformance.formulas.mutants import mutants, pairs
from islices.conformance.formulas.scores import Got, ratios
from islices.conformance.formulas.vectors import Expected, expected

__all__ = ["cause_of", "differs", "distances", "wrong_steps"]

Array = np.ndarray[Any, Any]
#: A mistake's own bound is not proven: that of the right formula, this many times, and this of its value stand for it.
MARGIN = 4.0
RELATIVE = 128 * U
#: What a mistake has to explain of each trajectory: where its terms cancel, rounding takes the rest.
EXPLAINED = 0.9
#: A mistake that changes nothing beyond the last digits of float64 is none in a trajectory.
SAME = 1e-9


def wrong_steps(wrong: Formula, trajectory: Trajectory) -> Got:
    """What a formula with a mistake gives in a trajectory, at the checkpoints, in float64."""
    found = enumerate(plain_steps(trajectory, wrong), 1)
    kept = inputs(trajectory.inputs).checkpoints
    return {t: {wrong.gives: w, **state} for t, (w, state) in found if t in kept}


def differs(got: Got, right: Got) -> bool:
    """Whether a mistake changes what a trajectory gives."""
    return any(
        x.shape == right[t][name].shape and not np.allclose(x, right[t][name], rtol=SAME, atol=0.0, equal_nan=True)
        for t, arrays in got.items()
        for name, x in arrays.items()
        if name in right[t]
    )


def distances(got: Got, wrong: Got, right: dict[int, dict[str, Expected]]) -> tuple[Array, Array]:
    """How far each judged element is from a mistake's, in bounds, and whether it is outside of the right one's."""
    far, outside = [], []
    for t, arrays in got.items():
        for name, x in arrays.items():
            other = wrong[t].get(name)
            if name in right[t] and other is not None and other.shape == x.shape:
                one = right[t][name]
                admitted = MARGIN * (np.minimum(one.bounds[1], 1e300) + TINY) + RELATIVE * np.abs(other)
                judged = np.isfinite(one.bounds[1])
                both = np.isnan(x) & np.isnan(other)
                far.append(np.where(both, 0.0, ratios(x, other, admitted))[judged])
                outside.append(ratios(x, one.value, one.bounds[1])[judged] > 1.0)
    return np.concatenate(far), np.concatenate(outside)


def cause_of(formula: Formula, gots: Sequence[tuple[Trajectory, Got]]) -> str | None:
    """The mistake that explains every trajectory, and of those the one that explains most elements; if there is none,
    two mistakes at once."""
    right = [wrong_steps(formula, trajectory) for trajectory, _ in gots]
    for known in (mutants, pairs):
        found = {title: _explained(wrong, gots, right) for title, wrong in known(formula)}
        title = max(found, key=lambda name: found[name], default=None)
        if title is not None and found[title] >= EXPLAINED:
            return title
    return None


def _explained(wrong: Formula, gots: Sequence[tuple[Trajectory, Got]], right: Sequence[Got]) -> float:
    """The share of elements that a mistake gives, of all and of those outside: the least of any trajectory."""
    shares = [1.0]
    for (trajectory, got), meant in zip(gots, right, strict=True):
        other = wrong_steps(wrong, trajectory)
        far, outside = distances(got, other, expected(trajectory.formula, trajectory.name))
        near = far <= 1.0
        shares.append(float(near.mean()))
        if outside.any():
            shares.append(float(near[outside].mean()) if differs(other, meant) else 0.0)
        if min(shares) < EXPLAINED:
            break
    return min(shares)
