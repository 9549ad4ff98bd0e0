"""MXNet's floats as ids, masks, offsets and lengths, as nd.array and nd's comparisons make them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import islices
from islices import lookup
from islices.conformance.data import Array, Case, Slices, load_cases
from islices.conformance.execute import difference, run_case
from islices.conformance.operations import UnsupportedError
from islices.conformance.variants import Variant

if "mxnet" not in islices.list_backends():
    pytest.skip("mxnet is not installed", allow_module_level=True)

MXNET = islices.get_backend("mxnet")
import mxnet as mx  # noqa: E402

nd = mx.nd
CASES = load_cases(lambda entry: entry.group in ("embedding", "padding") and "float32" in entry.id)[::3]


def as_floats(case: Case, arguments: list[Any], options: dict[str, Any]) -> None:
    """Every array of integers among the arguments as float32, masks as the zeros and ones of a comparison."""

    def one(x: Any) -> Any:
        if isinstance(x, tuple):
            return tuple(map(one, x))
        return x.astype("float32") if MXNET.is_array(x) and MXNET.dtype(x) in ("int32", "int64", "bool") else x

    with mx.util.np_shape(True):
        arguments[:] = [one(x) for x in arguments]
        options |= {name: one(x) for name, x in options.items()}


FLOAT_IDS = Variant("float ids", "ids and masks as nd.array makes them", arrange=as_floats)


def with_int64(x: Any) -> Any:
    """An expected result whose indices are of the dtype that float ids count as."""
    if isinstance(x, Slices):
        indices = Array("int64", x.indices.shape, x.indices.data)
        return Slices(x.values, indices, x.dense_shape, x.coalesced, x.padded)
    return tuple(map(with_int64, x)) if isinstance(x, tuple) else x


@pytest.mark.parametrize("mode", ["host", "framework"])
def test_golden_cases_with_float_ids_and_masks(mode: str) -> None:
    taken, problems = 0, []
    for case in CASES:
        if not any(isinstance(x, (Array, tuple)) for x in case.args) or any(isinstance(x, Slices) for x in case.args):
            continue
        expected = with_int64(case.expect)
        try:
            got = run_case(MXNET, case, mode, FLOAT_IDS)
        except UnsupportedError:
            continue
        if isinstance(got, tuple) and isinstance(case.args[1], tuple) and not isinstance(got[0], Slices):
            got, expected = got[0], expected[0]  # the lengths come back as they went in
        problem = difference(got, expected)
        problems += [f"{case.id}: {problem}"] if problem else []
        taken += 1
    assert problems == []
    assert taken > 200


def test_what_nd_array_and_comparisons_make() -> None:
    table, ids = nd.array([[1.0], [2.0], [4.0]]), nd.array([[0, 2], [1, 1]])
    assert ids.dtype == np.float32
    assert lookup(table, ids).asnumpy().tolist() == nd.Embedding(ids, table, 3, 1).asnumpy().tolist()
    g = islices.embedding_grad(nd.ones((2, 2, 1)), ids, 3, mask=ids > 0)
    assert g.indices.dtype == np.int64
    assert g.values.asnumpy().ravel().tolist() == [0.0, 1.0, 1.0, 1.0]
    assert lookup(table, nd.array([0, 1]), offsets=nd.array([0, 1]), combiner="sum").shape == (2, 1)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda t: lookup(t, nd.array([0, 1.5])), TypeError, "ids: got .*float32.* with 1.5 at position 1; .*whole"),
        (lambda t: lookup(t, nd.array([0, np.nan])), TypeError, "ids: .*nan at position 1"),
        (lambda t: lookup(t, nd.array([np.inf])), TypeError, "ids: .*inf at position 0"),
        (lambda t: lookup(t, nd.array([0, -1])), IndexError, "ids: got -1 at position 1"),
        (lambda t: lookup(t, nd.array([3])), IndexError, "ids: got 3 at position 0; accepted is 0 <= index < 3"),
        (lambda t: lookup(t, nd.array([1e30])), IndexError, r"ids: got 1e\+30 at position 0"),
        (lambda t: lookup(t, nd.array([0]), mask=nd.array([0.5])), TypeError, "mask: .* with 0.5 at position 0"),
        (lambda t: lookup(t, np.array([0.0])), TypeError, "ids: got .*float64.*; accepted dtypes are int32, int64"),
        (lambda t: lookup(t, nd.array([0]), offsets=nd.array([0.5]), combiner="sum"), TypeError, "offsets: .*0.5"),
        (lambda t: islices.IndexedSlices(t, nd.array([0, 1, 2]), (5, 1)), TypeError, "indices: got .*float32"),
        (lambda t: islices.keep_rows(t, nd.array([0])), TypeError, "rows: got .*float32"),
    ],
)
def test_what_is_no_whole_number_or_no_id(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call(nd.array([[1.0], [2.0], [4.0]]))


def test_a_compressed_array_is_no_form_of_ids() -> None:
    with pytest.raises(TypeError, match=r"ids: got .*CSRNDArray"):
        lookup(nd.ones((3, 1)), nd.array([[1, 0], [0, 2]]).tostype("csr"), combiner="sum")
