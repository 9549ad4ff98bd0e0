"""Keras on its JAX backend, where gradients are dense."""

from __future__ import annotations

import os
from typing import Any

os.environ["KERAS_BACKEND"] = "jax"  # before Keras is imported
import jax
import jax.numpy as jnp
import keras
from jax.experimental.sparse import BCOO

from islices.conformance.tools.audit.inputs import DUPLICATES, ROWS
from islices.conformance.tools.audit.keras_backends import dense_only, stepped
from islices.conformance.tools.audit.probe import Probe


def gradient(layer: Any, ids: Any) -> Any:
    return jax.grad(lambda table: layer.stateless_call([table], [], ids)[0].sum())(layer.embeddings.value)


def clipped() -> Any:
    x = BCOO((jnp.asarray(DUPLICATES.values), jnp.asarray(DUPLICATES.indices, jnp.int32)[:, None]), shape=(ROWS, 2))
    return -stepped(keras.optimizers.SGD(1.0, clipnorm=5.0), x, start=0.0)


# fmt: off
PROBES = [
    *dense_only(gradient, lambda x: isinstance(x, BCOO), {
        "ids": "nothing is refused: -1 reads and trains the last row, ids beyond either end read NaN",
        "take": "nothing is refused: -1 reads the last row, the number of rows NaN",
        "segment_sum": "a negative index is dropped silently, one of the number of rows too",
        "scatter": "-1 adds to the last row, the number of rows is dropped silently"}),
    Probe("keras.optimizers.*(clipnorm=..., clipvalue=...), JAX backend: BCOO", "10", "no norm of a BCOO is computed, and nothing is clipped",
          "islices.clip_by_norm(gradient, limit), islices.clip_by_value(gradient, lo, hi)", "duplicates to 5", clipped, DUPLICATES.dense / 2, "raises"),
]
