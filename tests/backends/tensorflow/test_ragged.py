"""Compare lookups of ragged ids in TensorFlow's formats with the lookups of tf.nn: values and gradients.

Results that need no rounding (sums of whole numbers) have the bits of tf.nn's results. Other results agree within a
relative error of 1e-6.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from errors import each_raises
from numpy.testing import assert_allclose, assert_array_equal

import islices
from islices import lookup

tf = pytest.importorskip("tensorflow")
pytestmark = pytest.mark.skipif("tensorflow" not in islices.list_backends(), reason="the backend does not load")

RNG = np.random.default_rng(7)
WEIGHTS = RNG.integers(-8, 9, (9, 4)).astype(np.float32)
#: an empty row in the middle and at the end, an absent id, and a row that has only absent ids
PLACES = [[0, 0], [0, 3], [2, 0], [2, 1], [2, 2], [3, 5]]
IDS = [1, 3, -1, 5, 5, -4]
SHAPE = [5, 8]


def sparse(ids: list[int] = IDS, places: list[list[int]] = PLACES) -> Any:
    return tf.SparseTensor(places, tf.constant(ids, tf.int64), SHAPE)


def weighted(ids: Any, whole: bool) -> Any:
    numbers = [1.0, 2.0, 4.0, 2.0, 1.0, 2.0] if whole else RNG.uniform(0.5, 2.0, 6)
    return ids.with_values(tf.constant(numbers, tf.float32))


def of_table(fn: Callable[[Any], Any], weights: Any) -> np.ndarray[Any, Any]:
    """Return the dense gradient of ``sum(fn(table)^2)``, computed by islices.value_and_grad."""
    _, g = islices.value_and_grad(lambda t: tf.reduce_sum(fn(t) ** 2))(islices.Table(weights))
    return islices.to_dense(g).numpy()  # type: ignore[no-any-return]


def of_variable(fn: Callable[[Any], Any], weights: Any) -> np.ndarray[Any, Any]:
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(fn(weights) ** 2)
    return tf.convert_to_tensor(tape.gradient(loss, weights)).numpy()  # type: ignore[no-any-return]


@pytest.mark.parametrize(("combiner", "weigh"), [("sum", True), ("sqrtn", False)])
def test_a_sparse_tensor_is_looked_up_as_safe_embedding_lookup_sparse_does(combiner: str, weigh: bool) -> None:
    table, ids = tf.Variable(WEIGHTS), sparse()
    weights = weighted(ids, combiner == "sum") if weigh else None
    theirs = lambda t: tf.nn.safe_embedding_lookup_sparse(t, ids, weights, combiner=combiner)  # noqa: E731
    ours = lambda t: lookup(t, ids, weights=weights, combiner=combiner, invalid="drop")  # noqa: E731
    close = np.testing.assert_array_equal if combiner == "sum" else lambda a, b: assert_allclose(a, b, 1e-6)
    close(ours(table), theirs(table))
    close(of_table(ours, table), of_variable(theirs, table))


def test_places_may_come_in_any_order() -> None:
    """Check that a lookup of a sparse tensor has the same values for sorted and unsorted places.
    tf.nn.embedding_lookup_sparse raises an error for unsorted places."""
    table, order = tf.Variable(WEIGHTS), [5, 2, 0, 4, 1, 3]
    mixed = sparse([IDS[k] for k in order], places=[PLACES[k] for k in order])
    for combiner, kind in itertools.product(("sum", "mean", "max"), ("host", "framework")):
        with islices.config.execution(kind):
            straight = lookup(table, sparse(), combiner=combiner, invalid="drop")
            assert_array_equal(lookup(table, mixed, combiner=combiner, invalid="drop"), straight)
    loss = lambda t: tf.reduce_sum(lookup(t, mixed, combiner="sum", invalid="drop") ** 2, 1)  # noqa: E731
    _, g = islices.value_and_grad(loss, per_sample=True)(islices.Table(table))
    assert g.indices.numpy().tolist() == [1, 5, 3, 5]
    assert g.samples.numpy().tolist() == [0, 2, 0, 2]
    assert g.dense_shape == (5, 9, 4)


def test_in_a_graph_of_unknown_sizes() -> None:
    table = tf.Variable(WEIGHTS)
    spec = (tf.SparseTensorSpec([None, None], tf.int64), tf.SparseTensorSpec([None, None], tf.float32))

    def run(ids: Any, weights: Any) -> Any:
        def loss(t: Any) -> Any:
            return tf.reduce_sum(lookup(t, ids, weights=weights, combiner="mean", invalid="drop") ** 2)

        value, g = islices.value_and_grad(loss)(islices.Table(table))
        return value, g.values, g.indices

    compiled = tf.function(run, input_signature=spec)
    ids = sparse()
    for a, b in zip(compiled(ids, weighted(ids, True)), run(ids, weighted(ids, True)), strict=True):
        assert_array_equal(a, b)
    ragged = tf.ragged.constant([[1, 2], [], [3, -1, 4]], dtype=tf.int32)

    @tf.function(input_signature=[tf.RaggedTensorSpec([None, None], tf.int32)])
    def bags(ids: Any) -> Any:
        return lookup(table, ids, combiner="sum", invalid="drop")

    assert_array_equal(bags(ragged), lookup(table, ragged, combiner="sum", invalid="drop"))


# ---------------------------------------------------------------------- tf.RaggedTensor
RAGGED = tf.ragged.constant([[1, 2], [], [3, 3, 4]], dtype=tf.int64)


def test_rows_of_a_ragged_tensor_are_ragged() -> None:
    table = tf.Variable(WEIGHTS)
    ours, theirs = lookup(table, RAGGED), tf.nn.embedding_lookup(table, RAGGED)
    assert isinstance(ours, tf.RaggedTensor)
    assert_array_equal(ours.row_splits, theirs.row_splits)
    assert_array_equal(ours.flat_values, theirs.flat_values)
    flat = lambda rows: rows.flat_values  # noqa: E731
    assert_array_equal(
        of_table(lambda t: flat(lookup(t, RAGGED)), table),
        of_variable(lambda t: flat(tf.nn.embedding_lookup(t, RAGGED)), table),
    )
    uniform = tf.RaggedTensor.from_row_splits(tf.constant([[1, 2], [3, 4], [5, 6]]), [0, 2, 3])
    assert lookup(table, uniform).shape.as_list() == [2, None, 2, 4]
    with pytest.raises(ValueError, match="ids: got ragged rows of arrays"):
        lookup(table, uniform, combiner="sum")


def test_gradients_reach_ragged_weights() -> None:
    table, numbers = tf.constant(WEIGHTS), tf.Variable([1.0, 2.0, 0.5, 4.0, 1.0])
    with tf.GradientTape() as tape:
        weights = tf.RaggedTensor.from_row_splits(numbers, RAGGED.row_splits)
        loss = tf.reduce_sum(lookup(table, RAGGED, weights=weights, combiner="sum"))
    assert_array_equal(tape.gradient(loss, numbers), WEIGHTS[[1, 2, 3, 3, 4]].sum(1))


# ---------------------------------------------------------------------- arguments that raise
test_what_does_not_fit_raises = each_raises(
    [
        (lambda t: lookup(t, sparse([0] * 6)), ValueError, "tf.SparseTensor, which has no form for rows"),
        (
            lambda t: lookup(t, tf.SparseTensor([[0]], [1], [3]), combiner="sum"), ValueError,
            "ids: .* 1 dimensions; .* two or"
        ),
        (
            lambda t: lookup(t, tf.SparseTensor([[0, 9]], [1], [3, 4]), combiner="sum"), ValueError,
            r"\[0, 9\] at position 0"
        ),
        (
            lambda t: lookup(t, RAGGED, combiner="sum", weights=weighted(sparse(), True)), ValueError,
            "weights: got a tf.SparseTensor .* a tf.RaggedTensor with the ids' rows"
        ),
        (
            lambda t: lookup(t, RAGGED, mask=tf.ragged.constant([[True] * 5])), ValueError,
            "mask: got a tf.RaggedTensor .* a tf.RaggedTensor with the ids' rows"
        ),
        (lambda t: lookup(t, tf.ragged.constant([[1.5]])), TypeError, "ids: got .*float32"),
    ],
    tf.constant(WEIGHTS),
)  # fmt: skip
