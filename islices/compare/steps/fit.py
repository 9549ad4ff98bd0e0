"""Hyperparameters that are read off the elements: the learning rate directly, others by least squares."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from islices.compare.digits import as_written
from islices.compare.steps.elements import Elements, part_of
from islices.compare.steps.recipe import Recipe, bound, quick_bound, stepped
from islices.compare.stored import Array

__all__ = ["fitted", "holds", "rated", "rounded_numbers"]

#: Iterations of least squares, and the largest change of a logarithm in one.
ITERATIONS, STEP = 12, 3.0
#: Elements that may be further off by cancellation while numbers are still being looked for.
OUTLIERS = 0.25
#: Betas stay below 1 by that.
EPS = 2.0**-30


def _scale(e: Elements) -> Array:
    scale: Array = quick_bound(e, e.after) + 16 * e.eps * np.abs(e.after - e.w)
    return scale


def rated(recipe: Recipe, e: Elements, steps: int) -> Recipe | None:
    """With the learning rate that the elements ask for; None where no positive one comes near.

    A step is affine in its learning rate, but for that of ftrl, which `fitted` looks for.
    """
    still, _ = stepped(recipe.having(lr=0.0), e, steps)
    moved, _ = stepped(recipe.having(lr=1.0), e, steps)
    direction, target, scale = moved - still, e.after - still, _scale(e)
    usable = np.isfinite(direction) & np.isfinite(target)
    if not usable.all() or not direction.any():
        return None
    weight = direction / scale
    square = float(weight @ weight)
    lr = float((target / scale) @ weight) / square if 0 < square < math.inf else 0.0
    if not 0 < lr < math.inf:
        return None
    for _ in range(2):  # elements that cancellation has spoilt would pull the rate away
        off = np.abs(target - lr * direction) > scale + 2 * e.eps * np.abs(lr * direction)
        if not off.any() or off.mean() > OUTLIERS:
            break
        weight = np.where(off, 0.0, direction / scale)
        square = float(weight @ weight)
        if not square:
            return None
        lr = float((target / scale) @ weight) / square
    if lr <= 0 or (np.abs(target - lr * direction) > scale).mean() > OUTLIERS:
        return None
    return recipe.having(lr=lr)


def fitted(recipe: Recipe, e: Elements, steps: int, starts: Mapping[str, float]) -> Recipe | None:
    """With the numbers that the elements ask for, from where each starts (all above 0); None where none come near.

    Levenberg and Marquardt's damping, on logarithms.
    """
    names = list(starts)
    scale = _scale(e)
    at = np.log(np.array([starts[n] for n in names]))

    def having(logs: Array) -> Recipe:
        numbers = dict(zip(names, np.exp(np.clip(logs, -80, 80)).tolist(), strict=True))
        # no root of 1 - beta^t beyond 1
        return recipe.having(**{n: min(x, 1.0 - EPS) if n.startswith("beta") else x for n, x in numbers.items()})

    def residual(logs: Array) -> Array:
        after, _ = stepped(having(logs), e, steps)
        with np.errstate(all="ignore"):
            r: Array = (after - e.after) / scale
        bounded: Array = np.clip(np.nan_to_num(r, nan=1e12, posinf=1e12, neginf=-1e12), -1e12, 1e12)
        return bounded

    r = residual(at)
    cost, damping = float(r @ r), 1e-3
    for k in range(ITERATIONS):
        if np.abs(r).max() < 0.25:
            break
        jacobian = np.stack([(residual(at + 1e-5 * unit) - r) / 1e-5 for unit in np.eye(len(names))])
        normal, slope = jacobian @ jacobian.T, jacobian @ r
        better = False
        for _ in range(4):
            damped = normal + damping * np.diag(np.diag(normal) + 1e-300)
            try:
                step = np.clip(-np.linalg.solve(damped, slope), -STEP, STEP)
            except np.linalg.LinAlgError:
                return None
            trial = residual(at + step)
            if (now := float(trial @ trial)) < cost:
                better = now < 0.999 * cost
                at, r, cost, damping = at + step, trial, now, damping / 10
                break
            damping *= 30
        if not better or (k >= 3 and cost > 1e8 * len(r)):
            break
    if (np.abs(r) > 1).mean() > OUTLIERS:
        return None
    return having(at)


def holds(recipe: Recipe, e: Elements, steps: int) -> bool:
    """Whether the recipe makes the table, and the state where it is known, within the bound on rounding."""
    after, state = stepped(recipe, e, steps)
    with np.errstate(invalid="ignore"):
        near = (after == e.after) | (np.abs(after - e.after) <= quick_bound(e, after))
    near |= np.isnan(after) & np.isnan(e.after)
    if not near.all():  # what carries through the rule what was rounded ahead of it costs more
        if (~near).mean() > 0.9 and len(near) > 64:
            return False
        far = part_of(e, np.flatnonzero(~near))
        made, _ = stepped(recipe, far, steps)
        if not (np.abs(made - far.after) <= bound(recipe, far, steps, made)).all():
            return False
    for name, x in state.items():
        known = e.state_after.get(name)
        if known is None:
            continue
        old = np.abs(e.state.get(name, np.zeros(1)))
        new = np.abs(e.g) + e.g * e.g + e.terms * e.terms
        if name == "z":  # of ftrl, which the table is a part of
            new = new + np.abs(e.w) * 2.0 * np.sqrt(np.abs(state["n"])) / float(recipe.get("lr"))
        if not (np.abs(x - known) <= 8 * e.eps * (e.counts + 1) * (np.abs(known) + old + new)).all():
            return False
    return True


def rounded_numbers(recipe: Recipe, e: Elements, steps: int, names: tuple[str, ...]) -> Recipe | None:
    """The recipe with each fitted number as short as it may be, and what its digits cost; None if it does not hold."""
    if not holds(recipe, e, steps):
        recipe = _recentred(recipe, e, steps)
        if not holds(recipe, e, steps):
            return None
    bits = 0.0
    for name in names:

        def fits(short: float, name: str = name, longer: Recipe = recipe) -> bool:
            return holds(longer.having(**{name: short}), e, steps)

        value, cost = as_written(float(recipe.get(name)), fits)
        recipe, bits = recipe.having(**{name: value}), bits + cost
    return replace(recipe, bits=recipe.bits + bits)


def _recentred(recipe: Recipe, e: Elements, steps: int) -> Recipe:
    """With the learning rate in the middle of those that every element's bound allows."""
    still, _ = stepped(recipe.having(lr=0.0), e, steps)
    after, _ = stepped(recipe, e, steps)
    lr = float(recipe.get("lr"))
    with np.errstate(all="ignore"):
        rate = (after - still) / lr
        width = bound(recipe, e, steps, after)
        low, high = (e.after - still - width) / rate, (e.after - still + width) / rate
        low, high = np.minimum(low, high), np.maximum(low, high)
    told = np.isfinite(low) & np.isfinite(high) & (rate != 0)
    if not told.any():
        return recipe
    least, most = float(low[told].max()), float(high[told].min())
    return recipe.having(lr=0.5 * (least + most)) if 0 < least <= most else recipe
