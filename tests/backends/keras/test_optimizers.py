"""Compare islices's optimizers for Keras with Keras's optimizers, mostly on random gradients."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from comparing import assert_same
from errors import each_raises

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
tf = pytest.importorskip("tensorflow")
keras = pytest.importorskip("keras", minversion="3")
if keras.backend.backend() != "tensorflow":
    pytest.skip("Keras runs on another backend", allow_module_level=True)

import islices  # noqa: E402
from islices import optim  # noqa: E402
from islices.backends import keras as front  # noqa: E402

CLIP = 0.1  # below the norm of every gradient in this file


# ---------------------------------------------------------------------- a table and a dense weight, gradients by hand
def weights() -> list[Any]:
    rng = np.random.default_rng(1)
    return [keras.Variable(rng.standard_normal(shape).astype(np.float32)) for shape in ((9, 3), (3, 2))]


def gradients(step: int) -> list[Any]:
    rng = np.random.default_rng(100 + step)
    values, ids = rng.standard_normal((7, 3)).astype(np.float32), rng.integers(0, 6, 7)
    sparse = tf.IndexedSlices(tf.constant(values), tf.constant(ids), tf.constant([9, 3]))
    return [sparse, tf.constant(rng.standard_normal((3, 2)).astype(np.float32))]


def stepped(optimizer: Any, change: Callable[[list[Any]], list[Any]] = list, steps: int = 4) -> list[np.ndarray]:
    """Return the weights and the optimizer's variables after `steps` steps. The function `change` converts the
    gradients before each step."""
    variables = weights()
    for k in range(steps):
        optimizer.apply(change(gradients(k)), variables)
    return [v.numpy() for v in (*variables, *optimizer.variables)]


def differ(got: list[np.ndarray], expected: list[np.ndarray]) -> bool:
    return any(not np.array_equal(g, e) for g, e in zip(got, expected, strict=True))


@pytest.mark.parametrize("name", ["Adam", "Adagrad"])
def test_each_optimizer_takes_kerass_own_step_on_the_sum_of_duplicates(name: str) -> None:
    stock = getattr(keras.optimizers, name)
    got = stepped(getattr(front, name)(0.1))
    assert_same(got, stepped(stock(0.1), islices.coalesce))
    assert_same(got, stepped(stock(0.1), lambda grads: [islices.to_dense(g) for g in grads]))
    assert differ(got, stepped(stock(0.1))), "Keras itself steps elsewhere"


@pytest.mark.parametrize(
    ("clip", "semantics"), [("clipnorm", "islices"), ("global_clipnorm", "tensorflow"), ("clipvalue", "keras")]
)
def test_each_clip_is_that_of_islices_on_the_sum_of_duplicates(clip: str, semantics: str) -> None:
    def by_hand(grads: list[Any]) -> list[Any]:
        grads = islices.coalesce(grads)
        if clip == "clipnorm":
            return islices.clip_by_norm(grads, CLIP, semantics=semantics)
        if clip == "global_clipnorm":
            return islices.clip_by_global_norm(grads, CLIP, semantics=semantics)[0]
        return islices.clip_by_value(grads, -CLIP, CLIP, semantics=semantics)

    got = stepped(front.Adam(0.1, semantics=semantics, **{clip: CLIP}))
    assert_same(got, stepped(keras.optimizers.Adam(0.1), by_hand))
    assert differ(got, stepped(keras.optimizers.Adam(0.1, **{clip: CLIP})))


def test_indices_out_of_range_raise_before_anything_changes() -> None:
    table, other = tf.Variable(tf.ones((4, 1))), tf.Variable(tf.ones(2))
    bad = tf.IndexedSlices(tf.ones((1, 1)), tf.constant([4]), tf.constant([4, 1]))
    optimizer = front.AdamW(1.0, global_clipnorm=1.0)
    with pytest.raises(IndexError, match=r"indices.*4"):
        optimizer.apply([tf.ones(2), bad], [other, table])
    assert table.numpy().tolist() == [[1.0]] * 4
    assert other.numpy().tolist() == [1.0] * 2
    assert int(optimizer.iterations) == 0


test_bad_input_is_named = each_raises([
    (lambda: front.Adam(clipnorm=-1.0), ValueError, r"clipnorm: got -1.0; accepted .* above 0"),
    (lambda: front.Adam(clipnorm="1"), TypeError, r"clipnorm: got str '1'; accepted"),
    (lambda: front.Adam(clipnorm=1.0, semantics="torch"), ValueError, "clipnorm has islices"),
    (lambda: front.Adam(nonfinite="raise"), ValueError, "accepted are 'propagate', 'zero'"),
    (lambda: front.Stepped("adam"), TypeError, "rule: got str 'adam'; accepted"),
    (lambda: front.Stepped(optim.adam(lambda step: 0.1)), TypeError, "rule: got a learning rate"),
    (
        lambda: front.Stepped(optim.adam(0.1), weight_decay=0.1), ValueError, "weight_decay: got 0.1; .* rows='touched'"
    ),
    (
        lambda: front.Stepped(optim.adam(0.1), gradient_accumulation_steps=1), ValueError, "gradient_accumulation_steps"
    ),
    (lambda: front.Stepped(optim.adam(0.1, frozen=[9])).build(weights()), IndexError,
               "^variable.*: frozen: got 9 .*MultiOptimizer"),
    (
        lambda: front.Stepped(optim.adam(0.1, rows="touched")).apply([tf.ones((2, 1))], [tf.Variable(tf.ones((2, 1)))]),
        ValueError, r"^Variable:?\d*: rows: got 'touched' and a dense gradient.*row_sparse.*or rows left out",
    ),
])  # fmt: skip


# ---------------------------------------------------------------------- in model.fit
def test_xla_compiles_it() -> None:
    """Check that XLA can compile a step. The sums and products of the numbers here are exact in every order."""
    ids = np.array([[1, 1, 1, 2], [1, 3, 3, 2]], np.int32)
    m = keras.Sequential(
        [keras.Input((4,), dtype="int32"), keras.layers.Embedding(5, 2, embeddings_initializer="ones")]
    )
    m.compile(optimizer=front.SGD(0.5, clipvalue=2.5), loss=lambda y, p: tf.reduce_sum(p, (1, 2)), jit_compile=True)
    m.fit(
        tf.data.Dataset.from_tensors((ids, np.zeros(2, np.float32))), verbose=0, shuffle=False
    )  # the mean over two samples
    assert m.layers[0].embeddings.numpy()[:, 0].tolist() == [1, 0, 0.5, 0.5, 1]
