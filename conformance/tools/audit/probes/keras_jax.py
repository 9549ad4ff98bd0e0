"""What Keras does on its JAX backend, where gradients are dense."""

from __future__ import annotations

import os
from typing import Any

os.environ["KERAS_BACKEND"] = "jax"  # before Keras is imported
import jax
import jax.numpy as jnp
from jax.experimental.sparse import BCOO

from islices.conformance.tools.audit import keras_dense
from islices.conformance.tools.audit.inputs import ROWS, Given


def gradient(layer: Any, ids: Any) -> Any:
    def loss(table: Any) -> Any:
        return layer.stateless_call([table], [], ids)[0].sum()

    return jax.grad(loss)(layer.embeddings.value)


def sparse(g: Given) -> BCOO:
    return BCOO((jnp.asarray(g.values), jnp.asarray(g.indices, jnp.int32)[:, None]), shape=(ROWS, 2))


SILENT = "is dropped silently, one of the number of rows too"
ON = keras_dense.Backend(
    "JAX", gradient, sparse, lambda x: isinstance(x, BCOO),
    {
        "ids": ("differs", "nothing is refused: -1 reads and trains the last row, ids beyond either end read NaN"),
        "take": ("differs", "nothing is refused: -1 reads the last row, the number of rows NaN"),
        "segment_sum": ("differs", f"a negative index {SILENT}"),
        "scatter": ("differs", "-1 adds to the last row, the number of rows is dropped silently"),
        "sparse": ("", "a BCOO is stepped with as if it were dense, duplicates summed"),
        "sparse clips": ("raises", "of a BCOO no norm is taken, and nothing clipped"),
    },
)  # fmt: skip

keras_dense.declare_layers(__name__, ON)
keras_dense.declare_optimizers(__name__, ON)
keras_dense.declare_rounding(__name__, ON.name)
