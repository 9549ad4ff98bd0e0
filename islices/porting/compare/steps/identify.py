"""Find which optimizer made the step that a side has taken: the one that a recording describes, else a stock formula.

Only stock formulas whose state has the arrays of the side's state are tried: the learning rate is read off the
elements, epsilon and the initial accumulator are those of `CONSTANTS`, all other numbers are the semantics' defaults.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import replace
from itertools import product

import numpy as np

from islices.optim.record import RECORDS
from islices.porting.compare.steps.elements import part_of
from islices.porting.compare.steps.fit import rated, rounded_rate
from islices.porting.compare.steps.recipe import Recipe
from islices.porting.compare.steps.said import SKIPPED
from islices.porting.compare.steps.side import Side

__all__ = ["recipes"]

#: Elements that a formula is tried on first.
FEW = 96
#: Bits that speak against an optimizer that few people use, and against a number that is not the default.
PRIOR = {"adagrad": 1.0, "rmsprop": 4.0, "adamax": 6.0, "nadam": 6.0, "lion": 6.0, "rowwise_adagrad": 4.0}
UNUSUAL = 3.0
#: Semantics whose formulas are tried, and numbers that people use, where a formula has them.
STOCK = ("torch", "keras", "tensorflow", "optax", "mxnet", "islices")
CONSTANTS = {"eps": (1e-10, 1e-8, 1e-7, 1e-6, 1e-5), "initial_accumulator": (0.0, 0.1)}


def recipes(side: Side) -> list[Recipe]:
    """Return the recipes that make a sample of a side's elements: one if the description has all its numbers."""
    e, steps, said = side.elements, side.steps, side.said
    if not e.eps or np.array_equal(e.w, e.after) or said.other:
        return []
    described = next(filter(side.confirms, said.recipes()), None)
    if described:
        return [described]
    order = np.argsort(np.abs(e.g), kind="stable")
    few = part_of(e, np.unique(order[np.linspace(0, len(order) - 1, FEW).astype(np.int64)]))
    found = []
    for recipe in _formulas(side):
        if rated(recipe, few, steps) and (made := rated(recipe, e, steps)):
            rounded = rounded_rate(made, e, steps)
            found += [replace(rounded, bits=rounded.bits + said.against(rounded))] if rounded else []
    return found


def _formulas(side: Side) -> Iterator[Recipe]:
    """Yield the stock formulas that may have made a side's step, each with all numbers but the learning rate."""
    e = side.elements
    kept = set(e.state) or set(e.state_after)
    elsewhere = bool((e.after != e.w)[~e.named].any())
    duplicates = ("sum", "raw") if (e.counts > 1).any() else ("sum",)
    x = e.state.get("accumulator")
    begins = float(f"{x[0]:.6g}") if x is not None and not side.steps and (x == x[0]).all() else None
    for name, record in RECORDS.items():
        for semantics in STOCK:
            if name in SKIPPED or (preset := record.presets.get(semantics)) is None:
                continue
            moved = ("all",) if elsewhere else ("touched", "all")
            for rows, squared, flags in product(moved, duplicates, _flags(name, kept)):
                hyper = {**preset.defaults, **{k: v for k, v in flags.items() if k in preset.defaults}, "lr": 1.0}
                hyper = {k: v for k, v in hyper.items() if k not in ("weight_decay", "lr_decay")}
                plain = Recipe(name, semantics, rows, squared, tuple(hyper.items()), bits=PRIOR.get(name, 0.0))
                try:
                    formula = plain.formula
                except ValueError:  # this semantics has no such formula
                    continue
                names = {spec.name for spec in formula.state}
                if rows not in formula.rows or formula.raw != (squared == "raw"):
                    continue
                if names == kept or (not kept and not side.steps):
                    yield from _with_constants(plain, begins)


def _flags(name: str, kept: Container[str]) -> list[Mapping[str, bool | float]]:
    """Return the flags of a formula that a state's arrays allow."""
    momentum = 0.9 if "momentum" in kept else 0.0
    if name == "sgd" and momentum:
        return [{"momentum": momentum, "nesterov": nesterov} for nesterov in (False, True)]
    if name == "rmsprop":
        return [{"momentum": momentum, "centered": "mean" in kept}]
    return [{"amsgrad": "v_max" in kept}]


def _with_constants(plain: Recipe, begins: float | None) -> Iterator[Recipe]:
    """Yield a recipe with its defaults first, then with each other constant.

    begins: the initial accumulator, where the state before a first step shows it.
    """
    names = [name for name in CONSTANTS if plain.get(name) is not None]
    if begins is not None and "initial_accumulator" in names:
        plain = plain.having(initial_accumulator=begins)
        names.remove("initial_accumulator")
    elif begins:  # this formula begins with 0
        return
    for values in product(*({plain.get(name): None, **dict.fromkeys(CONSTANTS[name])} for name in names)):
        unusual = sum(value != plain.get(name) for name, value in zip(names, values, strict=True))
        made = plain.having(**dict(zip(names, values, strict=True)))
        yield replace(made, bits=plain.bits + UNUSUAL * unusual)
