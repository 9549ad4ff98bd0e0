"""What is judged: a call of a library, the formula that it documents, and the call as a step.

May import: `islices.conformance.formulas.judge`, `islices.conformance.formulas.records`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from islices.conformance.formulas.judge import Step
from islices.conformance.formulas.records import FORMULAS

__all__ = ["Entry", "formulas", "renamed"]


class Entry(NamedTuple):
    """An implementation of a formula.

    Attributes
    ----------
    call : str
        The function or class, as the library's users write it.
    formula : str
        That which the library documents: its own, or one of another framework that says the same.
    step : callable
        As `islices.conformance.judge` takes it.
    variant : str
        Which of several implementations behind one call, such as "fused"; a column of the table.
    """

    call: str
    formula: str
    step: Step
    variant: str = ""


def renamed(options: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Options by a library's names; those that it calls as islices does keep theirs."""
    return {names.get(name, name): value for name, value in options.items()}


def formulas(framework: str) -> Iterator[tuple[str, str]]:
    """(formula, the class that it is of) of a framework's optimizers; "Adam sparse" is of Adam."""
    for name, formula in FORMULAS.items():
        if formula.framework == framework and formula.gives == "weights" and "renorm" not in name:
            yield name, name.partition(".")[2].partition(" ")[0]
