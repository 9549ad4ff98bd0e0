"""Run the host's operations with compiled kernels: prepare arrays, allocate results and divide work among threads.

The core gets this module from `islices.kernels.active` or `islices.kernels.loaded`. Values have the shape (n,
*row_shape). float16 values have the dtype float16, and bfloat16 values have the dtype uint16. An input array that is
not contiguous, not aligned or not in this machine's byte order is copied first. May import: `numpy`, this folder,
`islices.core.dtypes`, `islices.core.host_memory`, `islices.optim.formulas`.
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
from islices.kernels.totals import limbs_of, rounded  # noqa: F401 - the core uses `rounded` from this module
from islices.kernels.updating import rest_kernel, scatter_kernel, step_kernel
from islices.optim.formulas import Formula

Host = np.ndarray[Any, Any]
#: the result of `group`: (order, ids, starts)
Groups = tuple[Host, Host, Host]

#: the number of elements from which a second thread saves time; waking it takes a tenth of a millisecond
SHARED = 1 << 21
#: the number of elements below which one compiled call that groups, sums and checks is fastest
FEW = 1 << 18
#: the number of slots from which grouping in one thread takes longer than waking another thread
ROUSED = 1 << 15
#: no row numbers, for kernels that then write sum r to row r of the result
_NOWHERE = np.empty(0, np.uint64)
_NO_INDICES = np.empty(0, np.int64)
#: the number of rows that stands for no limit
_ANY = 2**63 - 1
#: the number of parts per thread, so that a delayed thread does not delay the others
PARTS = 4


# ---------------------------------------------------------------------- preparing arrays
def _ready(x: Host) -> Host:
    flags = x.flags
    if flags.c_contiguous and flags.aligned and x.dtype.isnative:
        return x
    return np.array(x, x.dtype.newbyteorder("="), order="C")


def _rows(values: Host) -> tuple[Host, str]:
    """Return values as a matrix for kernels, and the name of the values' dtype."""
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
    """Return a kernel's result with the dtype and the row shape of `like`."""
    if rows.dtype != like.dtype:
        rows = rows.view(like.dtype.newbyteorder("="))
    return rows if like.ndim == 2 else rows.reshape(len(rows), *like.shape[1:])


def _places(ids: Host) -> Host:
    """Convert int32 or int64 row numbers, none of which is negative, to uint64, the type that kernels use."""
    return ids.view(np.uint64) if ids.itemsize == 8 else ids.astype(np.uint64)


def bounds(indices: Host) -> tuple[int, int, bool]:
    """Return (smallest, largest, True if strictly ascending) for int32 or int64 indices."""
    indices = _ready(indices)
    return bounds_kernel(indices.dtype)(indices)  # type: ignore[no-any-return]


def is_packed(indices: Host, rows: int | None) -> bool:
    """Return True if `group` can surely group these indices, provided that all lie within [0, rows).

    If `rows` is None, return False.
    """
    return rows is not None and rows.bit_length() + len(indices).bit_length() <= 64


# ---------------------------------------------------------------------- sharing work
class Task(NamedTuple):
    """Work on `rows` rows, which consists of calls ``work(*given, first, last)``, each for a part of the rows."""

    work: Callable[..., None]
    given: tuple[Any, ...]
    rows: int
    #: the number of elements to compute on
    size: int
    #: the first row of every part is a multiple of this number
    multiple: int = 1
    #: the start of each row's slots, if rows differ in their number of slots
    starts: Host | None = None
    #: True if rows may have no slots
    sparse: bool = False


