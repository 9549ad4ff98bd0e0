"""Find the known mistake, or the pair of mistakes, that reproduces the result of a step.

May import: `numpy`, this folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from islices.conformance.formulas.bounded import TINY, U
from islices.conformance.formulas.evaluate import Expected, Trajectory, plain_steps
from islices.conformance.formulas.formula import Formula
from islices.conformance.formulas.inputs import inputs
from islices.conformance.formulas.mutants import mutants, pairs
from islices.conformance.formulas.scores import Got, ratios

Array = np.ndarray[Any, Any]
#: The result of a wrong formula has no proven bound, but an allowance. The allowance is MARGIN times the correct
#: formula's bound of grade 2, plus RELATIVE times the absolute value of the result.
MARGIN = 4.0
RELATIVE = 128 * U
#: The share of elements of each trajectory that a mistake must explain. The share is below 1, because cancellation
#: magnifies rounding errors and a NaN spreads.
EXPLAINED = 0.85
#: A mistake explains a wrong element only if the mistake changes the element's correct value by more than APART bounds.
APART = 0.5


def wrong_steps(wrong: Formula, trajectory: Trajectory) -> Got:
    """Run a formula with a mistake over a trajectory, in float64, and return the arrays at the checkpoints."""
    found = enumerate(plain_steps(trajectory, wrong), 1)
    kept = inputs(trajectory.inputs).checkpoints
    return {t: {wrong.gives: w, **state} for t, (w, state) in found if t in kept}


def distances(got: Got, wrong: Got, right: dict[int, dict[str, Expected]]) -> tuple[Array, Array]:
    """Return the arrays (distance, outside) over all elements whose bound is finite. Arrays that the wrong
    formula lacks, or has in another shape, are left out.

    `distance` is the difference from the result of the wrong formula, divided by the allowance of that result (see
    MARGIN). `outside` is True if the element is outside of the correct formula's bound. If an element is outside, but
    the mistake changes the element's correct value by at most APART bounds, the distance is infinite.
    """
    far, outside = [], []
    for t, arrays in got.items():
        for name, x in arrays.items():
            other = wrong[t].get(name)
            if name in right[t] and other is not None and other.shape == x.shape:
                one = right[t][name]
                admitted = MARGIN * (np.minimum(one.bounds[1], 1e300) + TINY) + RELATIVE * np.abs(other)
                judged = np.isfinite(one.bounds[1])
                missed = ratios(x, one.value, one.bounds[1]) > 1.0
                wrong_too = ratios(other, one.value, one.bounds[1]) > APART
                distance = np.where(np.isnan(x) & np.isnan(other), 0.0, ratios(x, other, admitted))
                far.append(np.where(missed & ~wrong_too, np.inf, distance)[judged])
                outside.append(missed[judged])
    return np.concatenate(far), np.concatenate(outside)


def cause_of(formula: Formula, gots: Sequence[tuple[Trajectory, Got]]) -> str | None:
    """Return the title of the mistake that explains the largest share of elements. If this share is below EXPLAINED,
    return the title of the best pair of mistakes. If the share of that pair is also below EXPLAINED, return None."""
    for known in (mutants, pairs):
        found = {title: _explained(wrong, gots) for title, wrong in known(formula)}
        title = max(found, key=lambda name: found[name], default=None)
        if title is not None and found[title] >= EXPLAINED:
            return title
    return None


def _explained(wrong: Formula, gots: Sequence[tuple[Trajectory, Got]]) -> float:
    """Return the smallest share of elements that a mistake explains. Each trajectory has two shares: of all elements,
    and of the elements outside of the bound. The search ends after the first trajectory with a share below
    EXPLAINED."""
    shares = [1.0]
    for trajectory, got in gots:
        far, outside = distances(got, wrong_steps(wrong, trajectory), trajectory.expected)
        near = far <= 1.0
        shares.append(float(near.mean()))
        shares.append(float(near[outside].mean()) if outside.any() else 1.0)
        if min(shares) < EXPLAINED:
            break
    return min(shares)
