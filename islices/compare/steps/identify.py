"""Which optimizers make the step that a side has taken: all of `islices.optim`, under every semantics.

What has fewer numbers of its own is tried first. May import: numpy, `islices.compare`, `islices.optim`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations, product
from typing import NamedTuple

import numpy as np

import islices.optim  # noqa: F401  # its records
from islices.compare.steps.elements import Elements, Taken, blocks, sample
from islices.compare.steps.fit import fitted, holds, rated, rounded_numbers
from islices.compare.steps.recipe import Recipe, stepped
from islices.optim.record import RECORDS

__all__ = ["confirmed", "recipes"]

#: AdamW is Adam with a decay of another kind.
SKIPPED = ("adamw",)
EPSILONS = (1e-10, 1e-8, 1e-7, 1e-6, 1e-5)
#: What numbers beside the learning rate begin with, where they are read off the elements.
STARTS = {
    "eps": (1e-7, 1e-3), "initial_accumulator": (0.1,), "weight_decay": (1e-2, 1e-5), "momentum": (0.9,),
    "beta1": (0.9,), "beta2": (0.999,), "rho": (0.9,),
}  # fmt: skip
#: Numbers that a state which is not known leaves without effect.
BY_STATE = ("momentum", "beta1", "beta2", "rho")


class Variant(NamedTuple):
    """What is changed of a recipe, and the numbers that are read off then."""

    numbers: tuple[str, ...] = ()
    decay: str = ""
    corrected: bool = True


def recipes(tensors: Sequence[Taken], steps: int) -> list[Recipe]:
    """The recipes that make a sample of a side's elements, the plainest kind of them: fewest numbers of their own."""
    e = sample(tensors)
    if not e.eps or np.array_equal(e.w, e.after):
        return []
    plain = list(_structures(e, steps))
    for variants in _stages(e):
        found = [r for v in variants for p in plain if (r := _tried(p, v, e, steps))]
        if found:
            return found
    return []


def confirmed(recipe: Recipe, tensors: Sequence[Taken], steps: int) -> bool:
    """Whether a recipe makes the whole tables."""
    return all(holds(recipe, e, steps) for e in blocks(tensors))


def _stages(e: Elements) -> Iterator[list[Variant]]:
    known = BY_STATE if e.state else ()
    one = [Variant((name,)) for name in ("eps", "initial_accumulator", *known)]
    decays = [Variant(("weight_decay",), kind) for kind in ("coupled", "decoupled")]
    yield [Variant(), Variant(corrected=False)]
    yield [*one, *decays]
    two = [Variant(pair) for pair in combinations(("eps", "initial_accumulator", *known), 2)]
    decayed = [v._replace(numbers=(*v.numbers, w.numbers[0])) for v, w in product(decays, one)]
    yield [*two, *decayed, *(v._replace(corrected=False) for v in (*one, *decays))]


def _structures(e: Elements, steps: int) -> Iterator[Recipe]:
    """Every formula that may be, once each: those that make the same step of other numbers are one."""
    seen: set[tuple[object, ...]] = set()
    for name, record in RECORDS.items():
        if name in SKIPPED:
            continue
        for semantics, preset in record.presets.items():
            for rows, duplicates, options, up in product(
                ("touched", "all"), _duplicates(e), _options(name, e), (False, True)
            ):
                hyper = {**preset.defaults, "lr": 1.0, **options}
                hyper = {k: v for k, v in hyper.items() if k not in ("weight_decay", "lr_decay")}
                if any(k not in preset.defaults for k in options):
                    continue
                recipe = Recipe(name, semantics, rows, duplicates, tuple(hyper.items()), up=up)
                try:
                    formula = recipe.formula
                except ValueError:  # this semantics has no such formula
                    continue
                if rows not in formula.rows or formula.raw != (duplicates == "raw"):
                    continue
                names = {spec.name for spec in formula.state}
                if e.state and names != set(e.state):
                    continue
                if not e.state and steps and names:
                    continue
                look = _look(recipe, e, steps)
                if look not in seen:
                    seen.add(look)
                    yield recipe


