"""Define JAX's calls for the bench. Steps use optax or are written by hand, and are jitted with donated buffers."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from itertools import count, repeat
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from islices import Table, lookup, value_and_grad
from islices.conformance.own_calls.jax import timed_calls
from islices.conformance.tools.bench.rates import BETA1, BETA2, EPS, RATE, corrections, rule, shapes
from islices.conformance.tools.bench.rounds import Call
from islices.conformance.tools.bench.step import LOSS_SCALE, MAX_NORM, Problem
from islices.conformance.tools.bench.variants import Ready, Way, our_variant

zeros, ones, table, total = jnp.zeros, jnp.ones, jnp.array, jnp.sum


def compiled(step: Callable[..., Any], tables: Any, states: Any) -> Callable[..., Any]:
    return jax.jit(step, donate_argnums=(0, 1))


# ---------------------------------------------------------------------- steps
def _by_hand(kind: str, start: Any, feed: Iterator[Any], gradient: Callable[..., Any], *, on_host: bool) -> Way:
    """Return an implementation that is written by hand and updates only the rows of the batch. `gradient(rows, place,
    *batch)` returns (loss, gradients of the rows), where `place` is the position of each id's row in `rows`."""
    arrays = [start, *(zeros(shape) for shape in shapes(kind, *start.shape))]
    rows, times = len(start), count(1)

    def step(arrays: list[Any], distinct: Any, place: Any, numbers: list[Any], *batch: Any) -> Any:
        read = [x.at[distinct].get(mode="clip") for x in arrays]
        loss, g = gradient(read[0], place, *batch)
        new = rule(kind, jnp.sqrt, lambda x: x.mean(1, keepdims=True), g, *read, *numbers)
        return [x.at[distinct].set(part, mode="drop") for x, part in zip(arrays, new, strict=True)], loss

    def inside(arrays: list[Any], ids: Any, *more: Any) -> Any:
        distinct, place = jnp.unique(ids, size=ids.size, fill_value=rows, return_inverse=True)
        return step(arrays, distinct, place.reshape(ids.shape), *more)

    run = jax.jit(step if on_host else inside, donate_argnums=0)

    def call() -> Any:
        nonlocal arrays
        ids, *batch = next(feed)
        given = [ids]
        if on_host:  # padded to a power of two, so that few shapes are compiled
            distinct, place = np.unique(ids, return_inverse=True)
            room = np.full(1 << (len(distinct) - 1).bit_length(), rows, np.int32)
            room[: len(distinct)] = distinct
            given = [room, place.astype(np.int32).reshape(ids.shape)]
        arrays, loss = run(arrays, *given, corrections(kind, next(times)), *batch)
        return loss

    return Way(call, lambda: arrays[:1])


def updates(kind: str, values: Any, ids: Any, rows: int) -> dict[str, Ready]:
    v, i, shape = jnp.asarray(values), jnp.asarray(ids), (rows, values.shape[1])

    def add() -> Way:
        step = jax.jit(lambda table, state, v, i: (table.at[i].add(-RATE * v), state, None), donate_argnums=0)
        return our_variant(step, zeros(shape), None, repeat((v, i)))

    def summed(rows: Any, place: Any, v: Any) -> Any:
        return 0.0, jax.ops.segment_sum(v, place, len(rows))

    if kind == "sgd":
        return {"jit donated .at[].add": add}
    return {
        "jit donated unique(size) + segment_sum, optimizer by hand": lambda: _by_hand(
            kind, zeros(shape), repeat((i, v)), summed, on_host=False
        ),
        "np.unique + jit donated segment_sum, optimizer by hand": lambda: _by_hand(
            kind, zeros(shape), repeat((ids, v)), summed, on_host=True
        ),
    }


def _loss(rows: Any, place: Any, target: Any) -> Any:
    return jnp.sum((rows[place].sum(1) - target) ** 2) * (0.5 * LOSS_SCALE)


def steps(problem: Problem) -> dict[str, Ready]:
    case = problem.case

    def clipped(rows: Any, place: Any, target: Any) -> Any:
        loss, g = jax.value_and_grad(_loss)(rows, place, target)
        return loss, g * jnp.minimum(MAX_NORM / jnp.linalg.norm(g), 1.0) if case.clip else g

    def by_hand(on_host: bool) -> Way:
        ids = np.asarray if on_host else jnp.asarray
        feed = problem.feed_one(ids, jnp.asarray)
        return _by_hand(case.optimizer, jnp.array(problem.start()[0]), feed, clipped, on_host=on_host)

    def by_optax() -> Way:
        import optax

        adam = optax.adam(RATE, BETA1, BETA2, eps=EPS)
        tx = optax.chain(optax.clip_by_global_norm(MAX_NORM), adam) if case.clip else adam

        def step(table: Any, state: Any, ids: Any, target: Any) -> Any:
            loss, g = jax.value_and_grad(_loss)(table, ids, target)
            updates, state = tx.update(g, state, table)
            return optax.apply_updates(table, updates), state, loss

        start = jnp.array(problem.start()[0])
        feed = problem.feed_one(jnp.asarray, jnp.asarray)
        return our_variant(compiled(step, None, None), start, tx.init(start), feed)

    variants: dict[str, Ready] = {
        "np.unique, jit donated, optimizer by hand": lambda: by_hand(True),
        "jit donated, unique(size) inside, optimizer by hand": lambda: by_hand(False),
    }
    if case.optimizer == "adam" and importlib.util.find_spec("optax"):
        variants["optax.adam, jit donated (all rows move)"] = by_optax
    return variants


# ---------------------------------------------------------------------- small calls
def small(values: Any, ids: Any, rows: int, max_norm: float) -> dict[str, dict[str, Call]]:
    v, i = jnp.asarray(values), jnp.asarray(ids)
    add = updates("sgd", values, ids, rows)["jit donated .at[].add"]()

    def jitted(operation: str) -> dict[str, Call]:
        variants = timed_calls(operation, v, i, rows, max_norm)
        return {label: variant for label, variant in variants.items() if label.startswith("jit")}

    return {
        "coalesce": jitted("coalesce"),
        "clip_by_global_norm": jitted("clip_by_global_norm"),
        "sgd step": {"jit donated .at[].add": add.timed},
    }


# ---------------------------------------------------------------------- gradients
def gradient(table: Any, ids: Any, upstream: Any) -> dict[str, Call]:
    i, u, wrapped = jnp.asarray(ids), jnp.asarray(upstream), Table(table)
    step = value_and_grad(lambda table, i, u: jnp.sum(lookup(table, i) * u))

    def ours(table: Any, i: Any, u: Any) -> Any:
        value, g = step(table, i, u)
        return value, g.values, g.indices

    def own(table: Any, i: Any, u: Any) -> Any:
        return *jax.value_and_grad(lambda rows: jnp.sum(rows * u))(table[i]), i

    jitted, by_hand = jax.jit(ours), jax.jit(own)
    return {
        "islices": lambda: ours(wrapped, i, u),
        "islices, compiled": lambda: jitted(wrapped, i, u),
        "jit of grad by the gathered rows": lambda: by_hand(table, i, u),
    }
