"""TensorFlow's and Keras's calls on sparse gradients, for the conformance suite's real gradients, the audit and
the bench.

This module does not import islices: it has the calls of a TensorFlow user.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf


def weighted_sum(rows: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """sum(rows * weights): a loss whose gradient at rows is weights, to the bit."""
    return tf.reduce_sum(rows * weights)


def embedding_gradient(
    ids: np.ndarray[Any, Any], upstream: np.ndarray[Any, Any], num_rows: int, padding_idx: int
) -> tf.IndexedSlices:
    """Return the gradient of keras.layers.Embedding under the loss sum(layer(ids) * upstream), by a GradientTape.

    Parameters
    ----------
    ids : int32 array of any shape
    upstream : float32 array, shape (*ids.shape, dim)
    num_rows, padding_idx : int
        padding_idx is ignored: the layer has none (mask_zero only hands a mask on). The caller drops the padding.

    Returns
    -------
    tf.IndexedSlices, dense_shape (num_rows, dim)
        Uncoalesced, one slice an occurrence, the padding's included.
    """
    import keras

    layer = keras.layers.Embedding(num_rows, upstream.shape[-1], embeddings_initializer="zeros")
    layer.build()
    table = layer.embeddings.value
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(tf.constant(ids)) * tf.constant(upstream))
    return tape.gradient(loss, table)


def invalid_gradients() -> dict[str, tuple[Callable[[], Any], str]]:
    """IndexedSlices that TensorFlow builds although they contradict themselves: label -> (call that builds it, the name
    of the error islices answers with). TensorFlow checks nothing when it builds them."""

    def slices(indices: Any, values: Any = None, shape: Any = (4, 2)) -> tf.IndexedSlices:
        values = tf.ones((len(indices), 2)) if values is None else values
        dense_shape = None if shape is None else tf.constant(shape, tf.int64)
        return tf.IndexedSlices(values, tf.constant(indices), dense_shape)

    return {
        "index out of range": (lambda: slices([0, 4]), "IndexError"),
        "negative index": (lambda: slices([0, -1]), "IndexError"),
        "negative index, shape unknown": (lambda: slices([0, -1], shape=None), "IndexError"),
        "float indices": (lambda: slices([0.0, 1.0]), "TypeError"),
        "more values than indices": (lambda: slices([0], tf.ones((2, 2))), "ValueError"),
        "rows of another shape": (lambda: slices([0], tf.ones((1, 3))), "ValueError"),
    }


def trainable(array: np.ndarray) -> Any:
    return tf.Variable(array)


def block(x: Any) -> None:
    """Wait until x is computed: at once on the CPU, the end of the queues on accelerators."""
    if tf.config.list_logical_devices("GPU"):
        tf.test.experimental.sync_devices()
