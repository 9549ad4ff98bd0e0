"""Find the optimizer that made a side's step: the described one, else a stock formula.

Only stock formulas with the arrays of the side's state are tried. The elements give the learning rate, and `CONSTANTS`
gives epsilon and the initial accumulator. All other numbers are the semantics' defaults.
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

#: Elements that a formula is tried on first.
FEW = 96
#: Elements that may be further off by cancellation while numbers are still being looked for.
OUTLIERS = 0.25
#: The stock optimizers, and bits that speak against those that fewer people use.
PRIOR = {"sgd": 0.0, "adam": 0.0, "adagrad": 1.0}
#: Bits against a number that is not the default, and against each word that contradicts the description.
UNUSUAL, UNSAID = 3.0, 6.0
#: Semantics whose formulas are tried, and commonly used values of numbers in formulas.
STOCK = ("torch", "keras", "optax", "mxnet")
CONSTANTS = {"eps": (1e-10, 1e-8, 1e-7, 1e-6, 1e-5), "initial_accumulator": (0.0, 0.1)}


def recipes(side: Side) -> list[Recipe]:
    """Return the recipes that reproduce a sample of a side's elements. A description with all numbers gives one."""
    e, given = side.sample, side.optimizer
    if not e.eps or np.array_equal(e.w, e.after) or given.get("class"):
        return []
    described = next(filter(partial(confirms, side), _described(**given)), None)
    if described:
        return [described]
    said = {**given, "optimizer": given.get("name", "").removesuffix("w")}  # AdamW is Adam with another decay
    order = np.argsort(np.abs(e.g), kind="stable")
    few = e.at(np.unique(order[np.linspace(0, len(order) - 1, FEW).astype(np.int64)]))
    found = []
    for recipe in _formulas(side):
        if _rated(recipe, few) and (made := _rated(recipe, e)) and (made := _rounded_rate(made, e)):
            wrong = sum(said.get(word, "") not in ("", made[word]) for word in ("optimizer", "semantics", "rows"))
            found.append(replace(made, bits=made.bits + UNSAID * wrong))
    return found


def confirms(side: Side, recipe: Recipe) -> bool:
    """Return whether a recipe makes the whole table; each is tried once, since that reads all of it."""
    if recipe not in side.confirmed:
        side.confirmed[recipe] = all(holds(recipe, e) for e in side.blocks())
    return side.confirmed[recipe]


# ---------------------------------------------------------------------- formulas
def _described(name: str = "", semantics: str = "", rows: str = "", **given: Any) -> Sequence[Recipe]:
    """Return the recipes of a complete description, with either kind of decay, and of duplicates, if it names none."""
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
    """Return a recipe without decay."""
    words = {"optimizer": name, "semantics": semantics, "rows": rows, "duplicates": "sum", "decay": "", "up": False}
    return Recipe({**words, **more, **{k: v for k, v in hyper.items() if k not in NO_DECAY}})


def _formulas(side: Side) -> Iterator[Recipe]:
    """Yield the stock formulas that may have made a side's step, with all numbers except the learning rate."""
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
    """Return whether a semantics has the formula."""
    try:
        return r["rows"] in r.formula.rows and r.formula.raw == (r["duplicates"] == "raw")
    except ValueError:
        return False


def _with_constants(plain: Recipe, begins: float | None) -> Iterator[Recipe]:
    """Yield a recipe with its defaults first, then with each other constant.

    begins: the initial accumulator, if the state before a first step shows it.
    """
    values = {name: dict.fromkeys((plain[name], *x)) for name, x in CONSTANTS.items() if plain[name] is not None}
    if begins is not None and "initial_accumulator" in values:
        plain, values["initial_accumulator"] = plain.having(initial_accumulator=begins), {begins: None}
    elif begins:  # this formula begins with 0
        return
    for numbers in product(*values.values()):
        made = plain.having(**dict(zip(values, numbers, strict=True)))
        yield replace(made, bits=plain.bits + UNUSUAL * sum(made[name] != plain[name] for name in values))


# ---------------------------------------------------------------------- the learning rate
def _rated(recipe: Recipe, e: Elements) -> Recipe | None:
    """Return the recipe with the learning rate that fits best; None if no positive one comes near.

    A step is affine in its learning rate, except for ftrl's.
    """
    still, moved = (stepped(recipe.having(lr=lr), e) for lr in (0.0, 1.0))
    direction, target = moved - still, e.after - still
    scale = quick_bound(e, e.after) + 16 * e.eps * np.abs(e.after - e.w)
    if not (np.isfinite(direction) & np.isfinite(target)).all() or not direction.any():
        return None
    digits = np.abs(direction) / scale
    clear = (digits >= np.quantile(digits, 0.75)) & (direction != 0)  # elements that rounding leaves most digits of
    lr = float(np.median(target[clear] / direction[clear]))
    if not 0 < lr < math.inf or (np.abs(target - lr * direction) > scale).mean() > OUTLIERS:
        return None
    return recipe.having(lr=lr)


def _rounded_rate(recipe: Recipe, e: Elements) -> Recipe | None:
    """Return the recipe with the shortest learning rate that fits, with the cost of its digits, or None if none
    holds."""
    lr, cost = as_written(recipe["lr"], lambda short: holds(recipe.having(lr=short), e))
    found = replace(recipe.having(lr=lr), bits=recipe.bits + cost)
    return found if cost < FREE or holds(found, e) else None
