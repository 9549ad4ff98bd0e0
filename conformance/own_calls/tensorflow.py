"""TensorFlow's and Keras's calls on sparse gradients, for the suite, the audit and the bench.

This module does not import islices, because the calls must be those of a program without islices.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf


def weighted_sum(rows: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """Return sum(rows * weights). The gradient of this loss with respect to rows is exactly `weights`."""
    return tf.reduce_sum(rows * weights)


def embedding_gradient(
    ids: np.ndarray[Any, Any], upstream: np.ndarray[Any, Any], num_rows: int, padding_idx: int
) -> tf.IndexedSlices:
    """Return the gradient of keras.layers.Embedding for the loss sum(layer(ids) * upstream). A GradientTape computes
    the gradient.

    Parameters
    ----------
    ids : int32 array of any shape
    upstream : float32 array, shape ``(*ids.shape, dim)``
    num_rows, padding_idx : int
        padding_idx is ignored, because the layer has no padding row; mask_zero only passes a mask to later layers. The
        caller drops the padding row.

    Returns
    -------
    tf.IndexedSlices, dense_shape (num_rows, dim)
        Uncoalesced, with one slice per occurrence, padding included.
    """
    import keras

    layer = keras.layers.Embedding(num_rows, upstream.shape[-1], embeddings_initializer="zeros")
    layer.build()
    table = layer.embeddings.value
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(tf.constant(ids)) * tf.constant(upstream))
    return tape.gradient(loss, table)


def invalid_gradients() -> dict[str, tuple[Callable[[], Any], str]]:
    """Return {label: (a call that builds an inconsistent IndexedSlices, the name of the error that islices raises)}.
    TensorFlow does not check an IndexedSlices when a program builds the object."""

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


def timed_calls(
    operation: str, v: tf.Tensor, i: tf.Tensor, num_rows: int, max_norm: float
) -> dict[str, Callable[[], Any]]:
    """Return {label: call} for TensorFlow's equivalents of one operation of islices.

    TensorFlow has no public function that coalesces, and its clips treat duplicates as different rows. So most labels
    name code that users write instead.
    """
    shape = tf.constant((num_rows, *v.shape[1:]), tf.int64)
    gradient = tf.IndexedSlices(v, i, shape)

    def unique_segments() -> tf.IndexedSlices:
        ids, place = tf.unique(i)
        sums = tf.math.unsorted_segment_sum(v, place, tf.size(ids))
        return tf.IndexedSlices(sums, ids, shape)

    def unique_segments_sorted() -> tf.IndexedSlices:
        ids, place = tf.unique(i)
        order = tf.argsort(ids)
        sums = tf.math.unsorted_segment_sum(v, place, tf.size(ids))
        return tf.IndexedSlices(tf.gather(sums, order), tf.gather(ids, order), shape)

    def sort_segments() -> tf.IndexedSlices:
        order = tf.argsort(i, stable=True)
        ids, place = tf.unique(tf.gather(i, order))
        sums = tf.math.segment_sum(tf.gather(v, order), place)
        return tf.IndexedSlices(sums, ids, shape)

    def clip(g: tf.IndexedSlices) -> tf.IndexedSlices:
        return tf.clip_by_global_norm([g], max_norm)[0][0]

    by_hand = {
        "unique + unsorted_segment_sum (rows unsorted)": unique_segments,
        "unique + unsorted_segment_sum + argsort": unique_segments_sorted,
        "argsort + segment_sum": sort_segments,
    }
    if operation == "coalesce":
        return by_hand | {
            "tf.function of unique + unsorted_segment_sum + argsort": tf.function(unique_segments_sorted),
            "tf.function of argsort + segment_sum": tf.function(sort_segments),
        }
    if operation == "to_dense":
        return {"convert_to_tensor": lambda: tf.convert_to_tensor(gradient)}
    # the order of rows does not matter for norms and scaling
    fast, last = "unique + unsorted_segment_sum", "argsort + segment_sum"
    if operation == "norm":
        return {
            "linalg.global_norm (duplicates not summed)": lambda: tf.linalg.global_norm([gradient]),
            f"{fast}, linalg.global_norm": lambda: tf.linalg.global_norm([unique_segments()]),
            f"{last}, linalg.global_norm": lambda: tf.linalg.global_norm([sort_segments()]),
            f"tf.function of {fast}, linalg.global_norm": tf.function(
                lambda: tf.linalg.global_norm([unique_segments()])
            ),
        }
    return {
        "clip_by_global_norm (duplicates not summed)": lambda: clip(gradient),
        f"{fast}, clip_by_global_norm": lambda: clip(unique_segments()),
        f"{last}, clip_by_global_norm": lambda: clip(sort_segments()),
        f"tf.function of {fast}, clip_by_global_norm": tf.function(lambda: clip(unique_segments())),
    }


def trainable(array: np.ndarray) -> Any:
    return tf.Variable(array)


def block(x: Any) -> None:
    """Wait until the queues of GPUs are empty. On the CPU, TensorFlow computes before a call returns."""
    if tf.config.list_logical_devices("GPU"):
        tf.test.experimental.sync_devices()
