"""Test lookups in TensorFlow with outer tapes, inner graphs, AutoGraph in `fn`, variables and Keras's layers."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

tf = pytest.importorskip("tensorflow")

import islices  # noqa: E402
from islices import Table, lookup, value_and_grad  # noqa: E402

ROWS, DIM = 7, 3
W = np.random.default_rng(0).uniform(-1, 1, (ROWS, DIM))
IDS = np.array([[1, 4, 4], [0, 1, 6]])


def variable() -> Any:
    return tf.Variable(tf.cast(W, tf.float32))


def dense(x: Any) -> np.ndarray:
    return np.asarray(tf.cast(islices.to_dense(x) if isinstance(x, islices.IndexedSlices) else x, tf.float64))


def compiled(mode: str) -> Any:
    return (lambda f: f) if mode == "eager" else tf.function(jit_compile=mode == "xla")


# ---------------------------------------------------------------------- compared with TensorFlow's tape
@pytest.mark.parametrize("mode", ["eager", "function", "xla"])
def test_gradients_are_those_of_a_tape(mode: str) -> None:
    weights, scale, ids = variable(), tf.Variable([2.0, -1.0, 0.5]), tf.constant(IDS)

    def loss(read: Any, table: Any, scale: Any) -> Any:
        rows = read(table, ids)
        return tf.reduce_sum(rows * scale) + tf.reduce_sum(read(table, ids) * 4)

    @compiled(mode)
    def ours() -> Any:
        value, (grad, unused, d) = value_and_grad(lambda t, u, s: loss(lookup, t, s), (0, 1, 2))(
            Table(weights), Table(weights), scale
        )
        return value, grad.values, grad.indices, unused.values, d  # XLA's static shapes allow no densifying

    value, values, indices, unused, d_scale = ours()
    grad = islices.to_dense(islices.IndexedSlices(values, indices, (ROWS, DIM)))
    with tf.GradientTape() as tape:
        want = loss(tf.gather, weights, scale)
    want_grad, want_d = tape.gradient(want, [weights, scale])
    assert unused.shape == (0, DIM)
    assert_array_equal(dense(grad), dense(tf.convert_to_tensor(want_grad)))  # exact sums of few terms
    assert_allclose(dense(d_scale), dense(want_d), rtol=1e-5)
    assert_allclose(float(value), float(want), rtol=1e-5)


def test_a_variable_that_comes_twice_or_is_the_table_too_has_a_gradient_for_each_place() -> None:
    weights = variable()
    ids = tf.constant(IDS)
    _, (a, b, table) = value_and_grad(
        lambda a, b, t: tf.reduce_sum(a * 2 + b * 3) + tf.reduce_sum(lookup(t, ids)), (0, 1, 2)
    )(weights, weights, Table(weights))
    assert_array_equal(a, np.full((ROWS, DIM), 2.0))
    assert_array_equal(b, np.full((ROWS, DIM), 3.0))
    assert_array_equal(dense(table).sum(), IDS.size * DIM)


def test_ids_are_those_of_the_lookup() -> None:
    ids = tf.Variable([2, 1])

    def loss(table: Any) -> Any:
        rows = lookup(table, ids)
        ids.assign([0, 0])
        return tf.reduce_sum(rows)

    assert value_and_grad(loss)(Table(variable()))[1].indices.numpy().tolist() == [2, 1]


# ---------------------------------------------------------------------- second order
@pytest.mark.parametrize("mode", ["eager", "function"])
def test_a_tape_around_gives_second_derivatives(mode: str) -> None:
    weights, ids = variable(), tf.constant(IDS)

    def second(read: Any) -> Any:
        with tf.GradientTape() as outer:
            penalty = tf.reduce_sum(read() ** 2)
        return tf.convert_to_tensor(outer.gradient(penalty, weights))

    def ours() -> Any:
        return value_and_grad(lambda t: tf.reduce_sum(lookup(t, ids, combiner="mean") ** 3))(Table(weights))[1].values

    def plain() -> Any:
        with tf.GradientTape() as tape:
            rows = tf.gather(weights, ids)
            tape.watch(rows)
            loss = tf.reduce_sum(tf.reduce_mean(rows, 1) ** 3)
        return tape.gradient(loss, rows)

    got = compiled(mode)(lambda: second(ours))()
    assert_allclose(dense(got), dense(second(plain)), rtol=1e-5, atol=1e-5)


# ---------------------------------------------------------------------- places where a lookup raises
def in_function(read: Any) -> Any:
    return tf.function(read)()


def in_map(read: Any) -> Any:
    return tf.function(lambda: tf.map_fn(lambda _: read(), tf.zeros(2)))()


def in_thread(read: Any) -> Any:
    errors: list[BaseException] = []

    def work() -> None:
        try:
            read()
        except TypeError as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    raise errors[0]


@pytest.mark.parametrize("place", [in_function, in_map, in_thread], ids=lambda f: f.__name__)
def test_a_lookup_no_tape_can_follow_is_refused(place: Any) -> None:
    def refused() -> None:
        table = Table(variable())
        with pytest.raises(TypeError, match="lookup: got a table of a value_and_grad"):
            value_and_grad(lambda t: place(lambda: tf.reduce_sum(lookup(t, tf.constant([1])))))(table)
        _, g = value_and_grad(lambda t: tf.reduce_sum(lookup(t, tf.constant([1]))))(table)  # a later call works
        assert_array_equal(g.values, np.ones((1, DIM)))

    with ThreadPoolExecutor(1) as pool:  # if map_fn raises, TensorFlow leaves the thread's variable scope broken
        pool.submit(refused).result()


def test_a_lookup_in_a_traced_loop_is_refused() -> None:
    table = Table(variable())

    def fn(t: Any, n: Any) -> Any:
        total = tf.constant(0.0)
        for _ in tf.range(n):
            total += tf.reduce_sum(lookup(t, tf.constant([1])))
        return total

    step = tf.function(lambda n: value_and_grad(fn)(table, n)[0])
    with pytest.raises(TypeError, match="move the lookup out of the loop or branch"):
        step(tf.constant(3))


# ---------------------------------------------------------------------- autograph and unknown shapes
def test_fn_is_rewritten_by_autograph_and_the_library_is_not() -> None:
    table = Table(variable())

    def fn(t: Any, n: Any) -> Any:
        rows = lookup(t, tf.constant(IDS))
        total = tf.reduce_sum(rows)
        if n > 2:  # a Python `if` over a tensor
            total = total * 2.0
        for _ in tf.range(n):
            total = total + tf.reduce_sum(rows)
        return total

    @tf.function
    def step(n: Any) -> Any:
        return islices.to_dense(value_and_grad(fn)(table, n)[1])

    counts = np.bincount(IDS.ravel(), minlength=ROWS)
    for n in (1, 4):
        assert_array_equal(step(tf.constant(n))[:, 0], counts * (n + (2 if n > 2 else 1)))
    plain = tf.function(lambda n: value_and_grad(fn)(table, n)[0], autograph=False)
    with pytest.raises(TypeError, match="AutoGraph"):  # without AutoGraph, a Python `if` over a tensor raises
        plain(tf.constant(1))


# ---------------------------------------------------------------------- Keras
keras = pytest.importorskip("keras")
on_tensorflow = pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="Keras is on another backend")


def model(**options: Any) -> Any:
    inner = keras.Sequential([keras.layers.Embedding(ROWS, DIM, name="words", **options), keras.layers.Dense(2)])
    ids = keras.Input((None,), dtype="int32")
    return keras.Model(ids, keras.layers.GlobalAveragePooling1D()(inner(ids)))


@on_tensorflow
@pytest.mark.parametrize(("trainable", "mode"), [(True, "function"), (False, "eager")])
def test_capture_has_the_gradient_of_a_keras_embedding(trainable: bool, mode: str) -> None:
    net = model(mask_zero=True)
    words = next(x for x in net._flatten_layers() if x.name == "words")
    ids = tf.constant(IDS)

    def step() -> Any:
        with islices.capture(net) as captured:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(net(ids) ** 2)
            got = tape.gradient(loss, net.trainable_variables)
            (g,) = captured.gradients().values()
        return g.values, g.indices, [tf.convert_to_tensor(x) for x in got]

    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(net(ids) ** 2)
    want = tape.gradient(loss, [words.embeddings.value])
    words.trainable = trainable
    values, indices, others = compiled(mode)(step)()
    g = islices.IndexedSlices(values, indices, (ROWS, DIM))
    assert_allclose(dense(g), dense(tf.convert_to_tensor(want[0])), rtol=1e-6, atol=1e-7)
    assert len(others) == 2 + trainable
    assert "call" not in vars(words)


@on_tensorflow
def test_a_gradient_of_model_fit_is_refused_when_read_later() -> None:
    net = model()
    net.compile("sgd", "mse")
    with islices.capture(net) as captured:
        net.fit(IDS, np.zeros((2, 2)), verbose=0)
    with pytest.raises(TypeError, match="run_eagerly=True"):
        captured.gradients()


@on_tensorflow
def test_layers_that_cannot_be_hooked_are_refused() -> None:
    lora, int8 = keras.layers.Embedding(ROWS, DIM), keras.layers.Embedding(ROWS, DIM)
    lora.build()
    lora.enable_lora(2)
    int8.build()
    int8.quantize("int8")
    regular = keras.layers.Embedding(ROWS, DIM, embeddings_regularizer="l2")
    regular.build()
    cases = {"LoRA": lora, "int8": int8, "regularizer": regular, "no weights yet": keras.layers.Embedding(ROWS, DIM)}
    for word, layer in cases.items():
        with pytest.raises(TypeError, match=word), islices.capture(layer):
            raise AssertionError(word)
    with pytest.raises(TypeError, match=r"without a keras\.layers\.Embedding"), islices.capture(keras.layers.Dense(2)):
        raise AssertionError("no embedding")


@on_tensorflow
def test_a_keras_variable_is_a_table_and_a_dense_leaf() -> None:
    words, scale = keras.Variable(W, dtype="float32"), keras.Variable([2.0, 2.0, 2.0], dtype="float32")
    _, (g, d) = value_and_grad(lambda t, s: tf.reduce_sum(lookup(t, tf.constant(IDS)) * s), (0, 1))(Table(words), scale)
    assert_array_equal(dense(g)[:, 0], 2.0 * np.bincount(IDS.ravel(), minlength=ROWS))
    assert_allclose(d, W.astype("f4")[IDS].sum((0, 1)), rtol=1e-5)
    assert islices.get_backend("tensorflow").set_rows(words, tf.constant([3]), tf.zeros((1, DIM))) is words
    assert not np.asarray(words)[3].any()


@on_tensorflow
def test_a_graph_traced_before_the_capture_is_said_to_be_unseen() -> None:
    net = model()
    step = tf.function(lambda ids: tf.reduce_sum(net(ids)))
    step(tf.constant(IDS))
    with islices.capture(net) as captured:
        step(tf.constant(IDS))
    with pytest.raises(RuntimeError, match="compiled before"):
        captured.gradients()
