"""Whole steps on JAX: jitted and donated, with optax, and by hand."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from itertools import cycle
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from islices.conformance.tools.bench.limit import BETA1, BETA2, RATE
from islices.conformance.tools.bench.steps.model import LOSS_SCALE, MAX_NORM, Problem, Ready, Way, nothing
from islices.conformance.tools.bench.steps.ours import Framework, Step
from islices.conformance.tools.bench.update_ways import corrections, rule, shapes

__all__ = ["FRAMEWORK"]


def _compiled(step: Step, tables: Any, states: Any) -> tuple[Step, Callable[[], str]]:
    return jax.jit(step, donate_argnums=(0, 1)), nothing


# ---------------------------------------------------------------------- what JAX's users write
def _loss(rows: Any, place: Any, target: Any) -> Any:
    """Of the rows that are read, and which of them stand in which bag."""
    return jnp.sum((rows[place].sum(1) - target) ** 2) * (0.5 * LOSS_SCALE)


def _on_rows(problem: Problem) -> Callable[..., Any]:
    """(arrays, distinct, place, target, corrections) -> (arrays, loss), a step on the rows of distinct ids."""
    case = problem.case

    def step(arrays: list[Any], distinct: Any, place: Any, target: Any, numbers: list[Any]) -> Any:
        rows = [x.at[distinct].get(mode="clip") for x in arrays]
        loss, g = jax.value_and_grad(_loss)(rows[0], place, target)
        if case.clip:
            g = g * jnp.minimum(MAX_NORM / jnp.linalg.norm(g), 1.0)
        new = rule(case.optimizer, jnp.sqrt, lambda x: x.mean(1, keepdims=True), g, *rows, *numbers)
        changed = [x.at[distinct].set(part, mode="drop") for x, part in zip(arrays, new, strict=True)]
        return changed, loss

    return step


def _by_hand(problem: Problem, on_host: bool) -> Way:
    (start,), case = problem.start(), problem.case
    arrays = [jnp.array(start), *(jnp.zeros(shape) for shape in shapes(case.optimizer, *start.shape)[1:])]
    step, t, count = _on_rows(problem), 0, case.model.bags * case.model.ids

    def inside(arrays: Any, ids: Any, target: Any, numbers: Any) -> Any:
        distinct, place = jnp.unique(ids, size=count, fill_value=len(start), return_inverse=True)
        return step(arrays, distinct, place.reshape(ids.shape), target, numbers)

    run = jax.jit(step if on_host else inside, donate_argnums=0)
    feed = cycle([(b.ids[0] if on_host else jnp.asarray(b.ids[0]), jnp.asarray(b.target)) for b in problem.batches])

    def call() -> Any:
        nonlocal arrays, t
        t += 1
        ids, target = next(feed)
        numbers = corrections(case.optimizer, t)
        if on_host:  # room for a power of two, so that few shapes compile
            distinct, place = np.unique(ids, return_inverse=True)
            room = np.full(1 << (len(distinct) - 1).bit_length(), len(start), np.int32)
            room[: len(distinct)] = distinct
            arrays, loss = run(arrays, room, place.astype(np.int32).reshape(ids.shape), target, numbers)
        else:
            arrays, loss = run(arrays, ids, target, numbers)
        return loss

    return Way(call, lambda: arrays[:1])


def _by_optax(problem: Problem) -> Way:
    import optax

    adam = optax.adam(RATE, BETA1, BETA2, eps=1e-8)
    tx = optax.chain(optax.clip_by_global_norm(MAX_NORM), adam) if problem.case.clip else adam

    def step(table: Any, state: Any, ids: Any, target: Any) -> Any:
        loss, g = jax.value_and_grad(_loss)(table, ids, target)
        updates, state = tx.update(g, state, table)
        return optax.apply_updates(table, updates), state, loss

    run = jax.jit(step, donate_argnums=(0, 1))
    table = jnp.array(problem.start()[0])
    held = [table, tx.init(table)]
    feed = cycle([(jnp.asarray(b.ids[0]), jnp.asarray(b.target)) for b in problem.batches])

    def call() -> Any:
        held[0], held[1], loss = run(*held, *next(feed))
        return loss

    return Way(call, lambda: held[:1])


def _own(problem: Problem) -> dict[str, Ready]:
    ways: dict[str, Ready] = {
        "np.unique, jit donated, formula on rows": lambda: _by_hand(problem, True),
        "jit donated, unique(size) inside, formula on rows": lambda: _by_hand(problem, False),
    }
    if problem.case.optimizer == "adam" and importlib.util.find_spec("optax"):
        ways["optax.adam, jit donated (all rows move)"] = lambda: _by_optax(problem)
    return ways


FRAMEWORK = Framework(jnp.array, jnp.sum, _own, _compiled)
