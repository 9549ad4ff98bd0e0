"""Define `Recipe`, an optimizer with all settings of its step, and compute the step for single elements.

This module uses the formulas of `islices.optim`. The formulas are computed in float64, with hyperparameters rounded in
the same way as in the semantics.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import islices.optim  # noqa: F401  # fills RECORDS
from islices.core import modes
from islices.core.locks import lazy_property
from islices.optim.formulas import Formula
from islices.optim.numbers import step_numbers
from islices.optim.record import RECORDS
from islices.optim.row_steps import array_rule
from islices.porting.compare.steps.side import Elements
from islices.porting.compare.stored import Array

#: Settings that remove weight decay and the decay of the learning rate from a formula. This module applies weight decay
#: before the formula. Some frameworks apply weight decay within the formula; both results differ only by rounding.
NO_DECAY = {"weight_decay": 0.0, "lr_decay": 0.0}


@dataclass(frozen=True, eq=False)
class Recipe:
    """An optimizer's formula as one framework computes it, with the numbers of the formula.

    `settings` contains the hyperparameters and these keys: "optimizer", "semantics", "rows", "duplicates", "decay" and
    "up". "rows" defines the rows that a sparse gradient updates, "touched" or "all". "duplicates" is "sum", or "raw" if
    each duplicate is squared separately. "decay" is the kind of weight decay: "", "coupled" or "decoupled". "up" is
    True if the step maximizes the loss. `bits` is the cost of estimated numbers and unlikely settings.
    """

    settings: Mapping[str, Any]
    bits: float = 0.0

    def __getitem__(self, name: str) -> Any:
        """Return a setting, or None if the formula does not have this setting."""
        return self.settings.get(name)

    def having(self, **settings: Any) -> Recipe:
        return replace(self, settings={**self.settings, **settings})

    @lazy_property
    def formula(self) -> Formula:
        """Return the formula without weight decay. Raise ValueError if the semantics does not have the formula."""
        preset = RECORDS[self["optimizer"]].presets[self["semantics"]]
        return replace(preset.formula({**preset.defaults, **self.settings, **NO_DECAY}), decay="")


def stepped(recipe: Recipe, e: Elements) -> Array:
    """Compute one step of the recipe, and return the elements of the table after the step."""
    formula = recipe.formula
    hyper = {name: x for name, x in recipe.settings.items() if not isinstance(x, str)} | NO_DECAY
    wide = "float32" if e.precision <= 24 else "float64"
    taken = np.array([e.steps], np.int32)
    numbers = step_numbers(modes.HOST, formula, hyper, taken, wide, taken).astype(np.float64)
    given: dict[str, Any] = {name: numbers[k : k + 1] for k, name in enumerate(formula.names)}
    g, w = -e.g if recipe["up"] else e.g, e.w
    if recipe["decay"] == "coupled":
        g = g + recipe["weight_decay"] * w
    elif recipe["decay"] == "decoupled":
        w = (1.0 - recipe["lr"] * recipe["weight_decay"]) * w
    if formula.squares:
        given["q"] = e.raw if formula.raw else g * g
    for spec in formula.state:
        begins = recipe["initial_accumulator"] if spec.name in ("accumulator", "n") else None
        if begins is None:
            begins = recipe[spec.initial] or 0.0 if isinstance(spec.initial, str) else spec.initial
        given[spec.name] = e.state.get(spec.name, np.full(w.shape, begins))
    with np.errstate(all="ignore"):
        new: Array = array_rule(formula.rule, modes.HOST)(g=g, w=w, **given, **formula.constants)[0]
    return np.where(e.named, new, e.w) if recipe["rows"] == "touched" and not e.named.all() else new


def bound(recipe: Recipe, e: Elements, after: Array) -> Array:
    """Return, for each element, how far a framework's result may be from `after` because of rounding.

    `after` is the result of `stepped`. A framework rounds the table once, or twice if the step has weight decay. A step
    has at most sixteen quotients, roots and products, and each adds an error of at most one eps of the step. The sums
    of duplicates and the running means are also rounded, and the bound includes the effect of these errors on the
    result. See SPEC clause 22.
    """
    slack, beta2 = quick_bound(e, after), recipe["beta2"]
    if beta2 is not None and any(spec.name == "v" for spec in recipe.formula.state):
        slack = slack + corrected_digits(float(beta2), e.steps + 1) * e.eps * np.abs(after - e.w)
    size = 2 * e.eps * (e.counts + 1) * e.terms
    moved = [e._replace(g=e.g + size), e._replace(g=e.g - size)]
    for spec in recipe.formula.state:
        x = e.state.get(spec.name)
        if x is not None:
            size = 4 * e.eps * (np.abs(x) + (0 if spec.positive else np.abs(e.g)))
            moved += [e._replace(state={**e.state, spec.name: x + d}) for d in (size, -size)]
    with np.errstate(all="ignore"):
        for other in moved:
            slack = slack + np.nan_to_num(np.abs(stepped(recipe, other) - after), nan=0.0, posinf=0.0)
    return slack


def corrected_digits(beta2: float, t: int) -> float:
    """Return the relative error of step t, in multiples of eps, that comes from rounding in the bias correction
    1 - beta2^t. The assumption is that the framework rounds beta2 and beta2^t to float32.

    Both beta2 and beta2^t have a rounding error of at most a quarter of an eps, and the root halves the relative error.
    See grade 2 in SPEC clause 28.
    """
    return (1.0 + t * beta2 ** (t - 1)) / (8.0 * (1.0 - beta2**t)) if 0.0 < beta2 < 1.0 and t > 0 else 0.0


def quick_bound(e: Elements, after: Array) -> Array:
    """Return the part of `bound` that covers the errors from rounding the table and the step."""
    tiny = 2.0**-149 if e.precision <= 24 else 5e-324
    result: Array = e.eps * (np.abs(e.w) + np.abs(e.after) + 16 * np.abs(after - e.w)) + tiny
    return result


def holds(recipe: Recipe, e: Elements) -> bool:
    """Return True if the recipe reproduces the elements after the step within the bound on rounding."""
    after = stepped(recipe, e)
    with np.errstate(invalid="ignore"):
        near = (after == e.after) | (np.abs(after - e.after) <= quick_bound(e, after))
    near |= np.isnan(after) & np.isnan(e.after)
    if near.all():
        return True
    if (~near).mean() > 0.9 and len(near) > 64:
        return False
    far = e.at(~near)  # the full bound takes longer to compute
    made = stepped(recipe, far)
    return bool((np.abs(made - far.after) <= bound(recipe, far, made)).all())
