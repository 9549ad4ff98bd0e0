"""Probes of tf.IndexedSlices in Keras on its TensorFlow backend. The probes cover operations, clips and steps."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

os.environ["KERAS_BACKEND"] = "tensorflow"  # only this backend of Keras has row-sparse gradients
import keras
import numpy as np
import tensorflow as tf
from keras import ops

from islices.conformance.tools.audit.probe import Probe
from islices.conformance.tools.audit.probe_inputs import CANCELLING, DUPLICATES, ROWS, UNIQUE
from islices.conformance.tools.audit.probes.tensorflow import U, X, Y, dense, slices

K = keras.optimizers
COALESCE = "the operation of islices.coalesce(x)"
TWO, ONE = slices([[10, 10], [20, 20]], [2, 0]), slices([[1, 1], [2, 2]], [0, 2])
RAISED = "duplicate indices raise an error about an index that nobody gave, or give the values of other rows"
STORED = "the stored values are clipped: too little where duplicates add up, too much where they cancel"


def stepped(optimizer: Any, grad: Any, start: float = 1.0) -> np.ndarray[Any, Any]:
    """Take one step on a table filled with `start`, and return the new table."""
    weights = keras.Variable(np.full((ROWS, 2), start, np.float32))
    optimizer.apply_gradients([(grad, weights)])
    return np.asarray(weights)


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
    Probe("keras.ops.multiply(x, x), keras.ops.add(x, x)", "6",
          "of slices with themselves the stored values are multiplied: duplicates are squared one by one", "keras.ops.square of islices.coalesce(x)",
          "multiply, duplicates", lambda: dense(ops.multiply(X, X)), DUPLICATES.dense**2),
    # ------------------------------------------------------------------ one operand
    Probe("keras.ops.abs, square, sqrt, sign, expm1, log1p, sin, tanh of slices", "1",
          "applied to each duplicate, and then summed: |-100| + |100| where the sum is 0", COALESCE,
          "abs, cancelling duplicates", lambda: dense(ops.abs(Y)), CANCELLING.dense),
    Probe("keras.ops.clip", "9", "duplicates are clipped one by one, and rows that are not stored stay 0 whatever the bounds",
          "islices.clip_by_value(x, lo, hi)", "bounds 0 and 5, duplicates", lambda: dense(ops.clip(X, 0.0, 5.0)), DUPLICATES.dense.clip(0, 5)),
    # ------------------------------------------------------------------ clips and steps
    *(Probe(f"keras.optimizers.*({name}=...)", clause, STORED, f"{instead} first", "SGD, cancelling duplicates to 2.5",
            partial(lambda name: -stepped(K.SGD(1.0, **{name: 2.5}), Y, start=0.0), name), expected)
      for name, clause, instead, expected in [
          ("clipnorm", "10", "islices.clip_by_norm(gradient, limit)", CANCELLING.dense / 2),
          ("global_clipnorm", "10", "islices.clip_by_global_norm(gradients, limit)", CANCELLING.dense / 2)]),
    Probe("keras.optimizers.*(clipvalue=...)", "9", STORED, "islices.clip_by_value(gradient, -limit, limit) first", "SGD, duplicates to 4",
          lambda: -stepped(K.SGD(1.0, clipvalue=4.0), X, start=0.0), DUPLICATES.dense.clip(-4, 4)),
    Probe("keras.optimizers.Adam and the others that are not linear", "16",
          "duplicates are not summed first: the weights are not those of the dense gradient", "islices.optim.adam(lr, rows='all', semantics='keras')",
          "Adagrad, duplicates", lambda: stepped(K.Adagrad(0.5), X), stepped(K.Adagrad(0.5), tf.convert_to_tensor(X))),
    Probe("keras.optimizers.Adam and others: rows that no gradient names", "16",
          "weights move in rows that the step's gradient does not name: there is no lazy form", "islices.optim.adam(lr, rows='touched')",
          "Ftrl, rows 0 and 3", lambda: stepped(K.Ftrl(0.5), U)[::3], [[1, 1]] * 2),
]
