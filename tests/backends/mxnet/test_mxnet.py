"""Test the limits of MXNet's types, updates in record sections, and ids that are floats."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest
from errors import each_raises

import islices

BACKEND = islices.get_backend("mxnet")
nd, lookup = mx.nd, islices.lookup


def test_the_native_type_ends_at_two_to_the_31_elements_and_says_so() -> None:
    values, ids = BACKEND.asarray(np.ones((2, 64), np.float32)), BACKEND.asarray(np.array([7, 999_999_999]))
    s = islices.IndexedSlices(values, ids, (1_000_000_000, 64))
    assert float(islices.norm(s).asscalar()) == np.float32(np.sqrt(128))
    with pytest.raises(ValueError, match=r"s: got .*1000000000.*accepted"):
        islices.to_native(s)


def test_arrays_that_autograd_has_not_seen_are_updated_while_it_records() -> None:
    """Check that arrays which autograd has not used can be updated in a record section. The slices are computed from
    recorded values."""
    weight, counts = mx.nd.ones((3, 1)), mx.nd.zeros((3, 1))
    weight.attach_grad()
    rule = islices.optim.adam(0.5)
    state = rule.init(counts)
    with mx.autograd.record():
        squares = weight * weight
        slices = islices.IndexedSlices(squares[:1], mx.nd.array([0], dtype="int32"), (3, 1))
        for _ in range(2):
            islices.scatter(counts, slices)
            rule.step(counts, slices, state)
            islices.renorm_rows(counts, slices.indices, 0.25)
        total = squares.sum()
    total.backward()
    assert (counts.asnumpy().ravel().tolist(), state["step"].asscalar()) == ([0.25, 0.0, 0.0], 2)
    assert weight.grad.asnumpy().ravel().tolist() == [2.0, 2.0, 2.0]
    with mx.autograd.record(), pytest.raises(ValueError, match="table: got an array that autograd"):
        islices.scatter(weight, slices)
    assert islices.scatter(weight, slices)[0].asscalar() == 2.0  # outside of the record section


# ---------------------------------------------------------------------- floats as ids
def test_what_nd_array_and_comparisons_make() -> None:
    table, ids = nd.array([[1.0], [2.0], [4.0]]), nd.array([[0, 2], [1, 1]])
    assert ids.dtype == np.float32
    assert islices.lookup(table, ids).asnumpy().tolist() == nd.Embedding(ids, table, 3, 1).asnumpy().tolist()
    g = islices.embedding_grad(nd.ones((2, 2, 1)), ids, 3, mask=ids > 0)
    assert g.indices.dtype == np.int64
    assert g.values.asnumpy().ravel().tolist() == [0.0, 1.0, 1.0, 1.0]
    assert islices.lookup(table, nd.array([0, 1]), offsets=nd.array([0, 1]), combiner="sum").shape == (2, 1)


test_what_is_no_whole_number_or_no_id = each_raises(
    [
        (lambda t: lookup(t, nd.array([0, 1.5])), TypeError, "ids: got .*float32.* with 1.5 at position 1; .*whole"),
        (lambda t: lookup(t, nd.array([0, np.nan])), TypeError, "ids: .*nan at position 1"),
        (lambda t: lookup(t, nd.array([1e30])), IndexError, r"ids: got 1e\+30 at position 0"),
        (lambda t: lookup(t, nd.array([0]), mask=nd.array([0.5])), TypeError, "mask: .* with 0.5 at position 0"),
        (lambda t: lookup(t, nd.array([0]), offsets=nd.array([0.5]), combiner="sum"), TypeError, "offsets: .*0.5"),
        (lambda t: islices.IndexedSlices(t, nd.array([0, 1, 2]), (5, 1)), TypeError, "indices: got .*float32"),
    ],
    nd.array([[1.0], [2.0], [4.0]]),
)
