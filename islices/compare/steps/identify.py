"""Which optimizers make the step that a side has taken: all of `islices.optim`, under every semantics.

What has fewer numbers of its own is tried first.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import replace
from itertools import combinations, product
from typing import NamedTuple

import numpy as np

from islices.compare.digits import as_written
from islices.compare.steps.elements import Elements, part_of
from islices.compare.steps.fit import fitted, holds, rated, rounded_numbers
from islices.compare.steps.recipe import Recipe, stepped
from islices.compare.steps.said import SKIPPED, Said
from islices.compare.steps.side import Side
from islices.optim.record import RECORDS

__all__ = ["recipes"]

#: Bits of numbers that are as short as people write them: then nothing with more numbers is looked for.
SHORT = 20.0
#: Elements that numbers are first fitted to.
FEW = 96
#: Elements of rows with duplicates that are among them: what squares them one by one is told from what sums them there.
DOUBLED = 8
EPSILONS = (1e-10, 1e-8, 1e-7, 1e-6, 1e-5)
#: Bits that speak against an optimizer that few people use.
PRIOR = {"adagrad": 1.0, "rmsprop": 4.0, "adamax": 6.0, "nadam": 6.0, "ftrl": 8.0, "lion": 6.0, "rowwise_adagrad": 4.0}
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


def recipes(side: Side, only: Container[str] = RECORDS) -> list[Recipe]:
    """The recipes that make a sample of a side's elements, the plainest kind of them: fewest numbers of their own.

    Where what is said makes the step, it is the one if all its numbers are said; else what else makes it counts only if
    it is likelier in spite of that. only: optimizers' names.
    """
    e, steps, said = side.elements, side.steps, side.said
    if not e.eps or np.array_equal(e.w, e.after) or said.other:
        return []
    certain = next(filter(side.confirms, said.recipes()), None)
    if certain:
        return [certain] if certain.name in only else []
    look = _looked_at(e)
    plain = [r for r in _structures(look, steps, said) if r.name in only] if look.ups else []
    found: list[Recipe] = []
    for variants in _stages(e):
        found += [r for v in variants for p in plain if (r := _tried(p, v, look, steps))]
        if min((r.bits for r in found), default=np.inf) <= SHORT:
            break
    return _beside_what_is_said(found, said)


def _beside_what_is_said(found: Sequence[Recipe], said: Said) -> list[Recipe]:
    """What is as it is said to be, and what is likelier in spite of that."""
    costs = [r.bits + said.against(r) for r in found]
    least = min((c for r, c in zip(found, costs, strict=True) if not said.against(r)), default=np.inf)
    kept = [(r, c) for r, c in zip(found, costs, strict=True) if not said.against(r) or c < least]
    return [replace(r, bits=c) for r, c in kept]


class Look(NamedTuple):
    """A side's elements, a few of them, and as many with duplicates among them; what shows at once: whether rows that
    the gradient does not name have moved, whether there are such rows, which signs of the gradient may be followed."""

    e: Elements
    few: Elements
    alike: Elements
    elsewhere: bool
    others: bool
    ups: tuple[bool, ...]


def _looked_at(e: Elements) -> Look:
    """Without a state a step goes against its gradient, a decay towards zero: where both agree, so does the step."""
    moved = e.after != e.w
    others = ~e.named
    ups = []
    step = np.where(np.abs(e.after - e.w) > 2 * e.eps * np.abs(e.w), np.sign(e.after - e.w), 0.0)
    for up in (False, True):
        g = np.sign(-e.g if up else e.g)
        agree = (e.counts == 1) & ((g == np.sign(e.w)) | (g == 0) | (e.w == 0))
        wanted = np.where(g == 0, np.sign(e.w), g)[agree]
        if e.state or not (step[agree] * wanted > 0).any():
            ups.append(up)
    few = np.unique(np.argsort(np.abs(e.g), kind="stable")[np.linspace(0, len(e.g) - 1, FEW).astype(np.int64)])
    alike = np.union1d(few, np.flatnonzero(e.counts > 1)[:DOUBLED])
    return Look(e, part_of(e, few), part_of(e, alike), bool((moved & others).any()), bool(others.any()), tuple(ups))


def _stages(e: Elements) -> Iterator[list[Variant]]:
    known = BY_STATE if e.state else ()
    one = [Variant((name,)) for name in ("eps", "initial_accumulator", *known)]
    decays = [Variant(("weight_decay",), kind) for kind in ("coupled", "decoupled")]
    yield [Variant(), Variant(corrected=False)]
    yield [*one, *decays]
    two = [Variant(pair) for pair in combinations(("eps", "initial_accumulator", *known), 2)]
    decayed = [v._replace(numbers=(*v.numbers, w.numbers[0])) for v, w in product(decays, one)]
    yield [*two, *decayed, *(v._replace(corrected=False) for v in (*one, *decays))]


def _structures(look: Look, steps: int, said: Said) -> Iterator[Recipe]:
    """Every formula that may be, once each: those that make the same step of the same numbers are one."""
    e = look.e
    seen: set[tuple[object, ...]] = set()
    for name, record in RECORDS.items():
        if name in SKIPPED:
            continue
        for semantics, preset in sorted(record.presets.items(), key=lambda item: item[0] != said.semantics):
            some = sorted(_rows(look), key=lambda rows: rows != said.rows)
            for rows, duplicates, options, up in product(some, _duplicates(e), _options(name, e), look.ups):
                hyper = {**preset.defaults, "lr": 1.0, **options}
                hyper = {k: v for k, v in hyper.items() if k not in ("weight_decay", "lr_decay")}
                if any(k not in preset.defaults for k in options):
                    continue
                recipe = Recipe(
                    name, semantics, rows, duplicates, tuple(hyper.items()), up=up, bits=PRIOR.get(name, 0.0)
                )
                try:
                    formula = recipe.formula
                except ValueError:  # this semantics has no such formula
                    continue
                if rows not in formula.rows or formula.raw != (duplicates == "raw"):
                    continue
                names, kept = {spec.name for spec in formula.state}, set(e.state) or set(e.state_after)
                if (kept and names != kept) or (not e.state and steps and names):
                    continue
                look_alike = _alike(recipe, look.alike, steps)
                if look_alike not in seen:
                    seen.add(look_alike)
                    yield recipe


def _rows(look: Look) -> tuple[str, ...]:
    return ("all",) if look.elsewhere else ("touched", "all")


def _alike(recipe: Recipe, e: Elements, steps: int) -> tuple[object, ...]:
    """What tells a formula from others: what it makes of the same numbers, to nine digits."""
    same = {"lr": 1e-2, "eps": 1e-3, "initial_accumulator": 1e-2, "rho": 0.9, "beta1": 0.9, "beta2": 0.999}
    alike = recipe.having(**{k: v for k, v in same.items() if recipe.get(k) is not None})
    after, _ = stepped(alike, e, steps)
    looked = np.union1d(np.arange(0, len(after), max(1, len(after) // 32)), np.flatnonzero(e.counts > 1)[:DOUBLED])
    some = [f"{x:.8e}" for x in (after - e.w)[looked].tolist()]
    own = tuple((k, v) for k, v in recipe.hyper if v and k not in same and k not in ("lr", "momentum_decay"))
    rows = recipe.rows if e.state else ""
    return (recipe.name, rows, own, *some)


def _duplicates(e: Elements) -> tuple[str, ...]:
    return ("sum", "raw", "last") if (e.counts > 1).any() else ("sum",)


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
def _tried(plain: Recipe, variant: Variant, look: Look, steps: int) -> Recipe | None:
    """The recipe with the numbers that make the elements; None where none do."""
    if any(n != "weight_decay" and plain.get(n) is None for n in variant.numbers):
        return None
    if not variant.corrected and not _has_corrections(plain):
        return None
    if not look.e.state and look.others and _moves_others(plain, variant) != look.elsewhere:
        return None
    recipe = replace(plain, decay=variant.decay, corrected=variant.corrected)
    numbers = variant.numbers or (("lr",) if recipe.name == "ftrl" else ())
    if not numbers:
        return _with_constants(recipe, look, steps)
    known = {**STARTS, "weight_decay": (*_turning(look.e, recipe), *STARTS["weight_decay"])}
    for values in product(*(known[n] for n in numbers if n != "lr")):
        starts = dict(zip([n for n in numbers if n != "lr"], values, strict=True))
        here = recipe.having(**starts)
        rate = _first_rate(here, look.few, steps)
        found = None if rate is None else fitted(here, look.few, steps, {"lr": rate, **starts})
        if found:
            found = fitted(found, look.e, steps, {n: float(found.get(n)) for n in ("lr", *starts)})
        if found and (r := rounded_numbers(found, look.e, steps, ("lr", *starts))) and _told(r, numbers, look.e, steps):
            return r
    return None


def _turning(e: Elements, recipe: Recipe) -> tuple[float, ...]:
    """The coupled decay at which a first step turns from the gradient to the table: of Adam's, which is hardly more
    than a sign, nothing else shows it."""
    if recipe.decay != "coupled" or e.state:
        return ()
    g, moved = -e.g if recipe.up else e.g, np.sign(e.after - e.w)
    against = (g * e.w < 0) & (e.counts == 1) & (moved != 0)
    ratio, follows = np.abs(g[against] / e.w[against]), (moved == -np.sign(g))[against]
    low, high = ratio[~follows].max(initial=0.0), ratio[follows].min(initial=np.inf)
    if not 0 < low <= high < np.inf:
        return ()
    return (as_written(float(np.sqrt(low * high)), lambda short: bool(low <= short <= high))[0],)


def _told(recipe: Recipe, numbers: tuple[str, ...], e: Elements, steps: int) -> bool:
    """Whether the elements tell these numbers: beside an epsilon large enough the root does not count, and any larger
    one makes the same step at a larger rate."""
    for name in ("eps", "initial_accumulator"):
        if name in numbers:
            other = rated(recipe.having(**{name: 4.0 * float(recipe.get(name))}), e, steps)
            if other is not None and holds(other, e, steps):
                return False
    return True


def _moves_others(plain: Recipe, variant: Variant) -> bool:
    """Whether rows without a gradient move, where there is no state yet."""
    return bool(variant.decay) and plain.rows == "all"


def _with_constants(recipe: Recipe, look: Look, steps: int) -> Recipe | None:
    """With the learning rate read off, and the others those that people use."""
    default = recipe.get("eps")
    others = [None] if default is None else [default, *(x for x in EPSILONS if x != default)]
    best: Recipe | None = None
    for eps, constants in product(others, _constants(recipe)):
        here = recipe.having(**({} if eps is None else {"eps": eps}), **constants)
        if rated(here, look.few, steps) is None:
            continue
        found = rated(here, look.e, steps)
        if found and (r := rounded_numbers(found, look.e, steps, ("lr",))):
            r = replace(r, bits=r.bits + 3.0 * (eps != default) + 3.0 * bool(constants))
            if best is None or r.bits < best.bits:
                best = r
    return best


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
