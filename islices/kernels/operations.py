"""The host's operations by compiled kernels. They check arrays, allocate results and divide the work among threads.

The core calls only this module of the folder (`islices.kernels.active`). Values are (n, *row_shape); 16-bit floats are
NumPy's float16, or uint16, which means bfloat16. Arrays that are not contiguous, aligned and of this machine's byte
order are copied first. May import: `numpy`, this folder, `islices.core.dtypes`, `islices.core.host_memory`,
`islices.optim.formulas`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from islices.core.dtypes import dtype_name
from islices.core.host_memory import ALIGNMENT, empty, zeros
from islices.kernels import squares
from islices.kernels.compiling import Kernel
from islices.kernels.folding import fold_kernel, sum_kernel
from islices.kernels.grouping import bounds_kernel, group_kernel, placed_kernel, runs_kernel
from islices.kernels.multiplying import scale_kernel
from islices.kernels.repeating import FEWEST, keep_groups, kept_groups
from islices.kernels.threads import get_num_threads, rouse, run_parts
from islices.kernels.totals import limbs_of, rounded  # noqa: F401 - the core finds it here
from islices.kernels.updating import rest_kernel, scatter_kernel, step_kernel
from islices.optim.formulas import Formula

Host = np.ndarray[Any, Any]
#: (order, ids, starts) of `group`
Groups = tuple[Host, Host, Host]

#: the number of elements from which a second thread pays, which needs a tenth of a millisecond to wake
SHARED = 1 << 21
#: the number of elements below which one call that groups, sums and checks is the fastest
FEW = 1 << 18
#: the number of slots from which grouping in one thread needs longer than another thread needs to wake
ROUSED = 1 << 15
#: the row numbers for kernels that write row r to place r
_NOWHERE = np.empty(0, np.uint64)
_NO_INDICES = np.empty(0, np.int64)
#: a limit that no index reaches
_ANY = 2**63 - 1
#: the number of parts per thread, so that a delayed thread does not delay the others
PARTS = 4


# ---------------------------------------------------------------------- looking at arrays
def _ready(x: Host) -> Host:
    flags = x.flags
    if flags.c_contiguous and flags.aligned and x.dtype.isnative:
        return x
    return np.array(x, x.dtype.newbyteorder("="), order="C")


def _rows(values: Host) -> tuple[Host, str]:
    """Return (values as a matrix for kernels, their dtype)."""
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
    """Return a result of kernels in the dtype and row shape of values."""
    if rows.dtype != like.dtype:
        rows = rows.view(like.dtype.newbyteorder("="))
    return rows if like.ndim == 2 else rows.reshape(len(rows), *like.shape[1:])


def _places(ids: Host) -> Host:
    """Return row numbers, none of them negative, in the type that kernels use for int32 and int64 ids."""
    return ids.view(np.uint64) if ids.itemsize == 8 else ids.astype(np.uint64)


def bounds(indices: Host) -> tuple[int, int, bool]:
    """Return the smallest and the largest of int32 or int64 numbers, and whether they strictly ascend."""
    flags = indices.flags
    if not (flags.c_contiguous and flags.aligned and indices.dtype.isnative):
        indices = _ready(indices)
    return bounds_kernel(indices.dtype)(indices)  # type: ignore[no-any-return]


def is_packed(indices: Host, rows: int | None) -> bool:
    """Return True if `group` supports indices within [0, rows)."""
    return rows is not None and rows.bit_length() + len(indices).bit_length() <= 64


# ---------------------------------------------------------------------- sharing work
class Task(NamedTuple):
    """A call work(*given, first, last) over a number of rows, which may be split into any parts."""

    work: Callable[..., None]
    given: tuple[Any, ...]
    rows: int
    #: in elements
    size: int
    #: the first row of a part is a multiple of this
    multiple: int = 1
    #: the start of each row's slots, if rows differ in their number of slots
    starts: Host | None = None
    #: True if rows may have no slots
    sparse: bool = False


def run_tasks(tasks: Sequence[Task]) -> None:
    """Run the tasks, in parts of about equal work, in the set number of threads."""
    size = 0
    for task in tasks:
        size += task.size
    threads = 1 if size < SHARED else get_num_threads()
    if threads == 1:
        for task in tasks:
            task.work(*task.given, 0, task.rows)
        return
    share = max(SHARED // 4, size // (threads * PARTS))
    parts = []
    for task in tasks:
        for first, last in pairwise(_cuts(task, share)):
            parts.append((task, first, last))
    run_parts(lambda task, first, last: task.work(*task.given, first, last), parts)


def _cuts(task: Task, share: int) -> list[int]:
    """Return the starts of parts of about share elements, and the end."""
    count, number = task.rows, task.size // share
    if number <= 1 or count <= task.multiple:
        return [0, count]
    if task.starts is None:
        step = -(-count // number)
        return [*range(0, count, step + -step % task.multiple), count]
    ends = task.starts.view(np.int64)
    upto = ends - ends[0] + np.arange(count + 1) if task.sparse else ends
    cuts = np.searchsorted(upto, np.arange(1, number) * (int(upto[-1] - upto[0]) // number) + upto[0])
    cuts = np.unique(cuts // task.multiple * task.multiple)
    return [0, *(c for c in cuts.tolist() if 0 < c < count), count]


def _of_rows(work: Kernel, given: tuple[Any, ...], starts: Host, width: int, *, multiple: int = 1) -> Task:
    """Return a task over rows of width elements whose slots begin at starts."""
    count, slots = len(starts) - 1, int(starts[-1] - starts[0])
    sparse = slots < count
    return Task(work, given, count, (slots + count if sparse else slots) * width, multiple, starts, sparse)


# ---------------------------------------------------------------------- grouping and summing
def group(indices: Host) -> Groups | None:
    """Return (order, ids, starts): positions sorted stably by index, the ascending distinct indices, and their runs.

    starts are the starts of each distinct index's run in order, with the end appended; order and starts are unsigned.
    Return None for indices that are too large to pack.
    """
    n = len(indices)
    if n >= FEWEST and (known := kept_groups(indices)) is not None:
        return known
    if n >= ROUSED:
        rouse()
    flags = indices.flags
    if not (flags.c_contiguous and flags.aligned and indices.dtype.isnative):
        indices = _ready(indices)
    order, starts, ids = np.empty(n, np.uint64), np.empty(n + 1, np.uint64), np.empty(n, indices.dtype)
    count = group_kernel(indices.dtype)(indices, order, starts, ids)
    return None if count < 0 else (order, ids[:count], starts[: count + 1])


def group_all(indices: Sequence[Host]) -> Iterator[Groups | None]:
    """Return the groups of several arrays of indices, computed at the same time."""
    if len(indices) < 2 or sum(map(len, indices)) < ROUSED:
        return map(group, indices)
    found: list[Groups | None] = [None] * len(indices)

    def one(k: int) -> None:
        found[k] = group(indices[k])

    run_parts(one, [(k,) for k in sorted(range(len(indices)), key=lambda k: -len(indices[k]))])
    return iter(found)


def group_kept(indices: Sequence[Host]) -> list[Groups | None]:
    """Return the groups of several arrays of indices, and keep them for the next call, because a step follows a
    norm."""
    if len(indices) == 1 and len(indices[0]) < FEWEST:
        return [group(indices[0])]
    found = list(group_all(indices))
    keep_groups(list(zip(indices, found, strict=True)))
    return found


def placed(groups: Groups, positions: Host) -> Groups:
    """Return the groups of slots whose values lie at positions, none of them negative."""
    (order, ids, starts), positions = groups, _ready(positions)
    places = np.empty(len(order), np.uint64)
    placed_kernel(positions.dtype)(positions, order, places)
    return places, ids, starts


def fold(values: Host, order: Host, starts: Host) -> Host:
    """Return the sums of a grouping's runs, left to right. Sums of 16-bit values are formed in float32 and rounded
    once."""
    rows, name = _rows(values)
    width = rows.shape[1]
    into = empty((len(starts) - 1, width), rows.dtype)
    run_tasks([_of_rows(fold_kernel(name), (rows, order, starts, _NOWHERE, into), starts, width)])
    return into if into.dtype == values.dtype and values.ndim == 2 else _as_values(into, values)


def read_bags(table: Host, ids: Host, segments: Host, bags: int) -> Host:
    """Return the sums of the table's rows at ids by ascending segment, left to right. A bag without ids gives zeros.

    ids and segments are in range.
    """
    rows, name = _rows(table)
    starts, named = np.empty(len(segments) + 1, np.uint64), np.empty(bags, np.uint64)
    count = runs_kernel(segments.dtype)(_ready(segments), starts, named)
    # if no bag is empty, all rows are written and need no zeros
    into = (empty if count == bags else zeros)((bags, rows.shape[1]), rows.dtype)
    starts = starts[: count + 1]
    given = (rows, _ready(_places(ids)), starts, named[:count], into)
    run_tasks([_of_rows(fold_kernel(name), given, starts, rows.shape[1])])
    return _as_values(into, table)


def sum_rows(values: Host, indices: Host, rows: int | None, *, loose: bool) -> tuple[Host, Host] | None:
    """Return (sums, ids) of slices in new aligned memory, with ascending ids. Return None if indices may be out of
    range."""
    if loose:
        return None
    if values.size < FEW and len(indices) < ROUSED:
        return sum_few(values, indices, rows)
    groups = group(indices)
    if groups is None:
        return None
    order, found, starts = groups
    ids = empty(found.shape, found.dtype)
    ids[...] = found
    return fold(values, order, starts), ids


def sum_few(values: Host, indices: Host, rows: int | None) -> tuple[Host, Host] | None:
    """Return (sums, ids) of slices by one thread and one call, which checks the indices too.

    Return None if indices are out of range, or if there are many slices.
    """
    matrix, name = _rows(values)
    n, width = matrix.shape
    if matrix.size >= FEW or n >= ROUSED:
        return None
    indices = _ready(indices)
    dtype = indices.dtype
    sums = np.empty(matrix.size + ALIGNMENT // matrix.itemsize, matrix.dtype)
    ids = np.empty(n + ALIGNMENT // dtype.itemsize, dtype)
    limit = _ANY if rows is None else rows
    count, at, first = sum_kernel(name, dtype)(matrix, indices, limit, sums, ids)
    if count < 0:
        return None
    found = sums[at : at + count * width].reshape(count, width)
    if values.ndim != 2 or found.dtype != values.dtype:
        found = _as_values(found, values)
    return found, ids[first : first + count]


def dense_rows(values: Host, indices: Host, shape: tuple[int, ...], *, loose: bool) -> Host | None:
    """Return zeros of a shape with the slices' sums in their rows. Raise IndexError for an index beyond the shape."""
    groups = None if loose else group(indices)
    if groups is None:
        return None
    order, ids, starts = groups
    if len(ids) and ids[-1] >= shape[0]:
        raise IndexError(f"index {ids[-1]} is out of bounds for axis 0 with size {shape[0]}")
    rows, name = _rows(values)
    width = rows.shape[1]
    into = zeros((shape[0], width), rows.dtype)
    run_tasks([_of_rows(fold_kernel(name), (rows, order, starts, _places(ids), into), starts, width)])
    return _as_values(into, values)


