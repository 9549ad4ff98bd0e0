"""The host's operations by compiled kernels: arrays looked at, results allocated, work shared among threads.

The one module of this folder that the core calls (`islices.kernels.active`). Values are (n, *row_shape), 16-bit floats
as NumPy's float16 or as uint16, which means bfloat16; whatever is not contiguous, aligned and of this machine's byte
order is copied first. May import: `numpy`, this folder, `islices.dtypes`, `islices.memory`,
`islices.optim.formulas`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from islices.dtypes import dtype_name
from islices.kernels import squares
from islices.kernels.compiling import Kernel
from islices.kernels.folding import fold_kernel
from islices.kernels.grouping import bounds_kernel, group_kernel
from islices.kernels.scaling import scale_kernel
from islices.kernels.threads import get_num_threads, rouse, run_parts
from islices.kernels.totals import total
from islices.kernels.updating import rest_kernel, scatter_kernel, step_kernel
from islices.memory import empty, zeros
from islices.optim.formulas import Formula

__all__ = [
    "KERNELS",
    "Groups",
    "bounds",
    "dense_rows",
    "fold",
    "group",
    "is_packed",
    "norm",
    "placed",
    "read_bags",
    "rest_step",
    "scaled",
    "scatter",
    "step",
    "sum_rows",
]

Host = np.ndarray[Any, Any]
#: (order, ids, starts) of `group`
Groups = tuple[Host, Host, Host]

#: Elements that are worth a second thread.
SHARED = 1 << 16
#: Slots whose grouping, by one thread, takes longer than another one takes to wake up.
ROUSED = 1 << 15
#: Row numbers of rows that go where they are counted.
_NOWHERE = np.empty(0, np.uint64)
#: Parts for each thread, so that one that is held up does not hold up the others.
PARTS = 4


# ---------------------------------------------------------------------- looking at arrays
def _ready(x: Host) -> Host:
    flags = x.flags
    if flags.c_contiguous and flags.aligned and x.dtype.isnative:
        return x
    return np.array(x, x.dtype.newbyteorder("="), order="C")


def _rows(values: Host) -> tuple[Host, str]:
    """(values as a matrix of what kernels take, their dtype)"""
    flags = values.flags
    if not (flags.c_contiguous and flags.aligned and values.dtype.isnative):
        values = _ready(values)
    name = dtype_name(values.dtype)
    if name == "float16":
        values = values.view(np.uint16)
    if values.ndim != 2:
        shape = values.shape or (1,)
        values = values.reshape(shape[0], math.prod(shape[1:]))
    return values, name


def _as_values(rows: Host, like: Host) -> Host:
    """A result of kernels in the dtype and row shape of values."""
    if rows.dtype != like.dtype:
        rows = rows.view(like.dtype.newbyteorder("="))
    return rows if like.ndim == 2 else rows.reshape(len(rows), *like.shape[1:])


def _places(ids: Host) -> Host:
    """Row numbers, none of them negative, as kernels take them: one type, so that one kernel does for both of ids."""
    return ids.view(np.uint64) if ids.itemsize == 8 else ids.astype(np.uint64)


def bounds(indices: Host) -> tuple[int, int]:
    """The least and the greatest of at least one int32 or int64."""
    flags = indices.flags
    if not (flags.c_contiguous and flags.aligned and indices.dtype.isnative):
        indices = _ready(indices)
    return bounds_kernel(indices.dtype)(indices)  # type: ignore[no-any-return]


def is_packed(indices: Host, rows: int | None) -> bool:
    """Whether `group` takes indices that have been found within [0, rows)."""
    return rows is not None and rows.bit_length() + len(indices).bit_length() <= 64


# ---------------------------------------------------------------------- sharing work
def _shared(
    work: Callable[..., None],
    given: tuple[Any, ...],
    starts: Host,
    width: int,
    *,
    multiple: int = 1,
    sparse: bool = False,
) -> None:
    """work(*given, first, last) over all rows, in parts of about as many slots each (sparse: where rows may have none,
    of slots and rows); first is a multiple of multiple."""
    count = len(starts) - 1
    ends = starts.view(np.int64)
    work_of = int(ends[-1] - ends[0]) + (count if sparse else 0)
    threads = 1 if work_of * width < SHARED or count <= multiple else get_num_threads()
    if threads == 1:
        work(*given, 0, count)
        return
    number = min(threads * PARTS, work_of * width // (SHARED // 4))
    upto = ends - ends[0] + np.arange(count + 1) if sparse else ends
    cuts = np.searchsorted(upto, np.arange(1, number) * (work_of // number))
    cuts = np.unique(cuts // multiple * multiple)
    bounds = [0, *(c for c in cuts.tolist() if 0 < c < count), count]
    run_parts(partial(work, *given), list(pairwise(bounds)))


def _shared_evenly(
    work: Callable[..., None], given: tuple[Any, ...], count: int, *, width: int = 1, multiple: int = 1
) -> None:
    """work(*given, first, last) over rows of so many elements, in parts of as many rows; first is a multiple of
    multiple."""
    threads = 1 if count * width < SHARED else get_num_threads()
    if threads == 1:
        work(*given, 0, count)
        return
    step = -(-count // min(threads * PARTS, count * width // (SHARED // 4)))
    step += -step % multiple
    run_parts(partial(work, *given), [(first, min(first + step, count)) for first in range(0, count, step)])


# ---------------------------------------------------------------------- grouping and summing
def group(indices: Host) -> Groups | None:
    """(order, ids, starts): positions sorted by index and stably, the distinct indices ascending, and where each one's
    run starts in order, with the end appended; order and starts unsigned. None for indices beyond what is packed."""
    if len(indices) >= ROUSED:
        rouse()
    flags = indices.flags
    if not (flags.c_contiguous and flags.aligned and indices.dtype.isnative):
        indices = _ready(indices)
    n = len(indices)
    order, starts, ids = np.empty(n, np.uint64), np.empty(n + 1, np.uint64), np.empty(n, indices.dtype)
    count = group_kernel(indices.dtype)(indices, order, starts, ids)
    return None if count < 0 else (order, ids[:count], starts[: count + 1])


def placed(groups: Groups, positions: Host) -> Groups:
    """The groups of slots whose values lie at positions, none of them negative."""
    order, ids, starts = groups
    return _places(positions[order]), ids, starts


def fold(values: Host, order: Host, starts: Host) -> Host:
    """The sums of the runs of a grouping, left to right; 16-bit values in float32, rounded once."""
    rows, name = _rows(values)
    width = rows.shape[1]
    into = empty((len(starts) - 1, width), rows.dtype)
    _shared(fold_kernel(name), (rows, order, starts, _NOWHERE, into), starts, width)
    return into if into.dtype == values.dtype and values.ndim == 2 else _as_values(into, values)


def read_bags(table: Host, ids: Host, segments: Host, bags: int) -> Host:
    """The sums of the table's rows ids by segment, ascending, left to right; zeros where a bag has none. ids and
    segments are in range."""
    rows, name = _rows(table)
    into = zeros((bags, rows.shape[1]), rows.dtype)
    counts = np.bincount(segments, minlength=bags)
    named = np.flatnonzero(counts)
    starts = np.zeros(len(named) + 1, np.uint64)
    np.cumsum(counts[named], out=starts[1:])
    order = _places(ids)
    _shared(fold_kernel(name), (rows, _ready(order), starts, _places(named), into), starts, rows.shape[1])
    return _as_values(into, table)


def sum_rows(values: Host, indices: Host, rows: int | None, *, loose: bool) -> tuple[Host, Host] | None:
    """(sums, ids) of slices, ids ascending, in aligned memory of their own; None where indices may be out of range."""
    groups = None if loose else group(indices)
    if groups is None:
        return None
    order, found, starts = groups
    ids = empty(found.shape, found.dtype)
    ids[...] = found
    return fold(values, order, starts), ids


def dense_rows(values: Host, indices: Host, shape: tuple[int, ...], *, loose: bool) -> Host | None:
    """Zeros of a shape with the slices' sums in their rows. IndexError for an index beyond."""
    groups = None if loose else group(indices)
    if groups is None:
        return None
    order, ids, starts = groups
    if len(ids) and ids[-1] >= shape[0]:
        raise IndexError(f"index {ids[-1]} is out of bounds for axis 0 with size {shape[0]}")
    rows, name = _rows(values)
    width = rows.shape[1]
    into = zeros((shape[0], width), rows.dtype)
    _shared(fold_kernel(name), (rows, order, starts, _places(ids), into), starts, width)
    return _as_values(into, values)


