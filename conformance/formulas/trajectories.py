"""Which trajectories a formula has: the options and inputs on which known mistakes land far outside.

Rates and decays are larger than anyone trains with: a decay applied after the update differs by lr decay |step|, which
at usual numbers is less than the rounding of the weight.

May import: `islices.conformance.formulas.rules`, `islices.conformance.formulas.evaluate`,
`islices.conformance.formulas.formula`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from islices.conformance.formulas import rules
from islices.conformance.formulas.evaluate import Trajectory
from islices.conformance.formulas.formula import Formula

__all__ = ["CHECKPOINTS", "trajectories"]

#: The steps whose results the vectors hold.
CHECKPOINTS = (1, 2, 5, 10)
#: A learning rate that changes at each step: where it stands outside a buffer and where inside are told apart.
SCHEDULE = (1.0, 0.25, 2.0, 0.5)
#: Family -> (name, options, inputs, with a schedule); options that a formula lacks leave it without the trajectory.
Setting = tuple[str, dict[str, Any], str, bool]
ADAM: tuple[Setting, ...] = (
    ("sizes", {"lr": 0.1}, "wide", False),
    ("betas and schedule", {"lr": 0.1, "beta1": 0.7, "beta2": 0.9}, "near", True),
    ("decay", {"lr": 0.1, "weight_decay": 0.5}, "near", False),
    ("amsgrad", {"lr": 0.1, "beta2": 0.5, "amsgrad": True}, "near", False),
)
SETTINGS: dict[Any, tuple[Setting, ...]] = {
    rules.sgd: (
        ("sizes", {"lr": 0.1}, "wide", False),
        ("momentum and schedule", {"lr": 0.1, "momentum": 0.9}, "near", True),
        ("nesterov", {"lr": 0.1, "momentum": 0.7, "nesterov": True}, "near", True),
        ("dampening", {"lr": 0.1, "momentum": 0.9, "dampening": 0.3}, "near", False),
        ("decay", {"lr": 0.1, "weight_decay": 0.5}, "near", True),
        ("decay and momentum", {"lr": 0.1, "momentum": 0.7, "weight_decay": 0.5}, "near", True),
    ),
    rules.adagrad: (
        ("sizes", {"lr": 0.1}, "wide", False),
        ("lr_decay", {"lr": 0.1, "lr_decay": 0.5}, "near", False),
        ("decay", {"lr": 0.1, "weight_decay": 0.5}, "near", True),
        ("start", {"lr": 0.1, "initial_accumulator": 0.5}, "near", True),
        ("epsilon", {"lr": 0.1, "eps": 1e-3}, "near", False),
    ),
    rules.adadelta: (
        ("sizes", {"lr": 1.0}, "wide", False),
        ("rho and schedule", {"lr": 1.0, "rho": 0.6}, "near", True),
        ("decay", {"lr": 1.0, "weight_decay": 0.5}, "near", False),
    ),
    rules.rmsprop: (
        ("sizes", {"lr": 0.1, "rho": 0.9}, "wide", False),
        ("momentum and schedule", {"lr": 0.1, "rho": 0.8, "momentum": 0.7}, "near", True),
        ("centered", {"lr": 0.1, "rho": 0.7, "centered": True}, "near", False),
        ("epsilon", {"lr": 0.1, "eps": 1e-3}, "near", False),
        ("decay", {"lr": 0.1, "weight_decay": 0.5}, "near", False),
    ),
    rules.adam: ADAM,
    rules.adamax: ADAM[:3],
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
    ),
    rules.clip: (
        ("sizes", {"max_norm": 1.0}, "wide", False),
        ("near", {"max_norm": 20.0}, "near", False),
        ("epsilon", {"max_norm": 1e-5}, "small", False),
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
    """Those of a formula."""
    sparse = "" if formula.gradients == "dense" else "rows "
    for name, given, inputs, scheduled in SETTINGS[formula.rule]:
        if given.keys() <= formula.options.keys():
            rates = SCHEDULE if scheduled else (1.0,)
            yield Trajectory(formula, name, given, sparse + inputs, rates)
