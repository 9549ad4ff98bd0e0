"""Merge several reports into one. The reports must come from the same vectors. If two reports contain the same column,
the merge needs --replace."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from islices.cli import UsageError
from islices.conformance.report.runs import Run


def join(runs: Sequence[Run], *, replace: bool = False) -> list[Run]:
    """Return the runs of a merged report, in order. A replacing run stands at the position of the run that it replaces.

    Parameters
    ----------
    runs : sequence of Run
    replace : bool
        If True, a later run replaces earlier runs that share a mode with the later run, and that have the same backend,
        version, variant, Python, NumPy and system.

    Raises
    ------
    UsageError
        The runs differ in the version of the specification or in the vectors, or a column occurs twice without
        `replace`.
    """
    refuse_other_vectors(runs)
    joined: list[Run] = []
    for run in runs:
        same = [other for other in joined if _identity(other) == _identity(run) and _overlap(other, run)]
        for other in same:
            if not replace:
                raise UsageError(
                    f"{_column(run)} comes twice, in {_both(other, run)}; leave one out, or let the later one hold "
                    "with --replace"
                )
        # at the place of the earlier run, so that columns keep their order
        place = joined.index(same[0]) if same else len(joined)
        joined = [*joined[:place], run, *(other for other in joined[place:] if other not in same)]
    return joined


def refuse_other_vectors(runs: Sequence[Run], *, advice: str = "") -> None:
    """Raise UsageError if the vectors or the specification of the runs differ, because such runs are not comparable.
    The message of the error ends with `advice`."""
    for fact in ("spec", "vectors"):
        first = {run.fact(fact): run for run in reversed(runs)}
        if len(first) > 1:
            two = [f"{fact} {value[:12]} in {run.origin} ({run.name})" for value, run in reversed(first.items())]
            raise UsageError(f"cannot be compared: {', '.join(two)}; run both by one version of islices{advice}")


def json_lines(runs: Sequence[Run]) -> str:
    """Return a report that consists of the runs' original lines."""
    return "".join(f"{line}\n" for run in runs for line in run.lines)


def _identity(run: Run) -> tuple[Any, ...]:
    return run.backend, run.version, run.variant, run.fact("python"), run.fact("numpy"), run.system


def _overlap(a: Run, b: Run) -> bool:
    """Return True if two runs share a mode. A run without cases may have any mode, so it shares a mode with every
    run."""
    return "" in a.modes + b.modes or not set(a.modes).isdisjoint(b.modes)


def _column(run: Run) -> str:
    modes = ", ".join(filter(None, run.modes))
    where = f"NumPy {run.fact('numpy')}, Python {run.fact('python')}, {run.system}"
    return f"{run.name}{f' {modes}' if modes else ''} ({where})"


def _both(a: Run, b: Run) -> str:
    return a.origin if a.origin == b.origin else f"{a.origin} and {b.origin}"