# ---------------------------------------------------------------------- norms
def norm(leaves: Sequence[tuple[Host, Host | None, Host | None]], ord: int) -> float:
    """The norm of leaves together, ord 1 or 2, in float64: of (values, order, starts), whose runs are summed first, or
    of (values, None, None)."""
    bins: list[Host] = []
    for values, order, starts in leaves:
        rows, name = _rows(values)
        if rows.size == 0:
            continue
        if order is None or starts is None:
            flat = rows.reshape(1, rows.size)
            dense = (squares.dense_kernel(name, ord), (flat,), name, bins)
            _shared_evenly(_into_bins, dense, rows.size, multiple=squares.BLOCK)
            continue
        given = (squares.rows_kernel(name, ord), (rows, order, starts), name, bins)
        width = rows.shape[1]
        _shared(_into_bins, given, starts, width, multiple=max(1, squares.BLOCK // max(1, width)))
    return total(bins, ord)


def _into_bins(kernel: Kernel, given: tuple[Host, ...], dtype: str, bins: list[Host], first: int, last: int) -> None:
    """A part's squares, in bins of its own."""
    part = np.zeros((squares.BINS["float64" if dtype == "float64" else "float32"], 4), np.int64)
    kernel(*given, first, last, part)
    bins.append(part)


# ---------------------------------------------------------------------- values times numbers
def scaled(values: Host, steps: Sequence[tuple[str, Any]]) -> Host | None:
    """values times ("mul") or over ("div") one or two numbers, one after the other, in new memory."""
    if (
        not 0 < len(steps) <= 2
        or not isinstance(steps[0][1], (int, float))
        or not isinstance(steps[-1][1], (int, float))
    ):
        return None
    rows, name = _rows(values)
    flat, size = rows.reshape(-1), rows.size
    into = empty((size,), rows.dtype)
    (first, c), (last, d) = steps[0], steps[-1]
    work = scale_kernel(name, (first, last) if len(steps) == 2 else (first,))
    _shared_evenly(work, (flat, c, d, into), size, multiple=squares.BLOCK)
    if into.dtype != values.dtype:
        into = into.view(values.dtype.newbyteorder("="))
    return into.reshape(values.shape)


# ---------------------------------------------------------------------- rows of a table
def scatter(table: Host, values: Host, groups: Groups, op: str) -> None:
    """The table's rows changed in place by slices, one after the other; ids are in range, the table is writable,
    contiguous, aligned and of this machine's byte order."""
    order, ids, starts = groups
    rows, name = _rows(values)
    into, _ = _rows(table)
    _shared(scatter_kernel(name, op), (rows, order, starts, _places(ids), into), starts, rows.shape[1])


def step(
    formula: Formula,
    values: Host,
    groups: Groups,
    table: Host,
    state: Sequence[Host],
    numbers: Host,
    factor: float | None = None,
) -> None:
    """A step of an optimizer, in place, on the rows that ids name, of values times the factor; ids are in range, table
    and state as `scatter` has a table."""
    order, ids, starts = groups
    rows, gradient = _rows(values)
    into, name = _rows(table)
    width, states = into.shape[1], []
    for x, spec in zip(state, formula.state, strict=True):
        states.append(x.reshape(len(x), 1 if spec.per_row else width))
    kernel = step_kernel(formula, name, gradient, scaled=factor is not None)
    numbers = numbers if factor is None else np.append(numbers, numbers.dtype.type(factor))
    given = (rows, order, starts, _places(ids), into, tuple(states), numbers)
    _shared(kernel, given, starts, width, sparse=int(starts[-1] - starts[0]) < len(ids))


def rest_step(
    formula: Formula, values: Host | None, skip: Host, table: Host, state: Sequence[Host], numbers: Host
) -> None:
    """A step of an optimizer, in place, on all rows but those of skip (row numbers, ascending): the gradient is values,
    as large as the table, or 0. The state is as large as the table, squares are those of elements; table and state as
    `scatter` has a table."""
    into, name = _rows(table)
    rows, width = into.shape
    given, gradient = (into[:0], "") if values is None else _rows(values)
    flat = tuple(x.reshape(1, -1) for x in state)
    arrays = (given.reshape(1, -1), _places(skip), into.reshape(1, -1), flat, numbers)
    _shared_evenly(rest_kernel(formula, name, gradient), (*arrays, width), rows, width=width)


#: The methods of `islices.backend.Backend` that kernels carry out, by name: on views of host memory, with the method's
#: own arguments. None instead of a result where a kernel does not take them, and NumPy does.
KERNELS: dict[str, Callable[..., Any]] = {"dense_rows": dense_rows, "scaled": scaled, "sum_rows": sum_rows}
