"""Find the optimizer that made a side's step: the optimizer in the description if it reproduces the step, else a
formula of a well-known framework.

This module tries a formula only if its state has the same arrays as the side's state. At the first step, if the side
has no state, the module tries formulas with any state. The learning rate is estimated from the elements. For epsilon,
and for an initial accumulator that the state does not show, the module tries the defaults and the values in
`CONSTANTS`. If the state has a momentum, the coefficient is 0.9. All other numbers are the defaults of the semantics.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from islices.core.arguments import is_real
from islices.optim.record import RECORDS
from islices.porting.compare.evidence import FREE, as_written
from islices.porting.compare.steps.recipe import NO_DECAY, Recipe, holds, quick_bound, stepped
from islices.porting.compare.steps.side import Elements, Side

#: The number of elements on which a formula is tried first.
FEW = 96
#: While the learning rate is estimated, at most this fraction of the elements may exceed the bound, because of
#: cancellation.
OUTLIERS = 0.25
#: optimizer -> its cost in bits, which is higher for less popular optimizers
PRIOR = {"sgd": 0.0, "adam": 0.0, "adagrad": 1.0}
#: The costs in bits of a number that is not the default, and of a setting that contradicts the description.
UNUSUAL, UNSAID = 3.0, 6.0
#: The semantics to try, and the values to try for numbers in their formulas.
STOCK = ("torch", "keras", "optax", "mxnet")
CONSTANTS = {"eps": (1e-10, 1e-8, 1e-7, 1e-6, 1e-5), "initial_accumulator": (0.0, 0.1)}


def recipes(side: Side) -> list[Recipe]:
    """Return the recipes that reproduce a sample of a side's elements. If the side has a complete description that
    reproduces the whole table, return only its recipe. If the step changed no element of the sample, or if the
    description is {"class": name}, return no recipe."""
    e, given = side.sample, side.optimizer
    if not e.eps or np.array_equal(e.w, e.after) or given.get("class"):
        return []
    described = next(filter(partial(confirms, side), _described(**given)), None)
    if described:
        return [described]
    said = {**given, "optimizer": given.get("name", "").removesuffix("w")}  # AdamW is Adam with decoupled decay
    order = np.argsort(np.abs(e.g), kind="stable")
    few = e.at(np.unique(order[np.linspace(0, len(order) - 1, FEW).astype(np.int64)]))
    found = []
    for recipe in _formulas(side):
        if _rated(recipe, few) and (made := _rated(recipe, e)) and (made := _rounded_rate(made, e)):
            wrong = sum(said.get(word, "") not in ("", made[word]) for word in ("optimizer", "semantics", "rows"))
            found.append(replace(made, bits=made.bits + UNSAID * wrong))
    return found


def confirms(side: Side, recipe: Recipe) -> bool:
    """Return True if a recipe reproduces the whole table. The test is slow, so `side` caches the answer."""
    if recipe not in side.confirmed:
        side.confirmed[recipe] = all(holds(recipe, e) for e in side.blocks())
    return side.confirmed[recipe]


# ---------------------------------------------------------------------- formulas
def _described(name: str = "", semantics: str = "", rows: str = "", **given: Any) -> Sequence[Recipe]:
    """Return the recipes that fit a complete description. If the description does not say how the optimizer handles
    weight decay or duplicates, return a recipe for each possibility. Return no recipe for an incomplete description,
    for a hyperparameter that is not a number, for rowwise_adagrad, or if the learning rate decays."""
    preset = RECORDS[name].presets.get(semantics) if name in RECORDS else None
    if preset is None or "lr" not in given or not rows or given.get("lr_decay") or name == "rowwise_adagrad":
        return ()
    up = bool(given.pop("maximize", False))
    duplicates = [str(given.pop("duplicates"))] if "duplicates" in given else ["sum", "raw"]
    if not all(isinstance(x, bool) or is_real(x) for x in given.values()):
        return ()
    decay = given.get("weight_decay")
    kinds = [""] if not decay else ["decoupled"] if name == "adamw" else ["coupled", "decoupled"]
    plain = _recipe(name.removesuffix("w"), semantics, rows, {**preset.defaults, **given}, up=up)
    if decay:
        plain = plain.having(weight_decay=float(decay))
    made = (plain.having(duplicates=squared, decay=kind) for squared, kind in product(duplicates, kinds))
    return list(filter(_exists, made))


def _recipe(name: str, semantics: str, rows: str, hyper: dict[str, Any], **more: Any) -> Recipe:
    """Make a recipe without weight decay from the optimizer's name, the semantics, the setting "rows" and the
    hyperparameters."""
    words = {"optimizer": name, "semantics": semantics, "rows": rows, "duplicates": "sum", "decay": "", "up": False}
    return Recipe({**words, **more, **{k: v for k, v in hyper.items() if k not in NO_DECAY}})


def _formulas(side: Side) -> Iterator[Recipe]:
    """Yield recipes that may have made a side's step, with the formulas of well-known frameworks. The learning rate of
    these recipes is a placeholder."""
    e, kept = side.sample, side.kept
    moved = ("all",) if (e.after != e.w)[~e.named].any() else ("touched", "all")
    duplicates = ("sum", "raw") if (e.counts > 1).any() else ("sum",)
    x = e.state.get("accumulator")
    begins = float(f"{x[0]:.6g}") if x is not None and not side.steps and (x == x[0]).all() else None
    momentum = 0.9 if "momentum" in kept else 0.0
    for name, semantics, rows, squared, nesterov in product(PRIOR, STOCK, moved, duplicates, (False, True)):
        preset = RECORDS[name].presets.get(semantics)
        if preset is None or (nesterov and not (name == "sgd" and momentum)):
            continue
        flags = {"momentum": momentum, "amsgrad": "v_max" in kept, "nesterov": nesterov, "lr": 1.0}
        hyper = {k: flags.get(k, v) for k, v in preset.defaults.items()}
        plain = replace(_recipe(name, semantics, rows, hyper, duplicates=squared), bits=PRIOR[name])
        if _exists(plain) and ({spec.name for spec in plain.formula.state} == kept or (not kept and not side.steps)):
            yield from _with_constants(plain, begins)


def _exists(r: Recipe) -> bool:
    """Return True if the semantics contains a formula for the recipe's rows and duplicates."""
    try:
        return r["rows"] in r.formula.rows and r.formula.raw == (r["duplicates"] == "raw")
    except ValueError:
        return False


