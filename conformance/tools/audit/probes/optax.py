"""Probes of optax with row-sparse and dense gradients. optax treats every array in a pytree as a
gradient, including the indices."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import optax

from islices.conformance.tools.audit.probe import REFUSED, Probe
from islices.conformance.tools.audit.probe_inputs import CANCELLING, UNIQUE, WEIGHTS
from islices.conformance.tools.audit.probes.jax import native

GLOBAL, SGD, ADAM = "islices.clip_by_global_norm(tree, max_norm)", "islices.optim.sgd(lr)", "islices.optim.adam(lr)"
TABLE = jnp.asarray(WEIGHTS)


def updated(transformation: Any, x: Any, table: Any = None) -> Any:
    """Return the updates that a transformation computes for the gradient x. If there is no `table`, x also takes the
    place of the parameters."""
    table = x if table is None else table
    return transformation.update(x, transformation.init(table), table)[0]


def indices(transformation: Any, table: Any = None) -> Any:
    return updated(transformation, native(UNIQUE), table).indices[:, 0]


def norm_clipped(values: list[float], bound: float = 2.0) -> Any:
    return updated(optax.clip_by_global_norm(bound), jnp.array(values, jnp.float32))


# fmt: off
PROBES = [
    Probe("optax.global_norm, optax.tree.norm", "8", "the squares of the indices are added to those of the values",
          "islices.global_norm(tree)", "cancelling duplicates", lambda: optax.global_norm(native(CANCELLING)), 5, issue="jax-ml/jax#18601"),
    Probe("optax.clip_by_global_norm", "10", "it fails on the integer indices", GLOBAL, "unique rows",
          lambda: updated(optax.clip_by_global_norm(2.5), native(UNIQUE)).todense(), UNIQUE.dense / 2, "raises", "jax-ml/jax#18601"),
    Probe("optax.clip", "9", "the indices are clipped like the values: row 2 becomes row 1.5", "islices.clip_by_value(gradient, lo, hi)",
          "unique rows, their indices", lambda: indices(optax.clip(1.5)), [1, 2]),
    Probe("optax.global_norm, optax.clip_by_global_norm of dense gradients", "7", "the squares of float32 1e20 overflow, and clipping gives zeros",
          GLOBAL, "four times 1e20 clipped to 2", lambda: norm_clipped([1e20] * 4), [1] * 4),
    Probe("optax.clip_by_global_norm of dense gradients", "10", "an infinity becomes NaN, and everything beside it zeros", GLOBAL,
          "infinity, 1, 2, 3", lambda: norm_clipped([np.inf, 1, 2, 3]), [np.nan] * 4),
    Probe("optax.clip_by_global_norm(0.0), (-1.0)", "10", "zeros clipped to 0 become NaN, and a negative bound turns gradients round", GLOBAL,
          "[3, 4] to -1", lambda: norm_clipped([3, 4], -1.0), REFUSED, issue="google-deepmind/optax#1752"),
    Probe("optax.tree.add, optax.tree.scale", "6", "gradients of different batches cannot be accumulated: indices are added to indices",
          "islices.add(a, b)", "tree.add, its indices", lambda: optax.tree.add(native(UNIQUE), native(UNIQUE)).indices[:, 0], [1, 2, 1, 2]),
    Probe("optax.sgd", "16", "the indices are multiplied by the rate as well, and become negative fractions", SGD,
          "unique rows, the step's indices", lambda: indices(optax.sgd(0.5), table=TABLE), [1, 2], issue="jax-ml/jax#18601"),
    Probe("optax.adam, adagrad, rmsprop, sgd with momentum", "16", "they refuse a sparse gradient of a dense table", ADAM,
          "adam, unique rows", lambda: indices(optax.adam(0.5), table=TABLE), [1, 2], "raises"),
]
