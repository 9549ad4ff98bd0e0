"""Define known mistakes as deliberately wrong formulas. The vectors must detect each mistake, and a report names the
mistake as the cause.

May import: `islices.conformance.formulas.rules`, `islices.conformance.formulas.lookups`,
`islices.conformance.formulas.formula`, `islices.conformance.formulas.numbers`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from islices.conformance.formulas.formula import Formula
from islices.conformance.formulas.lookups import bag, bag_gradient, embedding_gradient, weight_gradient
from islices.conformance.formulas.numbers import Numbers
from islices.conformance.formulas.rules import (
    adadelta,
    adagrad,
    adam,
    adamax,
    clip,
    clip_value,
    ftrl,
    lion,
    nadam,
    radam,
    renorm,
    rmsprop,
    sgd,
)

Hyper = Mapping[str, Any]


@dataclass(frozen=True)
class Mutant:
    """A known mistake, described as a change of a formula."""

    #: the name of the mistake in a report
    title: str
    #: options -> the options that the mistake changes; empty if it changes none
    change: Callable[[Hyper], Hyper]
    #: the rules in which the mistake can be made; empty means all
    only: tuple[Any, ...]
    #: the error of the step count
    shift: int
    #: the fields of the formula that the mistake changes: gradients, duplicates or counts_empty; None if it changes none
    fields: Mapping[str, Any] | None

    def fits(self, formula: Formula) -> bool:
        if self.only and formula.rule not in self.only:
            return False
        if self.fields is None:
            return True
        same = all(getattr(formula, k) == v for k, v in self.fields.items())
        weightless = formula.gives != "weights" and "gradients" in self.fields
        return formula.gradients != "dense" and not weightless and not same

    def made_in(self, formula: Formula) -> Formula:
        """Return the formula with this mistake added. The formula may already have another mistake."""
        if self.fields is not None:
            return replace(formula, **self.fields)

        def rule(n: Numbers, g: Any, w: Any, s: Any) -> Any:
            wrong = type(n)({**n.h, **self.change(n.h)}, n.t + self.shift, n.squares)
            return formula.rule(wrong, g, w, s)

        return replace(formula, rule=rule)


def no_option(h: Hyper) -> Hyper:
    return {}


def mutant(
    title: str, change: Callable[[Hyper], Hyper] = no_option, *only: Any, shift: int = 0, fields: Hyper | None = None
) -> Mutant:
    return Mutant(title, change, only, shift, fields)


def where(condition: str | Callable[[Hyper], Any], **change: Any) -> Callable[[Hyper], Hyper]:
    """Return a function that changes options if a condition holds. The condition is an option that must be on, or a
    function of the options."""
    return lambda h: change if (condition(h) if callable(condition) else h.get(condition)) else {}


def changed(option: str, right: Any, wrong: Any) -> Callable[[Hyper], Hyper]:
    return lambda h: {option: wrong} if h[option] == right else {}


def decays(h: Hyper) -> Any:
    return h.get("weight_decay")


def swapped(one: str, other: str) -> Callable[[Hyper], Hyper]:
    return lambda h: {one: h[other], other: h[one]}


def complement(name: str) -> Callable[[Hyper], Hyper]:
    return lambda h: {name: 1.0 - h[name]}


ADAMS = (adam,)
COUNTED = (adam, adamax)
BETAS = (adam, lion, nadam, radam)
MOVING = (*BETAS, sgd, adagrad, adadelta, rmsprop, adamax)
BAGS = (bag, bag_gradient)
LOOKUPS = (*BAGS, embedding_gradient, weight_gradient)
MUTANTS = (
    mutant("decay joined to the gradient (L2), not decoupled", where(lambda h: decays(h) and h["decay"] == "decoupled", decay="coupled")),
    mutant("decay decoupled, not joined to the gradient", where(lambda h: decays(h) and h["decay"] != "decoupled", decay="decoupled")),
    mutant("decay applied after the update", where("weight_decay", decay="after")),
    mutant("decay not multiplied by the learning rate", where(lambda h: decays(h) and h["decay"] == "decoupled", decay="without lr")),
    mutant("decay applied twice, joined to the gradient and to the weights", where("weight_decay", decay="twice")),
    mutant("decay missing", where("weight_decay", weight_decay=0.0)),
    mutant("decay joined to the gradient, but not to its squares", where(lambda h: decays(h) and h["decay"] == "coupled", decay="not squared"), adam, adagrad, rmsprop),
    mutant("bias correction missing", where(lambda h: h["correction"] != "none", correction="none"), *COUNTED),
    mutant("bias correction of the first moment alone", changed("correction", "both", "first"), *ADAMS),
    mutant("bias correction of the second moment alone", changed("correction", "both", "second"), *ADAMS),
    mutant("bias corrections swapped", changed("correction", "both", "swapped"), *ADAMS),
    mutant("bias correction applied twice", changed("correction", "both", "doubled"), *ADAMS),
    mutant("bias correction of a step too late (t counted from 2)", no_option, *COUNTED, nadam, radam, shift=1),
    mutant("NaN, as bias corrections of 0 give (t counted from 0)", no_option, *COUNTED, shift=-1),
    mutant("epsilon added to the root that is not corrected", changed("epsilon", "corrected", "hat"), *ADAMS),
    mutant("epsilon added to the corrected root", changed("epsilon", "hat", "corrected"), *ADAMS),
    mutant("epsilon inside the root", where(lambda h: h["epsilon"] in ("corrected", "hat", "outside"), epsilon="inside"), adam, adagrad, rmsprop),
    mutant("epsilon outside the root", changed("epsilon", "inside", "outside"), adagrad, rmsprop),
    mutant("epsilon outside the root", changed("epsilon", "inside", "corrected"), *ADAMS),
    mutant("epsilon added to the divisor, not to the gradient", changed("epsilon", "gradient", "outside"), adamax),
    mutant("epsilon added to the gradient, not to the divisor", changed("epsilon", "outside", "gradient"), adamax),
    mutant("betas swapped", swapped("beta1", "beta2"), *BETAS, adamax),
    mutant("1 - beta1 where beta1 is due, and beta1 where 1 - beta1 is", complement("beta1"), *BETAS, adamax),
    mutant("1 - rho where rho is due, and rho where 1 - rho is", complement("rho"), rmsprop, adadelta),
    mutant("amsgrad ignored", where("amsgrad", amsgrad=False), *ADAMS),
    mutant("amsgrad's maximum taken after bias correction", where(lambda h: h.get("amsgrad") and h["maximum"] == "raw", maximum="corrected"), *ADAMS),
    mutant("amsgrad's maximum taken before bias correction", where(lambda h: h.get("amsgrad") and h["maximum"] == "corrected", maximum="raw"), *ADAMS),
    mutant("learning rate inside the momentum buffer", where(lambda h: h.get("momentum") and h["buffer"] == "gradients", buffer="steps"), sgd, rmsprop),
    mutant("learning rate outside the momentum buffer", where(lambda h: h.get("momentum") and h["buffer"] in ("steps", "signed"), buffer="gradients"), sgd, rmsprop),
    mutant("nesterov ignored", where("nesterov", nesterov=False), sgd),
    mutant("first gradient dampened", where(lambda h: h.get("dampening") and h["first"] == "gradient", first="dampened"), sgd),
    mutant("dampening ignored", where("dampening", dampening=0.0), sgd),
    mutant("divisor of the last step's average of squares", lambda h: {"average": "last"}, adadelta),
    mutant("sign of 0 taken for 1", lambda h: {"of zero": "one"}, lion),
    mutant("step added to the weights, not subtracted", lambda h: {"ascent": True}, *MOVING),
    mutant("epsilon ignored", where("eps", eps=0.0)),
    mutant("epsilon subtracted under the root", where(lambda h: h.get("centered") and h["epsilon"] == "inside", epsilon="subtracted"), rmsprop),
    mutant("not centered", where("centered", centered=False), rmsprop),
    mutant("lr_decay counted from 1", where("lr_decay"), adagrad, shift=1),
    mutant("lr_decay ignored", where("lr_decay", lr_decay=0.0), adagrad),
    mutant("an accumulator an element, not a row", where(lambda h: h["per_row"], per_row=False), adagrad),
    mutant("squares of a row summed, not averaged", changed("per_row", "mean", "sum"), adagrad),
    mutant("l2 not doubled", where(lambda h: h["twice"] and (h.get("l2") or h.get("l2_shrinkage")), twice=False), ftrl),
    mutant("l2 doubled", where(lambda h: not h["twice"] and h.get("l2"), twice=True), ftrl),
    mutant("l1 ignored", where("l1", l1=0.0), ftrl),
    mutant("beta ignored", where("beta", beta=0.0), ftrl),
    mutant("norm of each row or tensor, not of all", changed("norm", "all", "row"), clip),
    mutant("norm without its root", changed("norm", "all", "squared"), clip),
    mutant("scaled up where the norm is less", changed("norm", "all", "unclamped"), clip),
    mutant("norm of the table, not of each row", changed("norm", "row", "table"), renorm),
    mutant("epsilon missing", where(lambda h: h["epsilon"], epsilon=0.0), clip, renorm),
    mutant("epsilon 1e-6 added", where(lambda h: not h["epsilon"], epsilon=1e-6), clip),
    mutant("norm of all, not of each tensor", changed("norm", "row", "all"), clip),
    mutant("norms of tensors added, not their squares", where(lambda h: h["norm"] == "all" and h.get("several"), norm="sum"), clip),
    mutant("clipped from above alone", changed("sides", "both", "upper"), clip_value),
    mutant("sum of a bag for its mean", changed("combiner", "mean", "sum"), *BAGS),
    mutant("sum of a bag for its maximum", changed("combiner", "max", "sum"), *BAGS),
    mutant("sum of a bag divided by the count, not its root", changed("combiner", "sqrtn", "mean"), *BAGS),
    mutant("sum of a bag divided by the root of the sum of weights, not of their squares", where(lambda h: h["combiner"] == "sqrtn" and h["divisor"] == "weights", under="sum"), *BAGS),
    mutant("sum of a bag divided by the count, not by the sum of weights", where(lambda h: h["combiner"] in ("mean", "sqrtn") and h["divisor"] == "weights", divisor="count"), *BAGS),
    mutant("sum of a bag divided by the sum of weights, not by the count", where(lambda h: h["combiner"] == "mean" and h["divisor"] == "count", divisor="weights"), *BAGS),
    mutant("weights of a bag ignored", where(lambda h: h["weighted"], weights="ignored"), *BAGS),
    mutant("padding_idx ignored", where(lambda h: h.get("padding_idx") is not None, padding_idx=None), *LOOKUPS),
    mutant("padding counted in the mean", where(lambda h: h.get("padding_idx") is not None and h["combiner"] == "mean", counted="padding"), *BAGS),
    mutant("an id that a bag has several times taken once", where(lambda h: h["combiner"] != "max", repeats="once"), *BAGS),
    mutant("of ids that occur several times the last one taken", where(lambda h: True, repeats="last"), bag_gradient, embedding_gradient),
    mutant("scale_grad_by_freq ignored", where("scale_grad_by_freq", scale_grad_by_freq=False), *LOOKUPS),
    mutant("max_norm ignored", where("max_norm", max_norm=None), bag),
    mutant("all rows moved, not those named alone", fields={"gradients": "all"}),
    mutant("rows that are named moved alone (lazy)", fields={"gradients": "touched"}),
    mutant("steps whose gradient names no row not counted", no_option, adam, fields={"counts_empty": False}),
    mutant("squares taken of each duplicate", fields={"duplicates": "raw"}),
    mutant("duplicates summed before they are squared", fields={"duplicates": "summed"}),
    mutant("of duplicates the last one taken", fields={"duplicates": "last"}),
)  # fmt: skip


def mutants(formula: Formula) -> Iterator[tuple[str, Formula]]:
    """Yield (title, wrong formula) for each mistake that can be made in a formula."""
    for mutant in MUTANTS:
        if mutant.fits(formula):
            yield mutant.title, mutant.made_in(formula)


def pairs(formula: Formula) -> Iterator[tuple[str, Formula]]:
    """Yield (title, wrong formula) for each pair of mistakes that can be made in a formula."""
    for one, other in combinations([mutant for mutant in MUTANTS if mutant.fits(formula)], 2):
        yield f"{one.title}; {other.title}", one.made_in(other.made_in(formula))
