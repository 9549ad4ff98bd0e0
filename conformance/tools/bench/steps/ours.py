"""islices' ways to take a whole step. The code is the same on each framework but for the loss."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle
from typing import Any, NamedTuple

import numpy as np

from islices import Table, clip_by_global_norm, get_backend, lookup, value_and_grad
from islices.conformance.tools.bench.limit import OPTIMIZERS
from islices.conformance.tools.bench.steps.model import LOSS_SCALE, MAX_NORM, Problem, Ready, Way, nothing

__all__ = ["Framework", "Step", "our_ways"]

#: (tables, states, ids, target) -> (tables, states, loss)
Step = Callable[[Any, Any, list[Any], Any], tuple[Any, Any, Any]]


class Framework(NamedTuple):
    """What the part needs of one framework."""

    table: Callable[[np.ndarray[Any, Any]], Any]
    """Weights that may be written to; they may keep the array's memory."""
    total: Callable[[Any], Any]
    """The sum of all elements."""
    own: Callable[[Problem], dict[str, Ready]]
    """Label -> what the framework's users write. A label ends in a remark in brackets if it is another step."""
    compiled: Callable[[Step, Any, Any], tuple[Step, Callable[[], str]]] | None = None
    """(step, tables, states) -> the step compiled, and a remark on how it is."""
    more: Callable[[Problem], dict[str, Ready]] | None = None
    """islices by the framework's own idiom, where that is another one."""


def our_ways(name: str, framework: Framework, problem: Problem) -> dict[str, Ready]:
    """Label -> a way of islices; "islices" is the functions as they run by default.

    Of many tables the framework's own idiom is the only one: a way takes gigabytes.
    """
    if framework.more is not None and len(problem.case.model.rows) > 1:
        return framework.more(problem)
    ways = {"islices": lambda: _ready(name, framework, problem, None)}
    if framework.compiled is not None:
        ways["islices, compiled"] = lambda: _ready(name, framework, problem, framework.compiled)
    return ways | (framework.more(problem) if framework.more else {})


def _ready(name: str, framework: Framework, problem: Problem, compiled: Any) -> Way:
    B, optimizer = get_backend(name), OPTIMIZERS[problem.case.optimizer]
    tables = [Table(framework.table(x)) for x in problem.start()]
    states, remark = optimizer.init(tables), nothing
    step = whole_step(framework.total, optimizer, problem.case.clip)
    if compiled is not None:
        step, remark = compiled(step, tables, states)
    feed = cycle([([B.asarray(x) for x in batch.ids], B.asarray(batch.target)) for batch in problem.batches])
    held = [tables, states]

    def call() -> Any:
        held[0], held[1], loss = step(held[0], held[1], *next(feed))
        return loss

    return Way(call, lambda: [table.weights for table in held[0]], remark)


def whole_step(total: Callable[[Any], Any], optimizer: Any, clip: bool) -> Step:
    """A training step as a user of islices writes it."""

    def loss(tables: list[Table], ids: list[Any], target: Any) -> Any:
        bags = [
            lookup(table, x, combiner="sum" if len(x.shape) == 2 else None)
            for table, x in zip(tables, ids, strict=True)
        ]
        off = sum(bags[1:], bags[0]) - target
        return total(off * off) * (0.5 * LOSS_SCALE)

    differentiated = value_and_grad(loss)

    def step(tables: Any, states: Any, ids: list[Any], target: Any) -> tuple[Any, Any, Any]:
        value, gradients = differentiated(tables, ids, target)
        if clip:
            gradients, _ = clip_by_global_norm(gradients, MAX_NORM)
        tables, states = optimizer.step(tables, gradients, states, donate=True)
        return tables, states, value

    return step
