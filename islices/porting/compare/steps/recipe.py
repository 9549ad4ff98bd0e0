"""A recipe: one optimizer with all settings of its step, and its results for elements.

The formulas are those of `islices.optim`. They run in float64, with the numbers rounded as the semantics rounds them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np

from islices.core import modes
from islices.optim.formulas import Formula
from islices.optim.numbers import step_numbers
from islices.optim.record import RECORDS
from islices.optim.row_steps import array_rule
from islices.porting.compare.steps.elements import Elements
from islices.porting.compare.stored import Array

#: Decay runs before the rule here: frameworks with decay within the rule differ only by rounding.
NO_DECAY = {"weight_decay": 0.0, "lr_decay": 0.0}


@dataclass(frozen=True)
class Recipe:
    """The formula of an optimizer under a semantics, and its numbers.

    rows: the rows that a sparse gradient moves. duplicates: "sum", or "raw" (squares of each). decay: "", "coupled" or
    "decoupled", by ``hyper["weight_decay"]``. up: True if the step follows the gradient upwards. bits: the cost of the
    numbers that come from the data.
    """

    name: str
    semantics: str
    rows: str
    duplicates: str
    hyper: Mapping[str, Any] = field(hash=False)
    decay: str = ""
    up: bool = False
    bits: float = field(default=0.0, compare=False)

    def having(self, **numbers: Any) -> Recipe:
        """Return the recipe with other hyperparameters."""
        return replace(self, hyper={**self.hyper, **numbers})

    @property
    def formula(self) -> Formula:
        options = ((k, v) for k, v in self.hyper.items() if isinstance(v, bool) or k in ("momentum", "dampening"))
        return _formula(self.name, self.semantics, self.rows, self.duplicates, tuple(options))


@lru_cache(maxsize=4096)
def _formula(name: str, semantics: str, rows: str, duplicates: str, options: tuple[tuple[str, Any], ...]) -> Formula:
    """Return the formula without decay; options choose it: flags, and the numbers that may be zero."""
    preset = RECORDS[name].presets[semantics]
    chosen = {**preset.defaults, "lr": 1.0, **NO_DECAY, **dict(options), "rows": rows, "duplicates": duplicates}
    return replace(preset.formula(chosen), decay="")


def _initial(recipe: Recipe, spec: Any, like: Array) -> Array:
    value = recipe.hyper.get("initial_accumulator", spec.initial) if spec.name in ("accumulator", "n") else spec.initial
    return np.full(like.shape, value if isinstance(value, (int, float)) else recipe.hyper.get(value, 0.0))


def stepped(recipe: Recipe, e: Elements, steps: int) -> Array:
    """Return the table after the step."""
    formula = recipe.formula
    hyper = {**recipe.hyper, **NO_DECAY}
    wide = "float32" if e.precision <= 24 else "float64"
    taken = np.array([steps], np.int32)
    numbers = step_numbers(modes.HOST, formula, hyper, taken, wide, taken).astype(np.float64)
    given: dict[str, Any] = {name: numbers[k : k + 1] for k, name in enumerate(formula.names)}
    g, w = -e.g if recipe.up else e.g, e.w
    if recipe.decay == "coupled":
        g = g + recipe.hyper["weight_decay"] * w
    elif recipe.decay == "decoupled":
        w = (1.0 - hyper["lr"] * recipe.hyper["weight_decay"]) * w
    if formula.squares:
        given["q"] = e.raw if formula.raw else g * g
    for spec in formula.state:
        x = e.state.get(spec.name)
        given[spec.name] = _initial(recipe, spec, e.w) if x is None else x
    with np.errstate(all="ignore"):
        new: Array = array_rule(formula.rule, modes.HOST)(g=g, w=w, **given, **formula.constants)[0]
    return np.where(e.named, new, e.w) if recipe.rows == "touched" and not e.named.all() else new


def bound(recipe: Recipe, e: Elements, steps: int, after: Array) -> Array:
    """Return, for each element, the distance from `stepped` that rounding may cause in a framework's step.

    The table is rounded once, or twice with decay. Each quotient, root or product of the step loses an eps, at most
    sixteen in all. Earlier roundings, in sums of duplicates and in running means, propagate through the rule; the
    bound includes their effect. SPEC clause 22.
    """
    slack = quick_bound(e, after)
    beta2 = recipe.hyper.get("beta2")
    if beta2 is not None and any(spec.name == "v" for spec in recipe.formula.state):
        slack = slack + corrected_digits(float(beta2), steps + 1) * e.eps * np.abs(after - e.w)
    size = 2 * e.eps * (e.counts + 1) * e.terms
    moved = [e._replace(g=e.g + size), e._replace(g=e.g - size)]
    for spec in recipe.formula.state:
        x = e.state.get(spec.name)
        if x is not None:
            size = 4 * e.eps * (np.abs(x) + (0 if spec.positive else np.abs(e.g)))
            moved += [e._replace(state={**e.state, spec.name: x + d}) for d in (size, -size)]
    with np.errstate(all="ignore"):
        for other in moved:
            slack = slack + np.nan_to_num(np.abs(stepped(recipe, other, steps) - after), nan=0.0, posinf=0.0)
    return slack


def corrected_digits(beta2: float, t: int) -> float:
    """Return the eps that step t loses if beta2 and beta2^t are float32 and 1 - beta2^t has cancelled.

    Each of the two is rounded by a quarter of an eps; the root halves the loss. SPEC clause 28, grade 2.
    """
    return (1.0 + t * beta2 ** (t - 1)) / (8.0 * (1.0 - beta2**t)) if 0.0 < beta2 < 1.0 and t > 0 else 0.0


def quick_bound(e: Elements, after: Array) -> Array:
    """Return the part of the bound that is the same for every recipe."""
    tiny = 2.0**-149 if e.precision <= 24 else 5e-324
    result: Array = e.eps * (np.abs(e.w) + np.abs(e.after) + 16 * np.abs(after - e.w)) + tiny
    return result
