"""Errors divided by bounds.

May import: `numpy`, `islices.conformance.formulas.vectors`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from islices.conformance.formulas.vectors import Expected

__all__ = ["Got", "Score", "ratios", "score_of"]

Array = np.ndarray[Any, Any]
#: step -> array -> what came
Got = dict[int, dict[str, Array]]


@dataclass(frozen=True)
class Score:
    """The element of an array, over the steps of a trajectory, that is furthest off."""

    trajectory: str
    #: "weights", or a state
    array: str
    #: the largest error in bounds: of grade 1, and of grade 2
    by_grade: tuple[float, float]
    #: where grade 1's stands: step, row, column
    at: tuple[int, int, int]
    got: float
    expected: float


def ratios(got: Array, right: Array, bound: Array) -> Array:
    """Error by bound, element by element: 0 where nothing is asked, infinite where a bound of 0 is missed."""
    with np.errstate(all="ignore"):
        error = np.abs(got.astype(np.float64) - right)
        found = np.where(error == 0.0, 0.0, error / bound)
    return np.where(np.isinf(bound), 0.0, np.where(np.isnan(found), np.inf, found))


def score_of(trajectory: str, got: Got, right: Mapping[int, Mapping[str, Expected]]) -> Iterator[Score]:
    """A score for each array of a trajectory."""
    names = dict.fromkeys(name for arrays in got.values() for name in arrays)
    for name in names:
        best: Score | None = None
        largest = [0.0, 0.0]
        for t, arrays in got.items():
            if name not in arrays or name not in right[t] or not arrays[name].size:
                continue
            wanted = right[t][name]
            graded = [ratios(arrays[name], wanted.value, bound) for bound in wanted.bounds]
            largest = [max(x, float(found.max(initial=0.0))) for x, found in zip(largest, graded, strict=True)]
            row, column = np.unravel_index(int(np.argmax(graded[0])), graded[0].shape)
            if best is None or graded[0][row, column] > best.by_grade[0]:
                best = Score(
                    trajectory, name, (float(graded[0][row, column]), 0.0), (t, int(row), int(column)),
                    float(arrays[name][row, column]), float(wanted.value[row, column]),
                )  # fmt: skip
        if best is not None:
            yield Score(trajectory, name, (largest[0], largest[1]), best.at, best.got, best.expected)
