"""A step by one compiled kernel: duplicates summed, rows read, changed by the rule and written, each row at once.

For arrays in host memory, where kernels are active; every other step is `islices.optim.step`'s, with the same bits.
SPEC clause 16.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np

from islices import kernels, modes
from islices.backend import Array
from islices.optim.formulas import Formula, parameters_of
from islices.optim.step import Work, row_blocks, without_frozen
from islices.optim.traced import traced_step
from islices.slices import IndexedSlices
from islices.slots import known_factor
from islices.update import Host, as_given, open_tables

__all__ = ["fused_step"]

#: (order, ids, starts): see `islices.kernels.operations.Groups`
Groups: TypeAlias = tuple[Host, Host, Host]
#: Arrays of state that kernels pass to a rule.
MOST_STATES = 3


def fused_step(work: Work) -> tuple[Any, dict[str, Array]] | None:
    """The table and the state after the step; None where no kernel takes it, and nothing has happened."""
    B, formula, arrays, grad = work.B, work.formula, work.arrays, work.grad
    compiled = kernels.active()
    if compiled is None or not _expressible(formula):
        return None
    if work.traced:
        return traced_step(work) if work.touched else None
    if work.apply is not None:
        return None
    gradient, factor = work.views if B.host_only or modes.on_host() else None, None
    if work.frozen is not None and isinstance(grad, IndexedSlices):
        grad, gradient = without_frozen(grad, work.frozen), None
    if gradient is None:  # recorded, or not what was looked at
        given = (grad.values, grad.indices) if isinstance(grad, IndexedSlices) else (grad,)
        with B.scope():
            gradient = modes.host_views(B, (B.stop_gradient(given[0]), *given[1:]))
    elif isinstance(grad, IndexedSlices) and grad._slots is not None:
        factor = known_factor(B, grad._slots)
    if gradient is None or (len(gradient) > 1 and not compiled.is_packed(gradient[1], grad.dense_shape[0])):
        return None
    opened = open_tables(B, [work.weights, *arrays.values()], donate=work.donate)
    if opened is None:
        return None
    (weights, *views), (changed, *results) = opened
    state = dict(zip(arrays, views, strict=True))
    own = []
    for spec in formula.state:
        own.append(state[spec.name])
    target, values = state.get("master", weights), gradient[0]
    named = compiled.group(gradient[1]) if len(gradient) > 1 else None
    if len(gradient) > 2:
        named = compiled.placed(named, gradient[2])
    some = named[1] if work.touched and named else None  # the rows that move; None: all
    if some is None and (formula.squares == "row" or any(spec.per_row for spec in formula.state)):  # a row at a time
        for groups in _blocks(named, weights.shape, work.frozen):
            compiled.step(formula, values, groups, target, own, work.known, factor)
    else:
        if named:
            compiled.step(formula, values, named, target, own, work.known, factor)
        if some is None:
            skip = named[1] if named else np.empty(0, np.int64)
            if work.frozen is not None:
                skip = np.union1d(skip, work.frozen)
            compiled.rest_step(formula, None if named else values, skip, target, own, work.known)
    if target is not weights:
        for ids in row_blocks(weights.shape, work.frozen) if some is None else [some]:
            weights[ids] = modes.HOST.astype(target[ids], modes.HOST.dtype(weights))
    state["step"] += 1
    return as_given(work.table, work.weights, changed), dict(zip(arrays, results, strict=True))


def _blocks(named: Groups | None, shape: tuple[int, ...], frozen: Host | None) -> Iterator[Groups]:
    """All rows block by block, as (order, ids, starts): of slices that are grouped, or of a dense gradient."""
    for block in row_blocks(shape, frozen):
        if named is None:
            yield block.view(np.uint64), block, np.arange(len(block) + 1, dtype=np.uint64)
        else:  # the run of a row that is not named is empty
            order, ids, starts = named
            yield order, block, starts[np.searchsorted(ids, np.append(block, block[-1] + 1))]


@lru_cache(maxsize=256)  # a formula belongs to one optimizer: there may come many
def _expressible(formula: Formula) -> bool:
    """Whether kernels can pass a rule what it takes, in the order they have it, and keep its state."""
    per_row = {spec.per_row for spec in formula.state}
    own = formula.names[:-1] if formula.decay else formula.names
    expected = ("g", *["q"] * bool(formula.squares), "w", *(spec.name for spec in formula.state), *own)
    known = len(formula.state) <= MOST_STATES and len(per_row) <= 1
    return known and parameters_of(formula.rule) == expected
