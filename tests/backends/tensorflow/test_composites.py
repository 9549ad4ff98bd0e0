"""Test IndexedSlices as arguments and results of tf.function: values, flags, the number of traces, and gradients."""

from __future__ import annotations

from typing import Any

import pytest

import islices
from islices import IndexedSlices, optim

tf = pytest.importorskip("tensorflow")
islices.get_backend("tensorflow")


def slices_of(n: int = 3, rows: int | None = 6, *, coalesced: bool = False) -> IndexedSlices:
    ids = tf.range(n) if coalesced else tf.constant([1, 4, 1, 0][:n])
    return IndexedSlices(tf.ones((n, 2)), ids, (rows, 2), coalesced=coalesced)


def looped(x: Any) -> Any:
    return tf.while_loop(lambda i, _: i < 2, lambda i, y: (i + 1, y * 2), (tf.constant(0), x))[1]


#: Functions that pass a value through a feature of TensorFlow and multiply the value by four.
ROUTES = {
    "arguments and results": lambda x: tf.function(lambda y: y * 4)(x),
    "nested": lambda x: tf.function(lambda tree: {"of": [tree["a"][0] * 4]})({"a": [x]})["of"][0],
    "cond": lambda x: tf.function(lambda y, p: tf.cond(p, lambda: y * 4, lambda: y))(x, tf.constant(True)),
    "while_loop": tf.function(looped),
    "data": lambda x: next(iter(tf.data.Dataset.from_tensors(x).map(lambda y: y * 4))),
    "strategy": lambda x: tf.distribute.OneDeviceStrategy("CPU:0").run(tf.function(lambda y: y * 4), (x,)),
}


@pytest.mark.parametrize("route", ROUTES.values(), ids=ROUTES)
def test_slices_go_through(route: Any) -> None:
    given = slices_of(2, coalesced=True)
    found = route(given)
    assert type(found) is IndexedSlices
    assert (found.dense_shape, found.coalesced, found.padded) == (given.dense_shape, given.coalesced, given.padded)
    assert found.values.numpy().tolist() == (4 * given.values).numpy().tolist()
    assert found.indices.numpy().tolist() == given.indices.numpy().tolist()


def test_one_trace_does_for_any_number_of_slots() -> None:
    shapes = []

    @tf.function(reduce_retracing=True)  # type: ignore[untyped-decorator]
    def summed(x: IndexedSlices) -> IndexedSlices:
        shapes.append(tuple(x.values.shape))
        return islices.coalesce(x)

    for n in (3, 2, 4, 1, 3):
        assert summed(slices_of(n)).values.numpy().sum() == 2 * n
    assert shapes == [(3, 2), (None, 2)]
    summed(slices_of(2, coalesced=True))
    assert len(shapes) == 3, "a flag is part of the program"


def test_a_signature_and_a_gradient_go_through() -> None:
    spec, traces = tf.type_spec_from_value(slices_of(2)), []

    @tf.function(input_signature=[spec])  # type: ignore[untyped-decorator]
    def tripled(x: IndexedSlices) -> IndexedSlices:
        traces.append(1)
        return islices.coalesce(x * 3)

    values = tf.constant([[1.0, 2.0], [3.0, 4.0]])
    with tf.GradientTape() as tape:
        tape.watch(values)
        found = tripled(IndexedSlices(values, tf.constant([5, 5]), (6, 2)))
        total = tf.reduce_sum(found.values)
    assert found.values.numpy().tolist() == [[12.0, 18.0]]
    assert tape.gradient(total, values).numpy().tolist() == [[3.0, 3.0], [3.0, 3.0]]
    with pytest.raises(TypeError):
        tripled(slices_of(3))
    assert len(traces) == 1


@pytest.mark.parametrize("returned", ["state", "table"])
def test_what_a_function_gives_back_is_not_stepped_on_with_what_it_was(returned: str) -> None:
    rule, table = optim.adam(0.1), tf.Variable(tf.zeros((6, 2)))
    state = rule.init(table)
    step = tf.function(lambda table, state, x: rule.step(table, x, state))
    tensor, tensors = step(table, state, slices_of())
    given = (table, tensors) if returned == "state" else (tensor, state)
    with pytest.raises(TypeError, match=r"state\['step'\]: got .*do not return the table and the state from it"):
        step(*given, slices_of())
    step(table, state, slices_of())
    assert state["step"].numpy().tolist() == [2]
