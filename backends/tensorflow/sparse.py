"""Split and build tf.IndexedSlices, without computations on their values.

The constructor of tf.IndexedSlices checks nothing. Values and indices may be lists, and dense_shape may be missing, or
may be a tensor whose value is not known yet. This module reads the shape if it is known, in eager code or statically
inside tf.function. May import: `tensorflow`, `numpy`, `islices.backend`, this folder.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from islices.backend import Array, NativeParts, Shape
from islices.backends.tensorflow import tensor_memory as memory


def take_apart(x: tf.IndexedSlices) -> NativeParts:
    """Return the values, the indices and the shape of a tf.IndexedSlices. Unknown dimensions are None. Raise ValueError
    if values or indices cannot become tensors, or if their number of dimensions is unknown."""
    values, indices = _tensor(x.values, "values"), _tensor(x.indices, "indices")
    if values.shape.rank is None or indices.shape.rank is None:
        raise ValueError(
            f"x: got a tf.IndexedSlices whose values have shape {values.shape} and indices {indices.shape}; "
            "accepted is a known number of dimensions (tf.ensure_shape gives one)"
        )
    row_shape = tuple(values.shape)[1:]
    known = _known_shape(x.dense_shape)
    if known is None:
        return NativeParts(values, indices, (None, *row_shape))
    if len(known) == len(row_shape) + 1:
        rest = (have if want is None else want for want, have in zip(known[1:], row_shape, strict=True))
        known = (known[0], *rest)
    return NativeParts(values, indices, known)


def _tensor(part: Any, name: str) -> Array:
    try:
        return tf.convert_to_tensor(part)
    except (TypeError, ValueError) as error:
        raise ValueError(f"x: got a tf.IndexedSlices whose {name} are no tensor; accepted is a tensor") from error


def _known_shape(dense_shape: Any) -> Shape | None:
    """Return the dimensions of a dense_shape, in which None stands for an unknown dimension. Return None if
    `dense_shape` is None, or if the number of dimensions is unknown."""
    if dense_shape is None:
        return None
    if isinstance(dense_shape, tf.TensorShape):
        return None if dense_shape.rank is None else tuple(dense_shape)
    if tf.is_symbolic_tensor(dense_shape):
        length = dense_shape.shape[0] if dense_shape.shape.rank else None
        dims = tf.get_static_value(dense_shape, partial=True)
        if dims is None:
            return None if length is None else (None,) * length
    else:
        dims = memory.fetch(dense_shape) if tf.is_tensor(dense_shape) else np.asarray(dense_shape)
    return tuple(None if n is None else int(n) for n in np.ravel(dims))


def to_native(
    values: Array, indices: Array, dense_shape: Shape, *, coalesced: bool, padded: bool, like: Any = None
) -> tf.IndexedSlices:
    """Make a tf.IndexedSlices. Use the dense_shape tensor of `like` if this tensor equals `dense_shape`, or if the
    number of rows is unknown.

    Otherwise the dense_shape is a new tensor. The new tensor is int32 if the dense_shape of `like` is int32 and the
    numbers fit, else int64. If `like` has no dense_shape, or there is no `like` and a dimension is unknown, the result
    has no dense_shape.
    """
    values, indices = tf.convert_to_tensor(values), tf.convert_to_tensor(indices)
    return tf.IndexedSlices(values, indices, _shape_tensor(dense_shape, like))


def _shape_tensor(dense_shape: Shape, like: Any) -> Any:
    if like is None:
        return None if None in dense_shape else memory.copy(np.array(dense_shape, np.int64))
    own = like.dense_shape
    if own is None or dense_shape[0] is None or _known_shape(own) == dense_shape:
        return own
    narrow = tf.is_tensor(own) and own.dtype == tf.int32 and all(n is not None and n < 2**31 for n in dense_shape)
    return memory.copy(np.array(dense_shape, np.int32 if narrow else np.int64))
