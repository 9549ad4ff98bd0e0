"""tf.IndexedSlices in Keras, on its TensorFlow backend: operators, layers, clips, steps."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

os.environ["KERAS_BACKEND"] = "tensorflow"  # the only one of Keras's backends that has row-sparse gradients
import keras
import numpy as np
import tensorflow as tf
from keras import ops

from islices.conformance.tools.audit.inputs import CANCELLING, DUPLICATES, ROWS, UNIQUE, ZEROS
from islices.conformance.tools.audit.keras_backends import shared, stepped
from islices.conformance.tools.audit.probe import Probe
from islices.conformance.tools.audit.probes.tensorflow import U, X, Y, dense, slices

K = keras.optimizers
ADD, COALESCE = "islices.add(x, y)", "the operation of islices.coalesce(x)"
TWO, ONE = slices([[10, 10], [20, 20]], [2, 0]), slices([[1, 1], [2, 2]], [0, 2])
RAISED = "duplicate indices raise an error about an index that nobody gave, or give the values of other rows"
STORED = "the stored values are clipped: too little where duplicates add up, too much where they cancel"


def gradient(layer: Any, ids: Any) -> Any:
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(tf.constant(ids)))
    return tf.convert_to_tensor(tape.gradient(loss, layer.embeddings.value))


def table_sized(call: Any, rows: int = 1009) -> bool:
    """Check if the graph of a call makes an array of as many rows as the table has."""
    graph = tf.function(call, autograph=False).get_concrete_function().graph
    made = [out.shape for op in graph.get_operations() if op.type != "ReadVariableOp" for out in op.outputs]
    return any(shape.rank and shape[0] == rows for shape in made)


def adam_step() -> bool:
    weights, optimizer = keras.Variable(np.ones((1009, 2), np.float32)), K.Adam(0.5)
    optimizer.build([weights])
    return table_sized(lambda: optimizer.apply_gradients([(slices([[1, 2]], [1], 1009), weights)]))


def replicas() -> Any:
    """Return the length of a step whose two replicas have the gradients (3, 0) and (4, 0)."""
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        weights, optimizer = keras.Variable(ZEROS), K.SGD(1.0, global_clipnorm=1.0)
        optimizer.build([weights])

    def replica() -> None:
        k = tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group, tf.float32)
        optimizer.apply_gradients(
            [(tf.IndexedSlices(tf.stack([[3 + k, 0.0]]), tf.constant([1]), tf.constant([ROWS, 2])), weights)]
        )

    strategy.run(replica)
    return np.linalg.norm(np.asarray(weights))


LONG, SHORT = slices([[1, 1], [2, 2]], [1, 2], 1009), slices([[3, 3]], [2], 1009)

# fmt: off
PROBES = [
    # ------------------------------------------------------------------ two operands
    *(Probe(f"keras.ops.{name}(slices, slices), unsorted indices", "6",
            "the sum or product of other rows than the indices say: unique indices must be sorted, too", f"keras.ops.{name} of coalesced slices",
            "rows 2, 0 with rows 0, 2", partial(lambda f, y: dense(f(TWO, y)), getattr(ops, name), y), getattr(np, name)(dense(TWO), dense(y)))
      for name, y in [("add", ONE), ("subtract", ONE), ("maximum", ONE), ("multiply", ONE)]),
    *(Probe(f"keras.ops.{name}(slices, slices), duplicate indices", "1", claim, f"keras.ops.{name} of coalesced slices", "duplicates",
            partial(lambda f: dense(f(X, U)), getattr(ops, name)), getattr(np, name)(DUPLICATES.dense, UNIQUE.dense), trap)
      for name, claim, trap in [("add", RAISED, "raises"), ("subtract", RAISED, "raises"), ("maximum", RAISED, "raises"),
                                ("multiply", "only one of the duplicates counts", "differs")]),
    Probe("keras.ops.add(slices, slices), one of them empty", "6", "an empty gradient raises", ADD,
          "empty first", lambda: dense(ops.add(slices(ZEROS[:0], np.zeros(0, int)), U)), UNIQUE.dense, "raises"),
    Probe("keras.ops.multiply(x, x), keras.ops.add(x, x)", "6",
          "of slices with themselves the stored values are multiplied: duplicates are squared one by one", "keras.ops.square of islices.coalesce(x)",
          "multiply, duplicates", lambda: dense(ops.multiply(X, X)), DUPLICATES.dense**2),
    Probe("keras.ops.divide(slices, NumPy array)", "6", "a divisor that is no tensor raises", "keras.ops.divide of islices.to_dense(x)",
          "an array of twos", lambda: dense(ops.divide(U, ZEROS + 2)), UNIQUE.dense / 2, "raises"),
    Probe("keras.ops.multiply(slices, array that broadcasts)", "6",
          "one row for all of the table raises: the array is treated as a table of fewer rows", "keras.ops.multiply of islices.to_dense(x)",
          "an array of shape (2,)", lambda: dense(ops.multiply(U, np.array([2, 4], "f4"))), UNIQUE.dense * [2, 4], "raises"),
    Probe("keras.ops.add, multiply, maximum of slices with slices", "5",
          "arrays of the table's number of rows are made, although the result is row-sparse", ADD,
          "add: does it make arrays of the table's rows?", lambda: table_sized(lambda: ops.add(LONG, SHORT)), False),
    # ------------------------------------------------------------------ one operand
    Probe("keras.ops.abs, square, sqrt, sign, expm1, log1p, sin, tanh of slices", "1",
          "applied to each duplicate, and then summed: |-100| + |100| where the sum is 0", COALESCE,
          "abs, cancelling duplicates", lambda: dense(ops.abs(Y)), CANCELLING.dense),
    Probe("keras.ops.exp, cos, reciprocal, isfinite of slices", "1", "of duplicates only the last counts", COALESCE,
          "cos, duplicates", lambda: dense(ops.cos(X)).round(5), np.cos(DUPLICATES.dense).round(5)),
    Probe("keras.ops.clip", "9", "duplicates are clipped one by one, and rows that are not stored stay 0 whatever the bounds",
          "islices.clip_by_value(x, lo, hi)", "bounds 0 and 5, duplicates", lambda: dense(ops.clip(X, 0.0, 5.0)), DUPLICATES.dense.clip(0, 5)),
    Probe("keras.ops.any, keras.ops.logical_not of slices", "5",
          "they raise: the slices are cast to bool, and bool cannot be summed into a dense array", "keras.ops.any of islices.to_dense(x)",
          "any", lambda: bool(ops.any(U)), True, "raises"),
    # ------------------------------------------------------------------ layers, clips and steps; formulas stand in docs/judged.md
    *shared(gradient, {
        "ids": "the last row is read, and trained", "take": "-1 reads the last row, as in NumPy",
        "segment_sum": "a negative index is dropped silently, one of the number of rows raises"}),
    *(Probe(f"keras.optimizers.*({name}=...)", clause, STORED, f"{instead} first", "SGD, cancelling duplicates to 2.5",
            partial(lambda name: -stepped(K.SGD(1.0, **{name: 2.5}), Y, start=0.0), name), expected)
      for name, clause, instead, expected in [
          ("clipnorm", "10", "islices.clip_by_norm(gradient, limit)", CANCELLING.dense / 2),
          ("global_clipnorm", "10", "islices.clip_by_global_norm(gradients, limit)", CANCELLING.dense / 2)]),
    Probe("keras.optimizers.*(clipvalue=...)", "9", STORED, "islices.clip_by_value(gradient, -limit, limit) first", "SGD, duplicates to 4",
          lambda: -stepped(K.SGD(1.0, clipvalue=4.0), X, start=0.0), DUPLICATES.dense.clip(-4, 4)),
    Probe("keras.optimizers.*(clipnorm=..., global_clipnorm=...) under tf.distribute", "10",
          "each replica's gradient is clipped before they are added: two that point the same way step twice as far",
          "islices.clip_by_global_norm(gradients, limit) after the all-reduce", "gradients (3, 0) and (4, 0) to 1: length of the step", replicas, 1),
    Probe("keras.optimizers.*(loss_scale_factor=...)", "6", "slices are divided by an operator that they do not have",
          "islices.scale(gradient, 1 / factor) first", "SGD", lambda: 1 - stepped(K.SGD(1.0, loss_scale_factor=2.0), U), UNIQUE.dense / 2, "raises"),
    Probe("keras.optimizers.Adam and the others that are not linear", "16",
          "duplicates are not summed first: the weights are not those of the dense gradient", "islices.optim.adam(lr, rows='all', semantics='keras')",
          "Adagrad, duplicates", lambda: stepped(K.Adagrad(0.5), X), stepped(K.Adagrad(0.5), tf.convert_to_tensor(X))),
    Probe("keras.optimizers.Adam and others: rows that no gradient names", "16",
          "weights move in rows that the step's gradient does not name: there is no lazy form", "islices.optim.adam(lr, rows='touched')",
          "Ftrl, rows 0 and 3", lambda: stepped(K.Ftrl(0.5), U)[::3], [[1, 1]] * 2),
    Probe("keras.optimizers.Adam and the others but SGD, a step with slices", "16",
          "arrays of the table's rows are made in every step, however few rows the gradient has",
          "islices.optim.adam(lr): time and memory follow the gradient", "Adam: does it make arrays of the table's rows?", adam_step, False,
          issue="keras-team/keras#19992"),
    Probe("keras.optimizers.SGD(weight_decay=0.5)", "16", "all rows decay, named by the gradient or not", "islices.optim.sgd(lr, weight_decay=...)",
          "rows 0 and 3", lambda: stepped(K.SGD(0.5, weight_decay=0.5), U)[::3], [[1, 1]] * 2),
]