def run_tasks(tasks: Sequence[Task]) -> None:
    """Divide the tasks into parts of about equal work, and run the parts in up to `get_num_threads` threads."""
    size = 0
    for task in tasks:
        size += task.size
    threads = 1 if size < SHARED else get_num_threads()
    if threads == 1:
        for task in tasks:
            task.work(*task.given, 0, task.rows)
        return
    share = max(SHARED // 4, size // (threads * PARTS))
    parts = [(task, first, last) for task in tasks for first, last in pairwise(_cuts(task, share))]
    run_parts(lambda task, first, last: task.work(*task.given, first, last), parts)


def _cuts(task: Task, share: int) -> list[int]:
    """Return the first row of each part of about `share` elements, and the number of all rows as the last item."""
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
    """Return a task over rows of `width` elements; row r has the slots starts[r] to starts[r + 1] - 1."""
    count, slots = len(starts) - 1, int(starts[-1] - starts[0])
    sparse = slots < count
    return Task(work, given, count, (slots + count if sparse else slots) * width, multiple, starts, sparse)


# ---------------------------------------------------------------------- grouping and summing
def group(indices: Host) -> Groups | None:
    """Return (order, ids, starts), or None if an index is negative or too large to pack.

    `order` contains the positions, sorted stably by index. `ids` contains the distinct indices in ascending order.
    `starts` contains the start of each distinct index's run in `order`, and the end of the last run. `order` and
    `starts` are unsigned.
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
    """Return an iterator over the results of `group` for each array of indices. If there are many indices, threads
    divide the arrays among themselves."""
    if len(indices) < 2 or sum(map(len, indices)) < ROUSED:
        return map(group, indices)
    found: list[Groups | None] = [None] * len(indices)

    def one(k: int) -> None:
        found[k] = group(indices[k])

    run_parts(one, [(k,) for k in sorted(range(len(indices)), key=lambda k: -len(indices[k]))])
    return iter(found)


def group_kept(indices: Sequence[Host]) -> list[Groups | None]:
    """Return the groups of each array of indices, and keep the groups of large arrays for the next call of `group`.

    A norm calls this function, because the optimizer's step usually groups the same indices again.
    """
    if len(indices) == 1 and len(indices[0]) < FEWEST:
        return [group(indices[0])]
    found = list(group_all(indices))
    keep_groups(list(zip(indices, found, strict=True)))
    return found


def placed(groups: Groups, positions: Host) -> Groups:
    """Return the groups for slots whose values are at `positions`; no position may be negative."""
    (order, ids, starts), positions = groups, _ready(positions)
    places = np.empty(len(order), np.uint64)
    placed_kernel(positions.dtype)(positions, order, places)
    return places, ids, starts


def fold(values: Host, order: Host, starts: Host) -> Host:
    """Return the sum of each group's rows of values, added left to right.

    Sums of 16-bit values are computed in float32 and rounded once.
    """
    rows, name = _rows(values)
    width = rows.shape[1]
    into = empty((len(starts) - 1, width), rows.dtype)
    run_tasks([_of_rows(fold_kernel(name), (rows, order, starts, _NOWHERE, into), starts, width)])
    return into if into.dtype == values.dtype and values.ndim == 2 else _as_values(into, values)


def read_bags(table: Host, ids: Host, segments: Host, bags: int) -> Host:
    """Return, for each bag, the sum of the table's rows at the bag's ids, added left to right. A bag without ids gets
    zeros.

    `segments` contains the bag of each id, in ascending order. `ids` and `segments` must be in range.
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
    """Return (sums, ids) of slices in new aligned memory, with ascending ids.

    Return None if `loose` is True, because the indices may then be out of range. Also return None if the indices cannot
    be grouped. For few slices, the result is also None if an index is out of range.
    """
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
    """Return (sums, ids) of a few slices, computed by one compiled call that also checks the indices.

    Return None if an index is out of range, if the indices cannot be grouped, or if there are too many slices.
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
    """Return a dense array of this shape. Each row contains the sum of its slices, or zeros.

    Return None if `loose` is True, if the indices cannot be grouped, or if an index is out of range.
    """
    groups = None if loose else group(indices)
    if groups is None:
        return None
    order, ids, starts = groups
    if len(ids) and not 0 <= ids[0] <= ids[-1] < shape[0]:
        return None
    rows, name = _rows(values)
    width = rows.shape[1]
    into = zeros((shape[0], width), rows.dtype)
    run_tasks([_of_rows(fold_kernel(name), (rows, order, starts, _places(ids), into), starts, width)])
    return _as_values(into, values)


# ---------------------------------------------------------------------- norms
def norm_of_few(values: Host, indices: Host | None, ord: int) -> float | None:
    """Return the norm of one small leaf, computed by one compiled call. If there are indices, duplicates are summed.

    Return None if there are no values, too many values or too many indices, if the indices cannot be grouped, or if the
    rounding of the norm is undecided.
    """
    if values.size >= FEW or values.size == 0:
        return None
    rows, name = _rows(values)
    indices = _NO_INDICES if indices is None else indices
    flags = indices.flags
    if not (flags.c_contiguous and flags.aligned and indices.dtype.isnative):
        indices = _ready(indices)
    if len(indices) >= ROUSED:
        return None
    found: float = squares.norm_kernel(name, indices.dtype, ord)(rows, indices)
    return None if found == -1.0 else found


def limbs(leaves: Sequence[tuple[Host, Host | None, Host | None]], ord: int) -> Host:
    """Return the sum of the terms of a norm of order 1 or 2 over leaves, as limbs (see `islices.kernels.totals`).

    A leaf is (values, order, starts) if duplicates must be summed first, else (values, None, None). The limbs also
    count the terms that may have dropped bits.
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
    """Add the terms of a part to bins that no other thread is using. `free` contains the unused bins."""
    try:
        bins = free.pop()
    except IndexError:
        bins = np.zeros((squares.BINS[dtype], 4), np.int64)
    kernel(*given, first, last, bins)
    free.append(bins)


# ---------------------------------------------------------------------- values times numbers
def scaled(values: Host, steps: Sequence[tuple[str, Any]]) -> Host:
    """Multiply ("mul") or divide ("div") values by one or two numbers, in order, and return the result in new
    memory."""
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
    """Apply the operator `op` to the table's rows and the slices, in place. The slices of a row are applied in order.

    Of several slices of one row, "update" applies only the last one. The ids must be in range. The table must be
    writable, contiguous, aligned and in this machine's byte order.
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
    """Return the task of an optimizer's step that updates, in place, the table's rows at the groups' ids.

    If `factor` is given, values are multiplied by `factor` first. The ids must be in range. The table and the states
    must meet the conditions of `scatter` for a table.
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
    """Return the task of an optimizer's step that updates, in place, all rows except those in the ascending array
    `skip`.

    The gradient is `values`, an array of the table's size, or 0 if `values` is None. The states have the table's size,
    and squares are elementwise. The table and the states must meet the conditions of `scatter` for a table.
    """
    into, name = _rows(table)
    rows, width = into.shape
    given, gradient = (into[:0], "") if values is None else _rows(values)
    flat = tuple(x.reshape(1, -1) for x in state)
    arrays = (given.reshape(1, -1), _places(skip), into.reshape(1, -1), flat, numbers)
    return Task(rest_kernel(formula, name, gradient), (*arrays, width), rows, rows * width)


#: The name of a method of `islices.backend.Backend` -> the function of this module that replaces the method on views of
#: host memory. The function takes the method's arguments and returns None if it does not support them; then NumPy
#: computes.
KERNELS: dict[str, Callable[..., Any]] = {"dense_rows": dense_rows, "scaled": scaled, "sum_rows": sum_rows}
