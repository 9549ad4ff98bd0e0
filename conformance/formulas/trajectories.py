"""Trajectories of a formula, with options and inputs for which known mistakes lie far outside the bound.

Rates and decays are larger than in practice. A decay applied after the update differs by lr decay |step|, which for
usual numbers is less than the rounding of the weight.

May import: `islices.conformance.formulas.rules`, `islices.conformance.formulas.lookups`,
`islices.conformance.formulas.evaluate`, `islices.conformance.formulas.formula`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from islices.conformance.formulas import lookups, rules
from islices.conformance.formulas.evaluate import Trajectory
from islices.conformance.formulas.formula import Formula

#: A learning rate that changes at each step: where it stands outside a buffer and where inside are told apart.
SCHEDULE = (1.0, 0.25, 2.0, 0.5)
#: Frameworks of row-sparse formulas alone.
SPARSE = ("fbgemm", "sparsecore")
#: Family -> (name, options, inputs, with a schedule); options that a formula lacks leave it without the trajectory.
Setting = tuple[str, dict[str, Any], str, bool]
ADAM: tuple[Setting, ...] = (
    ("sizes", {"lr": 0.1}, "wide", False),
    ("betas and schedule", {"lr": 0.1, "beta1": 0.7, "beta2": 0.9}, "near", True),
    ("decay", {"lr": 0.1, "weight_decay": 0.5}, "near", False),
    ("amsgrad", {"lr": 0.1, "beta2": 0.5, "amsgrad": True}, "near", False),
)
BAGS: tuple[Setting, ...] = (
    ("sum", {"combiner": "sum"}, "bags wide", False),
    ("mean", {"combiner": "mean"}, "bags wide", False),
    ("sqrtn", {"combiner": "sqrtn"}, "bags wide", False),
    ("max", {"combiner": "max"}, "bags wide", False),
    ("weighted sum", {"combiner": "sum"}, "bags weighted", False),
    ("weighted mean", {"combiner": "mean"}, "bags weighted", False),
    ("weighted sqrtn", {"combiner": "sqrtn"}, "bags weighted", False),
    ("padding", {"combiner": "sum", "padding_idx": 1}, "bags near", False),
    ("padding and mean", {"combiner": "mean", "padding_idx": 1}, "bags near", False),
)
SETTINGS: dict[Any, tuple[Setting, ...]] = {
    rules.sgd: (
        ("sizes", {"lr": 0.1}, "wide", False),
        ("momentum and schedule", {"lr": 0.1, "momentum": 0.9}, "near", True),
        ("nesterov", {"lr": 0.1, "momentum": 0.7, "nesterov": True}, "near", True),
        ("dampening", {"lr": 0.1, "momentum": 0.9, "dampening": 0.3}, "near", False),
        ("decay", {"lr": 0.1, "weight_decay": 0.5}, "near", True),
        ("decay and momentum", {"lr": 0.1, "momentum": 0.7, "weight_decay": 0.5}, "near", True),
        ("vast", {"lr": 0.1}, "beyond", False),
    ),
    rules.adagrad: (
        ("sizes", {"lr": 0.1}, "wide", False),
        ("lr_decay", {"lr": 0.1, "lr_decay": 0.5}, "near", False),
        ("decay", {"lr": 0.1, "weight_decay": 0.5}, "near", True),
        ("start", {"lr": 0.1, "initial_accumulator": 0.5}, "near", True),
        ("epsilon", {"lr": 0.1, "eps": 1e-3}, "near", False),
        ("vast", {"lr": 0.1}, "vast", False),
    ),
    rules.adadelta: (
        ("sizes", {"lr": 1.0}, "wide", False),
        ("rho and schedule", {"lr": 1.0, "rho": 0.6}, "near", True),
        ("decay", {"lr": 1.0, "weight_decay": 0.5}, "near", False),
    ),
    rules.rmsprop: (
        ("sizes", {"lr": 0.1, "rho": 0.9}, "wide", False),
        ("momentum and schedule", {"lr": 0.1, "rho": 0.8, "momentum": 0.7}, "near", True),
        ("centered", {"lr": 0.1, "rho": 0.7, "centered": True, "eps": 1e-3}, "near", False),
        ("epsilon", {"lr": 0.1, "eps": 1e-3}, "near", False),
        ("decay", {"lr": 0.1, "weight_decay": 0.5}, "near", False),
    ),
    rules.adam: (*ADAM, ("vast", {"lr": 0.1}, "vast", False)),
    rules.adamax: (*ADAM[:3], ("vast", {"lr": 0.1}, "beyond", False)),
    rules.nadam: ADAM[:3],
    rules.radam: ADAM[:3],
    rules.laprop: (
        ("sizes", {"lr": 0.1, "eps": 1e-10}, "wide", False),
        ("betas and schedule", {"lr": 0.1, "beta1": 0.7, "beta2": 0.8, "eps": 1e-4}, "near", True),
    ),
    rules.lion: (
        ("sizes", {"lr": 0.1}, "wide", False),
        ("betas and schedule", {"lr": 0.1, "beta1": 0.7, "beta2": 0.9}, "near", True),
        ("decay", {"lr": 0.1, "weight_decay": 0.5}, "near", False),
        ("vast", {"lr": 0.1}, "beyond", False),
    ),
    rules.clip: (
        ("sizes", {"max_norm": 1.0}, "wide", False),
        ("near", {"max_norm": 20.0}, "near", False),
        ("epsilon", {"max_norm": 4e-6}, "small", False),
    ),
    rules.clip_value: (("near", {"limit": 0.3}, "near", False),),
    lookups.bag: (*BAGS, ("max_norm", {"combiner": "sum", "max_norm": 2.0}, "bags near", False)),
    lookups.bag_gradient: (*BAGS, ("frequency", {"combiner": "sum", "scale_grad_by_freq": True}, "bags near", False)),
    lookups.embedding_gradient: (
        ("duplicates", {}, "ids wide", False),
        ("padding", {"padding_idx": 1}, "ids wide", False),
        ("frequency", {"scale_grad_by_freq": True}, "ids wide", False),
    ),
    lookups.weight_gradient: (
        ("products", {}, "bags near", False),
        ("padding", {"padding_idx": 1}, "bags near", False),
    ),
    rules.renorm: (
        ("sizes", {"max_norm": 2.0}, "wide", False),
        ("epsilon", {"max_norm": 5e-5}, "small", False),
    ),
    rules.ftrl: (
        ("sizes", {"lr": 0.1}, "wide", False),
        ("l1", {"lr": 0.1, "l1": 0.3}, "near", True),
        ("l2", {"lr": 0.1, "l2": 0.5}, "near", False),
        ("beta", {"lr": 0.1, "beta": 0.5}, "near", True),
        ("shrinkage", {"lr": 0.1, "l2_shrinkage": 0.5}, "near", False),
    ),
}


def trajectories(formula: Formula) -> Iterator[Trajectory]:
    """Return the trajectories of a formula."""
    sparse = "" if formula.gradients == "dense" else "rows "
    for name, given, inputs, scheduled in SETTINGS[formula.rule]:
        if _fits(formula, given, inputs):
            rates = SCHEDULE if scheduled else (1.0,)
            yield Trajectory(formula, name, given, sparse + inputs, rates)


def _fits(formula: Formula, given: dict[str, Any], inputs: str) -> bool:
    """Return whether a formula has the options, and the combiner, with the inputs' weights."""
    combiners = formula.form.get("weighted" if "weighted" in inputs else "combiners", ())
    shown = formula.gradients != "dense" and formula.framework not in SPARSE  # by the dense formula
    if shown and inputs in ("vast", "beyond"):
        return False
    if inputs == "wide" and (formula.several or formula.duplicates == "raw") and formula.rule is rules.clip:
        return False  # one element is the norm of them all
    return given.keys() <= formula.options.keys() and ("combiner" not in given or given["combiner"] in combiners)
