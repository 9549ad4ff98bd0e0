"""Test lookups of bags in tf.function, under tapes and under tf.vectorized_map. Compiled kernels give
the same bits as eager code without kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from comparing import assert_same

import islices
from islices import Table, kernels, lookup, value_and_grad

tf = pytest.importorskip("tensorflow")
pytestmark = pytest.mark.skipif(kernels.active() is None, reason="without numba no graph calls a kernel")


def table_of_six_rows() -> Any:
    return tf.Variable(tf.cast(np.random.default_rng(1).normal(size=(6, 3)), "float32"))


def loss(table: Any, ids: Any) -> Any:
    bags = lookup(table, ids, combiner="sum", padding_idx=2)
    return tf.reduce_sum(bags * bags)


def test_graphs_have_the_eager_bits_whatever_the_threads() -> None:
    ids = tf.constant(np.random.default_rng(2).integers(0, 3000, (600, 9)))
    rows, before = tf.random.stateless_normal((3000, 16), (1, 2)), islices.config.get_num_threads()

    def train(kernels_on: bool, graph: bool) -> list[Any]:
        table, adam = Table(tf.Variable(rows)), islices.optim.adam(0.1)
        state = adam.init(table)

        def fn(ids: Any) -> Any:
            value, g = value_and_grad(loss)(table, ids)
            clipped, norm = islices.clip_by_global_norm(g, 1.0)
            adam.step(table, clipped, state)
            return value, norm

        with islices.config.use_kernels(kernels_on):
            step = tf.function(fn, autograph=False) if graph else fn
            return [step(ids)[1], step(ids)[1], table.weights, *state.values()]

    try:
        expected = train(False, False)
        islices.config.set_num_threads(2)
        for kernels_on, graph in ((True, False), (True, True)):
            assert_same(train(kernels_on, graph), expected)
    finally:
        islices.config.set_num_threads(before)


def test_tapes_around_see_the_variable() -> None:
    weights, ids = table_of_six_rows(), tf.constant([[4, 1, 4], [0, 4, 2]])

    def value(ids: Any) -> Any:
        return value_and_grad(loss)(Table(weights), ids)[0]

    found = []
    for fn in (value, tf.function(value, autograph=False)):
        with tf.GradientTape() as tape:
            out = fn(ids)
        assert tape.watched_variables() == (weights,)
        found.append(tf.convert_to_tensor(tape.gradient(out, weights)))
    assert_same(found[1], found[0])
    assert found[0].numpy().any()


def test_reading_after_a_gather_shares_the_memory() -> None:
    weights = table_of_six_rows()
    tf.gather(weights, [1])  # after this, reads of the variable copy
    backend = islices.get_backend(weights)
    first, second = (backend.host_view(weights) for _ in range(2))
    assert np.shares_memory(first, second)
    kept = first.copy()
    weights.scatter_add(tf.IndexedSlices(tf.ones((1, 3)), [1]))
    np.testing.assert_array_equal(first, kept)
    assert float(weights[1, 0]) == kept[1, 0] + np.float32(1)


def test_a_read_comes_after_the_write_before_it() -> None:
    weights, ids = tf.Variable(tf.zeros((6, 3))), tf.constant([[1, 1]])

    @tf.function(autograph=False)  # type: ignore[untyped-decorator]
    def fn() -> Any:
        seen = []
        for _ in range(3):
            weights.scatter_add(tf.IndexedSlices(tf.ones((1, 3)), [1]))
            seen.append(value_and_grad(loss)(Table(weights), ids)[0])
        return seen

    assert [float(x) for x in fn()] == [3 * (2.0 * k) ** 2 for k in (1, 2, 3)]
    alias = weights.read_value()
    assert [float(x) for x in fn()] == [3 * (2.0 * k) ** 2 for k in (4, 5, 6)]
    assert float(alias[1, 0]) == 3.0


@pytest.mark.filterwarnings("error")
def test_vectorized_map_needs_no_loop(caplog: pytest.LogCaptureFixture) -> None:
    weights, w = table_of_six_rows(), tf.Variable([[1.0], [2.0], [-1.0]])

    def per_sample(table: Any, w: Any, ids: Any) -> Any:
        return tf.reduce_sum((lookup(table, ids, combiner="sum") @ w) ** 2, 1)

    ids = tf.constant([[4, 1, 4], [0, 4, 2], [5, 5, 5]])
    _, (_, dense) = value_and_grad(per_sample, (0, 1), per_sample=True)(Table(weights), w, ids)
    assert not [x for x in caplog.messages if "while_loop" in x]
    for k in range(3):
        _, alone = value_and_grad(lambda *args: tf.reduce_sum(per_sample(*args)), 1)(Table(weights), w, ids[k : k + 1])
        np.testing.assert_array_equal(dense[k], alone)


def test_vectorized_gathers_and_scatters_are_those_of_each_member() -> None:
    table = tf.Variable(tf.reshape(tf.range(12.0), (6, 2)))
    ids = tf.random.stateless_uniform((3, 2), (1, 2), 0, 6, tf.int64)

    def one(ids: Any) -> Any:
        rows = tf.gather(table, ids)
        return (
            rows,
            tf.scatter_nd(ids[..., None], 0.1 * rows, (6, 2)),
            tf.scatter_nd(ids[..., None], rows + 1.0, (7, 2)),
        )

    mapped = tf.vectorized_map(one, ids)
    for k in range(3):
        assert_same([x[k] for x in mapped], one(ids[k]))
