"""Estimate the learning rate from the elements of a step, and check that a recipe reproduces them."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from islices.porting.compare.digits import FREE, as_written
from islices.porting.compare.steps.elements import Elements
from islices.porting.compare.steps.recipe import Recipe, bound, quick_bound, stepped

#: Elements that may be further off by cancellation while numbers are still being looked for.
OUTLIERS = 0.25


def rated(recipe: Recipe, e: Elements, steps: int) -> Recipe | None:
    """Return the recipe with the learning rate that fits best; None if no positive one comes near.

    A step is affine in its learning rate, except for ftrl's.
    """
    still, moved = (stepped(recipe.having(lr=lr), e, steps) for lr in (0.0, 1.0))
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


def holds(recipe: Recipe, e: Elements, steps: int) -> bool:
    """Return whether the recipe reproduces the table within the bound on rounding."""
    after = stepped(recipe, e, steps)
    with np.errstate(invalid="ignore"):
        near = (after == e.after) | (np.abs(after - e.after) <= quick_bound(e, after))
    near |= np.isnan(after) & np.isnan(e.after)
    if near.all():
        return True
    if (~near).mean() > 0.9 and len(near) > 64:
        return False
    far = e.at(~near)  # the full bound, which propagates earlier roundings through the rule, costs more
    made = stepped(recipe, far, steps)
    return bool((np.abs(made - far.after) <= bound(recipe, far, steps, made)).all())


def rounded_rate(recipe: Recipe, e: Elements, steps: int) -> Recipe | None:
    """Return the recipe with the shortest learning rate that fits, with the cost of its digits, or None if none
    holds."""
    lr, cost = as_written(recipe.hyper["lr"], lambda short: holds(recipe.having(lr=short), e, steps))
    found = replace(recipe.having(lr=lr), bits=recipe.bits + cost)
    return found if cost < FREE or holds(found, e, steps) else None
