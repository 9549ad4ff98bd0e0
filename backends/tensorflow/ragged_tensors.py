"""Split tf.RaggedTensor and tf.SparseTensor, which contain the ids of bags, or one weight or mask value per id.

In a RaggedTensor, the innermost ragged rows are bags, and the outermost rows are samples. In a SparseTensor, the
entries along the last axis are a bag, as in tf.nn.embedding_lookup_sparse. Entries may be in any order. May import:
`tensorflow`, `numpy`, `islices.backend`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import tensorflow as tf

from islices.backend import Array, RaggedParts, Shape


def take_apart(x: Any, argument: str) -> RaggedParts | None:
    """See `Backend.take_ragged`."""
    if isinstance(x, tf.RaggedTensor):
        return _ragged(x)
    return _sparse(x, argument) if isinstance(x, tf.SparseTensor) else None


def _ragged(x: tf.RaggedTensor) -> RaggedParts:
    levels = [x]
    while isinstance(levels[-1].values, tf.RaggedTensor):
        levels.append(levels[-1].values)
    rows = [level.value_rowids() for level in levels]
    samples = rows[-1]
    for outer in reversed(rows[:-1]):
        samples = tf.gather(outer, samples)
    splits = x.nested_row_splits

    def with_bags(bags: Array) -> Any:
        return tf.RaggedTensor.from_nested_row_splits(bags, splits[:-1], validate=False) if splits[:-1] else bags

    return RaggedParts(
        "tf.RaggedTensor", x.flat_values, rows[-1], levels[-1].row_starts(), samples, x.row_starts(),
        tuple(splits), x.with_flat_values, with_bags,
    )  # fmt: skip


def _sparse(x: tf.SparseTensor, argument: str) -> RaggedParts:
    rank = x.indices.shape[1] if x.indices.shape.rank == 2 else None
    if rank is None:
        rank = x.dense_shape.shape[0] if x.dense_shape.shape.rank == 1 else None
    if rank is None or rank < 2:
        raise ValueError(
            f"{argument}: got a tf.SparseTensor of {rank or 'an unknown number of'} dimensions; accepted are two or "
            "more, the last of which is that of the bags"
        )
    if tf.executing_eagerly():
        _check(x, argument)
    lead = [x.dense_shape[k] for k in range(rank - 1)]
    known = tuple(x.shape)[:-1]
    segments = x.indices[:, 0]
    for k in range(1, rank - 1):
        segments = segments * lead[k] + x.indices[:, k]

    def with_bags(bags: Array) -> Any:
        if rank == 2:
            return bags
        return tf.ensure_shape(tf.reshape(bags, [*lead, *bags.shape[1:]]), [*known, *bags.shape[1:]])

    return RaggedParts(
        "tf.SparseTensor", x.values, segments, _range(known, lead), x.indices[:, 0], _range(known[:1], lead[:1]),
        (x.indices, x.dense_shape), None, with_bags,
    )  # fmt: skip


def _range(known: Shape, lead: list[Array]) -> Array:
    """Number the positions in the leading dimensions, and return the numbers 0, 1, 2 and so on."""
    if None in known:
        return tf.range(tf.reduce_prod(tf.stack(lead)))
    return tf.range(math.prod(known), dtype=tf.int64)  # type: ignore[arg-type]


def _check(x: tf.SparseTensor, argument: str) -> None:
    """Raise ValueError for an index outside of dense_shape, because a tf.SparseTensor does not check its indices."""
    indices, shape = x.indices.numpy(), x.dense_shape.numpy()
    outside = ((indices < 0) | (indices >= shape)).any(axis=1)
    if outside.any():
        position = int(np.argmax(outside))
        raise ValueError(
            f"{argument}: got a tf.SparseTensor with indices {indices[position].tolist()} at position {position}; "
            f"accepted are those within its dense_shape {shape.tolist()}"
        )
