"""Known mistakes as deliberately wrong formulas. The vectors must detect them, and a report names them as causes.

May import: `islices.conformance.formulas.rules`, `islices.conformance.formulas.lookups`,
`islices.conformance.formulas.formula`, `islices.conformance.formulas.numbers`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from islices.conformance.formulas import lookups, rules
from islices.conformance.formulas.formula import Formula
from islices.conformance.formulas.numbers import Numbers

Hyper = Mapping[str, Any]


@dataclass(frozen=True)
class Mutant:
    """A mistake, and its change of a formula."""

    #: as a report says it
    title: str
    #: options -> those that it changes; empty where it changes nothing
    change: Callable[[Hyper], Hyper] = lambda h: {}
    #: by how much its step count is off
    shift: int = 0
    #: of the formula: gradients, duplicates
    fields: Mapping[str, Any] | None = None
    only: tuple[Any, ...] = ()

    def fits(self, formula: Formula) -> bool:
        """Return whether the mistake can be made in a formula."""
        if self.only and formula.rule not in self.only:
            return False
        if self.fields is None:
            return True
        same = all(getattr(formula, k) == v for k, v in self.fields.items())
        weightless = formula.gives != "weights" and "gradients" in self.fields
        return formula.gradients != "dense" and not weightless and not same

    def made_in(self, formula: Formula) -> Formula:
        """Return the formula with this mistake. It may already have another one."""
        if self.fields is not None:
            return replace(formula, **self.fields)

        def rule(n: Numbers, g: Any, w: Any, s: Any) -> Any:
            wrong = type(n)({**n.h, **self.change(n.h)}, n.t + self.shift, n.squares)
            return formula.rule(wrong, g, w, s)

        return replace(formula, rule=rule)


def where(condition: Callable[[Hyper], Any], **change: Any) -> Callable[[Hyper], Hyper]:
    return lambda h: change if condition(h) else {}


def decays(h: Hyper) -> Any:
    return h.get("weight_decay")


def swapped(one: str, other: str) -> Callable[[Hyper], Hyper]:
    return lambda h: {one: h[other], other: h[one]}


def complement(name: str) -> Callable[[Hyper], Hyper]:
    return lambda h: {name: 1.0 - h[name]}


ADAMS = (rules.adam,)
COUNTED = (rules.adam, rules.adamax)
BETAS = (rules.adam, rules.lion, rules.nadam, rules.radam)
MOVING = (*BETAS, rules.sgd, rules.adagrad, rules.adadelta, rules.rmsprop, rules.adamax)
BAGS = (lookups.bag, lookups.bag_gradient)
LOOKUPS = (*BAGS, lookups.embedding_gradient, lookups.weight_gradient)
MUTANTS = (
    Mutant("decay joined to the gradient (L2), not decoupled", where(lambda h: decays(h) and h["decay"] == "decoupled", decay="coupled")),
    Mutant("decay decoupled, not joined to the gradient", where(lambda h: decays(h) and h["decay"] != "decoupled", decay="decoupled")),
    Mutant("decay applied after the update", where(decays, decay="after")),
    Mutant("decay not multiplied by the learning rate", where(lambda h: decays(h) and h["decay"] == "decoupled", decay="without lr")),
    Mutant("decay applied twice, joined to the gradient and to the weights", where(decays, decay="twice")),
    Mutant("decay missing", where(decays, weight_decay=0.0)),
    Mutant("decay joined to the gradient, but not to its squares", where(lambda h: decays(h) and h["decay"] == "coupled", decay="not squared"), only=(rules.adam, rules.adagrad, rules.rmsprop)),
    Mutant("bias correction missing", where(lambda h: h["correction"] != "none", correction="none"), only=COUNTED),
    Mutant("bias correction of the first moment alone", where(lambda h: h["correction"] == "both", correction="first"), only=ADAMS),
    Mutant("bias correction of the second moment alone", where(lambda h: h["correction"] == "both", correction="second"), only=ADAMS),
    Mutant("bias corrections swapped", where(lambda h: h["correction"] == "both", correction="swapped"), only=ADAMS),
    Mutant("bias correction applied twice", where(lambda h: h["correction"] == "both", correction="doubled"), only=ADAMS),
    Mutant("bias correction of a step too late (t counted from 2)", shift=1, only=(*COUNTED, rules.nadam, rules.radam)),
    Mutant("NaN, as bias corrections of 0 give (t counted from 0)", shift=-1, only=COUNTED),
    Mutant("epsilon added to the root that is not corrected", where(lambda h: h["epsilon"] == "corrected", epsilon="hat"), only=ADAMS),
    Mutant("epsilon added to the corrected root", where(lambda h: h["epsilon"] == "hat", epsilon="corrected"), only=ADAMS),
    Mutant("epsilon inside the root", where(lambda h: h["epsilon"] in ("corrected", "hat", "outside"), epsilon="inside"), only=(rules.adam, rules.adagrad, rules.rmsprop)),
    Mutant("epsilon outside the root", where(lambda h: h["epsilon"] == "inside", epsilon="outside"), only=(rules.adagrad, rules.rmsprop)),
    Mutant("epsilon outside the root", where(lambda h: h["epsilon"] == "inside", epsilon="corrected"), only=ADAMS),
    Mutant("epsilon added to the divisor, not to the gradient", where(lambda h: h["epsilon"] == "gradient", epsilon="outside"), only=(rules.adamax,)),
    Mutant("epsilon added to the gradient, not to the divisor", where(lambda h: h["epsilon"] == "outside", epsilon="gradient"), only=(rules.adamax,)),
    Mutant("betas swapped", swapped("beta1", "beta2"), only=(*BETAS, rules.adamax)),
    Mutant("1 - beta1 where beta1 is due, and beta1 where 1 - beta1 is", complement("beta1"), only=(*BETAS, rules.adamax)),
    Mutant("1 - rho where rho is due, and rho where 1 - rho is", complement("rho"), only=(rules.rmsprop, rules.adadelta)),
    Mutant("amsgrad ignored", where(lambda h: h.get("amsgrad"), amsgrad=False), only=ADAMS),
    Mutant("amsgrad's maximum taken after bias correction", where(lambda h: h.get("amsgrad") and h["maximum"] == "raw", maximum="corrected"), only=ADAMS),
    Mutant("amsgrad's maximum taken before bias correction", where(lambda h: h.get("amsgrad") and h["maximum"] == "corrected", maximum="raw"), only=ADAMS),
    Mutant("learning rate inside the momentum buffer", where(lambda h: h.get("momentum") and h["buffer"] == "gradients", buffer="steps"), only=(rules.sgd, rules.rmsprop)),
    Mutant("learning rate outside the momentum buffer", where(lambda h: h.get("momentum") and h["buffer"] in ("steps", "signed"), buffer="gradients"), only=(rules.sgd, rules.rmsprop)),
    Mutant("nesterov ignored", where(lambda h: h.get("nesterov"), nesterov=False), only=(rules.sgd,)),
    Mutant("first gradient dampened", where(lambda h: h.get("dampening") and h["first"] == "gradient", first="dampened"), only=(rules.sgd,)),
    Mutant("dampening ignored", where(lambda h: h.get("dampening"), dampening=0.0), only=(rules.sgd,)),
    Mutant("divisor of the last step's average of squares", lambda h: {"average": "last"}, only=(rules.adadelta,)),
    Mutant("sign of 0 taken for 1", lambda h: {"of zero": "one"}, only=(rules.lion,)),
    Mutant("step added to the weights, not subtracted", lambda h: {"ascent": True}, only=MOVING),
    Mutant("epsilon ignored", where(lambda h: h.get("eps"), eps=0.0)),
    Mutant("epsilon subtracted under the root", where(lambda h: h.get("centered") and h["epsilon"] == "inside", epsilon="subtracted"), only=(rules.rmsprop,)),
    Mutant("not centered", where(lambda h: h.get("centered"), centered=False), only=(rules.rmsprop,)),
    Mutant("lr_decay counted from 1", where(lambda h: h.get("lr_decay")), shift=1, only=(rules.adagrad,)),
    Mutant("lr_decay ignored", where(lambda h: h.get("lr_decay"), lr_decay=0.0), only=(rules.adagrad,)),
    Mutant("an accumulator an element, not a row", where(lambda h: h["per_row"], per_row=False), only=(rules.adagrad,)),
    Mutant("squares of a row summed, not averaged", where(lambda h: h["per_row"] == "mean", per_row="sum"), only=(rules.adagrad,)),
    Mutant("l2 not doubled", where(lambda h: h["twice"] and (h.get("l2") or h.get("l2_shrinkage")), twice=False), only=(rules.ftrl,)),
    Mutant("l2 doubled", where(lambda h: not h["twice"] and h.get("l2"), twice=True), only=(rules.ftrl,)),
    Mutant("l1 ignored", where(lambda h: h.get("l1"), l1=0.0), only=(rules.ftrl,)),
    Mutant("beta ignored", where(lambda h: h.get("beta"), beta=0.0), only=(rules.ftrl,)),
    Mutant("norm of each row or tensor, not of all", where(lambda h: h["norm"] == "all", norm="row"), only=(rules.clip,)),
    Mutant("norm without its root", where(lambda h: h["norm"] == "all", norm="squared"), only=(rules.clip,)),
    Mutant("scaled up where the norm is less", where(lambda h: h["norm"] == "all", norm="unclamped"), only=(rules.clip,)),
    Mutant("norm of the table, not of each row", where(lambda h: h["norm"] == "row", norm="table"), only=(rules.renorm,)),
    Mutant("epsilon missing", where(lambda h: h["epsilon"], epsilon=0.0), only=(rules.clip, rules.renorm)),
    Mutant("epsilon 1e-6 added", where(lambda h: not h["epsilon"], epsilon=1e-6), only=(rules.clip,)),
    Mutant("norm of all, not of each tensor", where(lambda h: h["norm"] == "row", norm="all"), only=(rules.clip,)),
    Mutant("norms of tensors added, not their squares", where(lambda h: h["norm"] == "all" and h.get("several"), norm="sum"), only=(rules.clip,)),
    Mutant("clipped from above alone", where(lambda h: h["sides"] == "both", sides="upper"), only=(rules.clip_value,)),
    Mutant("sum of a bag for its mean", where(lambda h: h["combiner"] == "mean", combiner="sum"), only=BAGS),
    Mutant("sum of a bag for its maximum", where(lambda h: h["combiner"] == "max", combiner="sum"), only=BAGS),
    Mutant("sum of a bag divided by the count, not its root", where(lambda h: h["combiner"] == "sqrtn", combiner="mean"), only=BAGS),
    Mutant("sum of a bag divided by the root of the sum of weights, not of their squares", where(lambda h: h["combiner"] == "sqrtn" and h["divisor"] == "weights", under="sum"), only=BAGS),
    Mutant("sum of a bag divided by the count, not by the sum of weights", where(lambda h: h["combiner"] in ("mean", "sqrtn") and h["divisor"] == "weights", divisor="count"), only=BAGS),
    Mutant("sum of a bag divided by the sum of weights, not by the count", where(lambda h: h["combiner"] == "mean" and h["divisor"] == "count", divisor="weights"), only=BAGS),
    Mutant("weights of a bag ignored", where(lambda h: h["weighted"], weights="ignored"), only=BAGS),
    Mutant("padding_idx ignored", where(lambda h: h.get("padding_idx") is not None, padding_idx=None), only=LOOKUPS),
    Mutant("padding counted in the mean", where(lambda h: h.get("padding_idx") is not None and h["combiner"] == "mean", counted="padding"), only=BAGS),
    Mutant("an id that a bag has several times taken once", where(lambda h: h["combiner"] != "max", repeats="once"), only=BAGS),
    Mutant("of ids that occur several times the last one taken", where(lambda h: True, repeats="last"), only=(lookups.bag_gradient, lookups.embedding_gradient)),
    Mutant("scale_grad_by_freq ignored", where(lambda h: h.get("scale_grad_by_freq"), scale_grad_by_freq=False), only=LOOKUPS),
    Mutant("max_norm ignored", where(lambda h: h.get("max_norm"), max_norm=None), only=(lookups.bag,)),
    Mutant("all rows moved, not those named alone", fields={"gradients": "all"}),
    Mutant("rows that are named moved alone (lazy)", fields={"gradients": "touched"}),
    Mutant("steps whose gradient names no row not counted", fields={"counts_empty": False}, only=(rules.adam,)),
    Mutant("squares taken of each duplicate", fields={"duplicates": "raw"}),
    Mutant("duplicates summed before they are squared", fields={"duplicates": "summed"}),
    Mutant("of duplicates the last one taken", fields={"duplicates": "last"}),
)  # fmt: skip


def mutants(formula: Formula) -> Iterator[tuple[str, Formula]]:
    """Yield the mistakes that can be made in a formula, by title."""
    for mutant in MUTANTS:
        if mutant.fits(formula):
            yield mutant.title, mutant.made_in(formula)


def pairs(formula: Formula) -> Iterator[tuple[str, Formula]]:
    """Yield pairs of mistakes."""
    for one, other in combinations([mutant for mutant in MUTANTS if mutant.fits(formula)], 2):
        yield f"{one.title}; {other.title}", one.made_in(other.made_in(formula))
