"""Test `value_and_grad(fn, sparse=)` on plain variables and tensors. Sparse gradients agree with the gradients that
value_and_grad returns without `sparse`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import islices

IDS = tf.constant([[3, 0, 3], [19, 7, 0]])


def loss(params: Any, ids: Any) -> Any:
    rows = tf.gather(params["tables"][0], ids) @ params["mix"]
    return tf.reduce_sum(tf.tanh(rows)) + tf.reduce_sum(tf.nn.embedding_lookup(params["tables"][1], ids[0]) ** 2)


def made() -> Any:
    rng = np.random.default_rng(0)
    first, second, mix = (tf.constant(rng.normal(size=shape), tf.float32) for shape in ((50, 4), (20, 4), (4, 2)))
    return {"tables": [tf.Variable(first), second], "mix": mix}


@pytest.mark.parametrize(("marks", "compiled"), [(lambda path: "tables" in path, False), ("auto", True)])
def test_is_what_the_tape_gives(marks: Any, compiled: bool) -> None:
    params = made()
    step: Any = islices.value_and_grad(loss, sparse=marks)
    value, grads = (tf.function(step) if compiled else step)(params, IDS)
    expected, dense = islices.value_and_grad(loss)(params, IDS)
    np.testing.assert_allclose(value, expected, rtol=1e-6)  # grappler may change the order of operations
    for g, d in zip([*grads["tables"], grads["mix"]], [*dense["tables"], dense["mix"]], strict=True):
        assert isinstance(g, islices.IndexedSlices) == (g is not grads["mix"])
        np.testing.assert_allclose(islices.to_dense(g), d, rtol=1e-6)


def test_another_use_is_named_or_dense() -> None:
    def tied(w: Any) -> Any:
        return tf.reduce_sum(tf.gather(w, IDS) @ tf.transpose(w))

    w = tf.Variable(tf.ones((50, 2)))
    with pytest.raises(TypeError, match="whose gradient TensorFlow makes dense"):
        islices.value_and_grad(tied, sparse=lambda path: True)(w)
    _, expected = islices.value_and_grad(tied)(w)
    for sparse in ("auto", "always"):
        _, grad = islices.value_and_grad(tied, sparse=sparse)(w)
        np.testing.assert_array_equal(grad, expected)
        read = islices.value_and_grad(lambda w: tf.reduce_sum(tf.gather(w, tf.range(100) % 50)), sparse=sparse)
        assert isinstance(read(w)[1], islices.IndexedSlices) == (sparse == "always")
