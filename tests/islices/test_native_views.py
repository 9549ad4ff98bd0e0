"""A framework's own object is read by views: the same bits and the same errors as by its parts, small or large."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import islices
from islices import IndexedSlices


def torch_native(values: Any, ids: Any, shape: tuple[int, ...]) -> Any:
    torch = pytest.importorskip("torch")
    named = torch.from_numpy(np.asarray(ids, np.int64))[None]
    return torch.sparse_coo_tensor(named, torch.from_numpy(values), shape, check_invariants=False)


def jax_native(values: Any, ids: Any, shape: tuple[int, ...]) -> Any:
    jnp = pytest.importorskip("jax.numpy")
    sparse = pytest.importorskip("jax.experimental.sparse")
    return sparse.BCOO((jnp.asarray(values), jnp.asarray(ids, np.int32).reshape(-1, 1)), shape=shape)


MAKERS = {"torch": torch_native, "jax": jax_native}
#: unsorted with duplicates, cancelling, sorted, one, none
IDS: list[list[int]] = [[3, 1, 3, 0], [2, 2], [0, 1, 2], [4], []]


def parts(x: Any) -> tuple[Any, Any]:
    s = islices.from_native(x)
    B = s.backend
    return B.to_numpy(s.values), B.to_numpy(s.indices)


@pytest.mark.parametrize("framework", MAKERS)
@pytest.mark.parametrize("dtype", ["float16", "float32", "int32"])
@pytest.mark.parametrize("ids", IDS)
def test_same_bits_by_views_and_by_parts(framework: str, dtype: str, ids: list[int]) -> None:
    values = np.linspace(-3, 3, len(ids) * 6).reshape(len(ids), 2, 3).astype(dtype)
    x = MAKERS[framework](values, ids, (5, 2, 3))
    found = parts(islices.coalesce(x))
    with islices.execution("framework"):
        expected = parts(islices.coalesce(x))
    oracle = islices.coalesce(IndexedSlices(values, np.asarray(ids, np.int64), (5, 2, 3)))
    for got, want, exact in zip(found, expected, (oracle.values, oracle.indices), strict=True):
        np.testing.assert_array_equal(got, want)
        np.testing.assert_array_equal(got, exact)
    if dtype != "int32":
        (clipped,), norm = islices.clip_by_global_norm([x], 0.5)
        with islices.use_kernels(False):
            (other,), same = islices.clip_by_global_norm([x], 0.5)
        for got, want in zip((*parts(clipped), norm), (*parts(other), same), strict=True):
            np.testing.assert_array_equal(np.asarray(got), np.asarray(want))
        np.testing.assert_array_equal(parts(clipped)[1], ids)


@pytest.mark.parametrize("framework", MAKERS)
@pytest.mark.parametrize("ids", [[1, 7, 0], [1, -1, 0]])
def test_an_index_out_of_range_is_named(framework: str, ids: list[int]) -> None:
    x = MAKERS[framework](np.ones((3, 2), np.float32), ids, (5, 2))
    for call in (islices.coalesce, islices.from_native, lambda x: islices.clip_by_global_norm([x], 1.0)):
        with pytest.raises(IndexError, match=f"indices: got {ids[1]} at position 1; accepted is 0 <= index < 5"):
            call(x)


def test_values_of_no_gradient_are_refused() -> None:
    x = jax_native(np.ones((3, 2), np.uint16), [1, 0, 1], (5, 2))
    with pytest.raises(TypeError, match=r"values: got .*uint16"):
        islices.coalesce(x)


def test_what_is_taken_over_keeps_its_arrays() -> None:
    x = torch_native(np.ones((3, 2), np.float32), [1, 0, 1], (5, 2))
    s = islices.from_native(x)
    assert s.indices.tolist() == [1, 0, 1]
    assert s.indices.data_ptr() == x._indices().data_ptr()
