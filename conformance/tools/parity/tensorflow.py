"""The models in TensorFlow: the losses in its own functions, and training without islices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

__all__ = ["OwnTraining", "skipgram", "translation"]


def skipgram(centre: tf.Tensor, context: tf.Tensor, sign: tf.Tensor) -> tf.Tensor:
    score = tf.reduce_sum(centre[:, None] * context, -1)
    return tf.reduce_sum(tf.nn.softplus(-sign * score)) / len(centre)


def translation(
    bag: tf.Tensor, bridge: tf.Tensor, target: tf.Tensor, negative: tf.Tensor, share: tf.Tensor
) -> tf.Tensor:
    hidden = tf.tanh(bag @ bridge)
    own = tf.reduce_sum(hidden[:, None] * target, -1, keepdims=True)
    other = tf.matmul(hidden, negative, transpose_b=True)
    logits = tf.concat([own, tf.repeat(other[:, None], own.shape[1], 1)], -1)
    return -tf.reduce_sum(share * tf.nn.log_softmax(logits)[..., 0])


class OwnTraining:
    """tf.nn.embedding_lookup, tf.clip_by_global_norm, keras.optimizers.

    There is no padding index: the padding's row is trained like any other, and read wherever a line has ended.
    """

    def __init__(self, model: Any, start: Mapping[str, Any], optimizer: str, lr: float, max_norm: float) -> None:
        import keras

        self.model, self.max_norm = model, max_norm
        self.of_rows = {"skipgram": skipgram, "translation": translation}[model.name]
        self.parameters = {name: tf.Variable(x) for name, x in start.items()}
        kinds = {"sgd": keras.optimizers.SGD, "adagrad": keras.optimizers.Adagrad, "adam": keras.optimizers.Adam}
        self.optimizer = kinds[optimizer](lr)
        self.optimizer.build(list(self.parameters.values()))

    def step(self, batch: Mapping[str, Any]) -> float:
        tensors = {name: tf.constant(x) for name, x in batch.items()}
        variables = list(self.parameters.values())
        with tf.GradientTape() as tape:
            loss = self.model.loss(self.of_rows, _lookup, self.parameters, tensors)
        gradients, _ = tf.clip_by_global_norm(tape.gradient(loss, variables), self.max_norm)
        self.optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return float(loss)

    def tables(self) -> dict[str, Any]:
        return {name: x.numpy() for name, x in self.parameters.items()}


def _lookup(table: tf.Variable, ids: tf.Tensor, mean: bool = False) -> tf.Tensor:
    rows = tf.nn.embedding_lookup(table, ids)
    if not mean:
        return rows
    words = tf.cast(ids != 0, rows.dtype)[..., None]
    return tf.reduce_sum(rows * words, 1) / tf.reduce_sum(words, 1)
