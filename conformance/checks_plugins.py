"""Check a backend's sparse type. The checks need no `own_calls`, so they also run on plug-ins without this module."""

from __future__ import annotations

from functools import partial
from typing import Any

import islices
from islices.backend import Backend
from islices.conformance.checks import check, raised, same
from islices.conformance.composite_operations import UnsupportedError
from islices.conformance.data import Array, Slices
from islices.conformance.execute import to_backend
from islices.conformance.oracle import coalesce

ROWS = 6


def native_over(backend: Backend, indices: list[int]) -> tuple[Any, Slices]:
    """Return (a sparse object of the framework, the same slices as plain data). All values are 1, and `indices` may be
    invalid."""
    if not backend.native_name:
        raise UnsupportedError(f"{backend.name} has no sparse type")
    n = len(indices)
    plain = Slices(Array("float32", (n, 2), [1.0] * 2 * n), Array("int64", (n,), indices), (ROWS, 2))
    values, places = (to_backend(backend, part) for part in (plain.values, plain.indices))
    s = islices.IndexedSlices(values, places, plain.dense_shape, validate=False)
    return islices.to_native(s), plain


def index_out_of_range(backend: Backend, *, index: int) -> None:
    """Check that four operations raise IndexError for a sparse object with an index out of range. The message must name
    this index."""
    native, _ = native_over(backend, [1, index, 3])
    for operation in (islices.from_native, islices.coalesce, islices.to_dense, islices.norm):
        got = raised(partial(operation, native))
        expected = f"IndexError: indices: got {index} at position"
        assert got.startswith(expected), f"{operation.__name__}: expected '{expected} ...', got {got}"


for _label, _index in (("minus-one", -1), ("minus-rows", -ROWS), ("too-large", ROWS + 1)):
    check(f"conversion/native-index/{_label}", "2", wide=True, index=_index)(index_out_of_range)


@check("conversion/native-duplicates", "1", wide=True)
def duplicates(backend: Backend) -> None:
    """Check that coalescing a sparse object of the framework sums duplicate rows."""
    native, plain = native_over(backend, [4, 1, 4])
    same(islices.coalesce(islices.from_native(native)).values, coalesce(plain).values, "the sums")
