"""Read the learning rate off the elements of a step, and check that a recipe makes them."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from islices.porting.compare.digits import as_written
from islices.porting.compare.steps.elements import Elements, part_of
from islices.porting.compare.steps.recipe import Recipe, bound, quick_bound, stepped
from islices.porting.compare.stored import Array

__all__ = ["holds", "rated", "rounded_rate"]

#: Elements that may be further off by cancellation while numbers are still being looked for.
OUTLIERS = 0.25


def _scale(e: Elements) -> Array:
    scale: Array = quick_bound(e, e.after) + 16 * e.eps * np.abs(e.after - e.w)
    return scale


def rated(recipe: Recipe, e: Elements, steps: int) -> Recipe | None:
    """Return the recipe with the learning rate that fits best; None where no positive one comes near.

    A step is affine in its learning rate, except for ftrl's.
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


def rounded_rate(recipe: Recipe, e: Elements, steps: int) -> Recipe | None:
    """Return the recipe with as short a learning rate as fits, and what its digits cost; None if it does not hold."""
    if not holds(recipe, e, steps):
        recipe = _recentred(recipe, e, steps)
        if not holds(recipe, e, steps):
            return None
    lr, cost = as_written(float(recipe.get("lr")), lambda short: holds(recipe.having(lr=short), e, steps))
    return replace(recipe.having(lr=lr), bits=recipe.bits + cost)


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
