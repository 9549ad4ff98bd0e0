"""What the vectors tell: ``python -m islices.conformance.formulas``.

For each formula its known mistakes, each with the highest score over the formula's vectors; then the lowest of all.

May import: `numpy`, this folder, `islices.conformance.formulas.records`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import numpy as np

from islices.conformance.formulas.causes import wrong_steps
from islices.conformance.formulas.evaluate import Trajectory
from islices.conformance.formulas.formula import Formula
from islices.conformance.formulas.mutants import mutants
from islices.conformance.formulas.records import FORMULAS
from islices.conformance.formulas.scores import Got, score_of
from islices.conformance.formulas.trajectories import trajectories

#: A mistake that changes nothing beyond the last digits of float64 is none in this trajectory.
SAME = 1e-9


def differs(got: Got, right: Got) -> bool:
    """Whether a mistake changes what a trajectory gives."""
    return any(
        x.shape == right[t][name].shape and not np.allclose(x, right[t][name], rtol=SAME, atol=0.0, equal_nan=True)
        for t, arrays in got.items()
        for name, x in arrays.items()
        if name in right[t]
    )


def _alone(got: Got, name: str) -> Got:
    """What a step gives alone, as float32: states may mean something else, or have another shape."""
    return {t: {name: arrays[name].astype(np.float32)} for t, arrays in got.items()}


def _score(trajectory: Trajectory, wrong: Formula) -> tuple[float, float] | None:
    """The highest score of the weights, by grades; None where the mistake changes nothing."""
    got = wrong_steps(wrong, trajectory)
    if not differs(got, wrong_steps(trajectory.formula, trajectory)):
        return None
    with np.errstate(over="ignore"):
        (score,) = score_of(trajectory.name, _alone(got, wrong.gives), trajectory.expected)
    return score.by_grade


def highest(formula: Formula) -> Iterator[tuple[str, tuple[float, float]]]:
    """Each mistake that shows in the formula's trajectories, and its highest scores over them."""
    own = list(trajectories(formula))
    for title, wrong in mutants(formula):
        found = [score for one in own if (score := _score(one, wrong)) is not None]
        if found:
            yield title, (max(x for x, _ in found), max(x for _, x in found))


def main() -> int:
    """Prints the table; 1 if a mistake scores less than 100 in grade 1."""
    lowest: list[tuple[float, float, str, str]] = []
    for name, formula in FORMULAS.items():
        print(name)
        for title, (one, two) in highest(formula):
            print(f"  {one:12.4g} {two:12.4g}  {title}")
            lowest.append((one, two, name, title))
    one, two, name, title = min(lowest)
    print(f"\n{len(lowest)} mistakes in {len(FORMULAS)} formulas")
    print(f"the lowest, {one:.4g} (grade 2: {two:.4g}): {name}, {title}")
    return 0 if one > 100.0 else 1


if __name__ == "__main__":
    sys.exit(main())