def _look(recipe: Recipe, e: Elements, steps: int) -> tuple[object, ...]:
    """What tells a formula from others: what it makes of the same numbers, to nine digits."""
    same = {"lr": 1e-2, "eps": 1e-3, "initial_accumulator": 1e-2, "rho": 0.9, "beta1": 0.9, "beta2": 0.999}
    alike = recipe.having(**{k: v for k, v in same.items() if recipe.get(k) is not None})
    after, _ = stepped(alike, e, steps)
    some = (after - e.w)[:: max(1, len(after) // 64)]
    top = np.abs(np.nan_to_num(some)).max(initial=0.0) or 1.0
    own = tuple((k, v) for k, v in recipe.hyper if k not in same and k != "lr")
    return (recipe.name, recipe.rows, own, recipe.get("eps"), *np.round(some / top, 9).tolist())


def _duplicates(e: Elements) -> tuple[str, ...]:
    return ("sum", "raw", "last") if (e.count > 1).any() else ("sum",)


def _options(name: str, e: Elements) -> list[dict[str, bool | float]]:
    """What a formula is chosen by, as far as the state says."""
    if name == "adam" and "v_max" in e.state:
        return [{"amsgrad": True}]
    if name == "sgd" and "momentum" in e.state:
        return [{"momentum": 0.9, "nesterov": False}, {"momentum": 0.9, "nesterov": True}, {"momentum": 0.9}]
    if name == "rmsprop" and e.state:
        momentum = 0.9 if "momentum" in e.state else 0.0
        return [{"momentum": momentum, "centered": "mean" in e.state}]
    return [{"momentum": 0.0}] if name == "rmsprop" else [{}]


# ---------------------------------------------------------------------- a formula and its numbers
def _tried(plain: Recipe, variant: Variant, e: Elements, steps: int) -> Recipe | None:
    """The recipe with the numbers that make the elements; None where none do."""
    if any(n != "weight_decay" and plain.get(n) is None for n in variant.numbers):
        return None
    if not variant.corrected and not _has_corrections(plain):
        return None
    recipe = replace(plain, decay=variant.decay, corrected=variant.corrected)
    if not variant.numbers:
        return _with_constants(recipe, e, steps)
    for values in product(*(STARTS[n] for n in variant.numbers)):
        here = recipe.having(**dict(zip(variant.numbers, values, strict=True)))
        start = _first_rate(here, e, steps)
        if start is None:
            continue
        numbers = {"lr": start, **dict(zip(variant.numbers, values, strict=True))}
        found = fitted(here, e, steps, numbers)
        if found and (r := rounded_numbers(found, e, steps, tuple(numbers))):
            return r
    return None


def _with_constants(recipe: Recipe, e: Elements, steps: int) -> Recipe | None:
    """With the learning rate read off, and the others those that people use."""
    default = recipe.get("eps")
    others = [None] if default is None else [default, *(x for x in EPSILONS if x != default)]
    for eps in others:
        for constants in _constants(recipe):
            here = recipe.having(**({} if eps is None else {"eps": eps}), **constants)
            found = rated(here, e, steps)
            if found and (r := rounded_numbers(found, e, steps, ("lr",))):
                unusual = 3.0 * (eps != default) + 3.0 * bool(constants)
                return replace(r, bits=r.bits + unusual)
    return None


def _constants(recipe: Recipe) -> list[dict[str, float]]:
    out: list[dict[str, float]] = [{}]
    for name, values in {"initial_accumulator": (0.0, 0.1), "rho": (0.9, 0.99)}.items():
        own = recipe.get(name)
        if own is not None:
            out += [{name: x} for x in values if x != own]
    return out


def _has_corrections(recipe: Recipe) -> bool:
    return recipe.name in ("adam", "adamax")


def _first_rate(recipe: Recipe, e: Elements, steps: int) -> float | None:
    """About the learning rate that fits best; where the others are wrong yet, it is only a beginning."""
    after, _ = stepped(recipe.having(lr=1e-6), e, steps)
    one, other = np.abs(after - e.w), np.abs(e.after - e.w)
    some = np.isfinite(one) & (one > 0)
    return 1e-6 * float(np.median(other[some])) / float(np.median(one[some])) if some.any() else None
