"""What is TensorFlow's own: tf.function with its shapes and autograph, dense_shape, a Keras training step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow", reason="tensorflow is not installed")

import islices  # noqa: E402
from islices import IndexedSlices  # noqa: E402

VALUES = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], np.float32)
IDS = np.array([4, 1, 4], np.int64)
ROWS, DIM = 6, 2


def native(index_type: Any = tf.int64, shape_type: Any = tf.int64) -> Any:
    shape = None if shape_type is None else tf.constant([ROWS, DIM], shape_type)
    return tf.IndexedSlices(tf.constant(VALUES), tf.cast(IDS, index_type), shape)


def dense_of(x: Any) -> np.ndarray:
    return np.asarray(islices.to_dense(x))


EXPECTED = islices.to_dense(IndexedSlices(VALUES, IDS, (ROWS, DIM)))
OPERATIONS = {
    "coalesce": islices.coalesce,
    "to_dense": islices.to_dense,
    "scale": lambda x: islices.scale(x, 0.3),
    "add": lambda x: islices.add(x, x),
    "keep_rows": lambda x: islices.keep_rows(x, [4, 0]),
    "drop_rows": lambda x: islices.drop_rows(x, np.array([False, True, False, False, False, False])),
    "drop_padding": lambda x: islices.drop_padding(x, 1),
    "scale_by_frequency": islices.scale_by_frequency,
    "norm": islices.norm,
    "clip_by_value": lambda x: islices.clip_by_value(x, -2.0, 3.0),
    "clip_by_norm": lambda x: islices.clip_by_norm(x, 2.0),
    "clip_by_row_norm": lambda x: islices.clip_by_row_norm(x, 2.0),
    "clip_by_global_norm": lambda x: islices.clip_by_global_norm([x, None], 2.0)[0][0],
}


# ---------------------------------------------------------------------- tf.function
@pytest.mark.parametrize("autograph", [True, False], ids=["autograph", "plain"])
@pytest.mark.parametrize("static", [True, False], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_inside_tf_function_as_outside(name: str, static: bool, autograph: bool) -> None:
    n = 3 if static else None

    @tf.function(
        autograph=autograph,
        input_signature=[tf.TensorSpec([n, DIM], tf.float32), tf.TensorSpec([n], tf.int64)],
    )
    def traced(values: Any, ids: Any) -> Any:
        return islices.to_dense(OPERATIONS[name](IndexedSlices(values, ids, (ROWS, DIM))))

    eager = dense_of(OPERATIONS[name](IndexedSlices(tf.constant(VALUES), tf.constant(IDS), (ROWS, DIM))))
    np.testing.assert_array_equal(np.asarray(traced(VALUES, IDS)), eager)
    if not static:  # the same graph, other lengths
        empty = traced(VALUES[:0], IDS[:0])
        assert not np.asarray(empty).any()
        one = dense_of(OPERATIONS[name](IndexedSlices(tf.constant(VALUES[:1]), tf.constant(IDS[:1]), (ROWS, DIM))))
        np.testing.assert_array_equal(np.asarray(traced(VALUES[:1], IDS[:1])), one)
        assert traced.experimental_get_tracing_count() == 1


@pytest.mark.parametrize("shape_type", [tf.int32, tf.int64, None], ids=["int32", "int64", "None"])
def test_native_slices_go_through_tf_function_as_themselves(shape_type: Any) -> None:
    @tf.function
    def step(grad: Any) -> Any:
        (clipped,), norm = islices.clip_by_global_norm([grad], 2.0)
        return clipped, norm

    grad = native(shape_type=shape_type)
    clipped, norm = step(grad)
    assert isinstance(clipped, tf.IndexedSlices)
    (want,), want_norm = islices.clip_by_global_norm([grad], 2.0)
    np.testing.assert_array_equal(clipped.values, want.values)
    assert float(norm) == float(want_norm)
    if shape_type is None:
        assert clipped.dense_shape is None
    else:
        assert clipped.dense_shape.dtype == shape_type


def test_an_index_out_of_range_contributes_nothing_in_a_graph() -> None:
    @tf.function
    def densify(ids: Any) -> Any:
        return islices.to_dense(IndexedSlices(tf.constant(VALUES), ids, (ROWS, DIM)))

    out = np.asarray(densify(tf.constant([-1, 1, 9])))
    expected = np.zeros((ROWS, DIM), np.float32)
    expected[1] = VALUES[1]
    np.testing.assert_array_equal(out, expected)


def test_what_needs_values_raises_clearly_in_a_graph() -> None:
    with pytest.raises(ValueError, match="indices: must be given while tracing"):
        tf.function(islices.from_dense)(tf.ones((3, 2)))
    with pytest.raises(ValueError, match="'raise' under a trace"):
        tf.function(lambda g: islices.clip_by_norm(g, 1.0, nonfinite="raise"))(tf.ones(3))


def test_a_conditional_on_the_norm_is_the_callers_to_write() -> None:
    @tf.function
    def step(grad: Any) -> Any:
        norm = islices.norm(grad)
        if norm > 1.0:  # rewritten by autograph, while islices' own code is not
            grad = islices.clip_by_norm(grad, 1.0)
        return grad  # densified outside: what leaves a tf.cond has a dense_shape whose value is not known in the graph

    np.testing.assert_allclose(dense_of(step(native())), dense_of(islices.clip_by_norm(native(), 1.0)), rtol=2e-7)


# ---------------------------------------------------------------------- dense_shape
@pytest.mark.parametrize("index_type", [tf.int32, tf.int64])
@pytest.mark.parametrize("shape_type", [tf.int32, tf.int64, None], ids=["int32", "int64", "None"])
def test_dense_shape_and_dtypes_come_back_as_they_were(shape_type: Any, index_type: Any) -> None:
    grad = native(index_type, shape_type)
    for name in ("coalesce", "scale", "drop_padding", "clip_by_norm", "clip_by_global_norm", "clip_by_row_norm"):
        out = OPERATIONS[name](grad)
        assert isinstance(out, tf.IndexedSlices), name
        assert out.indices.dtype == index_type, name
        if shape_type is None:
            assert out.dense_shape is None, name
        else:
            assert out.dense_shape.dtype == shape_type, name
            assert out.dense_shape.numpy().tolist() == [ROWS, DIM], name


def test_an_unknown_shape_counts_and_clips_but_does_not_densify() -> None:
    grad = native(shape_type=None)
    assert islices.from_native(grad).dense_shape == (None, DIM)
    assert float(islices.norm(grad)) == float(islices.norm(native()))
    with pytest.raises(ValueError, match="number of rows is unknown"):
        islices.to_dense(grad)
    np.testing.assert_array_equal(dense_of(islices.from_native(grad, dense_shape=(ROWS, DIM))), EXPECTED)


def test_variables_are_dense_leaves() -> None:
    variable = tf.Variable([3.0, 4.0])
    (clipped,), norm = islices.clip_by_global_norm([variable], 1.0)
    assert float(norm) == 5.0
    np.testing.assert_allclose(clipped, [0.6, 0.8], rtol=1e-6)
    np.testing.assert_array_equal(variable, [3.0, 4.0])


# ---------------------------------------------------------------------- training
def model() -> Any:
    keras = pytest.importorskip("keras", reason="keras is not installed")
    if keras.backend.backend() != "tensorflow":
        pytest.skip("Keras runs on another framework here")
    keras.utils.set_random_seed(3)
    net = keras.Sequential([keras.layers.Embedding(20, 4), keras.layers.Flatten(), keras.layers.Dense(1)])
    net.build((None, 3))
    return net


def train(compiled: bool, clip: Any, steps: int = 8) -> tuple[list[float], list[np.ndarray]]:
    """Losses and final weights of a training loop whose gradients are clipped by a function of them."""
    import keras

    net, optimizer = model(), keras.optimizers.SGD(0.5)
    optimizer.build(net.trainable_variables)
    rng = np.random.default_rng(1)
    ids = tf.constant(rng.integers(0, 20, (16, 3)) // 4)  # few distinct ids, so that they repeat
    target = tf.constant(rng.normal(size=(16, 1)).astype(np.float32) * 5)

    def step() -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((net(ids) - target) ** 2)
        grads = tape.gradient(loss, net.trainable_variables)
        assert isinstance(grads[0], tf.IndexedSlices)
        clipped, norm = clip(grads)
        assert isinstance(clipped[0], tf.IndexedSlices)
        optimizer.apply(clipped, net.trainable_variables)
        return loss, norm

    run = tf.function(step) if compiled else step
    losses = []
    for _ in range(steps):
        loss, norm = run()
        assert float(norm) > 0
        losses.append(float(loss))
    return losses, [v.numpy() for v in net.trainable_variables]


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "tf.function"])
def test_a_keras_training_step_with_islices_in_place_of_tensorflows_clipping(compiled: bool) -> None:
    losses, weights = train(compiled, lambda grads: islices.clip_by_global_norm(grads, 1.0))
    assert losses[-1] < losses[0]
    assert all(np.isfinite(w).all() for w in weights)


def test_eager_and_compiled_training_agree() -> None:
    eager = train(False, lambda grads: islices.clip_by_global_norm(grads, 1.0))
    compiled = train(True, lambda grads: islices.clip_by_global_norm(grads, 1.0))
    np.testing.assert_allclose(compiled[0], eager[0], rtol=1e-5)
    for a, b in zip(compiled[1], eager[1], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "tf.function"])
def test_the_tensorflow_preset_follows_tensorflows_trajectory(compiled: bool) -> None:
    ours = train(compiled, lambda grads: islices.clip_by_global_norm(grads, 1.0, semantics="tensorflow"))
    theirs = train(compiled, lambda grads: tf.clip_by_global_norm(grads, 1.0))
    np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-5)
    for a, b in zip(ours[1], theirs[1], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def test_summing_duplicates_first_makes_a_difference_where_they_occur() -> None:
    ours = train(False, lambda grads: islices.clip_by_global_norm(grads, 1.0))
    theirs = train(False, lambda grads: tf.clip_by_global_norm(grads, 1.0))
    assert any(not np.allclose(a, b, rtol=1e-4) for a, b in zip(ours[1], theirs[1], strict=True))


def test_a_scalar_of_no_number_is_refused() -> None:
    handle = tf.raw_ops.EmptyTensorList(
        element_shape=tf.zeros(0, tf.int32), max_num_elements=3, element_dtype=tf.float32
    )
    with pytest.raises(TypeError, match=r"c: got .*accepted is a real number"):
        islices.scale(tf.ones(2), handle)