# ---------------------------------------------------------------------- norms
def norm_of_few(values: Host, indices: Host | None, ord: int) -> float | None:
    """Return the norm of one leaf by one thread and one call. Duplicates are summed if there are indices.

    Return None for many values, for indices that are not grouped, or if the norm is undecided.
    """
    if values.size >= FEW or values.size == 0:
        return None
    rows, name = _rows(values)
    indices = _NO_INDICES if indices is None else _ready(indices)
    if len(indices) >= ROUSED:
        return None
    found: float = squares.norm_kernel(name, indices.dtype, ord)(rows, indices)
    return None if found == -1.0 else found


def limbs(leaves: Sequence[tuple[Host, Host | None, Host | None]], ord: int) -> Host:
    """Return the exact sum of the terms of a norm of order 1 or 2 over leaves, in the form of `islices.kernels.totals`.

    The runs of a leaf (values, order, starts) are summed first. A leaf may also be (values, None, None).
    """
    narrow: list[Host] = []
    wide: list[Host] = []
    tasks = []
    for values, order, starts in leaves:
        rows, name = _rows(values)
        if rows.size == 0:
            continue
        bins = wide if name == "float64" else narrow
        if order is None or starts is None:
            flat = (squares.dense_kernel(name, ord, exact=False), (rows.reshape(1, rows.size),), name, bins)
            tasks.append(Task(_into_bins, flat, rows.size, rows.size, squares.BLOCK))
            continue
        given = (squares.rows_kernel(name, ord, exact=False), (rows, order, starts), name, bins)
        width = rows.shape[1]
        tasks.append(_of_rows(_into_bins, given, starts, width, multiple=max(1, squares.BLOCK // max(1, width))))
    run_tasks(tasks)
    return limbs_of(narrow, ord) + limbs_of(wide, ord) if wide else limbs_of(narrow, ord)


def _into_bins(kernel: Kernel, given: tuple[Host, ...], dtype: str, free: list[Host], first: int, last: int) -> None:
    """Add a part's squares to bins that no other thread uses now."""
    try:
        bins = free.pop()
    except IndexError:
        bins = np.zeros((squares.BINS[dtype], 4), np.int64)
    kernel(*given, first, last, bins)
    free.append(bins)


# ---------------------------------------------------------------------- values times numbers
def scaled(values: Host, steps: Sequence[tuple[str, Any]]) -> Host:
    """Return values multiplied ("mul") or divided ("div") by one or two numbers in order, in new memory."""
    rows, name = _rows(values)
    into, size = empty(values.shape, rows.dtype), rows.size
    (first, c), (last, d) = steps[0], steps[-1]
    work = scale_kernel(name, (first, last) if len(steps) == 2 else (first,))
    given = (rows.reshape(-1), c, d, into.reshape(-1))
    if size < SHARED:
        work(*given, 0, size)
    else:
        run_tasks([Task(work, given, size, size, squares.BLOCK)])
    return into if into.dtype == values.dtype else into.view(values.dtype.newbyteorder("="))


# ---------------------------------------------------------------------- rows of a table
def scatter(table: Host, values: Host, groups: Groups, op: str) -> None:
    """Change the table's rows in place by slices, one after the other.

    ids are in range; the table is writable, contiguous, aligned and of this machine's byte order.
    """
    order, ids, starts = groups
    rows, name = _rows(values)
    into, _ = _rows(table)
    run_tasks([_of_rows(scatter_kernel(name, op), (rows, order, starts, _places(ids), into), starts, rows.shape[1])])


def step(
    formula: Formula,
    values: Host,
    groups: Groups,
    table: Host,
    state: Sequence[Host],
    numbers: Host,
    factor: float | None = None,
) -> Task:
    """Return the task of an optimizer's step, in place, on the table's rows at ids. values are multiplied by the
    factor.

    ids are in range; table and state fulfil the conditions for `scatter`'s table.
    """
    order, ids, starts = groups
    rows, gradient = _rows(values)
    into, name = _rows(table)
    width, states = into.shape[1], []
    for x, spec in zip(state, formula.state, strict=True):
        states.append(x.reshape(len(x), 1 if spec.per_row else width))
    kernel = step_kernel(formula, name, gradient, scaled=factor is not None)
    numbers = numbers if factor is None else np.append(numbers, numbers.dtype.type(factor))
    return _of_rows(kernel, (rows, order, starts, _places(ids), into, tuple(states), numbers), starts, width)


def rest_step(
    formula: Formula, values: Host | None, skip: Host, table: Host, state: Sequence[Host], numbers: Host
) -> Task:
    """Return the task of an optimizer's step, in place, on all rows except the ascending row numbers in skip.

    The gradient is values, of the table's size, or 0. The state has the table's size, and squares are elementwise.
    table and state fulfil the conditions for `scatter`'s table.
    """
    into, name = _rows(table)
    rows, width = into.shape
    given, gradient = (into[:0], "") if values is None else _rows(values)
    flat = tuple(x.reshape(1, -1) for x in state)
    arrays = (given.reshape(1, -1), _places(skip), into.reshape(1, -1), flat, numbers)
    return Task(rest_kernel(formula, name, gradient), (*arrays, width), rows, rows * width)


#: The methods of `islices.backend.Backend` that kernels carry out, by name, on views of host memory, with the method's
#: arguments. A kernel returns None for arguments that it does not support; NumPy computes then.
KERNELS: dict[str, Callable[..., Any]] = {"dense_rows": dense_rows, "scaled": scaled, "sum_rows": sum_rows}
