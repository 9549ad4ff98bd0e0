"""Define options of rules that several formulas share, and functions that make formulas.

May import: `islices.conformance.formulas.formula`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from islices.conformance.formulas.formula import Formula, Gradients

Form = dict[str, Any]
#: The options of Adam and similar optimizers.
RATES: Form = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8}
#: Adam as in Kingma and Ba 2015, algorithm 1.
ADAM: Form = {"epsilon": "corrected", "correction": "both", "decay": "coupled", "amsgrad": False, "maximum": "raw"}
MOMENTS: Form = {"m": 0.0, "v": 0.0}
#: Momentum as in Polyak 1964; the buffer does not include the learning rate.
SGD: Form = {
    "buffer": "gradients", "first": "gradient", "decay": "coupled", "momentum": 0.0, "dampening": 0.0, "nesterov": False,
    "weight_decay": 0.0,
}  # fmt: skip
ADAGRAD: Form = {"epsilon": "outside", "per_row": False, "decay": "coupled", "weight_decay": 0.0, "lr_decay": 0.0}
RMSPROP: Form = {
    "epsilon": "outside", "buffer": "gradients", "decay": "coupled", "centered": False, "momentum": 0.0,
    "weight_decay": 0.0,
}  # fmt: skip
#: The initial values of state arrays.
MOMENTUM: Form = {"momentum": 0.0}
ACCUMULATOR: Form = {"accumulator": 0.0}
STARTED: Form = {"accumulator": "initial_accumulator"}
RMS: Form = {"square": 0.0, "mean": 0.0, "momentum": 0.0}
FTRL: Form = {"z": 0.0, "n": "initial_accumulator"}

NAMED = "of the rows that the gradient names, duplicates summed: "


def documented(framework: str, source: str) -> Callable[..., Formula]:
    """Return a function that makes formulas of a framework. In `source`, {} stands for the name of the class or
    function, and {module} for that name in lower case. The returned function adds its argument `note` to the source."""

    def make(
        name: str, rule: Any, equation: str, form: Form, options: Form, *more: Any, note: str = "", **fields: Any
    ) -> Formula:
        kind = name.partition(" ")[0]
        where = source.format(kind, module=kind.lower()) + note
        return Formula(f"{framework}.{name}", rule, equation, where, form, options, *more, **fields)

    return make


def with_sparse(
    dense: Formula, named: str, gradients: Gradients = "touched", note: str = ""
) -> tuple[Formula, Formula]:
    """Return (formula, the same formula for row-sparse gradients). ``named`` is a text that states which rows are
    updated. This text is put in front of the equation, and the text ``note`` is added to the source."""
    sparse = replace(
        dense, name=f"{dense.name} sparse", equation=named + dense.equation, source=dense.source + note, gradients=gradients,
    )  # fmt: skip
    return dense, sparse
