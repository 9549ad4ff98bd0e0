"""Define the trajectories of each formula. The options and inputs of trajectories are chosen so that the results of
known mistakes are far outside of the bound.

Learning rates and decays are larger than in practice. For example, a decay applied after the update changes the result
by lr * decay * |step|. For usual numbers, this change is less than the rounding of the weight.

May import: `islices.conformance.formulas.rules`, `islices.conformance.formulas.lookups`,
`islices.conformance.formulas.evaluate`, `islices.conformance.formulas.formula`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from islices.conformance.formulas import lookups, rules
from islices.conformance.formulas.evaluate import Trajectory
from islices.conformance.formulas.formula import Formula

#: The factors of a learning rate that changes at each step. These factors distinguish a learning rate inside a momentum
#: buffer from one outside.
SCHEDULE = (1.0, 0.25, 2.0, 0.5)
#: The frameworks whose optimizers have only row-sparse formulas.
SPARSE = ("fbgemm", "sparsecore")


class Setting(NamedTuple):
    """A trajectory for all formulas of a rule. Formulas that lack one of the trajectory's options do not run it."""

    name: str
    inputs: str
    scheduled: bool
    options: dict[str, Any]


def of(name: str, inputs: str, scheduled: bool = False, **options: Any) -> Setting:
    return Setting(name, inputs, scheduled, options)


ADAM: tuple[Setting, ...] = (
    of("sizes", "wide", lr=0.1),
    of("betas and schedule", "near", True, lr=0.1, beta1=0.7, beta2=0.9),
    of("decay", "near", lr=0.1, weight_decay=0.5),
    of("amsgrad", "near", lr=0.1, beta2=0.5, amsgrad=True),
)
BAGS: tuple[Setting, ...] = (
    *(of(kind, "bags wide", combiner=kind) for kind in ("sum", "mean", "sqrtn", "max")),
    *(of(f"weighted {kind}", "bags weighted", combiner=kind) for kind in ("sum", "mean", "sqrtn")),
    of("padding", "bags near", combiner="sum", padding_idx=1),
    of("padding and mean", "bags near", combiner="mean", padding_idx=1),
)
SETTINGS: dict[Any, tuple[Setting, ...]] = {
    rules.sgd: (
        of("sizes", "wide", lr=0.1),
        of("momentum and schedule", "near", True, lr=0.1, momentum=0.9),
        of("nesterov", "near", True, lr=0.1, momentum=0.7, nesterov=True),
        of("dampening", "near", lr=0.1, momentum=0.9, dampening=0.3),
        of("decay", "near", True, lr=0.1, weight_decay=0.5),
        of("decay and momentum", "near", True, lr=0.1, momentum=0.7, weight_decay=0.5),
        of("vast", "beyond", lr=0.1),
    ),
    rules.adagrad: (
        of("sizes", "wide", lr=0.1),
        of("lr_decay", "near", lr=0.1, lr_decay=0.5),
        of("decay", "near", True, lr=0.1, weight_decay=0.5),
        of("start", "near", True, lr=0.1, initial_accumulator=0.5),
        of("epsilon", "near", lr=0.1, eps=1e-3),
        of("vast", "vast", lr=0.1),
    ),
    rules.adadelta: (
        of("sizes", "wide", lr=1.0),
        of("rho and schedule", "near", True, lr=1.0, rho=0.6),
        of("decay", "near", lr=1.0, weight_decay=0.5),
    ),
    rules.rmsprop: (
        of("sizes", "wide", lr=0.1, rho=0.9),
        of("momentum and schedule", "near", True, lr=0.1, rho=0.8, momentum=0.7),
        of("centered", "near", lr=0.1, rho=0.7, centered=True, eps=1e-3),
        of("epsilon", "near", lr=0.1, eps=1e-3),
        of("decay", "near", lr=0.1, weight_decay=0.5),
    ),
    rules.adam: (*ADAM, of("vast", "vast", lr=0.1)),
    rules.adamax: (*ADAM[:3], of("vast", "beyond", lr=0.1)),
    rules.nadam: ADAM[:3],
    rules.radam: ADAM[:3],
    rules.laprop: (
        of("sizes", "wide", lr=0.1, eps=1e-10),
        of("betas and schedule", "near", True, lr=0.1, beta1=0.7, beta2=0.8, eps=1e-4),
    ),
    rules.lion: (*ADAM[:3], of("vast", "beyond", lr=0.1)),
    rules.clip: (
        of("sizes", "wide", max_norm=1.0),
        of("near", "near", max_norm=20.0),
        of("epsilon", "small", max_norm=4e-6),
    ),
    rules.clip_value: (of("near", "near", limit=0.3),),
    lookups.bag: (*BAGS, of("max_norm", "bags near", combiner="sum", max_norm=2.0)),
    lookups.bag_gradient: (*BAGS, of("frequency", "bags near", combiner="sum", scale_grad_by_freq=True)),
    lookups.embedding_gradient: (
        of("duplicates", "ids wide"),
        of("padding", "ids wide", padding_idx=1),
        of("frequency", "ids wide", scale_grad_by_freq=True),
    ),
    lookups.weight_gradient: (of("products", "bags near"), of("padding", "bags near", padding_idx=1)),
    rules.renorm: (of("sizes", "wide", max_norm=2.0), of("epsilon", "small", max_norm=5e-5)),
    rules.ftrl: (
        of("sizes", "wide", lr=0.1),
        of("l1", "near", True, lr=0.1, l1=0.3),
        of("l2", "near", lr=0.1, l2=0.5),
        of("beta", "near", True, lr=0.1, beta=0.5),
        of("shrinkage", "near", lr=0.1, l2_shrinkage=0.5),
    ),
}


def trajectories(formula: Formula) -> Iterator[Trajectory]:
    sparse = "" if formula.gradients == "dense" else "rows "
    for one in SETTINGS[formula.rule]:
        if _fits(formula, one.options, one.inputs):
            rates = SCHEDULE if one.scheduled else (1.0,)
            yield Trajectory(formula, one.name, one.options, sparse + one.inputs, rates)


def _fits(formula: Formula, given: dict[str, Any], inputs: str) -> bool:
    """Return True if a formula has the given options, and if it has the combiner that the options name.

    Return False for "vast" and "beyond" inputs of a row-sparse formula whose framework is not in `SPARSE`, because
    dense formulas already run these inputs. Return False for "wide" inputs of a clip whose norm is dominated by one
    element.
    """
    combiners = formula.form.get("weighted" if "weighted" in inputs else "combiners", ())
    # the dense formula already runs these inputs
    shown = formula.gradients != "dense" and formula.framework not in SPARSE
    if shown and inputs in ("vast", "beyond"):
        return False
    if inputs == "wide" and (formula.several or formula.duplicates == "raw") and formula.rule is rules.clip:
        return False  # one element dominates the norm
    return given.keys() <= formula.options.keys() and ("combiner" not in given or given["combiner"] in combiners)
