"""Whole steps on TensorFlow: in tf.function, with Keras, and by hand."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle
from typing import Any

import keras
import tensorflow as tf

from islices.conformance.tools.bench.limit import BETA1, BETA2, RATE
from islices.conformance.tools.bench.steps.model import LOSS_SCALE, MAX_NORM, Problem, Ready, Way, nothing
from islices.conformance.tools.bench.steps.ours import Framework, Step
from islices.conformance.tools.bench.update_ways import corrections, rule, shapes

__all__ = ["FRAMEWORK"]


def _table(start: Any) -> Any:
    return tf.Variable(start)


def _compiled(step: Step, tables: Any, states: Any) -> tuple[Step, Callable[[], str]]:
    @tf.function(autograph=False)  # type: ignore[untyped-decorator]
    def run(ids: Any, target: Any) -> Any:
        return step(tables, states, ids, target)[2]  # a Variable that is returned would be copied

    return lambda tables, states, ids, target: (tables, states, run(ids, target)), nothing


# ---------------------------------------------------------------------- what TensorFlow's users write
def _feed(problem: Problem) -> Any:
    return cycle([(tf.constant(b.ids[0]), tf.constant(b.target)) for b in problem.batches])


def _taped(table: Any, ids: Any, target: Any) -> Any:
    with tf.GradientTape() as tape:
        bags = tf.reduce_sum(tf.gather(table, ids), 1)
        loss = tf.reduce_sum((bags - target) ** 2) * (0.5 * LOSS_SCALE)
    return loss, tape.gradient(loss, table)


def _by_hand(problem: Problem, compiled: bool) -> Way:
    case, (start,) = problem.case, problem.start()
    arrays = [tf.Variable(start)]
    arrays += [tf.Variable(tf.zeros(shape), trainable=False) for shape in shapes(case.optimizer, *start.shape)[1:]]
    feed, t = _feed(problem), 0

    def step(ids: Any, target: Any, *numbers: Any) -> Any:
        loss, g = _taped(arrays[0], ids, target)
        distinct, place = tf.unique(g.indices)
        summed = tf.math.unsorted_segment_sum(g.values, place, tf.size(distinct))
        if case.clip:
            (summed,), _ = tf.clip_by_global_norm([summed], MAX_NORM)
        rows = [tf.gather(x, distinct) for x in arrays]
        new = rule(case.optimizer, tf.sqrt, lambda x: tf.reduce_mean(x, 1, keepdims=True), summed, *rows, *numbers)
        for x, part in zip(arrays, new, strict=True):
            x.scatter_update(tf.IndexedSlices(part, distinct))
        return loss

    run = tf.function(step, autograph=False) if compiled else step

    def call() -> Any:
        nonlocal t
        t += 1
        numbers = [tf.constant(x, tf.float32) for x in corrections(case.optimizer, t)]
        return run(*next(feed), *numbers)

    return Way(call, lambda: arrays[:1])


def _by_keras(problem: Problem) -> Way:
    case, feed = problem.case, _feed(problem)
    table = keras.Variable(problem.start()[0])
    norm = MAX_NORM if case.clip else None
    adam = keras.optimizers.Adam(RATE, BETA1, BETA2, epsilon=1e-8, global_clipnorm=norm)
    adam.build([table])

    @tf.function(autograph=False)  # type: ignore[untyped-decorator]
    def run(ids: Any, target: Any) -> Any:
        loss, g = _taped(table.value, ids, target)
        adam.apply([g], [table])
        return loss

    return Way(lambda: run(*next(feed)), lambda: [table.value])


def _own(problem: Problem) -> dict[str, Ready]:
    ways: dict[str, Ready] = {
        "tf.function of GradientTape, unique, formula on rows": lambda: _by_hand(problem, True),
        "GradientTape, unique, formula on rows": lambda: _by_hand(problem, False),
    }
    if problem.case.optimizer == "adam":
        ways["tf.function of keras Adam (duplicates not summed, all rows move)"] = lambda: _by_keras(problem)
    return ways


FRAMEWORK = Framework(_table, tf.reduce_sum, _own, _compiled)
