"""What only MXNet's own type limits."""

from __future__ import annotations

import numpy as np
import pytest

import islices

if "mxnet" not in islices.list_backends():
    pytest.skip("mxnet is not installed", allow_module_level=True)
BACKEND = islices.get_backend("mxnet")


def test_the_native_type_ends_at_two_to_the_31_elements_and_says_so() -> None:
    values, ids = BACKEND.asarray(np.ones((2, 64), np.float32)), BACKEND.asarray(np.array([7, 999_999_999]))
    s = islices.IndexedSlices(values, ids, (1_000_000_000, 64))
    assert float(islices.norm(s).asscalar()) == np.float32(np.sqrt(128)), "IndexedSlices over its arrays has no limit"
    with pytest.raises(ValueError, match=r"s: got .*1000000000.*accepted"):
        islices.to_native(s)


def test_a_norm_can_be_computed_with() -> None:
    """MXNet's arithmetic refuses 0-d arrays, so a norm has its usual scalar shape."""
    norm = islices.norm(BACKEND.asarray(np.array([3.0, 4.0], np.float32)))
    assert norm.shape == (1,)
    assert float((norm * 2).asscalar()) == 10.0


def test_results_of_islices_are_mxnets_own_arrays() -> None:
    import mxnet as mx

    gradient = mx.nd.sparse.row_sparse_array((mx.nd.ones((2, 3)), mx.nd.array([1, 3], dtype="int64")), shape=(5, 3))
    (clipped,), norm = islices.clip_by_global_norm([gradient], 1.0)
    assert clipped.stype == "row_sparse"
    assert float(norm.asscalar()) == np.float32(np.sqrt(6))
    assert clipped.indices.asnumpy().tolist() == [1, 3]
    np.testing.assert_array_equal(clipped.data.asnumpy(), np.float32(1 / np.sqrt(6)) * np.ones((2, 3), np.float32))


def test_arrays_that_autograd_has_not_seen_are_updated_while_it_records() -> None:
    """As by MXNet's own in-place operators, again and again, and also by slices that depend on recorded values."""
    import mxnet as mx

    weight, counts = mx.nd.ones((3, 1)), mx.nd.zeros((3, 1))
    weight.attach_grad()
    rule = islices.optim.adam(0.5)
    state = rule.init(counts)
    with mx.autograd.record():
        squares = weight * weight
        slices = islices.IndexedSlices(squares[:1], mx.nd.array([0], dtype="int32"), (3, 1))
        for _ in range(2):
            islices.scatter_add(counts, slices)
            rule.step(counts, slices, state)
            islices.renorm_rows(counts, slices.indices, 0.25)
        total = squares.sum()
    total.backward()
    assert (counts.asnumpy().ravel().tolist(), state["step"].asscalar()) == ([0.25, 0.0, 0.0], 2)
    assert weight.grad.asnumpy().ravel().tolist() == [2.0, 2.0, 2.0]
    with mx.autograd.record(), pytest.raises(ValueError, match="table: got an array that autograd"):
        islices.scatter_add(weight, slices)
    assert islices.scatter_add(weight, slices)[0].asscalar() == 2.0, "outside of the record section"
