"""JAX's own way with sparse gradients: what its users write, and the fastest formulation known.

Independent of islices, so that the conformance suite and the bench compare with the framework itself. JAX has no
embedding layer and no sparse gradient of a gather: its users differentiate with respect to the gathered rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import sparse

__all__ = [
    "block",
    "dense_gradient",
    "embedding_gradient",
    "invalid_gradients",
    "own_calls",
    "trainable",
    "weighted_sum",
]


def weighted_sum(rows: jax.Array, weights: jax.Array) -> jax.Array:
    """sum(rows * weights): a loss whose gradient at rows is weights, to the bit."""
    return jnp.sum(rows * weights)


def dense_gradient(
    table: np.ndarray[Any, Any], lookups: Sequence[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], dict[str, Any]]]
) -> tuple[np.ndarray[Any, Any], list[Any]]:
    """The table's gradient by jax.grad; it has no bags."""

    def loss(parameter: jax.Array) -> jax.Array:
        total = jnp.zeros((), parameter.dtype)
        for ids, upstream, _ in lookups:
            total += weighted_sum(parameter[ids], jnp.asarray(upstream))
        return total

    return np.asarray(jax.grad(loss)(jnp.asarray(table))), [None for _ in lookups]


def embedding_gradient(
    ids: np.ndarray[Any, Any], upstream: np.ndarray[Any, Any], num_rows: int, padding_idx: int
) -> sparse.BCOO:
    """The gradient of sum(table[ids] * upstream) as a BCOO, one slot an occurrence.

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
    """BCOOs that JAX builds although they contradict themselves: label -> (call that builds it, the name of the error
    islices answers with). An index equal to the number of rows is no error: it is BCOO's own padding."""

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


# ---------------------------------------------------------------------- coalesce
def _unique_sum(values: jax.Array, indices: jax.Array, num_rows: int) -> tuple[jax.Array, jax.Array]:
    ids, place = jnp.unique(indices, size=len(indices), fill_value=num_rows, return_inverse=True)
    return jax.ops.segment_sum(values, place.ravel(), len(indices)), ids


def _sorted_sum(values: jax.Array, indices: jax.Array, num_rows: int) -> tuple[jax.Array, jax.Array]:
    """A stable sort that carries the positions, in place of `jnp.unique`."""
    n = len(indices)
    ordered, order = lax.sort((indices, lax.iota(jnp.int32, n)), num_keys=1, is_stable=True)
    first = jnp.concatenate([jnp.zeros((1,), bool), ordered[1:] != ordered[:-1]])
    place = jnp.cumsum(first.astype(jnp.int32))
    inverse = jnp.zeros((n,), jnp.int32).at[order].set(place, unique_indices=True)
    ids = jnp.full((n,), num_rows, jnp.int32).at[place].set(ordered)
    return jax.ops.segment_sum(values, inverse, n), ids


def _eager_sum(values: jax.Array, indices: np.ndarray[Any, Any]) -> tuple[jax.Array, np.ndarray[Any, Any]]:
    """Distinct rows on the host, sums in XLA with room for a power of two, so that few shapes compile."""
    ids, place = np.unique(indices, return_inverse=True)
    return _segment_sum(values, place.astype(np.int32), 1 << (len(ids) - 1).bit_length()), ids


def _segment_sum_of(values: jax.Array, place: np.ndarray[Any, Any], room: int) -> jax.Array:
    return jax.ops.segment_sum(values, place, room)


_segment_sum = jax.jit(_segment_sum_of, static_argnums=2)


# ---------------------------------------------------------------------- to_dense, clipping
def _dense(values: jax.Array, indices: jax.Array, num_rows: int) -> jax.Array:
    return jnp.zeros((num_rows, *values.shape[1:]), values.dtype).at[indices].add(values)


def _clip(values: jax.Array, max_norm: float) -> jax.Array:
    norm = jnp.sqrt(jnp.sum(jnp.square(values)))
    return values * jnp.minimum(1.0, max_norm / norm)


def own_calls(
    values: np.ndarray[Any, Any], indices: np.ndarray[Any, Any], num_rows: int, max_norm: float
) -> dict[str, dict[str, Callable[[], Any]]]:
    """JAX's own calls by operation and label; each function blocks until its result is there."""
    v, i = jnp.asarray(values), jnp.asarray(indices, jnp.int32)
    host = np.asarray(i)
    bcoo = sparse.BCOO((v, i[:, None]), shape=(num_rows, *values.shape[1:]))

    def clip_by(total: Callable[..., Any]) -> Callable[[jax.Array, jax.Array], Any]:
        def clipped(v: jax.Array, i: jax.Array) -> Any:
            sums, ids = total(v, i, num_rows)
            return _clip(sums, max_norm), ids

        return jax.jit(clipped)

    def clip_dense(v: jax.Array, i: jax.Array) -> jax.Array:
        return _clip(_dense(v, i, num_rows), max_norm)

    by_unique = jax.jit(_unique_sum, static_argnums=2)
    by_sort = jax.jit(_sorted_sum, static_argnums=2)
    dense = jax.jit(_dense, static_argnums=2)
    clip_unique, clip_sort, clip_table = clip_by(_unique_sum), clip_by(_sorted_sum), jax.jit(clip_dense)
    clip_room = jax.jit(_clip)
    ready = jax.block_until_ready
    return {
        "coalesce": {
            "BCOO.sum_duplicates": lambda: ready(_parts(bcoo.sum_duplicates(nse=bcoo.nse, remove_zeros=False))),
            "jit unique(size) + segment_sum": lambda: ready(by_unique(v, i, num_rows)),
            "jit sort + segment_sum": lambda: ready(by_sort(v, i, num_rows)),
            "np.unique + jit segment_sum": lambda: ready(_eager_sum(v, host)),
        },
        "to_dense": {
            "BCOO.todense": lambda: ready(bcoo.todense()),
            ".at[].add": lambda: ready(jnp.zeros(bcoo.shape, v.dtype).at[i].add(v)),
            "jit .at[].add": lambda: ready(dense(v, i, num_rows)),
        },
        "clip_by_global_norm": {
            "jit dense gradient, clipped": lambda: ready(clip_table(v, i)),
            "jit unique(size) + segment_sum, clipped": lambda: ready(clip_unique(v, i)),
            "jit sort + segment_sum, clipped": lambda: ready(clip_sort(v, i)),
            "np.unique + jit segment_sum, clipped": lambda: ready(clip_room(_eager_sum(v, host)[0], max_norm)),
        },
    }


def _parts(x: sparse.BCOO) -> tuple[jax.Array, jax.Array]:
    return x.data, x.indices


def trainable(array: np.ndarray) -> Any:
    return jnp.array(array)


def block(x: Any) -> None:
    """Wait until every JAX array in x (structures and pytrees of them) is computed."""
    jax.block_until_ready(x)
