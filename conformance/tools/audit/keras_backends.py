"""Probes of Keras that hold on each of its backends: ids out of range, masks, clips of large gradients.

Modules of probes/ import this once they have chosen KERAS_BACKEND.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import ops

from islices.conformance.tools.audit.inputs import ROWS, WEIGHTS, ZEROS
from islices.conformance.tools.audit.probe import REFUSED, Probe

__all__ = ["LOOKUP", "array", "dense_only", "layer", "shared", "stepped"]

LOOKUP = "islices.lookup(table, ids)"
CLIPS = "islices.clip_by_norm(gradient, limit), islices.clip_by_global_norm(gradients, limit)"


def array(x: Any) -> np.ndarray[Any, Any]:
    return np.asarray(ops.convert_to_numpy(x))


def layer(**options: Any) -> Any:
    made = keras.layers.Embedding(ROWS, 2, **options)
    made.build()
    made.set_weights([WEIGHTS])
    return made


def stepped(optimizer: Any, *grads: Any, start: float = 1.0) -> np.ndarray[Any, Any]:
    """Return a table of `start` after a step for each gradient."""
    weights = keras.Variable(np.full((ROWS, 2), start, np.float32))
    for grad in grads:
        optimizer.apply_gradients([(grad, weights)])
    return array(weights)


LARGE = ZEROS.copy()
LARGE[1] = 3e19, 4e19
WORDS = {"tensorflow": "TensorFlow", "jax": "JAX", "torch": "torch"}


def shared(gradient: Callable[[Any, Any], Any], claims: dict[str, str]) -> list[Probe]:
    """Return the probes; gradient(layer, ids) is that of the sum of a lookup, claims: what an index of -1 or 4 does."""
    on = f", {WORDS[keras.backend.backend()]} backend"
    ids = np.array([[0, 2, 0, 1]])
    # fmt: off
    return [
        Probe(f"keras.layers.Embedding(mask_zero=True){on}", "12", "row 0 gets a gradient: the layer only hands the mask on",
              "islices.lookup(table, ids, padding_idx=0)", "ids 0, 2, 0, 1", lambda: array(gradient(layer(mask_zero=True), ids)),
              [[0, 0], [1, 1], [1, 1], [0, 0]]),
        Probe(f"keras.layers.Embedding{on}, ids out of range", "2", claims["ids"], LOOKUP, "id -1", lambda: array(layer()(np.array([0, -1]))), REFUSED),
        Probe(f"keras.ops.take{on}, indices out of range", "2", claims["take"], LOOKUP,
              "index -1", lambda: array(ops.take(WEIGHTS, np.array([0, -1]), axis=0)), REFUSED),
        Probe(f"keras.ops.segment_sum{on}, indices out of range", "2", claims["segment_sum"], "islices.coalesce(x)",
              "index -1", lambda: array(ops.segment_sum(np.ones((3, 2), np.float32), np.array([1, -1, 1]), ROWS)), REFUSED),
        Probe(f"keras.optimizers.*(clipnorm=..., global_clipnorm=...){on}, large gradients", "10",
              "where squares overflow float32 the step is 0 with clipnorm, NaN in every weight with global_clipnorm", CLIPS, "a row (3e19, 4e19) to 5",
              lambda: -stepped(keras.optimizers.SGD(1.0, global_clipnorm=5.0), ops.convert_to_tensor(LARGE), start=0.0), LARGE / 1e19,
              issue="keras-team/keras#14075"),
    ]


def dense_only(
    gradient: Callable[[Any, Any], Any], is_sparse: Callable[[Any], bool], claims: dict[str, str]
) -> list[Probe]:
    """Return the probes of backends whose gradients are dense."""
    on = f", {WORDS[keras.backend.backend()]} backend"
    # fmt: off
    return [
        *shared(gradient, claims),
        Probe(f"keras.layers.Embedding{on}", "12", "its gradient is dense, a table's size in every step: only the TensorFlow backend has row-sparse ones",
              "islices.lookup(table, ids) in islices.value_and_grad", "ids 1, 2, 1", lambda: is_sparse(gradient(layer(), np.array([1, 2, 1]))), True,
              issue="keras-team/keras#18420"),
        Probe(f"keras.layers.Embedding{on}, ids that are no int32", "2", "fractions are cut off and integers cut to 32 bits: 1.9 and 2**32 + 1 read row 1",
              LOOKUP, "id 1.9", lambda: array(layer()(np.array([1.9]))), REFUSED),
        Probe(f"keras.ops.scatter{on}, indices out of range", "2", claims["scatter"], "islices.coalesce(x)", "index -1",
              lambda: array(ops.scatter(np.array([[1], [-1]]), np.ones((2, 2), np.float32), (ROWS, 2))), REFUSED),
        Probe(f"keras.optimizers.Adam, Lion, Ftrl{on}: rows that no gradient names", "16",
              "a dense gradient names all rows: weights move in rows that the step's batch does not have",
              "islices.optim.adam(lr), lion, ftrl: rows='touched'", "Ftrl, a step with zeros",
              lambda: stepped(keras.optimizers.Ftrl(0.5), ops.convert_to_tensor(ZEROS)), ZEROS + 1),
    ]
