"""Define `Judgement`, the result of `judge`, and write it as a report or as JSON.

May import: `islices.conformance.formulas.formula`, `islices.conformance.formulas.scores`.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from islices.conformance.formulas.formula import Formula
from islices.conformance.formulas.scores import Score, ScorePlace

CLAUSE = "28"

MEANING = {1: "scalars formed in float64", 2: "scalars formed in float32"}


@dataclass(frozen=True)
class Judgement:
    """The result of judging a step function: the scores of the judged trajectories, and the likely mistake."""

    formula: Formula
    scores: tuple[Score, ...]
    #: trajectory -> the reason why it was not judged
    unsupported: Mapping[str, str]
    #: arrays of the state that the step neither returned nor changed
    unjudged: tuple[str, ...]
    cause: str | None = None

    @property
    def grade(self) -> int | None:
        """Return 1 if all errors are within the bounds for float64 scalars, else 2 if all are within the bounds for
        float32 scalars. Return None if an error exceeds both of its bounds, or if there are no scores."""
        if not self.scores:
            return None
        return next((grade for grade in (1, 2) if all(s.by_grade[grade - 1] <= 1.0 for s in self.scores)), None)

    @property
    def passed(self) -> bool:
        return self.grade is not None

    @property
    def worst(self) -> Score | None:
        """Return the score that is largest for grade 1, or None if there are no scores.

        If some scores are outside of both grades, only these scores count. If some of these scores belong to the step's
        result, such as the weights, only the scores of the result count.
        """
        outside = [s for s in self.scores if self.grade is None and s.by_grade[1] > 1.0]
        given = [s for s in outside if s.array == self.formula.gives]
        return max(given or outside or self.scores, key=lambda s: s.by_grade[0], default=None)

    @property
    def first(self) -> Score | None:
        """Return the score of the first array that is outside of both grades. The score comes from the first trajectory
        that has an array outside of both grades. Return None if no array is outside of both grades.

        If a state and the weights computed from the state are outside after the same step, return the score of the
        state.
        """
        outside = [s for s in self.scores if s.first is not None]
        of_one = [s for s in outside if s.trajectory == outside[0].trajectory]
        return min(of_one, key=lambda s: (s.first.at[0], s.array == self.formula.gives), default=None)  # type: ignore[union-attr]

    def __str__(self) -> str:
        return text(self)


def number(x: float) -> str:
    """Return a score as a short text. A score is infinite for a NaN, or if a value differs although its bound is 0."""
    return "inf" if math.isinf(x) else f"{x:.3g}" if x < 1e4 else f"{x:.1e}"


def wrapped(line: str) -> str:
    return textwrap.fill(line, 100, initial_indent="  ", subsequent_indent="  ", break_long_words=False)


def verdict(x: Judgement) -> str:
    if not x.scores:
        return "not judged: every trajectory is unsupported"
    if x.grade is None:
        return "outside the bound"
    judged = len({s.trajectory for s in x.scores})
    some = f"; {judged} of {judged + len(x.unsupported)} trajectories judged" if x.unsupported else ""
    return f"within the bound, grade {x.grade} ({MEANING[x.grade]}){some}"


def text(x: Judgement) -> str:
    """Return the report, which contains a table of scores and the conclusions."""
    about = [wrapped(part) for part in (x.formula.equation, x.formula.source)]
    lines = [f"{x.formula.name}: {verdict(x)}", *about, ""]
    trajectories = list(dict.fromkeys(s.trajectory for s in x.scores))
    width = max([len("trajectory"), *map(len, trajectories), *map(len, x.unsupported)])
    lines.append(f"  {'trajectory':{width}}  {'array':11}  {'grade 1':>8}  {'grade 2':>8}  step row column")
    for s in x.scores:
        at = "  ".join(f"{place:>3}" for place in s.furthest.at)
        one, two = map(number, s.by_grade)
        lines.append(f"  {s.trajectory:{width}}  {s.array:11}  {one:>8}  {two:>8}  {at}")
    lines.extend(f"  {name:{width}}  unsupported: {why}" for name, why in x.unsupported.items())
    lines.append("")
    if x.unjudged:
        lines.append(f"Not judged, since the step neither returned nor changed it: {', '.join(x.unjudged)}.")
    if x.scores and not x.passed:
        lines.extend(_failing(x))
    if x.scores:
        lines.append(
            f"A score is the error in bounds of SPEC clause {CLAUSE}; at most 1 for every faithful float32 evaluation."
        )
    return "\n".join(lines).rstrip()


def _failing(x: Judgement) -> list[str]:
    worst, first = x.worst, x.first
    assert worst is not None
    found = [_at("Furthest", worst, worst.furthest)]
    if first is not None and first.first is not None:
        reported = _at("First", first, first.first)
        if reported.partition(": ")[2] != found[0].partition(": ")[2]:
            found.insert(0, reported)
    if x.cause:
        return [*found, f"Likely mistake: {x.cause}."]
    return [*found, "No known mistake gives these values."]


def _at(head: str, score: Score, place: ScorePlace) -> str:
    step, row, column = place.at
    return (
        f"{head}: {score.array}[{row}, {column}] after step {step} of {score.trajectory!r} is {place.got:.9g}; "
        f"expected is {place.expected:.9g}."
    )


def json_of(x: Judgement) -> dict[str, Any]:
    """Return the judgement as JSON for programs. An infinite score becomes the string "inf"."""

    def plain(score: float) -> float | str:
        return score if math.isfinite(score) else "inf"

    def row(s: Score) -> dict[str, Any]:
        step, at, column = s.furthest.at
        return {
            "trajectory": s.trajectory, "array": s.array, "grade_1": plain(s.by_grade[0]),
            "grade_2": plain(s.by_grade[1]), "step": step, "row": at, "column": column, "got": repr(s.furthest.got),
            "expected": repr(s.furthest.expected),
        }  # fmt: skip

    return {
        "formula": x.formula.name, "clause": CLAUSE, "passed": x.passed, "grade": x.grade, "cause": x.cause,
        "scores": [row(s) for s in x.scores], "unsupported": dict(x.unsupported), "unjudged": list(x.unjudged),
        "equation": x.formula.equation, "source": x.formula.source,
    }  # fmt: skip