def _with_constants(plain: Recipe, begins: float | None) -> Iterator[Recipe]:
    """Yield copies of a recipe with all combinations of its default values and the values in `CONSTANTS`. The copy with
    the default values is first.

    `begins` is the initial accumulator, or None if the state does not show it. If `begins` is a number, it is the only
    initial accumulator that is tried. If it is not 0 and the formula has no initial accumulator, nothing is yielded.
    """
    values = {name: dict.fromkeys((plain[name], *x)) for name, x in CONSTANTS.items() if plain[name] is not None}
    if begins is not None and "initial_accumulator" in values:
        plain, values["initial_accumulator"] = plain.having(initial_accumulator=begins), {begins: None}
    elif begins:  # this formula has an initial accumulator of 0
        return
    for numbers in product(*values.values()):
        made = plain.having(**dict(zip(values, numbers, strict=True)))
        yield replace(made, bits=plain.bits + UNUSUAL * sum(made[name] != plain[name] for name in values))


# ---------------------------------------------------------------------- the learning rate
def _rated(recipe: Recipe, e: Elements) -> Recipe | None:
    """Return the recipe with the learning rate that fits the elements best, or None if no positive learning rate fits.

    The estimate assumes that the step is an affine function of the learning rate. This is true of all optimizers in
    `PRIOR`.
    """
    still, moved = (stepped(recipe.having(lr=lr), e) for lr in (0.0, 1.0))
    direction, target = moved - still, e.after - still
    scale = quick_bound(e, e.after) + 16 * e.eps * np.abs(e.after - e.w)
    if not (np.isfinite(direction) & np.isfinite(target)).all() or not direction.any():
        return None
    digits = np.abs(direction) / scale
    clear = (digits >= np.quantile(digits, 0.75)) & (direction != 0)  # the elements with the smallest rounding errors
    lr = float(np.median(target[clear] / direction[clear]))
    if not 0 < lr < math.inf or (np.abs(target - lr * direction) > scale).mean() > OUTLIERS:
        return None
    return recipe.having(lr=lr)


def _rounded_rate(recipe: Recipe, e: Elements) -> Recipe | None:
    """Round the learning rate to as few decimal digits as the elements allow, and add the cost of these digits to the
    recipe. Return None if the recipe does not reproduce the elements."""
    lr, cost = as_written(recipe["lr"], lambda short: holds(recipe.having(lr=short), e))
    found = replace(recipe.having(lr=lr), bits=recipe.bits + cost)
    return found if cost < FREE or holds(found, e) else None
