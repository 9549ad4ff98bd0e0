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
