"""Sum duplicate rows of gradients, make dense arrays of gradients, and select rows.

Each operation is written once, with the primitives of `Backend`. `_filter_slices`, `_filter_dense` and the `_among`
functions that they call are operations (see `islices.core.modes`). SPEC clauses 3 to 5 and 13.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np

from islices.backend import INDEX_NAMES, INDICES, Array, Backend, Host
from islices.core import modes
from islices.core.arguments import LARGEST, show, whole_number
from islices.core.conversion import coalesce_slices, map_accepted
from islices.core.dtypes import host_dtype
from islices.core.registry import describe, find_backend
from islices.core.slices import IndexedSlices, check_indices, parts, shape_with_rows

T = TypeVar("T")

NO_MASK = "rows: got a mask, while the number of rows is unknown; accepted are row numbers then"
MASKS = ("bool", *INDICES)


# ---------------------------------------------------------------------- coalesce, to_dense
def coalesce(x: T) -> T:
    """Return the same gradient with duplicate rows summed and strictly ascending indices.

    Parameters
    ----------
    x : sparse gradient, dense array, None, or a list, tuple or dict of them
        Dense arrays are returned unchanged.

    Returns
    -------
    same type as x
        If x is known to be coalesced and has no padding, the result is x itself. Any other sparse result under jax.jit
        is `padded` and has as many slots as x. The unused slots are at the end, with the index ``rows`` and zeros as
        values.

    Raises
    ------
    TypeError, ValueError, IndexError
        A leaf is not a gradient, or its indices are not valid (SPEC clause 2).

    Notes
    -----
    Contributions to a row are added left to right in order of occurrence; 16-bit values are added in float32 and
    rounded once. Rows that sum to zero stay. SPEC clauses 3 and 4.

    Examples
    --------
    >>> import numpy as np
    >>> from islices import IndexedSlices
    >>> s = IndexedSlices(np.array([[1.0], [2.0], [4.0]]), np.array([5, 0, 5]), (6, 1))
    >>> c = coalesce(s)
    >>> c.indices.tolist(), c.values.tolist()
    ([0, 5], [[2.0], [5.0]])
    """
    return map_accepted(coalesce_slices, x, native="coalesce_few")


def to_dense(x: Any) -> Any:
    """Return the dense arrays that sparse gradients stand for.

    Parameters
    ----------
    x : sparse gradient, dense array, None, or a list, tuple or dict of them

    Returns
    -------
    dense array of the same framework
        The result has the structure of x; dense leaves are returned unchanged.

    Raises
    ------
    ValueError
        The number of rows is unknown.
    TypeError, ValueError, IndexError
        A leaf is not a gradient, or its indices are not valid (SPEC clause 2).
    MemoryError
        The array would exceed this machine's memory; nothing has been allocated.

    Notes
    -----
    The result has the rows of `coalesce`, bit for bit, and zeros elsewhere. SPEC clause 5.

    Examples
    --------
    >>> import numpy as np
    >>> from islices import IndexedSlices
    >>> to_dense(IndexedSlices(np.array([[1.0], [2.0]]), np.array([1, 1]), (3, 1))).tolist()
    [[0.0], [3.0], [0.0]]
    """
    return map_accepted(_to_dense, x)


def _to_dense(s: Any) -> Any:
    if not isinstance(s, IndexedSlices):
        return s
    B = s.backend
    shape = _known_shape(s)
    check_memory(repr(s), shape, B.dtype(s.values), "keep it sparse (coalesce(x) holds the rows that are not zero)")
    traced = modes.is_traced(B, s.values, s.indices)
    if s.coalesced and (traced or not s.padded):
        return modes.run("scatter_rows", B, (s.values, s.indices), shape=shape)
    return modes.run("dense_rows", B, (s.values, s.indices), shape=shape, loose=traced or s.padded)


def check_memory(subject: str, shape: tuple[int, ...], dtype: str, remedy: str) -> None:
    """Raise MemoryError for a dense array that exceeds this machine's memory or NumPy's limit. Allocate nothing."""
    item = host_dtype(dtype).itemsize
    nbytes = math.prod(shape) * item
    # NumPy makes no array whose nonzero dimensions amount to more bytes than an int64, even if it has no elements
    if nbytes > _physical_memory() or math.prod(n for n in shape if n) * item > LARGEST:
        raise MemoryError(
            f"x: to_dense of {subject} needs {min(nbytes, 2**1000):.3g} bytes; accepted is what fits this machine's "
            f"{_physical_memory():.3g}: {remedy}"
        )


def _known_shape(s: IndexedSlices) -> tuple[int, ...]:
    rows, *row_shape = s.dense_shape
    if rows is None:
        raise ValueError(
            "x: the number of rows is unknown (dense_shape[0] is None); accepted is a known shape: "
            "from_native(x, dense_shape=...)"
        )
    return (rows, *row_shape)  # type: ignore[arg-type]


@lru_cache(maxsize=1)
def _physical_memory() -> float:
    try:
        return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, ValueError, OSError):  # on Windows; no machine has this much memory
        return 2.0**47


# ---------------------------------------------------------------------- selection
def keep_rows(x: T, rows: Any) -> T:
    """Return a gradient with only the given rows, to train part of a table.

    Parameters
    ----------
    x : sparse gradient, dense array, None, or a list, tuple or dict of them
    rows : 1-D int32 or int64 array, sequence of ints, or boolean mask of length dense_shape[0]
        The rows that stay. Row numbers may be in any order and may repeat.

    Returns
    -------
    same type as x
        A sparse gradient loses all other slices (under jax.jit they become padding). A dense gradient gets zeros in
        all other rows.

    Raises
    ------
    IndexError, TypeError, ValueError
        A row is out of range, the dtype of rows is not accepted, or a mask does not have one entry per row of x. Or a
        leaf is 0-d or not a gradient, or rows is a mask and the number of rows is unknown. The range of traced row
        numbers is not checked. SPEC clause 13.

    Examples
    --------
    >>> import numpy as np
    >>> keep_rows(np.array([[1.0], [2.0], [3.0]]), [0, 2]).tolist()
    [[1.0], [0.0], [3.0]]
    """
    return map_accepted(lambda leaf: _filter(leaf, rows, drop=False), x)


def drop_rows(x: T, rows: Any) -> T:
    """Return a gradient without the given rows, the counterpart of `keep_rows`.

    Parameters
    ----------
    x : sparse gradient, dense array, None, or a list, tuple or dict of them
    rows : 1-D int32 or int64 array, sequence of ints, or boolean mask of length dense_shape[0]
        The rows to drop. Row numbers may be in any order and may repeat.

    Returns
    -------
    same type as x
        A sparse gradient loses the slices of these rows (under jax.jit they become padding). A dense gradient gets
        zeros in these rows.

    Raises
    ------
    IndexError, TypeError, ValueError
        A row is out of range, the dtype of rows is not accepted, or a mask does not have one entry per row of x. Or a
        leaf is 0-d or not a gradient, or rows is a mask and the number of rows is unknown. The range of traced row
        numbers is not checked. SPEC clause 13.

    Examples
    --------
    >>> import numpy as np
    >>> drop_rows(np.array([[1.0], [2.0], [3.0]]), [0, 2]).tolist()
    [[0.0], [2.0], [0.0]]
    """
    return map_accepted(lambda leaf: _filter(leaf, rows, drop=True), x)


def _filter(leaf: Any, rows: Any, *, drop: bool) -> Any:
    B, array = parts(leaf)
    chosen, is_mask = _row_selection(B, rows, shape_with_rows(leaf)[0], array)
    among = _among_mask if is_mask else _among
    if isinstance(leaf, IndexedSlices):
        return _select(leaf, chosen, among, drop=drop)
    return modes.run(_filter_dense, B, (leaf, chosen), among=among, drop=drop)


def drop_ordered(s: IndexedSlices, rows: Host) -> IndexedSlices:
    """Return slices without the rows in `rows`, an array of ascending row numbers that may include most rows of the
    table.
    """
    B, dtype = s.backend, s.backend.dtype(s.indices)
    known = rows[: np.searchsorted(rows, np.iinfo(dtype).max, "right")]  # indices cannot be larger
    if not len(known):
        return s
    place = B.asarray if modes.is_traced(B, s.values, s.indices) else B.from_host
    with B.scope():
        chosen = place(known.astype(dtype, copy=False), s.indices)
    return _select(s, chosen, _among_ordered, drop=True)


def _select(s: IndexedSlices, chosen: Array, among: Among, *, drop: bool) -> IndexedSlices:
    B = s.backend
    values, indices = modes.run(
        _filter_slices, B, (s.values, s.indices, chosen), among=among, drop=drop, rows=s.dense_shape[0]
    )
    moved = modes.keeps_slots(B, values, indices)
    return s._like(values, indices, coalesced=s.coalesced and not moved, padded=s.padded or moved)


def _row_selection(B: Backend, rows: Any, count: int | None, like: Array) -> tuple[Array, bool]:
    """Return (selection, is_mask). The selection is an array of B with row numbers or, if `is_mask` is True, an int32
    mask of 0 and 1."""
    if B.is_array(rows) and not isinstance(rows, np.ndarray) and B.is_traced(rows):
        dtype, shape = B.dtype(rows), B.shape(rows)
        if dtype not in MASKS or len(shape) != 1:
            raise TypeError(
                f"rows: got {describe(rows)}; accepted are 1-D {INDEX_NAMES} row numbers, or a boolean mask"
            )
        if dtype in INDICES:
            return rows, False
        _check_length(shape[0], count)
        return B.astype(rows, "int32"), True
    view = rows_or_mask(rows)
    if view.dtype != bool:
        check_indices(modes.HOST, view, count, argument="rows")
        return B.asarray(view, like), False
    _check_length(len(view), count)
    return B.asarray(view.astype(np.int32), like), True


def _check_length(length: int | None, count: int | None) -> None:
    """Raise ValueError unless a mask has one entry for each of `count` rows. An unknown `length` is None and raises no
    error; an unknown `count` raises ValueError."""
    if count is None:
        raise ValueError(NO_MASK)
    if length not in (None, count):
        raise ValueError(f"rows: got a mask of length {length}; accepted is one entry a row, {count}")


def rows_or_mask(rows: Any, argument: str = "rows") -> Host:
    """Return row numbers or a mask as a 1-D NumPy array. Raise TypeError for any other object, such as a traced array.

    Raise IndexError for an int that does not fit int64.
    """
    B = find_backend(rows)
    found: Host | None = None
    if B is None or not B.is_array(rows):
        try:
            if B is not None and B.is_native(rows):  # NumPy would read all of its rows
                raise TypeError(describe(rows))
            found, bare = np.asarray(rows), not hasattr(rows, "dtype")
        except Exception as error:  # an object's __array__, or a framework, may raise any error
            raise TypeError(f"{argument}: got {describe(rows)}; accepted are row numbers or a boolean mask") from error
        if bare and found.ndim == 1 and found.dtype.name not in ("bool", "int64"):
            _check_int64(rows, argument)
            found = found if found.size else found.astype(np.int64)
    elif B.dtype(rows) in MASKS:  # NumPy cannot read some frameworks' other arrays
        found = B.to_numpy(rows)
    if found is None or found.ndim != 1 or found.dtype.name not in MASKS:
        given = describe(rows if found is None else found)
        raise TypeError(f"{argument}: got {given}; accepted are 1-D {INDEX_NAMES} row numbers, or a boolean mask")
    return found


def _check_int64(rows: Iterable[Any], argument: str) -> None:
    """Raise IndexError for the first int that does not fit int64, because NumPy would convert it to another type."""
    for position, row in enumerate(rows):
        number = whole_number(row)
        if number is not None and abs(number) > LARGEST:
            raise IndexError(f"{argument}: got {show(number)} at position {position}; accepted is an int64")


#: A function that returns the mask of the indices that are among the chosen rows.
Among = Callable[[Backend, Array, Array], Array]


def _filter_slices(
    B: Backend, values: Array, indices: Array, chosen: Array, *, among: Among, drop: bool, rows: int | None
) -> tuple[Array, Array]:
    keep = among(B, indices, chosen)
    return B.select(values, indices, B.logical_not(keep) if drop else keep, rows)


def _among(B: Backend, indices: Array, chosen: Array) -> Array:
    return B.isin(indices, chosen)


def _among_mask(B: Backend, indices: Array, chosen: Array) -> Array:
    # a slot out of range (padding, or an invalid index in traced code) reads entry 0; its result does not matter
    places = B.where(B.in_range(indices, B.shape(chosen)[0]), indices, B.zeros_like(indices))
    return B.equal(B.take(chosen, places), 1)


def _among_ordered(B: Backend, indices: Array, chosen: Array) -> Array:
    place = B.searchsorted(chosen, indices, right=False)
    # an index above the last chosen row is compared with the first chosen row, from which it differs
    place = B.where(B.in_range(place, B.shape(chosen)[0]), place, B.zeros_like(place))
    return B.equal(indices, B.take(chosen, place))


def _filter_dense(B: Backend, dense: Array, chosen: Array, *, among: Among, drop: bool) -> Array:
    mask = among(B, B.arange(dense), chosen)
    return B.where(B.as_column(B.logical_not(mask) if drop else mask, dense), dense, B.zeros_like(dense))
