"""Define `Formula`, the record of a documented formula.

May import: `islices.conformance.formulas.rules`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from islices.conformance.formulas.rules import Rule

#: "dense": the gradient is an array. "touched" and "all": the gradient is row-sparse, and a step updates the touched
#: rows or all rows.
Gradients = Literal["dense", "touched", "all"]
#: "summed": duplicates are summed first. "raw": each duplicate is squared separately. "last", a mistake: only the last
#: duplicate counts.
Duplicates = Literal["summed", "raw", "last"]


@dataclass(frozen=True)
class Formula:
    """An optimizer, a clip or a lookup as a framework documents it."""

    #: the framework, the class or function, and a variant, for example "torch.AdamW" or "keras.SGD sparse"
    name: str
    rule: Rule
    #: the formula in the form of its source; w are the weights, g is the gradient, and t is the step, counted from 1
    equation: str
    #: where the formula is documented, with the version
    source: str
    #: the options of the rule that the framework fixes
    form: Mapping[str, Any]
    #: the options that a user may set, with islices' names and the framework's defaults. This suite chooses the default
    #: of lr, and defaults that the framework lacks
    options: Mapping[str, Any]
    #: name of a state array -> its initial value, or the name of the option with this value
    states: Mapping[str, float | str] = field(default_factory=dict)
    gradients: Gradients = "dense"
    duplicates: Duplicates = "summed"
    #: True if t also counts steps whose gradient has no rows; a mistake sets it to False
    counts_empty: bool = True
    #: the result of a step: the new weights for an optimizer or for a clip of a table's rows, the gradient for other
    #: clips. For lookups, it is the output, the gradient of the table, or the gradient of the weights in bags
    gives: Literal["weights", "gradient", "output", "weight_gradient"] = "weights"
    #: True if the gradient has several tensors; each row of the vectors' array is then one tensor
    several: bool = False

    @property
    def framework(self) -> str:
        return self.name.partition(".")[0]

    def hyper(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return all options of the rule. The defaults in `options` override `form`, and the given values override
        both. Raise ValueError for an unknown option."""
        if unknown := given.keys() - self.options.keys():
            raise ValueError(
                f"{self.name}: got options {', '.join(sorted(unknown))}; accepted are {', '.join(self.options)}"
            )
        return {**self.form, **self.options, **given}

    def begins(self, h: Mapping[str, Any]) -> dict[str, float]:
        """Return {name of a state array: initial value} for all state arrays."""
        return {name: float(h[start] if isinstance(start, str) else start) for name, start in self.states.items()}

    def initial(self, h: Mapping[str, Any]) -> dict[str, float]:
        """Return {name of a state array: initial value} for the state arrays that the given options need."""
        momentum = h.get("momentum") or h.get("buffer") == "always"
        used = {"momentum": momentum, "mean": h.get("centered"), "v_max": h.get("amsgrad")}
        return {name: start for name, start in self.begins(h).items() if used.get(name, True)}
