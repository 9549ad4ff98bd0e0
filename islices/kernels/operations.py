"""The host's operations by compiled kernels: arrays looked at, results allocated, work shared among threads.

The one module of this folder that the core calls (`islices.kernels.active`). Values are (n, *row_shape), 16-bit floats
as NumPy's float16 or as uint16, which means bfloat16; whatever is not contiguous, aligned and of this machine's byte
order is copied first. May import: `numpy`, this folder, `islices.dtypes`, `islices.memory`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np

from islices.dtypes import dtype_name
from islices.kernels import squares
from islices.kernels.folding import fold_kernel
from islices.kernels.grouping import bounds_kernel, group_slots
from islices.kernels.scaling import scale_kernel
from islices.kernels.threads import get_num_threads, rouse, run_parts
from islices.kernels.updating import Recipe, scatter_kernel, step_kernel
from islices.memory import empty, zeros

__all__ = [
    "Groups",
    "Recipe",
    "bounds",
    "fold",
    "group",
    "is_packed",
    "is_plain",
    "norm",
    "scale",
    "scatter",
    "step",
    "sum_rows",
    "to_dense",
]

Host = np.ndarray[Any, Any]
#: (order, ids, starts) of `group`
Groups = tuple[Host, Host, Host]

#: Elements that are worth a second thread.
SHARED = 1 << 16
#: Slots whose grouping, by one thread, takes longer than another one takes to wake up.
ROUSED = 1 << 15
#: Parts for each thread, so that one that is held up does not hold up the others.
PARTS = 4


# ---------------------------------------------------------------------- looking at arrays
def _ready(x: Host) -> Host:
    flags = x.flags
    if flags.c_contiguous and flags.aligned and x.dtype.isnative:
        return x
    return np.array(x, x.dtype.newbyteorder("="), order="C")


@cache
def _native(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return dtype.newbyteorder("=")


def _rows(values: Host) -> tuple[Host, str]:
    """(values as a matrix of what kernels take, their dtype)"""
    values = _ready(values)
    name = dtype_name(values.dtype)
    if name == "float16":
        values = values.view(np.uint16)
    if values.ndim != 2:
        values = values.reshape(len(values), math.prod(values.shape[1:]))
    return values, name


def is_plain(table: Host) -> bool:
    """Whether kernels can write into an array."""
    flags = table.flags
    return bool(flags.c_contiguous and flags.aligned and flags.writeable and table.dtype.isnative)


def bounds(indices: Host) -> tuple[int, int]:
    """The least and the greatest of at least one int32 or int64."""
    indices = _ready(indices)
    return bounds_kernel(indices.dtype)(indices)  # type: ignore[no-any-return]


def is_packed(indices: Host, rows: int | None) -> bool:
    """Whether `group` takes indices that have been found within [0, rows)."""
    return rows is not None and rows.bit_length() + len(indices).bit_length() <= 64


# ---------------------------------------------------------------------- sharing work
def _shared(
    work: Callable[[int, int], None], starts: Host, width: int, *, multiple: int = 1, sparse: bool = False
) -> None:
    """work(first, last) over all rows, in parts of about as many slots each (sparse: where rows may have none, of slots
    and rows); first is a multiple of multiple."""
    count = len(starts) - 1
    threads = get_num_threads()
    ends = starts.view(np.int64)
    work_of = int(ends[-1] - ends[0]) + (count if sparse else 0)
    if threads == 1 or work_of * width < SHARED or count <= multiple:
        work(0, count)
        return
    number = min(threads * PARTS, work_of * width // (SHARED // 4))
    upto = ends - ends[0] + np.arange(count + 1) if sparse else ends
    cuts = np.searchsorted(upto, np.arange(1, number) * (work_of // number))
    cuts = np.unique(cuts // multiple * multiple)
    bounds = [0, *(c for c in cuts.tolist() if 0 < c < count), count]
    run_parts(work, list(pairwise(bounds)))


def _shared_flat(work: Callable[[int, int], None], size: int) -> None:
    """work(first, last) over a flat array of that size, in parts."""
    threads = get_num_threads()
    if threads == 1 or size < SHARED:
        work(0, size)
        return
    number = min(threads * PARTS, size // (SHARED // 4))
    step = -(-size // number)
    step += -step % squares.BLOCK
    run_parts(work, [(first, min(first + step, size)) for first in range(0, size, step)])


# ---------------------------------------------------------------------- grouping and summing
def group(indices: Host) -> Groups | None:
    """(order, ids, starts): positions sorted by index and stably, the distinct indices ascending, and where each one's
    run starts in order, with the end appended; order and starts unsigned. None for indices beyond what is packed."""
    if len(indices) >= ROUSED:
        rouse()
    return group_slots(_ready(indices))


def fold(values: Host, order: Host, starts: Host) -> Host:
    """The sums of the runs of a grouping, left to right; 16-bit values in float32, rounded once."""
    rows, name = _rows(values)
    width = rows.shape[1]
    out = empty((len(starts) - 1, *values.shape[1:]), _native(values.dtype))
    into = _rows(out)[0]
    kernel = fold_kernel(name, "")

    def work(first: int, last: int) -> None:
        kernel(rows, order, starts, into, first, last)

    _shared(work, starts, width)
    return out


def sum_rows(values: Host, indices: Host) -> tuple[Host, Host] | None:
    """(sums, ids) of slices, ids ascending, in aligned memory of their own."""
    groups = group(indices)
    if groups is None:
        return None
    order, found, starts = groups
    sums = fold(values, order, starts)
    ids = empty(found.shape, found.dtype)
    ids[...] = found
    return sums, ids


def to_dense(values: Host, indices: Host, shape: tuple[int, ...]) -> Host | None:
    """Zeros of a shape with the slices' sums in their rows. IndexError for an index beyond."""
    groups = group(indices)
    if groups is None:
        return None
    order, ids, starts = groups
    if len(ids) and ids[-1] >= shape[0]:
        raise IndexError(f"index {ids[-1]} is out of bounds for axis 0 with size {shape[0]}")
    rows, name = _rows(values)
    width = rows.shape[1]
    out = zeros(shape, _native(values.dtype))
    into = _rows(out)[0]
    kernel = fold_kernel(name, dtype_name(ids.dtype))

    def work(first: int, last: int) -> None:
        kernel(rows, order, starts, ids, into, first, last)

    _shared(work, starts, width)
    return out


