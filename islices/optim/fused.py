"""A step by one compiled kernel: duplicates summed, rows read, changed by the rule and written, each row at once.

For arrays in host memory, where kernels are active; every other step is `islices.optim.step`'s, with the same bits.
SPEC clause 16.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Iterator
from functools import lru_cache
from types import ModuleType
from typing import Any

import numpy as np

from islices import kernels, modes
from islices.backend import Array
from islices.optim.formulas import Formula
from islices.optim.plan import Plan
from islices.optim.step import Work, without_frozen
from islices.optim.traced import traced_step
from islices.slices import IndexedSlices
from islices.update import Host, open_tables

__all__ = ["fused_step"]

#: Arrays of state that kernels pass to a rule.
MOST_STATES = 3
#: Elements that all rows are stepped by at a time.
BLOCK = 1 << 20


def fused_step(work: Work, *, touched: bool, donate: bool) -> tuple[Array, dict[str, Array]] | None:
    """(weights, state) after the step; None where another way must be gone, and nothing has happened."""
    B, plan, arrays, grad = work.B, work.plan, work.arrays, work.grad
    compiled = kernels.active()
    if compiled is None or not _expressible(plan.formula, plan.numbers):
        return None
    if work.traced:
        return traced_step(work, _recipe(compiled, plan)) if touched else None
    if work.apply is not None:
        return None
    gradient = work.views if B.host_only or modes.on_host() else None
    if work.frozen is not None and isinstance(grad, IndexedSlices):
        grad, gradient = without_frozen(grad, work.frozen), None
    if gradient is None:  # recorded, or not what was looked at
        given = (grad.values, grad.indices) if isinstance(grad, IndexedSlices) else (grad,)
        with B.scope():
            gradient = modes.host_views(B, (B.stop_gradient(given[0]), *given[1:]))
    if gradient is None or (len(gradient) == 2 and not compiled.is_packed(gradient[1], grad.dense_shape[0])):
        return None
    opened = open_tables(B, [work.weights, *arrays.values()], donate=donate)
    if opened is None:
        return None
    (weights, *views), (changed, *results) = opened
    state = dict(zip(arrays, views, strict=True))
    recipe, own = _recipe(compiled, plan), []
    for spec in plan.formula.state:
        own.append(state[spec.name])
    target = state.get("master", weights)
    for groups in _groups(compiled, gradient[1:], weights.shape, None if touched else work.frozen, touched):
        compiled.step(recipe, gradient[0], groups, target, own, work.known)
        if target is not weights:
            ids = groups[1]
            weights[ids] = modes.HOST.astype(target[ids], modes.HOST.dtype(weights))
    state["step"] += 1
    return changed, dict(zip(arrays, results, strict=True))


def _groups(
    compiled: ModuleType, indices: list[Host], shape: tuple[int, ...], frozen: Host | None, touched: bool
) -> Iterable[tuple[Host, Host, Host]]:
    """The rows to be changed, as (order, ids, starts): those the slices name at once, or all rows block by block."""
    return [compiled.group(indices[0])] if touched else _blocks(compiled, indices, shape, frozen)


def _blocks(
    compiled: ModuleType, indices: list[Host], shape: tuple[int, ...], frozen: Host | None
) -> Iterator[tuple[Host, Host, Host]]:
    order, named, starts = compiled.group(indices[0] if indices else np.empty(0, np.int64))
    size = max(1, BLOCK // max(1, math.prod(shape[1:])))
    for first in range(0, shape[0], size):
        block = np.arange(first, min(first + size, shape[0]))
        if frozen is not None:
            block = np.setdiff1d(block, frozen, assume_unique=True)
        if indices:  # the run of a row that is not named is empty
            yield order, block, starts[np.searchsorted(named, np.append(block, first + size))]
        else:
            yield block.view(np.uint64), block, np.arange(len(block) + 1, dtype=np.uint64)


@lru_cache(maxsize=256)  # a formula belongs to one optimizer: there may come many
def _recipe(compiled: ModuleType, plan: Plan) -> Any:
    formula = plan.formula
    return compiled.Recipe(
        formula.rule,
        len(formula.state),
        any(spec.per_row for spec in formula.state),
        formula.squares,
        formula.raw,
        formula.decay,
        plan.maximize,
        len(plan.numbers),
    )


@lru_cache(maxsize=256)
def _expressible(formula: Formula, numbers: tuple[str, ...]) -> bool:
    """Whether kernels can pass a rule what it takes, in the order they have it, and keep its state."""
    per_row = {spec.per_row for spec in formula.state}
    own = numbers[:-1] if formula.decay else numbers
    expected = ["g", *["q"] * bool(formula.squares), "w", *(spec.name for spec in formula.state), *own]
    known = len(formula.state) <= MOST_STATES and len(per_row) <= 1
    return known and list(inspect.signature(formula.rule).parameters) == expected
