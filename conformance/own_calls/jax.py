"""JAX's calls on sparse gradients as its users write them, and the fastest formulation known.

Independent of islices, so that the conformance suite and the bench compare with the framework itself. JAX has no
embedding layer and no sparse gradient of a gather: its users differentiate with respect to the gathered rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import sparse


def weighted_sum(rows: jax.Array, weights: jax.Array) -> jax.Array:
    """sum(rows * weights): a loss whose gradient at rows is weights, to the bit."""
    return jnp.sum(rows * weights)


def embedding_gradient(
    ids: np.ndarray[Any, Any], upstream: np.ndarray[Any, Any], num_rows: int, padding_idx: int
) -> sparse.BCOO:
    """Return the gradient of sum(table[ids] * upstream) as a BCOO, one slot an occurrence.

    A gather has no padding_idx: it is ignored, and the caller drops the padding row.
    """
    del padding_idx
    row_shape = upstream.shape[ids.ndim :]
    indices = jnp.asarray(ids, jnp.int32)
    weights = jnp.asarray(upstream, jnp.float32)
    table = jnp.zeros((num_rows, *row_shape), jnp.float32)

    def loss(delta: jax.Array) -> jax.Array:
        return jnp.sum((table[indices] + delta) * weights)

    rows = jax.grad(loss)(jnp.zeros_like(weights))
    return sparse.BCOO((rows.reshape(-1, *row_shape), indices.reshape(-1, 1)), shape=table.shape)


def invalid_gradients() -> dict[str, tuple[Callable[[], Any], str]]:
    """Return {label: (a call that builds it, islices' error)} of inconsistent BCOOs, which JAX builds nevertheless.

    An index equal to the number of rows is valid: it is BCOO's padding.
    """

    def bcoo(indices: list[int], **claims: bool) -> sparse.BCOO:
        places = jnp.array(indices, jnp.int32).reshape(-1, 1)
        return sparse.BCOO((jnp.ones((len(indices), 2)), places), shape=(4, 2), **claims)

    return {
        "index out of range": (lambda: bcoo([0, 5]), "IndexError"),
        "negative index": (lambda: bcoo([0, -1]), "IndexError"),
        "falsely sorted and unique": (lambda: bcoo([2, 1], indices_sorted=True, unique_indices=True), "ValueError"),
        "falsely unique": (lambda: bcoo([1, 1], indices_sorted=True, unique_indices=True), "ValueError"),
        "two sparse dimensions": (lambda: sparse.BCOO.fromdense(jnp.eye(4)), "ValueError"),
        "batched": (lambda: sparse.BCOO.fromdense(jnp.ones((2, 3, 4)), n_batch=1, n_dense=1), "ValueError"),
    }


def trainable(array: np.ndarray) -> Any:
    return jnp.array(array)


def block(x: Any) -> None:
    """Wait until every JAX array in x (structures and pytrees of them) is computed."""
    jax.block_until_ready(x)
