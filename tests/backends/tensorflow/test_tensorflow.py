"""Test tf.IndexedSlices in tf.function, with every type of dense_shape, and with unknown shapes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

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
    "scale": lambda x: islices.scale(x, 0.3),
    "drop_padding": lambda x: islices.drop_padding(x, 1),
    "clip_by_global_norm": lambda x: islices.clip_by_global_norm([x, None], 2.0)[0][0],
}


# ---------------------------------------------------------------------- tf.function


@pytest.mark.parametrize("shape_type", [tf.int32, None], ids=["int32", "None"])
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


def test_what_needs_values_raises_clearly_in_a_graph() -> None:
    with pytest.raises(ValueError, match="indices: must be given while tracing"):
        tf.function(islices.from_dense)(tf.ones((3, 2)))
    with pytest.raises(ValueError, match="'raise' under a trace"):
        tf.function(lambda g: islices.clip_by_norm(g, 1.0, nonfinite="raise"))(tf.ones(3))


# ---------------------------------------------------------------------- dense_shape
@pytest.mark.parametrize("shape_type", [tf.int32, tf.int64, None], ids=["int32", "int64", "None"])
def test_dense_shape_and_dtypes_come_back_as_they_were(shape_type: Any) -> None:
    index_type = tf.int32
    grad = native(index_type, shape_type)
    for name in OPERATIONS:
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
