"""Steps by compiled kernels: duplicates summed, rows read, changed by the rule and written, each row at once.

Those of many tables are taken together: threads share the rows of all.

For arrays in host memory, where kernels are active; `islices.optim.row_steps` takes all others, with the same bits.
SPEC clause 16.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from types import ModuleType
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from islices.backend import Array
from islices.core import modes
from islices.core.scatter import Host, as_given, open_tables
from islices.core.slices import IndexedSlices
from islices.core.slots import known_factor
from islices.kernels.expanding import has_source
from islices.optim.formulas import Formula
from islices.optim.operators import is_elementwise
from islices.optim.row_steps import Request, row_blocks, without_frozen
from islices.optim.traced import traced_step

#: (order, ids, starts): see `islices.kernels.operations.Groups`
Groups: TypeAlias = tuple[Host, Host, Host]
#: Arrays of state that kernels pass to a rule.
MOST_STATES = 3


def fused_steps(requests: Sequence[Request]) -> list[tuple[Any, dict[str, Array]] | None]:
    """The tables and the states after steps that share nothing, taken together; None for each that no kernel takes, and
    with which nothing has happened."""
    done: list[tuple[Any, dict[str, Array]] | None] = [None] * len(requests)
    begun: list[tuple[int, HostPlan]] = []
    for k, request in enumerate(requests):
        if not _expressible(request.formula):
            continue
        if request.traced:
            done[k] = traced_step(request) if request.touched else None
        elif request.apply is None:
            opened = _opened(request)
            if opened is not None:
                begun.append((k, opened))
    if not begun:
        return done
    compiled = begun[0][1].compiled
    indices = []
    for _, x in begun:
        if len(x.gradient) > 1:
            indices.append(x.gradient[1])
    grouped = iter((compiled.group(indices[0]),) if len(indices) == 1 else compiled.group_all(indices))
    tasks: list[Any] = []
    some: list[Host | None] = []  # the rows of each that move; None: all
    for _, x in begun:
        named = next(grouped) if len(x.gradient) > 1 else None
        some.append(named[1] if x.request.touched and named else None)
        tasks += _tasks(x, named, some[-1])
    compiled.run_tasks(tasks)
    for (k, x), rows in zip(begun, some, strict=True):
        done[k] = _finished(x, rows)
    return done


class HostPlan(NamedTuple):
    """A step whose arrays are in host memory: the gradient's, the table's and the state's, and what these become."""

    request: Request
    compiled: ModuleType  # `islices.kernels.operations`
    gradient: Sequence[Host]
    weights: Host
    state: Mapping[str, Host]
    changed: Array
    results: Sequence[Array]
    factor: Any  # of the gradient's values; None: 1
    target: Host  # what is stepped
    own: Sequence[Host]  # the formula's own state


def _opened(request: Request) -> HostPlan | None:
    """Return the step's arrays to be written into; None where no kernel takes them, and nothing has happened."""
    B, grad, factor = request.at.B, request.grad, None
    gradient = modes.look_at(B, (), request.look).views if request.look else None
    if request.frozen is not None and isinstance(grad, IndexedSlices):
        grad, gradient = without_frozen(grad, request.frozen), None
    if gradient is None:  # recorded, or not what was looked at
        given = (grad.values, grad.indices) if isinstance(grad, IndexedSlices) else (grad,)
        with B.scope():
            gradient = modes.host_views(B, (B.stop_gradient(given[0]), *given[1:]))
    elif isinstance(grad, IndexedSlices) and grad._slots is not None:
        factor = known_factor(B, grad._slots)
    compiled = modes.kernels_on(gradient)
    if compiled is None or gradient is None:
        return None
    if len(gradient) > 1 and not compiled.is_packed(gradient[1], grad.dense_shape[0]):
        return None
    opened = open_tables(
        B, [request.at.weights, *request.at.arrays.values()], donate=request.donate, held=request.at.held
    )
    if opened is None:
        return None
    (weights, *views), (changed, *results) = opened
    state = dict(zip(request.at.arrays, views, strict=True))
    own = []
    for spec in request.formula.state:
        own.append(state[spec.name])
    target = state.get("master", weights)
    return HostPlan(request, compiled, gradient, weights, state, changed, results, factor, target, own)


def _tasks(x: HostPlan, named: Groups | None, some: Host | None) -> list[Any]:
    """What the kernels have to do, in any order."""
    request, compiled, formula, values = x.request, x.compiled, x.request.formula, x.gradient[0]
    if len(x.gradient) > 2:
        named = compiled.placed(named, x.gradient[2])
    if some is None and (formula.squares == "row" or any(spec.per_row for spec in formula.state)):  # a row at a time
        for groups in _blocks(named, x.weights.shape, request.frozen):  # nothing of the table's size is allocated
            compiled.run_tasks([compiled.step(formula, values, groups, x.target, x.own, request.known, x.factor)])
        return []
    tasks = [compiled.step(formula, values, named, x.target, x.own, request.known, x.factor)] if named else []
    if some is None:
        skip = named[1] if named else np.empty(0, np.int64)
        if request.frozen is not None:
            skip = np.union1d(skip, request.frozen)
        tasks.append(compiled.rest_step(formula, None if named else values, skip, x.target, x.own, request.known))
    return tasks


def _finished(x: HostPlan, some: Host | None) -> tuple[Any, dict[str, Array]]:
    """The table and the state, the table rounded from its master and the step counted."""
    request, weights = x.request, x.weights
    if x.target is not weights:
        for ids in row_blocks(weights.shape, request.frozen) if some is None else [some]:
            weights[ids] = modes.HOST.astype(x.target[ids], modes.HOST.dtype(weights))
    step = x.state["step"]
    step[0] = step[0] + 1
    return as_given(request.at.table, request.at.weights, x.changed), dict(
        zip(request.at.arrays, x.results, strict=True)
    )


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
    """Whether a kernel can compute the rule with the same bits, and keep its state."""
    per_row = {spec.per_row for spec in formula.state}
    known = len(formula.state) <= MOST_STATES and len(per_row) <= 1
    return known and is_elementwise(formula.rule) and has_source(formula.rule)
