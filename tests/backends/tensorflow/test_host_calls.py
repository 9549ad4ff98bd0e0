"""Test compiled kernels in graphs of tf.function: which graphs call kernels, the order of reads and writes, threads and
errors.

A saved graph gives the same results in another process, even if that process does not import islices. In graphs that
XLA compiles, `coalesce` and optimizer steps raise an error.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from suite_runs import run_code

import islices
from islices import kernels, optim

tf = pytest.importorskip("tensorflow")
pytestmark = pytest.mark.skipif(kernels.active() is None, reason="without numba no graph calls a kernel")

ROWS = 6
IDS = [4, 1, 4, 4]


def slices_of(values: Any, ids: Any) -> Any:
    return tf.IndexedSlices(values, ids, tf.constant([ROWS, 2], tf.int64))


def arrays_of(ids: list[int], dtype: str, index_dtype: str) -> tuple[Any, Any]:
    values = np.random.default_rng(len(ids)).normal(size=(len(ids), 2))
    return tf.cast(tf.constant(values), dtype), tf.constant(ids, index_dtype)


def calls_of(fn: Callable[..., Any], *arrays: Any) -> set[str]:
    """Return the types of all operations in the graph of `fn` and in the functions that the graph calls."""
    graph = tf.function(fn, autograph=False).get_concrete_function(*arrays).graph.as_graph_def()
    nodes = [*graph.node, *(n for f in graph.library.function for n in f.node_def)]
    return {node.op for node in nodes}


def test_graphs_call_kernels_unless_told_not_to() -> None:
    def norm(values: Any, ids: Any) -> Any:
        return islices.global_norm([slices_of(values, ids)])

    arrays = arrays_of(IDS, "float32", "int32")
    assert "PyFuncStateless" in calls_of(norm, *arrays)
    with islices.config.use_kernels(False):
        assert "PyFuncStateless" not in calls_of(norm, *arrays)
    with islices.config.execution("framework"):
        assert "PyFuncStateless" not in calls_of(norm, *arrays)


def test_reads_and_writes_of_a_variable_keep_their_order() -> None:
    sgd, one = optim.sgd(1.0), (tf.ones((1, 2)), tf.constant([1]))
    table = tf.Variable(tf.zeros((ROWS, 2)))
    state = sgd.init(table)

    def steps() -> Any:
        before, row = table.read_value(), tf.gather(table, 1)
        sgd.step(table, slices_of(*one), state)
        between = tf.gather(table, 1)
        sgd.step(table, slices_of(*one), state)
        return before[1], row, between, table[1], before[1]

    def looped() -> Any:
        def body(k: Any, seen: Any) -> Any:
            sgd.step(table, slices_of(*one), state)
            return k + 1, seen + table[1]

        return tf.while_loop(lambda k, _: k < 3, body, (0, tf.zeros(2)))[1]

    def chosen() -> Any:
        def taken() -> Any:
            sgd.step(table, slices_of(*one), state)
            return table[1]

        return tf.cond(table[1, 0] < 0.0, taken, lambda: table[1])

    alias = table.read_value()
    expected = {steps: [0.0, 0.0, -1.0, -2.0, 0.0], looped: [-12.0], chosen: [-6.0]}
    for fn, numbers in expected.items():
        found = tf.nest.flatten(tf.function(fn, autograph=False)())
        assert [float(x[0]) for x in found] == numbers, fn.__name__
    inner = tf.function(steps, autograph=False)
    assert [float(x[0]) for x in tf.function(lambda: inner())()] == [-6.0, -6.0, -7.0, -8.0, -6.0]
    assert float(alias[1, 0]) == 0.0
    assert state["step"].numpy().tolist() == [8]


def test_threads_may_run_one_graph_at_once() -> None:
    sgd, table = optim.sgd(1.0), tf.Variable(tf.zeros((1000, 4)))
    state = sgd.init(table)

    @tf.function  # type: ignore[untyped-decorator]
    def fn(ids: Any) -> None:
        sgd.step(table, tf.IndexedSlices(tf.ones((500, 4)), ids, tf.constant([1000, 4])), state)

    def work(first: int) -> None:
        for _ in range(100):
            fn(tf.range(first, first + 500))

    fn(tf.range(500))
    threads = [threading.Thread(target=work, args=(first,)) for first in (0, 500)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert np.unique(table.numpy()[:500]).tolist() == [-101.0]
    assert np.unique(table.numpy()[500:]).tolist() == [-100.0]


def test_lengths_that_do_not_fit_raise_before_anything_is_written() -> None:
    adam, table = optim.adam(1.0), tf.Variable(tf.zeros((ROWS, 2)))
    state = adam.init(table)

    @tf.function(input_signature=[tf.TensorSpec((None, 2)), tf.TensorSpec((None,), tf.int32)])  # type: ignore[untyped-decorator]
    def fn(values: Any, ids: Any) -> None:
        adam.step(table, slices_of(values, ids), state)

    with pytest.raises(tf.errors.InvalidArgumentError, match="got 3 for 2 values; accepted is one index a value"):
        fn(tf.ones((2, 2)), tf.constant([1, 2, 3]))
    assert not table.numpy().any()


# ---------------------------------------------------------------------- in another process
SAVED = """
import sys, tensorflow as tf
loaded = tf.saved_model.load(sys.argv[1])
norm, table = loaded.train(tf.constant({values}), tf.constant({ids}))
print(float(norm).hex(), table.numpy().tolist())
"""


@pytest.mark.outside
def test_a_saved_function_runs_in_another_process(tmp_path: Path) -> None:
    adam = optim.adam(0.1)
    values, ids = [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], [1, 6, 1]

    class Model(tf.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.table = tf.Variable(tf.zeros((ROWS, 2)))
            self.state = adam.init(self.table)

        @tf.function  # type: ignore[untyped-decorator]
        def train(self, values: Any, ids: Any) -> Any:
            (clipped,), norm = islices.clip_by_global_norm([slices_of(values, ids)], 1.0)
            adam.step(self.table, clipped, self.state)
            return norm, self.table.read_value()

    model = Model()
    model.train(tf.constant(values), tf.constant(ids))
    tf.saved_model.save(model, str(tmp_path))
    printed = run_code(SAVED.format(values=values, ids=ids), tmp_path)
    norm, table = model.train(tf.constant(values), tf.constant(ids))
    assert printed.split(maxsplit=1) == [float(norm).hex(), f"{table.numpy().tolist()}\n"]
    loaded = tf.saved_model.load(str(tmp_path))
    assert loaded.train(tf.constant(values), tf.constant(ids))[1].numpy().tolist() == table.numpy().tolist()


def test_xla_is_refused_what_it_cannot_have() -> None:
    values, ids = arrays_of(IDS, "float32", "int32")
    sgd, table = optim.sgd(1.0), tf.Variable(tf.zeros((ROWS, 2)))
    state = sgd.init(table)
    for fn in (
        lambda v, i: islices.coalesce(slices_of(v, i)).values,
        lambda v, i: sgd.step(table, slices_of(v, i), state)[1]["step"] + 0,
    ):
        with pytest.raises(ValueError, match=r"jit_compile: got True around .*; accepted is False"):
            tf.function(fn, jit_compile=True, autograph=False)(values, ids)
