"""The record of a documented formula.

May import: `islices.conformance.formulas.rules`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from islices.conformance.formulas.rules import Rule

#: dense: the gradient is an array; touched and all: row-sparse, and which rows move.
Gradients = Literal["dense", "touched", "all"]
#: raw: squares are taken of each stored slice by itself; last, a mistake: the last slice of a row stands for all.
Duplicates = Literal["summed", "raw", "last"]


@dataclass(frozen=True)
class Formula:
    """An optimizer as a framework documents it."""

    #: framework and class, as in "torch.AdamW"
    name: str
    rule: Rule
    #: the formula in the order of its source; w weights, g gradient, t the step from 1
    equation: str
    #: where it is documented, with the version
    source: str
    #: what of the rule the framework has chosen
    form: Mapping[str, Any]
    #: the numbers of its interface, by islices' names, with the framework's defaults (lr: this suite's)
    options: Mapping[str, Any]
    #: state -> what its arrays begin with: a number, or the option that says so
    states: Mapping[str, float | str] = field(default_factory=dict)
    gradients: Gradients = "dense"
    duplicates: Duplicates = "summed"
    #: whether t counts steps whose gradient names no row; where it does not, a mistake
    counts_empty: bool = True
    #: what a step returns: the new weights; of a clip, the gradient; of lookups, what was looked up, the gradient of
    #: the table, or that of the weights in bags
    gives: Literal["weights", "gradient", "output", "weight_gradient"] = "weights"
    #: whether the gradient is several tensors: each row of the vectors' array is one
    several: bool = False

    @property
    def framework(self) -> str:
        return self.name.partition(".")[0]

    def hyper(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return all options of a trajectory, including the form's."""
        if unknown := given.keys() - self.options.keys():
            raise ValueError(
                f"{self.name}: got options {', '.join(sorted(unknown))}; accepted are {', '.join(self.options)}"
            )
        return {**self.form, **self.options, **given}

    def begins(self, h: Mapping[str, Any]) -> dict[str, float]:
        """Return the initial value of each array of the state."""
        return {name: float(h[start] if isinstance(start, str) else start) for name, start in self.states.items()}

    def initial(self, h: Mapping[str, Any]) -> dict[str, float]:
        """Return the initial values of the arrays that the options use."""
        momentum = h.get("momentum") or h.get("buffer") == "always"
        used = {"momentum": momentum, "mean": h.get("centered"), "v_max": h.get("amsgrad")}
        return {name: start for name, start in self.begins(h).items() if used.get(name, True)}
