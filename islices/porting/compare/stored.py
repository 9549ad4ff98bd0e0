"""Read a leaf of any framework into host arrays: its slots, and its rows after duplicates are summed.

For a sparse leaf, time and memory depend on the number of stored rows, not on the size of the table.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from islices.core.conversion import accept, nonzero_rows, without_padding
from islices.core.host import bfloat16_to_float32, group, native_order
from islices.core.locks import lazy_property
from islices.core.modes import HOST
from islices.core.registry import find_backend
from islices.core.rows import coalesce
from islices.core.slices import IndexedSlices, parts
from islices.embedding.table import Table
from islices.norms.exact import Matrix, exact_norms

Array = np.ndarray[Any, Any]
#: The largest number of elements in a block, unless a single row has more. Blocks keep temporary arrays small.
BLOCK = 1 << 17
#: Dtypes that only dense tensors may have.
WHOLE = ("bool", "int8", "uint8", "int16", "uint16", "uint32", "uint64")


@dataclass(frozen=True, eq=False)
class Stored:
    """One tensor of one side. A dense tensor has one slot per row. A 0-d tensor has one row.

    `values` and `slots` are host arrays. Values in bfloat16 are stored as uint16.
    """

    name: str
    backend: str
    dtype: str
    shape: tuple[int | None, ...]
    sparse: bool
    ids: Array  # (k,), ascending, distinct
    values: Array  # (k, *row_shape), duplicates summed
    slot_ids: Array  # (n,), in the original order
    slots: Array  # (n, *row_shape)

    @property
    def row_shape(self) -> tuple[int, ...]:
        return tuple(self.values.shape[1:])

    @property
    def has_duplicates(self) -> bool:
        return len(self.slot_ids) > len(self.ids)

    @lazy_property
    def by_row(self) -> tuple[Array, Array]:
        """Return (order, starts). `order` sorts the slots by row, and `starts` contains the position of each row's
        first slot in this order. The last item of `starts` is the number of slots."""
        order, _, starts = group(self.slot_ids)
        return order, starts

    @lazy_property
    def counts(self) -> Array:
        """Return an array of shape (k,) with the number of slots of each row."""
        return np.diff(self.by_row[1]) if self.has_duplicates else np.ones(len(self.ids), np.int64)

    @property
    def repeated(self) -> Array:
        """Return the numbers of the rows that have several slots."""
        return self.ids[self.counts > 1]

    @lazy_property
    def beyond_float64(self) -> bool:
        """Return True if the leaf contains whole numbers above 2^53 in absolute value, which float64 may round."""
        if self.values.dtype not in (np.int64, np.uint64):
            return False
        return bool((self.values > 1 << 53).any() or (self.values < -(1 << 53)).any())

    @lazy_property
    def norm(self) -> float:
        """Return the norm of the tensor after its duplicates are summed (SPEC clause 7)."""
        return norm_of(self.values)

    @lazy_property
    def slot_norm(self) -> float | None:
        """Return the norm of the slots before duplicates are summed, or None if there are no duplicates."""
        return norm_of(self.slots) if self.has_duplicates else None

    @lazy_property
    def without_zeros(self) -> Stored:
        """Return a dense tensor without its rows of zeros. Return a sparse tensor unchanged."""
        if self.sparse or (some := nonzero_rows(self.values)).all():
            return self
        ids, values = self.ids[some], self.values[some]
        return replace(self, ids=ids, values=values, slot_ids=ids, slots=values)


def read(x: Any, name: str, argument: str) -> Stored:
    """Read a leaf of any framework into host arrays. Raise TypeError if no backend supports the leaf; the message
    contains `argument`. Raise ValueError or IndexError for an invalid sparse gradient."""
    if isinstance(x, Table):
        x = x.weights
    leaf = x if _is_whole(x) else accept(x, argument)
    B, values = parts(leaf)
    if isinstance(leaf, IndexedSlices):
        leaf = without_padding(leaf)
        summed = coalesce(leaf)
        return Stored(
            name, B.name, B.dtype(values), leaf.dense_shape, True,
            _ids(B.to_numpy(summed.indices)), native_order(B.to_numpy(summed.values)),
            _ids(B.to_numpy(leaf.indices)), native_order(B.to_numpy(leaf.values)),
        )  # fmt: skip
    array = np.atleast_1d(native_order(B.to_numpy(x)))
    if _is_whole(x) and array.dtype != np.uint64:  # a host array of uint16 is bfloat16
        array = array.astype(np.int64)
    shape = tuple(B.shape(x))
    ids = np.arange(len(array))
    return Stored(name, B.name, B.dtype(x), shape, False, ids, array, ids, array)


def _is_whole(x: Any) -> bool:
    """Return True if x is a dense array with a dtype in `WHOLE`, for example a mask of bools."""
    backend = find_backend(x)
    return (
        backend is not None and not isinstance(x, IndexedSlices) and not backend.is_native(x)
        and backend.dtype(x) in WHOLE
    )  # fmt: skip


def _ids(indices: Array) -> Array:
    return np.asarray(indices).astype(np.int64, copy=False)


# ---------------------------------------------------------------------- host arrays
def wide(x: Array) -> Array:
    """Return values as float64. Only integers beyond 2^53 are rounded."""
    x = bfloat16_to_float32(x) if x.dtype == np.uint16 else x
    return x.astype(np.float64, copy=False)


def matrix(x: Array) -> Array:
    """Return x as a 2-D array, with one flattened row of the tensor per row."""
    return x.reshape(len(x), math.prod(x.shape[1:]))


def bits_equal(a: Array, b: Array) -> Array:
    """Compare two arrays of the same dtype and shape, and return a mask of the equal elements. NaN equals NaN, and -0
    equals +0 (SPEC, same bits)."""
    if a.dtype == np.uint16:
        a, b = bfloat16_to_float32(a), bfloat16_to_float32(b)
    same: Array = a == b
    if a.dtype.kind == "f" and not same.all():
        same |= (a != a) & (b != b)
    return same


def rows_differ(x: Array, y: Array) -> Array:
    """Compare two arrays of the same shape block by block, and return a mask of shape (k,) of the rows that differ."""
    out = np.zeros(len(x), bool)
    for part in blocks(len(x), x.shape[1:]):
        p, q = (x[part], y[part]) if x.dtype == y.dtype else (wide(x[part]), wide(y[part]))
        out[part] = ~matrix(bits_equal(p, q)).all(axis=1)
    return out


def apart(x: Array, y: Array) -> Array:
    """Return |x - y| for each element: 0 if both are NaN or the same infinity, and infinity if only one is NaN."""
    with np.errstate(invalid="ignore"):
        found = np.abs(x - y)
        if np.isfinite(found.max(initial=0.0)):
            return np.asarray(found)
        same = (x == y) | ((x != x) & (y != y))
    out: Array = np.where(same, 0.0, np.nan_to_num(found, nan=np.inf, posinf=np.inf))
    return out


def row_tops(sizes: Array) -> Array:
    """Return an array of shape (k,) with the largest number of each row, or with 0 if all numbers of the row are
    negative."""
    tops: Array = matrix(sizes).max(axis=1, initial=0.0)
    return tops


def dot(x: Array, y: Array) -> float:
    """Return the dot product of two flat arrays, computed in one thread.

    Several threads of BLAS would wait for each other longer than a block takes to compute. The result would also depend
    on the number of threads.
    """
    return float(np.einsum("i,i->", x, y))


def norm_of(x: Array) -> float:
    """Return the 2-norm of all elements in float64. The last rounding of SPEC clause 7 is left out."""
    x = x if x.dtype == np.uint16 or x.dtype.kind == "f" else wide(x)
    with HOST.scope():
        _, norms = exact_norms([Matrix(HOST, x.reshape(1, x.size))], 2.0)
    return float(norms[0])


def contained(ids: Array, others: Array) -> Array:
    """Return a mask of shape (k,) of the ids that are also in `others`. `others` must be ascending."""
    if not len(others):
        return np.zeros(len(ids), bool)
    place = np.searchsorted(others, ids)
    place[place == len(others)] = 0
    found: Array = others[place] == ids
    return found


def common_rows(a: Stored, b: Stored) -> tuple[Array, Array, Array]:
    """Return (row numbers, values of a, values of b) for the rows that both tensors have. If both tensors have the same
    rows, nothing is copied."""
    if np.array_equal(a.ids, b.ids):
        return a.ids, a.values, b.values
    in_b = contained(a.ids, b.ids)
    return a.ids[in_b], a.values[in_b], b.values[contained(b.ids, a.ids)]


def placed(ids: Array, part: Array, rows: Array, fill: float = 0.0) -> Array:
    """Return the values for the row numbers `rows`. `part` contains the values for the row numbers `ids`. `ids` must
    be ascending. Rows that are not in `ids` get the value `fill`."""
    out = np.full((len(rows), *part.shape[1:]), fill, part.dtype)
    there = np.flatnonzero(contained(rows, ids))
    out[there] = part[np.searchsorted(ids, rows[there])]
    return out


def blocks(rows: int, row_shape: tuple[int, ...]) -> Iterator[slice]:
    """Yield slices that divide the rows into blocks. Yield at least one slice, even if there are no rows."""
    size = max(1, BLOCK // max(1, math.prod(row_shape)))
    for k in range(0, max(rows, 1), size):
        yield slice(k, min(k + size, rows))
