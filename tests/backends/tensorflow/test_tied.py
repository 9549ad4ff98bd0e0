"""Compare gradients of tied weights on Keras with one backward pass per sample."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")
keras = pytest.importorskip("keras")
if keras.backend.backend() != "tensorflow" or not hasattr(keras.layers, "ReversibleEmbedding"):
    pytest.skip("needs keras.layers.ReversibleEmbedding on TensorFlow", allow_module_level=True)

import islices  # noqa: E402

ROWS, WIDTH = 11, 4
IDS = np.array([[0, 3, 3], [5, 0, 10], [7, 7, 7], [1, 2, 3]])
TARGETS = np.array([[3, 3, 1], [0, 10, 4], [7, 7, 7], [2, 3, 0]])


class Tied(keras.Model):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.embed = keras.layers.ReversibleEmbedding(ROWS, WIDTH, name="words", **options)
        self.mix = keras.layers.Dense(WIDTH, activation="tanh")

    def call(self, ids: Any) -> Any:
        return self.embed(self.mix(self.embed(ids)), reverse=True)


def made(**options: Any) -> Any:
    keras.utils.set_random_seed(0)
    model = Tied(**options)
    model(IDS)
    return model


def loss_of(logits: Any, targets: Any) -> Any:
    entropy = keras.losses.sparse_categorical_crossentropy(targets, tf.cast(logits, "float32"), from_logits=True)
    return tf.reduce_sum(entropy)


def alone(model: Any) -> np.ndarray[Any, Any]:
    """Return one dense gradient of the embedding per sample, each from a separate tape."""
    (variable,) = (v for v in model.variables if v.path.endswith("words/embeddings"))
    gradients = []
    for b in range(len(IDS)):
        with tf.GradientTape() as tape:
            loss = loss_of(model(IDS[b : b + 1]), TARGETS[b : b + 1])
        gradients.append(tf.convert_to_tensor(tape.gradient(loss, variable)).numpy())
    return np.stack(gradients)


@pytest.mark.parametrize(
    ("options", "mode"),
    [({}, "function"), ({"mask_zero": True}, "eager")],
    ids=["plain", "masked"],
)
def test_norms_clips_and_sums_are_those_of_one_tape_a_sample(options: dict[str, Any], mode: str) -> None:
    model = made(**options)
    wanted = alone(model)
    norms = np.sqrt((wanted**2).sum((1, 2)))
    limit = float(np.median(norms))
    logits, model.embed.trainable = model(IDS), mode == "function"

    def step() -> Any:
        with islices.capture(model) as captured:
            with tf.GradientTape() as tape:
                loss = loss_of(model(tf.constant(IDS)), TARGETS)
            tape.gradient(loss, model.trainable_variables)
            after = model(IDS)
            (g,) = captured.per_sample().values()
            (whole,) = captured.gradients().values()
        return g.norms(), g.clip(limit).sum(), g.to_dense(), whole, after

    found, clipped, dense, whole, after = (tf.function(step) if mode == "function" else step)()
    np.testing.assert_allclose(found, norms, rtol=2e-5)
    np.testing.assert_allclose(dense, wanted, rtol=1e-4, atol=1e-6)
    factors = np.minimum(1, limit / norms)
    np.testing.assert_allclose(clipped, (wanted * factors[:, None, None]).sum(0), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(whole, wanted.sum(0), rtol=1e-4, atol=1e-5)
    largest = float(np.abs(logits).max())  # some logits are differences of nearly equal products
    np.testing.assert_allclose(after, logits, rtol=1e-6, atol=1e-6 * largest)
    assert "call" not in vars(model.embed)


# ---------------------------------------------------------------------- other uses
class ByHand(keras.layers.Layer):
    """A custom output layer that multiplies by the weights of an embedding. `variant` selects how the layer reads the
    weights."""

    def __init__(self, embed: Any, variant: str) -> None:
        super().__init__()
        self.embed, self.variant = embed, variant

    def call(self, x: Any) -> Any:
        embed = self.embed
        if self.variant == "ops":
            return keras.ops.matmul(x, keras.ops.transpose(embed.embeddings))
        if self.variant == "value":
            return tf.matmul(x, embed.embeddings.value, transpose_b=True)
        return keras.ops.matmul(x, keras.ops.transpose(embed.embeddings)) + embed(x, reverse=True)


@pytest.mark.parametrize(
    ("kind", "variant", "mode"),
    [("Embedding", "ops", "eager"), ("Embedding", "value", "function"), ("ReversibleEmbedding", "both", "eager")],
)
def test_other_uses_of_the_weight_are_refused(kind: str, variant: str, mode: str) -> None:
    embed = getattr(keras.layers, kind)(ROWS, WIDTH, name="words")
    model = keras.Sequential([embed, ByHand(embed, variant)])
    model(IDS)

    def step() -> None:
        with islices.capture(model) as captured:
            with tf.GradientTape() as tape:
                loss = loss_of(model(tf.constant(IDS)), TARGETS)
            tape.gradient(loss, model.trainable_variables)
            for read in (captured.per_sample, captured.gradients):
                with pytest.raises(TypeError, match=r"weights of layer 'words' were read beside the layers"):
                    read()

    kind_before = type(embed.embeddings)
    (tf.function(step, autograph=False) if mode == "function" else step)()
    assert type(embed.embeddings) is kind_before


def test_a_penalty_on_the_weights_is_refused_and_reading_them_is_not() -> None:
    model = made()
    with islices.capture(model) as captured:
        with tf.GradientTape() as tape:
            loss = loss_of(model(IDS), TARGETS)
            size = float(tf.reduce_sum(tf.square(model.embed.embeddings)))  # the gradient does not pass float()
            tape.gradient(loss, model.trainable_variables)
        assert size > 0
        assert len(captured.per_sample()) == 1
        captured.clear()
        with tf.GradientTape() as tape:
            loss = loss_of(model(IDS), TARGETS) + tf.reduce_sum(tf.square(model.embed.embeddings))
        tape.gradient(loss, model.trainable_variables)
        with pytest.raises(TypeError, match="read beside"):
            captured.per_sample()
