"""Tied weights on Keras: ReversibleEmbedding against one backward pass a sample."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow", reason="TensorFlow is not installed")
keras = pytest.importorskip("keras", reason="Keras is not installed")
if keras.backend.backend() != "tensorflow" or not hasattr(keras.layers, "ReversibleEmbedding"):
    pytest.skip("needs keras.layers.ReversibleEmbedding on TensorFlow", allow_module_level=True)

import islices  # noqa: E402
from islices.backends.keras import SGD  # noqa: E402

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
    """Each sample's gradient of the weights, by one tape each."""
    (variable,) = (v for v in model.variables if v.path.endswith("words/embeddings"))
    gradients = []
    for b in range(len(IDS)):
        with tf.GradientTape() as tape:
            loss = loss_of(model(IDS[b : b + 1]), TARGETS[b : b + 1])
        gradients.append(tf.convert_to_tensor(tape.gradient(loss, variable)).numpy())
    return np.stack(gradients)


@pytest.mark.parametrize("mode", ["eager", "function"])
@pytest.mark.parametrize(
    "options",
    [{}, {"logit_soft_cap": 0.5}, {"mask_zero": True}, {"reverse_dtype": "float64"}, {"dtype": "float64"}],
    ids=["plain", "soft-cap", "mask", "reverse-dtype", "float64"],
)
def test_norms_clips_and_sums_are_those_of_one_tape_a_sample(options: dict[str, Any], mode: str) -> None:
    model = made(**options)
    wanted = alone(model)
    norms = np.sqrt((wanted**2).sum((1, 2)))
    limit = float(np.median(norms))

    def step() -> Any:
        with islices.capture(model) as captured:
            with tf.GradientTape() as tape:
                loss = loss_of(model(tf.constant(IDS)), TARGETS)
            own = tape.gradient(loss, model.trainable_variables)
            (g,) = captured.per_sample().values()
            (whole,) = captured.gradients().values()
        return g.norms(), g.clip(limit).sum(), g.to_dense(), whole, tf.convert_to_tensor(own[0])

    found, clipped, dense, whole, own = (tf.function(step) if mode == "function" else step)()
    np.testing.assert_allclose(found, norms, rtol=2e-5)
    np.testing.assert_allclose(dense, wanted, rtol=1e-4, atol=1e-6)
    factors = np.minimum(1, limit / norms)
    np.testing.assert_allclose(clipped, (wanted * factors[:, None, None]).sum(0), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(whole, own, rtol=1e-4, atol=1e-6)
    assert "call" not in vars(model.embed)


def test_the_logits_and_the_mask_are_those_of_the_layer() -> None:
    model = made(logit_soft_cap=0.5, mask_zero=True)
    before, mask = model(IDS), model.embed(IDS)._keras_mask
    with islices.capture(model):
        assert np.array_equal(model(IDS), before)
        assert np.array_equal(model.embed(IDS)._keras_mask, mask)
    assert model.embed.logit_soft_cap == 0.5


def test_weights_that_are_not_tied_are_two() -> None:
    model = made(tie_weights=False)
    wanted = alone(model)
    with islices.capture(model) as captured, tf.GradientTape() as tape:
        loss = loss_of(model(IDS), TARGETS)
    tape.gradient(loss, model.trainable_variables)
    (g,) = captured.per_sample().values()
    assert not g.products
    np.testing.assert_allclose(g.to_dense(), wanted, rtol=1e-5, atol=1e-7)


def test_frozen_weights_have_the_same_gradients() -> None:
    model = made()
    wanted = alone(model)
    model.embed.trainable = False
    with islices.capture(model) as captured, tf.GradientTape() as tape:
        loss = loss_of(model(IDS), TARGETS)
    tape.gradient(loss, model.trainable_variables)
    (g,) = captured.per_sample().values()
    np.testing.assert_allclose(g.to_dense(), wanted, rtol=1e-5, atol=1e-7)


# ---------------------------------------------------------------------- other uses
class ByHand(keras.layers.Layer):
    """An output layer written by hand, as before there was a ReversibleEmbedding."""

    def __init__(self, embed: Any, way: str) -> None:
        super().__init__()
        self.embed, self.way = embed, way

    def call(self, x: Any) -> Any:
        embed = self.embed
        if self.way == "ops":
            return keras.ops.matmul(x, keras.ops.transpose(embed.embeddings))
        if self.way == "value":
            return tf.matmul(x, embed.embeddings.value, transpose_b=True)
        if self.way == "variable":
            return tf.einsum("btd,vd->btv", x, embed.trainable_variables[0])
        return keras.ops.matmul(x, keras.ops.transpose(embed.embeddings)) + embed(x, reverse=True)


@pytest.mark.parametrize("mode", ["eager", "function"])
@pytest.mark.parametrize("way", ["ops", "value", "variable", "both"])
@pytest.mark.parametrize("kind", ["Embedding", "ReversibleEmbedding"])
def test_other_uses_of_the_weight_are_refused(kind: str, way: str, mode: str) -> None:
    if kind == "Embedding" and way == "both":
        return
    embed = getattr(keras.layers, kind)(ROWS, WIDTH, name="words")
    model = keras.Sequential([embed, ByHand(embed, way)])
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
            size = float(tf.reduce_sum(tf.square(model.embed.embeddings)))  # no gradient passes
            tape.gradient(loss, model.trainable_variables)
        assert size > 0
        assert len(captured.per_sample()) == 1
        captured.clear()
        with tf.GradientTape() as tape:
            loss = loss_of(model(IDS), TARGETS) + tf.reduce_sum(tf.square(model.embed.embeddings))
        tape.gradient(loss, model.trainable_variables)
        with pytest.raises(TypeError, match="read beside"):
            captured.per_sample()


# ---------------------------------------------------------------------- the plain gradient
@pytest.mark.parametrize("eagerly", [True, False])
def test_the_plain_gradient_clipped_and_stepped(eagerly: bool) -> None:
    ours, theirs = made(), made()
    for model, optimizer in (
        (ours, SGD(0.1, global_clipnorm=0.5)),
        (theirs, keras.optimizers.SGD(0.1, global_clipnorm=0.5)),
    ):
        model.compile(optimizer, lambda y, logits: loss_of(logits, y), run_eagerly=eagerly)
        model.fit(IDS, TARGETS, batch_size=4, epochs=3, verbose=0, shuffle=False)
    for a, b in zip(ours.weights, theirs.weights, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
