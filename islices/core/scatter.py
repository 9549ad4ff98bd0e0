"""Apply slices to the rows of a table, with one of the operators add, sub, update, min, max, mul and div.

Without a compiled kernel or `Backend.add_in_order`, the table's rows at the slices' indices are read, changed in a
copy, and written back. Cost and memory are proportional to the number of slices, unless the framework must copy the
table. A call that raises an error has not changed the table. SPEC clause 15.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import numpy as np

from islices.backend import INTEGERS, Array, Backend, Host, Look, Shape
from islices.core import modes
from islices.core.arguments import check_flag, check_name
from islices.core.conversion import accept, without_padding
from islices.core.host import group
from islices.core.registry import describe, find_backend
from islices.core.row_operators import OPERATORS, RowOperator
from islices.core.sharing import share_memory
from islices.core.slices import IndexedSlices, check_indices
from islices.embedding.table import Table

T = TypeVar("T")


def scatter(table: T, x: Any, op: str = "add", *, donate: bool = False) -> T:
    """Change a table's rows with slices: add slices to rows, subtract slices, replace rows and so on.

    Parameters
    ----------
    table : Table, or array of shape (rows, *row_shape)
        An array is, for example, a tf.Variable, a torch Parameter, an NDArray, or an array of NumPy or JAX.
    x : sparse gradient
        A gradient with the framework, dtype and shape of the table. An unknown number of rows matches any table.
    op : {"add", "sub", "update", "min", "max", "mul", "div"}
        The operation that applies each slice to its row. "update" replaces the row; the last slice of a row wins. "min"
        and "max" are elementwise, and the result is NaN if either operand is NaN.
    donate : bool
        If True, JAX may overwrite the table's array, which you must not use afterwards. If False, JAX's result is a
        copy. donate has no effect inside jit, or on other frameworks.

    Returns
    -------
    same type as table
        Use the return value. tf.Variables, torch tensors, NDArrays and NumPy arrays are changed in place. JAX arrays
        and tf.Tensors cannot change, so the result is a new array or a new Table.

    Raises
    ------
    TypeError, ValueError, IndexError
        table is neither a Table nor a dense array, its array must not be written, or x is not a sparse gradient. Or the
        frameworks, dtypes or shapes of table and x differ, an index is out of range, or op is unknown. Or op is "div",
        and the table contains integers. The table is unchanged.

    Notes
    -----
    Every slice is applied to its row, in order of occurrence. Sums, products and quotients of 16-bit types are computed
    in float32 and rounded once at the end. Rows without slices keep their bits. No gradient flows through the call.
    SPEC clause 15.

    Examples
    --------
    >>> import numpy as np
    >>> from islices import IndexedSlices
    >>> x = IndexedSlices(np.array([[10.0], [5.0], [1.0]]), np.array([2, 0, 2]), (3, 1))
    >>> scatter(np.array([[1.0], [2.0], [3.0]]), x).tolist()
    [[6.0], [2.0], [14.0]]
    >>> scatter(np.array([[1.0], [2.0], [3.0]]), x, op="max").tolist()
    [[5.0], [2.0], [10.0]]
    """
    how = OPERATORS[check_name(op, OPERATORS, "op")]
    donate = check_flag(donate, "donate")
    B, weights, _ = accept_table(table)
    s = _accept_slices(B, weights, x, how)
    rows, traced = B.shape(weights)[0], modes.is_traced(B, weights, s.values, s.indices)
    if not traced:
        s = without_padding(s)
        check_indices(B, s.indices, rows)  # checks unvalidated indices too, because a write must stay inside the table
    with B.scope():
        values, indices = B.stop_gradient(s.values), s.indices
    if not traced:
        if B.in_place(weights) or donate:  # a written row must not be read later as a slice
            values, indices = _beside(B, weights, values, indices)
        changed = _on_host(B, weights, values, indices, op, donate)
        if changed is None and how.sign and B.dtype(weights) not in ("float16", "bfloat16"):
            with B.scope():
                changed = B.add_in_order(weights, indices, values if how.sign > 0 else -values, donate=donate)
        if changed is not None:
            return as_given(table, weights, changed)
    ids, place = distinct_rows(B, indices, rows)
    with B.scope():
        old = B.stop_gradient(B.read_rows(weights, ids))
    new = modes.run(_change, B, (old, values, place), op=op)
    return write_rows(B, table, ids, new, donate=donate)


def _beside(B: Backend, weights: Array, values: Array, indices: Array) -> tuple[Array, Array]:
    """Return values and indices. If one of them shares memory with the table, return copies of both."""
    if not (share_memory(B, weights, values) or share_memory(B, weights, indices)):
        return values, indices
    return B.asarray(B.to_numpy(values), values), B.asarray(B.to_numpy(indices), indices)


def _on_host(B: Backend, weights: Array, values: Array, indices: Array, op: str, donate: bool) -> Array | None:
    """Change rows of the table with a compiled kernel, and return the changed table.

    The result is the table itself if the table changes in place, else a new array. If no kernel supports the arguments,
    return None and change nothing.
    """
    views = modes.host_views(B, (values, indices))
    compiled = modes.kernels_on(views)
    if compiled is None or views is None or not compiled.is_packed(views[1], B.shape(weights)[0]):
        return None
    opened = open_tables(B, [weights], donate=donate)
    if opened is None:
        return None
    (view,), (changed,) = opened
    compiled.scatter(view, views[0], compiled.group(views[1]), op)
    return changed


def open_tables(
    B: Backend, tables: Sequence[Array], *, donate: bool, held: Look | None = None
) -> tuple[list[Host], list[Array]] | None:
    """Return (views, results) of `Backend.writable` for kernels that write into tables.

    Return None if kernels cannot write into the memory of a table; the tables' values are then unchanged. The arrays
    that the kernels read must not share memory with the tables. If `held`, the result of `Backend.plain_tables`, has
    views, return these views and the tables.
    """
    if held is not None and held.views is not None:
        B.mark_written(tables)
        return held.views, list(tables)
    opened = B.writable(tables, donate=donate)
    for view in opened[0] if opened is not None else ():
        flags = view.flags
        if not (flags.c_contiguous and flags.aligned and flags.writeable and view.dtype.isnative):
            return None
    return opened


def distinct_rows(B: Backend, indices: Array, rows: int | None) -> tuple[Array, Array]:
    """Return (ids, place): the distinct indices, and the position of each slice's index among them.

    In traced code, some ids may be out of range.
    """
    return modes.run(_distinct, B, (indices,), rows=rows)  # type: ignore[no-any-return]


def write_rows(B: Backend, table: T, ids: Array | None, rows: Array, *, donate: bool = False) -> T:
    """Return a Table or an array with the rows at `ids` set to `rows`. `ids` are unique; None means all rows.

    If the table changed in place, the result is the table itself.
    """
    weights = table.weights if isinstance(table, Table) else table
    with B.scope():
        if ids is not None:
            changed = B.set_rows(weights, ids, rows, donate=donate)
        else:
            changed = B.set_rows(weights, B.arange(weights), rows) if B.in_place(weights) else rows
    return as_given(table, weights, changed)


def as_given(table: T, weights: Array, changed: Array) -> T:
    """Return the table itself if it changed in place, else a table of the same type with the changed array."""
    if changed is weights:
        return table
    return cast(T, table.replace(changed) if isinstance(table, Table) else changed)


def accept_table(table: Any) -> tuple[Backend, Array, str]:
    """Return (backend, weights, dtype of the weights) for a Table or an array, or raise TypeError or ValueError."""
    if isinstance(table, Table):
        if table._source.watched:
            raise TypeError("table: got one whose gradient is being taken; accepted is an update after value_and_grad")
        return table.backend, table._source.weights, table.backend.dtype(table._source.weights)
    B = find_backend(table)
    dtype = B.dtype(table) if B is not None and B.is_array(table) else None
    if B is None or dtype is None or dtype not in (*B.float_dtypes, *INTEGERS):
        sparse = f" (a {B.native_name})" if B is not None and B.native_name and B.is_native(table) else ""
        raise TypeError(
            f"table: got {describe(table)}{sparse}; accepted is a Table, or a dense array of floats or integers"
        )
    shape = B.shape(table)
    if not shape or None in shape:
        raise ValueError(f"table: got shape {shape}; accepted is (rows, *row_shape), all of it known")
    return B, table, dtype


def _accept_slices(B: Backend, weights: Array, x: Any, op: RowOperator) -> IndexedSlices:
    s = accept(x)
    if not isinstance(s, IndexedSlices):
        raise TypeError(f"x: got {describe(x)}; accepted is a sparse gradient (a dense one: table + x)")
    if s.backend is not B:
        raise TypeError(f"x: got slices of {s.backend.name} for a table of {B.name}; accepted is one framework")
    if B.dtype(s.values) != B.dtype(weights):
        raise TypeError(f"x: got {B.dtype(s.values)} for a table of {B.dtype(weights)}; accepted is one dtype")
    if not op.integers and B.dtype(weights) in INTEGERS:
        raise TypeError(f"table: got {describe(weights)}; accepted by op={op.name!r} is a floating dtype")
    check_shape(s, B.shape(weights), "x")
    return s


def check_shape(s: IndexedSlices, shape: Shape, argument: str) -> None:
    """Raise ValueError unless the slices fit a table of this shape. An unknown number of rows fits any table."""
    if s.dense_shape[1:] != shape[1:] or s.dense_shape[0] not in (None, shape[0]):
        raise ValueError(
            f"{argument}: got dense_shape {s.dense_shape} for a table of shape {shape}; accepted is one shape"
        )


def _distinct(B: Backend, indices: Array, *, rows: int | None) -> tuple[Array, Array]:
    if B.is_traced(indices) and B.sentinel_padding:  # ids out of range become the sentinel, for which no row is written
        _, indices = B.select(indices, indices, B.in_range(indices, rows), rows)
    return B.unique(indices, rows)


def _change(B: Backend, rows: Array, values: Array, place: Array, *, op: str) -> Array:
    """Apply each values[k], in order, to rows[place[k]], and return the changed rows."""
    how, dtype, count = OPERATORS[op], B.dtype(rows), B.shape(rows)[0]
    rows, values = B.widen(rows), B.widen(values)
    if how.sign:
        values = values if how.sign > 0 else -values
        first = B.astype(B.arange(rows), B.dtype(place))
        new = B.segment_sum(B.concat([rows, values]), B.concat([first, place]), count)
    elif how.last:
        last = B.segment_max(B.astype(B.arange(values), "int32"), place, count)
        new = B.take(values, last)
    elif how.extreme:
        smallest = how.extreme < 0
        rows, values = (_reflected(B, x) if smallest else x for x in (rows, values))
        new = B.maximum(rows, B.segment_max(values, place, count))
        new = _reflected(B, new) if smallest else new
    elif B.is_traced(place):
        new = B.fold_rows(op, rows, values, place)
    else:
        assert how.fold is not None, "an operator acts in one way"
        new = _fold_layers(B, how.fold, rows, values, place)
    return B.astype(new, dtype)


def _reflected(B: Backend, x: Array) -> Array:
    """Return -x, so that a minimum becomes a maximum; for integers return -x - 1, since the least integer has no
    negative.
    """
    return -x if B.dtype(x) not in INTEGERS else -x - B.asarray(np.ones(1, B.dtype(x)), x)


def _fold_layers(
    B: Backend, fold: Callable[[Backend, Array, Array], Array], rows: Array, values: Array, place: Array
) -> Array:
    """Return the rows after applying values one after the other; every row has at least one value.

    Layer k, from 0, applies value k of every row with more than k values.
    """
    order, _, starts = group(B.to_numpy(place))
    counts, active = np.diff(starts), np.arange(len(starts) - 1)
    for k in range(int(counts.max(initial=0))):
        active = active[counts[active] > k]
        ids = B.asarray(active, rows)
        change = B.take(values, B.asarray(order[starts[active] + k], rows))
        changed = fold(B, B.take(rows, ids), change)
        rows = B.set_rows(rows, ids, changed, donate=True) if k else changed  # the first layer contains all rows
    return rows