# ---------------------------------------------------------------------- norms
def norm(leaves: Sequence[tuple[Host, Host | None]], ord: int) -> float | None:
    """The norm of leaves together, ord 1 or 2, in float64: of (values, indices), whose duplicates are summed first, or
    of (values, None). None for indices beyond what is packed."""
    bins: list[Host] = []
    for values, indices in leaves:
        rows, name = _rows(values if values.ndim else values.reshape(1))
        if rows.size == 0:
            continue
        if indices is None:
            bins += _dense_bins(rows, name, ord)
            continue
        groups = group(indices)
        if groups is None:
            return None
        bins += _row_bins(rows, name, groups, ord)
    return squares.total(bins, ord)


def _dense_bins(rows: Host, name: str, ord: int) -> list[Host]:
    flat, kernel = rows.reshape(1, rows.size), squares.dense_kernel(name, ord)
    bins: list[Host] = []

    def work(first: int, last: int) -> None:
        part = squares.empty_bins(name)
        kernel(flat, first, last, part)
        bins.append(part)

    _shared_flat(work, rows.size)
    return bins


def _row_bins(rows: Host, name: str, groups: Groups, ord: int) -> list[Host]:
    order, _, starts = groups
    kernel = squares.rows_kernel(name, ord)
    bins: list[Host] = []

    def work(first: int, last: int) -> None:
        part = squares.empty_bins(name)
        kernel(rows, order, starts, first, last, part)
        bins.append(part)

    _shared(work, starts, rows.shape[1], multiple=max(1, squares.BLOCK // max(1, rows.shape[1])))
    return bins


# ---------------------------------------------------------------------- values times numbers
def scale(values: Host, steps: Sequence[tuple[str, Any]]) -> Host:
    """values times ("mul") or over ("div") one or two numbers, one after the other, in new memory."""
    flat, name = _rows(values.reshape(-1, 1) if values.ndim != 2 else values)
    flat = flat.reshape(-1)
    out = empty(values.shape, _native(values.dtype))
    into = _rows(out.reshape(-1, 1))[0].reshape(-1)
    kernel = scale_kernel(name, tuple(step for step, _ in steps))
    c, d = steps[0][1], steps[-1][1]

    def work(first: int, last: int) -> None:
        kernel(flat, c, d, into, first, last)

    _shared_flat(work, flat.size)
    return out


# ---------------------------------------------------------------------- rows of a table
def scatter(table: Host, values: Host, groups: Groups, op: str) -> None:
    """The table's rows changed in place by slices, one after the other; ids are in range, the table `is_plain`."""
    order, ids, starts = groups
    rows, name = _rows(values)
    into = _rows(table)[0]
    kernel = scatter_kernel(name, dtype_name(ids.dtype), op)

    def work(first: int, last: int) -> None:
        kernel(rows, order, starts, ids, into, first, last)

    _shared(work, starts, rows.shape[1])


def step(recipe: Recipe, values: Host, groups: Groups, table: Host, state: Sequence[Host], numbers: Host) -> None:
    """A step of an optimizer, in place, on the rows that ids name; ids are in range, table and state `is_plain`."""
    order, ids, starts = groups
    rows, gradient = _rows(values)
    into, name = _rows(table)
    width = rows.shape[1]
    states = tuple(x.reshape(len(x), 1 if recipe.per_row else width) for x in state)
    kernel = step_kernel(recipe, name, gradient, dtype_name(ids.dtype))

    def work(first: int, last: int) -> None:
        kernel(rows, order, starts, ids, into, states, numbers, first, last)

    _shared(work, starts, width, sparse=int(starts[-1] - starts[0]) < len(ids))
