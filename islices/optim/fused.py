"""Do steps with compiled kernels, which sum duplicates, and read, change and write each row in one pass.

Outside traced code, several threads share the rows of all tables of a call if there is enough work. But steps on all
rows run one after the other if the formula computes or stores one number per row.

Kernels run only if they are on, they support the formula, and the arrays are in host memory.
`islices.optim.row_steps` does all other steps, with the same bits.
SPEC clause 16.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from types import ModuleType
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from islices.backend import Array, Host, Slots
from islices.core import modes
from islices.core.rows import drop_ordered
from islices.core.scatter import as_given, open_tables
from islices.core.shapes import size_of
from islices.core.slices import IndexedSlices
from islices.core.slots import deferred, known_factor, slices_of, slots_in, slots_of
from islices.kernels.expanding import has_source
from islices.norms.clip import clip_leaves
from islices.norms.clip_formulas import ClipFormula
from islices.norms.limits import Limit
from islices.norms.norm import Leaf, total_norm
from islices.optim.formulas import Formula
from islices.optim.operators import is_elementwise
from islices.optim.row_steps import Request, Stepped, count_step, row_blocks, write_pieces

#: (order, ids, starts): see `islices.kernels.operations.Groups`
Groups: TypeAlias = tuple[Host, Host, Host]
#: The largest number of state arrays that kernels support.
MOST_STATES = 3


def fused_steps(requests: Sequence[Request]) -> list[Stepped | None]:
    """Do several steps together. For each step, return the table and the state, or None if no kernel can do the step.

    No step may write memory that another step uses. A step with the result None has changed nothing.
    """
    done: list[Stepped | None] = [None] * len(requests)
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
    some: list[Host | None] = []  # the rows that each step updates; None means all rows
    for _, x in begun:
        named = next(grouped) if len(x.gradient) > 1 else None
        some.append(named[1] if x.request.touched and named else None)
        tasks += _tasks(x, named, some[-1])
    compiled.run_tasks(tasks)
    for (k, x), rows in zip(begun, some, strict=True):
        done[k] = _finished(x, rows)
    return done


class HostPlan(NamedTuple):
    """A step with all its arrays in host memory: the gradient, the table (with the name "") and the state."""

    request: Request
    compiled: ModuleType  # `islices.kernels.operations`
    gradient: Sequence[Host]
    factor: Any  # multiplies the gradient's values; None means 1
    arrays: Mapping[str, Host]
    results: Mapping[str, Array]  # the framework's arrays that the user gets; they share the memory of `arrays`
    target: Host  # the weights that the rule changes: the float32 master if there is one, else the table


def _opened(request: Request) -> HostPlan | None:
    """Return the step with host views of all its arrays. If no kernel supports the arrays, change nothing and return
    None."""
    B, grad, factor = request.at.B, request.grad, None
    gradient = modes.look_at(B, (), request.look).views if request.look else None
    if request.frozen is not None and isinstance(grad, IndexedSlices):
        grad, gradient = drop_ordered(grad, request.frozen), None
    if gradient is None:  # frozen rows, no valid `look`, or one without views, for example if `grad` requires grad
        given = (grad.values, grad.indices) if isinstance(grad, IndexedSlices) else (grad,)
        with B.scope():
            gradient = modes.host_views(B, (B.stop_gradient(given[0]), *given[1:]))
    elif isinstance(grad, IndexedSlices):
        slots = slots_in(grad)
        factor = known_factor(B, slots) if slots else None
    work = 0 if request.touched else size_of(request.at.shape) or 0  # a step on all rows reads the whole table
    compiled = modes.kernels_on(gradient, work)
    if compiled is None or gradient is None:
        return None
    if len(gradient) > 1 and not compiled.is_packed(gradient[1], grad.dense_shape[0]):
        return None
    tables = {"": request.at.weights, **request.at.arrays}
    opened = open_tables(B, list(tables.values()), donate=request.donate, held=request.at.held)
    if opened is None:
        return None
    arrays = dict(zip(tables, opened[0], strict=True))
    results = dict(zip(tables, opened[1], strict=True))
    return HostPlan(request, compiled, gradient, factor, arrays, results, arrays.get("master", arrays[""]))


def _tasks(x: HostPlan, named: Groups | None, some: Host | None) -> list[Any]:
    """Return the tasks of a step's kernels, which may run in any order.

    If the step updates all rows and the formula computes or stores one number per row, run the step here, in blocks,
    and return [].
    """
    request, compiled, formula, values, target = x.request, x.compiled, x.request.formula, x.gradient[0], x.target
    own = []
    for spec in formula.state:
        own.append(x.arrays[spec.name])
    if len(x.gradient) > 2:
        named = compiled.placed(named, x.gradient[2])
    if some is None and (formula.squares == "row" or any(spec.per_row for spec in formula.state)):
        for groups in _blocks(named, target.shape, request.frozen):  # no array of the table's size is allocated
            compiled.run_tasks([compiled.step(formula, values, groups, target, own, request.known, x.factor)])
        return []
    tasks = [compiled.step(formula, values, named, target, own, request.known, x.factor)] if named else []
    if some is None:
        skip = named[1] if named else np.empty(0, np.int64)
        if request.frozen is not None:
            skip = np.union1d(skip, request.frozen)
        tasks.append(compiled.rest_step(formula, None if named else values, skip, target, own, request.known))
    return tasks


def _finished(x: HostPlan, some: Host | None) -> Stepped:
    """Finish a step after its tasks, and return the table and the state.

    Write the rounded rows of the master, if there is one, into the table, and increase the step count.
    """
    request, weights, state = x.request, x.arrays[""], dict(x.results)
    if x.target is not weights:
        for ids in row_blocks(weights.shape, request.frozen) if some is None else [some]:
            weights[ids] = modes.HOST.astype(x.target[ids], modes.HOST.dtype(weights))
    step = x.arrays["step"]
    step[0] = step[0] + 1
    return as_given(request.at.table, request.at.weights, state.pop("")), state


def _blocks(named: Groups | None, shape: tuple[int, ...], frozen: Host | None) -> Iterator[Groups]:
    """Yield (order, ids, starts) for each block of the table's rows without the frozen rows.

    `named` contains the groups of the slices' indices; for a dense gradient `named` is None.
    """
    for block in row_blocks(shape, frozen):
        if named is None:
            yield block.view(np.uint64), block, np.arange(len(block) + 1, dtype=np.uint64)
        else:  # a row that the slices do not contain has an empty group
            order, ids, starts = named
            yield order, block, starts[np.searchsorted(ids, np.append(block, block[-1] + 1))]


@lru_cache(maxsize=256)  # each optimizer has a formula, and there may be many optimizers
def _expressible(formula: Formula) -> bool:
    """Return True if kernels support the formula's states, and compute the rule with the bits that array operations
    give."""
    per_row = {spec.per_row for spec in formula.state}
    known = len(formula.state) <= MOST_STATES and len(per_row) <= 1
    return known and is_elementwise(formula.rule) and has_source(formula.rule)


def traced_step(request: Request) -> Stepped | None:
    """Do a traced step on the rows of the slices, and return the table and the state.

    Return None for a table with a master, for a dense gradient, or if the backend calls no kernel for the step.
    """
    B, s, arrays = request.at.B, request.grad, request.at.arrays
    if "master" in arrays or not isinstance(s, IndexedSlices):
        return None
    if request.frozen is not None:
        s = drop_ordered(s, request.frozen)
    numbers = request.numbers

    def otherwise(slots: Slots, numbers: Array, *tables: Array) -> Sequence[Array]:
        state = dict(zip(["step", *names], [arrays["step"], *tables[1:]], strict=True))
        at = request.at._replace(table=None, weights=tables[0], arrays=state, held=None)
        rows = Request(request.formula, at, slices_of(B, slots), known=numbers).some_rows()
        return write_pieces(B, tables, rows, donate=True)

    names = request.names[1:]
    slots = slots_of(s)._replace(indices=request.where_taken(s.indices))
    with B.scope():
        tables = B.traced_step(request.formula, slots, numbers, request.tables, otherwise)
        if tables is None:
            return None
    state = {"step": count_step(request), **dict(zip(names, tables[1:], strict=True))}
    return as_given(request.at.table, request.at.weights, tables[0]), state


def clip_requests(requests: Sequence[Request], limit: Limit, formula: ClipFormula) -> tuple[list[Request], Any]:
    """Return the steps with their gradients clipped by the global norm, and this norm.

    If `formula` is raw, the norm is that of the gradients before duplicates are summed. The function changes no array
    of the user.
    """
    leaves, grads = [], []
    for request in requests:
        grads.append(request.grad)
        later = deferred(request.grad) if isinstance(request.grad, IndexedSlices) else request.grad
        leaves.append(Leaf(later, later))
    total = total_norm(grads, raw=formula.raw)
    steps = []
    for request, grad in zip(requests, clip_leaves(grads, leaves, total, limit, formula, "propagate"), strict=True):
        # the `Look` stays valid for slices whose values are computed on first read
        known = grad is request.grad or (isinstance(grad, IndexedSlices) and slots_in(grad) is not None)
        steps.append(request._replace(grad=grad, look=request.look if known else None))
    return steps, total.given
