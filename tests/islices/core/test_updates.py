"""Test that row updates work in place where the framework can, write nothing if they raise, record nothing in autograd,
and donate arrays on request."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from comparing import host
from numpy.testing import assert_array_equal

import islices
from tests.shared.tables import KINDS, TABLES, of, torch_parameter

START = np.arange(12, dtype=np.float32).reshape(6, 2)
IDS = np.array([4, 1, 4], np.int64)
VALUES = np.ones((3, 2), np.float32)
EXPECTED = START + np.array([0, 1, 0, 0, 2, 0], np.float32)[:, None]


def slices(name: str, ids: np.ndarray = IDS, **options: Any) -> islices.IndexedSlices:
    B = islices.get_backend(name)
    return islices.IndexedSlices(B.asarray(VALUES[: len(ids)]), B.asarray(ids), (6, 2), **options)


@pytest.mark.parametrize("mode", ["host", "framework"])
@pytest.mark.parametrize("kind", KINDS)
def test_in_place_where_the_framework_is(kind: str, mode: str) -> None:
    name, make, in_place = TABLES[kind]
    own = make(START)
    given = islices.Table(own, padding_idx=0)
    with islices.config.execution(mode):
        out = islices.scatter(given, slices(name))
    assert (out is given) is in_place
    assert out.padding_idx == 0
    assert_array_equal(host(out.weights), EXPECTED)
    assert_array_equal(host(own), EXPECTED if in_place else START)


@pytest.mark.parametrize("kind", KINDS)
def test_a_bad_index_in_the_last_slot_leaves_the_table_as_it_was(kind: str) -> None:
    name, make, _ = TABLES[kind]
    table = make(START)
    bad = slices(name, np.array([4, 1, 6], np.int64), validate=False)
    unknown = islices.IndexedSlices(bad.values, bad.indices, (None, 2), validate=False)
    for x in (bad, unknown):
        with pytest.raises(IndexError, match="indices: got 6 at position 2"):
            islices.scatter(table, x, op="update")
        assert_array_equal(host(table), START)


def test_parameters_record_nothing() -> None:
    torch = pytest.importorskip("torch")
    table = torch_parameter(START)
    assert islices.scatter(table, slices("torch"), op="mul") is table
    assert table.is_leaf
    assert table.requires_grad
    assert table.grad is None
    tensor = torch.zeros(6, 2)
    out = islices.scatter(tensor, slices("torch").replace(values=torch.ones(3, 2, requires_grad=True)))
    assert not out.requires_grad


def test_variables_inside_tf_function() -> None:
    tf = pytest.importorskip("tensorflow")
    table = tf.Variable(START)

    @tf.function
    def step(values: Any, ids: Any) -> None:
        islices.scatter(table, islices.IndexedSlices(values, ids, (6, 2)))

    step(tf.constant(VALUES), tf.constant([4, 9, 4]))  # row 9 does not exist and is ignored
    assert_array_equal(table.numpy(), START + np.array([0, 0, 0, 0, 2, 0], np.float32)[:, None])


def test_jax_arrays_are_donated_on_request() -> None:
    jax = pytest.importorskip("jax")
    table = jax.numpy.add(of("jax", START), 0)  # memory of JAX, because JAX does not write over NumPy's memory
    place = table.unsafe_buffer_pointer()
    out = islices.scatter(table, slices("jax"), donate=True)
    assert out.unsafe_buffer_pointer() == place
    assert table.is_deleted()
    assert_array_equal(np.asarray(out), EXPECTED)
    jitted = jax.jit(islices.scatter, donate_argnums=0)(islices.Table(out), slices("jax"))
    assert isinstance(jitted, islices.Table)
    assert_array_equal(np.asarray(jitted.weights), 2 * EXPECTED - START)
    wild = jax.jit(lambda t, v, i: islices.scatter(t, islices.IndexedSlices(v, i, (6, 2)), op="mul"))(
        of("jax", START), 2 * VALUES, np.array([1, -1, 6])
    )
    assert_array_equal(np.asarray(wild), START * np.array([1, 2, 1, 1, 1, 1], np.float32)[:, None])


def test_a_table_whose_gradient_is_taken_is_not_updated() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(TypeError, match="table: got one whose gradient is being taken"):
        islices.value_and_grad(lambda t: islices.scatter(t, slices("torch")))(islices.Table(torch.zeros(6, 2)))


def test_another_operator_is_refused() -> None:
    with pytest.raises(
        ValueError, match="op: got 'pow'; accepted are 'add', 'sub', 'update', 'min', 'max', 'mul', 'div'"
    ):
        islices.scatter(START.copy(), slices("numpy"), "pow")
