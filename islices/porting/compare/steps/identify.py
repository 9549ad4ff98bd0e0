"""Find the optimizer that made a side's step: the described one, else a stock formula.

Only stock formulas with the arrays of the side's state are tried. The elements give the learning rate, and `CONSTANTS`
gives epsilon and the initial accumulator. All other numbers are the semantics' defaults.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

import islices.optim  # noqa: F401  # its records
from islices.core.arguments import is_real
from islices.optim.record import RECORDS
from islices.porting.compare.steps.fit import rated, rounded_rate
from islices.porting.compare.steps.recipe import NO_DECAY, Recipe
from islices.porting.compare.steps.side import Side

#: Elements that a formula is tried on first.
FEW = 96
#: The stock optimizers, and bits that speak against those that fewer people use.
PRIOR = {"sgd": 0.0, "adam": 0.0, "adagrad": 1.0}
#: Bits against a number that is not the default, and against each word that contradicts the description.
UNUSUAL, UNSAID = 3.0, 6.0
#: Semantics whose formulas are tried, and commonly used values of numbers in formulas.
STOCK = ("torch", "keras", "optax", "mxnet")
CONSTANTS = {"eps": (1e-10, 1e-8, 1e-7, 1e-6, 1e-5), "initial_accumulator": (0.0, 0.1)}


def recipes(side: Side) -> list[Recipe]:
    """Return the recipes that reproduce a sample of a side's elements. A description with all numbers gives one."""
    e, steps, given = side.elements, side.steps, side.optimizer
    if not e.eps or np.array_equal(e.w, e.after) or given.get("class"):
        return []
    described = next(filter(side.confirms, _described(**given)), None)
    if described:
        return [described]
    words = {**given, "name": given.get("name", "").removesuffix("w")}  # AdamW is Adam with a decay of another kind
    order = np.argsort(np.abs(e.g), kind="stable")
    few = e.at(np.unique(order[np.linspace(0, len(order) - 1, FEW).astype(np.int64)]))
    found = []
    for recipe in _formulas(side):
        if rated(recipe, few, steps) and (made := rated(recipe, e, steps)) and (made := rounded_rate(made, e, steps)):
            wrong = sum(words.get(word, "") not in ("", getattr(made, word)) for word in ("name", "semantics", "rows"))
            found.append(replace(made, bits=made.bits + UNSAID * wrong))
    return found


def _described(name: str = "", semantics: str = "", rows: str = "", **given: Any) -> Sequence[Recipe]:
    """Return the recipes of a complete description, with either kind of decay, and of duplicates, if it names none."""
    preset = RECORDS[name].presets.get(semantics) if name in RECORDS else None
    if preset is None or "lr" not in given or not rows or given.get("lr_decay") or name == "rowwise_adagrad":
        return ()
    up = bool(given.pop("maximize", False))
    duplicates = [str(given.pop("duplicates"))] if "duplicates" in given else ["sum", "raw"]
    if not all(isinstance(x, bool) or is_real(x) for x in given.values()):
        return ()
    hyper = {k: v for k, v in {**preset.defaults, **given}.items() if k not in NO_DECAY}
    decay = given.get("weight_decay")
    kinds = [""] if not decay else ["decoupled"] if name == "adamw" else ["coupled", "decoupled"]
    if decay:
        hyper["weight_decay"] = float(decay)
    made = (
        Recipe(name.removesuffix("w"), semantics, rows, squared, hyper, decay=kind, up=up)
        for squared, kind in product(duplicates, kinds)
    )
    return [recipe for recipe in made if _exists(recipe)]


def _formulas(side: Side) -> Iterator[Recipe]:
    """Yield the stock formulas that may have made a side's step, with all numbers except the learning rate."""
    e, kept = side.elements, side.kept
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
        hyper = {k: flags.get(k, v) for k, v in preset.defaults.items() if k not in NO_DECAY}
        plain = Recipe(name, semantics, rows, squared, hyper, bits=PRIOR[name])
        if _exists(plain) and ({spec.name for spec in plain.formula.state} == kept or (not kept and not side.steps)):
            yield from _with_constants(plain, begins)


def _exists(r: Recipe) -> bool:
    """Return whether a semantics has the formula."""
    try:
        return r.rows in r.formula.rows and r.formula.raw == (r.duplicates == "raw")
    except ValueError:
        return False


def _with_constants(plain: Recipe, begins: float | None) -> Iterator[Recipe]:
    """Yield a recipe with its defaults first, then with each other constant.

    begins: the initial accumulator, if the state before a first step shows it.
    """
    names = [name for name in CONSTANTS if plain.hyper.get(name) is not None]
    if begins is not None and "initial_accumulator" in names:
        plain = plain.having(initial_accumulator=begins)
        names.remove("initial_accumulator")
    elif begins:  # this formula begins with 0
        return
    for values in product(*(dict.fromkeys((plain.hyper[name], *CONSTANTS[name])) for name in names)):
        made = plain.having(**dict(zip(names, values, strict=True)))
        yield replace(made, bits=plain.bits + UNUSUAL * sum(made.hyper[n] != plain.hyper[n] for n in names))
