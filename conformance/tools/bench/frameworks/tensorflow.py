"""Define TensorFlow's calls for the bench. Steps use Keras, or are written by hand for eager code or tf.function."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count, repeat
from typing import Any

import keras
import tensorflow as tf

from islices import Table, lookup, value_and_grad
from islices.conformance.tools.bench.rates import BETA1, BETA2, EPS, RATE, corrections, rule, shapes
from islices.conformance.tools.bench.rounds import Call
from islices.conformance.tools.bench.step import LOSS_SCALE, MAX_NORM, Problem
from islices.conformance.tools.bench.variants import Ready, Way

table, total = tf.Variable, tf.reduce_sum


def zeros(shape: tuple[int, ...]) -> Any:
    return tf.Variable(tf.zeros(shape), trainable=False)


def ones(shape: tuple[int, ...]) -> Any:
    return tf.Variable(tf.ones(shape))


def compiled(step: Callable[..., Any], tables: Any, states: Any) -> Callable[..., Any]:
    @tf.function(autograph=False)  # type: ignore[untyped-decorator]
    def run(*batch: Any) -> Any:
        return step(tables, states, *batch)[2]  # returning a Variable would copy it

    return lambda tables, states, *batch: (tables, states, run(*batch))


# ---------------------------------------------------------------------- steps
def _by_hand(kind: str, start: Any, feed: Iterator[Any], gradient: Callable[..., Any], *, graph: bool = True) -> Way:
    """Return an implementation that is written by hand and updates only the rows of the batch. `gradient(table, ids,
    batch)` returns (loss, distinct row numbers, one gradient per distinct row)."""
    arrays = [tf.Variable(start), *(zeros(shape) for shape in shapes(kind, *start.shape))]
    times = count(1)

    def step(ids: Any, batch: Any, *numbers: Any) -> Any:
        loss, distinct, g = gradient(arrays[0], ids, batch)
        rows = [tf.gather(x, distinct) for x in arrays]
        new = rule(kind, tf.sqrt, lambda x: tf.reduce_mean(x, 1, keepdims=True), g, *rows, *numbers)
        for x, part in zip(arrays, new, strict=True):
            x.scatter_update(tf.IndexedSlices(part, distinct))
        return loss

    run = tf.function(step, autograph=False) if graph else step

    def call() -> Any:
        return run(*next(feed), *(tf.constant(x, tf.float32) for x in corrections(kind, next(times))))

    return Way(call, lambda: arrays[:1])


def _unique(values: Any, ids: Any) -> tuple[Any, Any]:
    distinct, place = tf.unique(ids)
    return distinct, tf.math.unsorted_segment_sum(values, place, tf.size(distinct))


def updates(kind: str, values: Any, ids: Any, rows: int) -> dict[str, Ready]:
    v, i, shape = tf.constant(values), tf.constant(ids), (rows, values.shape[1])

    def scatter() -> Way:
        table = zeros(shape)
        return Way(lambda: table.scatter_add(tf.IndexedSlices(-RATE * v, i)), lambda: [table])

    def by_hand() -> Way:
        def gradient(table: Any, ids: Any, values: Any) -> Any:
            return 0.0, *_unique(values, ids)

        return _by_hand(kind, tf.zeros(shape), repeat((i, v)), gradient)

    if kind == "sgd":
        return {"Variable.scatter_add": scatter}
    return {"tf.function of unique + unsorted_segment_sum, optimizer by hand": by_hand}


def _taped(table: Any, ids: Any, target: Any) -> Any:
    with tf.GradientTape() as tape:
        bags = tf.reduce_sum(tf.gather(table, ids), 1)
        loss = tf.reduce_sum((bags - target) ** 2) * (0.5 * LOSS_SCALE)
    return loss, tape.gradient(loss, table)


def steps(problem: Problem) -> dict[str, Ready]:
    case = problem.case

    def gradient(table: Any, ids: Any, target: Any) -> Any:
        loss, slices = _taped(table, ids, target)
        distinct, g = _unique(slices.values, slices.indices)
        if case.clip:
            (g,), _ = tf.clip_by_global_norm([g], MAX_NORM)
        return loss, distinct, g

    def by_hand(graph: bool) -> Way:
        feed = problem.feed_one(tf.constant, tf.constant)
        return _by_hand(case.optimizer, tf.constant(problem.start()[0]), feed, gradient, graph=graph)

    def by_keras() -> Way:
        table, batches = keras.Variable(problem.start()[0]), problem.feed_one(tf.constant, tf.constant)
        norm = MAX_NORM if case.clip else None
        adam = keras.optimizers.Adam(RATE, BETA1, BETA2, epsilon=EPS, global_clipnorm=norm)
        adam.build([table])

        @tf.function(autograph=False)  # type: ignore[untyped-decorator]
        def run(ids: Any, target: Any) -> Any:
            loss, g = _taped(table.value, ids, target)
            adam.apply([g], [table])
            return loss

        return Way(lambda: run(*next(batches)), lambda: [table.value])

    variants: dict[str, Ready] = {
        "tf.function of GradientTape, unique, optimizer by hand": lambda: by_hand(True),
        "GradientTape, unique, optimizer by hand": lambda: by_hand(False),
    }
    if case.optimizer == "adam":
        variants["tf.function of keras Adam (duplicates not summed, all rows move)"] = by_keras
    return variants


# ---------------------------------------------------------------------- small calls
def small(values: Any, ids: Any, rows: int, max_norm: float) -> dict[str, dict[str, Call]]:
    v, i, shape = tf.constant(values), tf.constant(ids), (rows, values.shape[1])
    gradient = tf.IndexedSlices(v, i, tf.constant(shape, tf.int64))
    scaled = tf.IndexedSlices(RATE * v, i, gradient.dense_shape)
    table, variable, sgd = zeros(shape), keras.Variable(tf.zeros(shape)), keras.optimizers.SGD(RATE)
    sgd.build([variable])
    return {
        "coalesce": {"unique + unsorted_segment_sum (rows unsorted)": lambda: _unique(v, i)},
        "clip_by_global_norm": {
            "clip_by_global_norm (duplicates not summed)": lambda: tf.clip_by_global_norm([gradient], max_norm)
        },
        "sgd step": {
            "Variable.scatter_sub (of scaled values)": lambda: table.scatter_sub(scaled),
            "keras SGD.apply": lambda: sgd.apply([gradient], [variable]),
        },
    }


# ---------------------------------------------------------------------- gradients
def gradient(table: Any, ids: Any, upstream: Any) -> dict[str, Call]:
    i, u, wrapped = tf.constant(ids), tf.constant(upstream), Table(table)
    step = value_and_grad(lambda table: tf.reduce_sum(lookup(table, i) * u))

    def ours() -> Any:
        value, g = step(wrapped)
        return value, g.values, g.indices

    def own() -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(table, i) * u)
        g = tape.gradient(loss, table)
        return loss, g.values, g.indices

    return {
        "islices": ours,
        "islices, compiled": tf.function(ours),
        "gather, GradientTape": own,
        "tf.function of gather, GradientTape": tf.function(own),
    }
