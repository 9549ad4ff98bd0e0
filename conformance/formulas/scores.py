"""Compute scores. A score is an error divided by its bound.

May import: `numpy`, `islices.conformance.formulas.evaluate`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from islices.conformance.formulas.evaluate import Expected

Array = np.ndarray[Any, Any]
#: step -> name of an array -> the array that the judged step returned
Got = dict[int, dict[str, Array]]


@dataclass(frozen=True)
class ScorePlace:
    """An element of an array after one step. The fields are its place, its value and the expected value."""

    #: step, row, column
    at: tuple[int, int, int]
    got: float
    expected: float


@dataclass(frozen=True)
class Score:
    """The largest ratios of error to bound in one array over the checkpoints of a trajectory."""

    trajectory: str
    #: the name of the result, such as "weights", or of a state array
    array: str
    #: the largest ratios of error to bound, in grade 1 and in grade 2
    by_grade: tuple[float, float]
    #: the element whose error divided by the bound of grade 1 is largest
    furthest: ScorePlace
    #: the worst element after the first step with an element outside of both grades; None if there is no such step
    first: ScorePlace | None = None


def ratios(got: Array, right: Array, bound: Array) -> Array:
    """Return error / bound for each element. If the bound is infinite, the ratio is 0. Otherwise, the ratio is infinite
    for a NaN, and for an error where the bound is 0."""
    with np.errstate(all="ignore"):
        error = np.abs(got.astype(np.float64) - right)
        found = np.where(error == 0.0, 0.0, error / bound)
    return np.where(np.isinf(bound), 0.0, np.where(np.isnan(found), np.inf, found))


def score_of(trajectory: str, got: Got, right: Mapping[int, Mapping[str, Expected]]) -> Iterator[Score]:
    names = dict.fromkeys(name for arrays in got.values() for name in arrays)
    for name in names:
        best, first = None, None
        largest, furthest = [0.0, 0.0], -1.0
        for t, arrays in got.items():
            if name not in arrays or name not in right[t] or not arrays[name].size:
                continue
            wanted = right[t][name]
            graded = [ratios(arrays[name], wanted.value, bound) for bound in wanted.bounds]
            largest = [max(x, float(found.max(initial=0.0))) for x, found in zip(largest, graded, strict=True)]
            if (most := float(graded[0].max())) > furthest:
                furthest, best = most, _place(t, graded[0], arrays[name], wanted.value)
            if first is None and graded[1].max() > 1.0:
                first = _place(t, graded[1], arrays[name], wanted.value)
        if best is not None:
            yield Score(trajectory, name, (largest[0], largest[1]), best, first)


def _place(t: int, ratios: Array, got: Array, right: Array) -> ScorePlace:
    """Return the `ScorePlace` of the element with the largest ratio of error to bound after step t."""
    row, column = np.unravel_index(int(np.argmax(ratios)), ratios.shape)
    return ScorePlace((t, int(row), int(column)), float(got[row, column]), float(right[row, column]))
