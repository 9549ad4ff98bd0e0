"""JAX's calls on sparse gradients, for the suite, the audit and the bench.

This module does not import islices, so that the conformance suite and the bench compare islices with JAX itself. JAX
has no embedding layer and no sparse gradient of a gather. So users of JAX differentiate with respect to the gathered
rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import sparse

Host = np.ndarray[Any, Any]


def weighted_sum(rows: jax.Array, weights: jax.Array) -> jax.Array:
    """Return sum(rows * weights). The gradient of this loss with respect to rows is exactly `weights`."""
    return jnp.sum(rows * weights)


def embedding_gradient(ids: Host, upstream: Host, num_rows: int, padding_idx: int) -> sparse.BCOO:
    """Return the gradient of sum(table[ids] * upstream) as a BCOO, with one slot per occurrence.

    A gather has no padding row, so this function ignores `padding_idx`. The caller must drop the padding row.
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
    """Return {label: (a call that builds an inconsistent or unsupported BCOO, the name of the error that islices
    raises)}. JAX checks neither the indices of a BCOO nor its flags.

    An index equal to the number of rows is valid, because BCOO uses this index for padding.
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


# ---------------------------------------------------------------------- coalesce
Sums = tuple[jax.Array, Any]


def _gathered_sum(values: jax.Array, indices: jax.Array, num_rows: int) -> Sums:
    """Return (the sums of the rows, the row numbers), computed after sorting the values by row.

    Both results have one slot per value. In unused slots, the row number is num_rows.
    """
    n = len(indices)
    ordered, order = lax.sort((indices, lax.iota(jnp.int32, n)), num_keys=1, is_stable=True)
    first = jnp.concatenate([jnp.zeros((1,), bool), ordered[1:] != ordered[:-1]])
    place = jnp.cumsum(first.astype(jnp.int32))
    ids = jnp.full((n,), num_rows, jnp.int32).at[place].set(ordered)
    return jax.ops.segment_sum(values[order], place, n, indices_are_sorted=True), ids


_segment_sum = jax.jit(jax.ops.segment_sum, static_argnums=2)


def _host_sum(values: jax.Array, indices: Host) -> Sums:
    """Find the distinct rows on the host, and compute the sums in XLA. The number of sums is padded to a power of two,
    so that XLA compiles few shapes."""
    ids, place = np.unique(indices, return_inverse=True)
    return _segment_sum(values, place.astype(np.int32).reshape(-1), 1 << (len(ids) - 1).bit_length()), ids


# ---------------------------------------------------------------------- to_dense, clipping
def _dense(values: jax.Array, indices: jax.Array, num_rows: int) -> jax.Array:
    return jnp.zeros((num_rows, *values.shape[1:]), values.dtype).at[indices].add(values)


def _norm(sums: jax.Array) -> jax.Array:
    return jnp.sqrt(jnp.sum(jnp.square(sums)))


def _scale(values: jax.Array, sums: jax.Array, max_norm: float) -> jax.Array:
    return values * jnp.minimum(1.0, max_norm / _norm(sums))


def timed_calls(
    operation: str, v: jax.Array, i: jax.Array, num_rows: int, max_norm: float
) -> dict[str, Callable[[], Any]]:
    """Return {label: call} for JAX's equivalents of one operation of islices. If a label contains "np.unique", NumPy
    finds the distinct rows on the host."""
    shape = (num_rows, *v.shape[1:])
    host = np.asarray(i)
    bcoo = sparse.BCOO((v, i[:, None]), shape=shape)
    inside = "jit sort + gather + segment_sum(indices_are_sorted)"
    on_host = "np.unique + jit segment_sum"

    def compiled(then: Callable[[Sums, jax.Array, jax.Array], Any]) -> Callable[[], Any]:
        run = jax.jit(lambda v, i: then(_gathered_sum(v, i, num_rows), v, i))
        return lambda: run(v, i)

    if operation == "coalesce":
        return {
            inside: compiled(lambda sums, v, i: sums),
            "BCOO.sum_duplicates": lambda: bcoo.sum_duplicates(nse=bcoo.nse, remove_zeros=False),
            on_host: lambda: _host_sum(v, host),
        }
    if operation == "to_dense":
        dense = jax.jit(_dense, static_argnums=2)
        return {
            "BCOO.todense": bcoo.todense,
            "jit .at[].add": lambda: dense(v, i, num_rows),
        }
    if operation == "norm":
        norm = jax.jit(_norm)
        return {
            f"{inside}, norm": compiled(lambda sums, v, i: _norm(sums[0])),
            f"{on_host}, norm": lambda: norm(_host_sum(v, host)[0]),
        }
    scale = jax.jit(_scale)
    return {
        f"{inside}, clipped": compiled(lambda sums, v, i: (_scale(v, sums[0], max_norm), i)),
        f"{on_host}, clipped": lambda: (scale(v, _host_sum(v, host)[0], max_norm), i),
    }


def trainable(array: np.ndarray) -> Any:
    return jnp.array(array)


def block(x: Any) -> None:
    """Wait until every JAX array in x, which may be a pytree, is computed."""
    jax.block_until_ready(x)
