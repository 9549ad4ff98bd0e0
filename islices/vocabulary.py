"""Tables in memory with other rows: `renumber` and `grow`.

May import: `numpy`, the core below `islices.vocabulary`, this folder.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from islices import modes
from islices.backend import Array, Backend
from islices.conversion import from_native, to_native, without_padding
from islices.distributed import ShardedTable
from islices.dtypes import host_dtype
from islices.memory import empty
from islices.registry import broken_backends, describe, find_backend
from islices.slices import IndexedSlices, check_indices
from islices.table import Table
from islices.trees import named_leaves, rebuild
from islices.vocabulary.fills import Fill, Rows, cast, fill_of_state, mean_of_rows, rows_of
from islices.vocabulary.mapping import NEW, RowMap, as_map

__all__ = [
    "Patterns",
    "chosen",
    "grow",
    "is_counter",
    "listed",
    "piece_of",
    "place_rows",
    "renumber",
    "renumbered_padding",
]

Host = np.ndarray[Any, Any]
#: Which leaves of a tree, by name.
Patterns: TypeAlias = str | Sequence[str] | None
#: Elements moved at a time.
PIECE = 1 << 18


def renumber(
    table: Any,
    mapping: Any,
    state: Any = None,
    *,
    fill: Fill = 0.0,
    state_fill: Fill = None,
    tables: Patterns = None,
    states: Patterns = None,
) -> Any:
    """A table, and its optimizer's state, with rows renumbered, dropped and added.

    Parameters
    ----------
    table : Table, array of shape (rows, *row_shape), or sparse gradient; or a list, tuple or dict of them
        Of one vocabulary: an embedding and the output layer beside it, gradients of the table.
    mapping : RowMap, 1-D integers, or mapping of int to int
        The old row of each new one, -1 where it is new; or {old row: new row}. See `RowMap`.
    state : tree of arrays, optional
        Of an optimizer of islices, or a framework's: arrays with a number or a row for each row of the table are
        renumbered; "step", arrays of one number, None and what is no array stay as they are.
    fill : number, "mean", array, function of a shape, or what `normal` or `uniform` return
        What new rows of the table hold. An array has their shape, in the order of their numbers, or
        ``(1, *row_shape)``. A function is called with that shape. "mean" is the mean of the old rows but the padding's.
    state_fill : Optimizer, number, mapping of name to number, array or function
        What new rows of the state hold: what the islices optimizer begins with, or as it says. Needed where there are
        new rows and a state.
    tables, states : str, or sequence of them, optional
        Names of the leaves of table and state that are the vocabulary's, as in ``"*.embedding"``: keys and
        positions joined by dots. All others stay as they are. By default there are no others.

    Returns
    -------
    same type as table; with state (table, state)
        New arrays: nothing changes in place. Kept rows have the same bits.

    Raises
    ------
    TypeError, ValueError, IndexError
        A mapping that names an old row twice, or one that is not there; one that drops the padding's row; arrays that
        have another number of rows; names that no leaf has.

    Notes
    -----
    The new rows of a float32 master ("master" in the state of a 16-bit table) are those of the table before they are
    rounded. SPEC clause 27.

    Examples
    --------
    >>> import numpy as np
    >>> from islices import Table, optim, vocabulary
    >>> table, optimizer = Table(np.array([[1.0], [2.0], [4.0]]), padding_idx=0), optim.adagrad(0.1)
    >>> state = optimizer.init(table)
    >>> table, state = vocabulary.renumber(table, [0, 2, -1], state, fill="mean", state_fill=optimizer)
    >>> table.weights.ravel().tolist(), state["accumulator"].ravel().tolist()
    ([1.0, 4.0, 3.0], [0.0, 0.0, 0.0])
    """
    named = named_leaves(table, "table")
    own = chosen([name for name, leaf in named.items() if leaf is not None], tables, "tables")
    leaves = {name: _adopted(named[name], f"table{_at(name)}") for name in own}
    if not leaves:
        raise TypeError(f"table: got {describe(table)}; accepted is a Table, an array, or a sparse gradient")
    rows = next(iter(leaves.values())).shape[0]
    if rows is None:
        raise ValueError("table: got a gradient whose number of rows is unknown; accepted is one that knows it")
    found = as_map(mapping, rows)
    for name, leaf in leaves.items():
        leaf.check(rows, f"table{_at(name)}")
    fills = {name: leaf.fill(found, fill, "fill") for name, leaf in leaves.items() if leaf.slices is None}
    padding = next((leaf.padding for leaf in leaves.values() if leaf.padding is not None), None)
    of_state = {} if state is None else named_leaves(state, "state")
    changes = _state_changes(of_state, states, rows, found, state_fill, leaves, fills)
    if padding is not None:
        renumbered_padding(found, padding)
    made = {name: leaf.renumbered(found, fills.get(name)) for name, leaf in leaves.items()}
    out = rebuild(table, iter([made.get(name, leaf) for name, leaf in named.items()]))
    if state is None:
        return out
    made = {name: change() for name, change in changes.items()}
    return out, rebuild(state, iter([made.get(name, leaf) for name, leaf in of_state.items()]))


def grow(
    table: Any,
    rows: int,
    state: Any = None,
    *,
    fill: Fill = 0.0,
    state_fill: Fill = None,
    tables: Patterns = None,
    states: Patterns = None,
) -> Any:
    """A table, and its optimizer's state, with more rows behind the last.

    Parameters
    ----------
    table : Table, array or sparse gradient; or a list, tuple or dict of them
    rows : int
        How many the new table has.
    state, fill, state_fill, tables, states
        As `renumber` takes them.

    Returns
    -------
    same type as table; with state (table, state)

    Raises
    ------
    TypeError, ValueError
        Fewer rows than there are, and as `renumber`. SPEC clause 27.

    Examples
    --------
    >>> import numpy as np
    >>> from islices import vocabulary
    >>> vocabulary.grow(np.array([[1.0], [2.0]]), 3, fill="mean").ravel().tolist()
    [1.0, 2.0, 1.5]
    """
    named = named_leaves(table, "table")
    own = chosen([name for name, leaf in named.items() if leaf is not None], tables, "tables")
    old = _adopted(named[own[0]] if own else table, "table").shape[0]
    mapping = RowMap.grown(old or 0, rows)
    return renumber(table, mapping, state, fill=fill, state_fill=state_fill, tables=tables, states=states)


def renumbered_padding(found: RowMap, padding: int) -> int:
    """The padding row's new number; ValueError where the mapping drops it."""
    new = int(found.new_ids(padding))
    if new < 0:
        raise ValueError(
            f"mapping: got one that drops row {padding}, the table's padding; accepted is one that keeps it, or a "
            "Table without padding_idx"
        )
    return new


def is_counter(name: str, shape: tuple[int | None, ...], rows: int) -> bool:
    """Whether an array of a state, by the last part of its name, belongs to no row: a count of steps, a number."""
    return shape == () or (shape == (1,) and (name == "step" or rows != 1))


def chosen(names: Sequence[str], patterns: Patterns, argument: str) -> list[str]:
    """The names that one of the patterns fits; ValueError for one that fits none."""
    if patterns is None:
        return list(names)
    if not isinstance(patterns, (str, list, tuple)) or not all(isinstance(pattern, str) for pattern in patterns):
        raise TypeError(f"{argument}: got {describe(patterns)}; accepted is a str, or a sequence of them")
    wanted = [patterns] if isinstance(patterns, str) else patterns
    for pattern in wanted:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise ValueError(f"{argument}: got {pattern!r}, which no leaf is named; {listed(names)}")
    return [name for name in names if any(fnmatchcase(name, pattern) for pattern in wanted)]


def listed(names: Sequence[str]) -> str:
    """What may be named, for messages."""
    known = ", ".join(map(repr, names[:20])) + (", ..." if len(names) > 20 else "")
    return f"accepted are {known}" if names else "there are no leaves"


# ---------------------------------------------------------------------- leaves
class _Leaf(NamedTuple):
    """A table, an array or a gradient, looked at."""

    given: Any
    B: Backend
    array: Array  # None for slices
    slices: IndexedSlices | None
    shape: tuple[int | None, ...]

    @property
    def padding(self) -> int | None:
        return self.given.padding_idx if isinstance(self.given, Table) else None

    def check(self, rows: int, argument: str) -> None:
        if self.shape[0] != rows:
            raise ValueError(
                f"{argument}: got shape {self.shape} for a vocabulary of {rows} rows; accepted are arrays with so many "
                f"(where others stand beside them, {argument.partition('[')[0]}s= names those of the vocabulary)"
            )

    def fill(self, found: RowMap, fill: Fill, argument: str) -> Rows:
        shape: tuple[int, ...] = self.shape  # type: ignore[assignment]

        def mean() -> Host:
            return mean_of_rows(_pieces(self.B, self.array, shape), shape[1:], self.padding)

        return rows_of(fill, argument, found.count_added, shape[1:], self.B.dtype(self.array), mean)

    def renumbered(self, found: RowMap, fill: Rows | None) -> Any:
        if self.slices is not None:
            s = _slices(self.slices, found)
            return s if isinstance(self.given, IndexedSlices) else to_native(s, like=self.given)
        assert fill is not None, "arrays have one"
        changed = _rows(self.B, self.array, found, fill)
        if not isinstance(self.given, Table):
            return changed
        padding = None if self.padding is None else renumbered_padding(found, self.padding)
        return Table(changed, padding_idx=padding, scale_by_freq=self.given.scale_by_freq)


def _adopted(x: Any, argument: str) -> _Leaf:
    if isinstance(x, Table):
        if x._source.watched:
            raise TypeError(f"{argument}: got one whose gradient is being taken; accepted is one outside of that")
        return _Leaf(x, x.backend, x._source.weights, None, x.shape)
    if isinstance(x, ShardedTable):
        raise TypeError(
            f"{argument}: got a ShardedTable, whose rows lie on many ranks; accepted is one process's table, "
            "such as load_sharded(folder, Alone()).shard, which has all rows"
        )
    B = find_backend(x)
    if B is not None and (isinstance(x, IndexedSlices) or B.is_native(x)):
        s = without_padding(from_native(x))
        if modes.is_traced(s.backend, s.values, s.indices):
            raise TypeError(f"{argument}: got traced slices; accepted are those whose values are known")
        check_indices(s.backend, s.indices, s.dense_shape[0])
        return _Leaf(x, s.backend, None, s, s.dense_shape)
    if B is None or not B.is_array(x):
        raise TypeError(
            f"{argument}: got {describe(x)}; accepted is a Table, an array (rows, *row_shape), or a sparse gradient"
            f"{broken_backends()}"
        )
    if B.is_traced(x):
        raise TypeError(f"{argument}: got {describe(x)}, traced; accepted is an array whose values are known")
    shape = B.shape(x)
    if not shape:
        raise ValueError(f"{argument}: got a 0-d array; accepted is (rows, *row_shape)")
    return _Leaf(x, B, x, None, shape)


def _state_changes(
    state: dict[str, Any],
    states: Patterns,
    rows: int,
    found: RowMap,
    state_fill: Fill,
    tables: dict[str, _Leaf],
    fills: dict[str, Rows],
) -> dict[str, Callable[[], Any]]:
    """name -> what makes the new leaf, once all of them have been looked at; the others stay."""
    changes: dict[str, Callable[[], Any]] = {}
    for name in chosen(list(state), states, "states"):
        x, last = state[name], name.rpartition(".")[2]
        B = find_backend(x)
        if B is None:
            continue
        if B.is_array(x) and is_counter(last, B.shape(x), rows):
            changes[name] = partial(_copied, B, x)
            continue
        leaf = _adopted(x, f"state{_at(name)}")
        leaf.check(rows, f"state{_at(name)}")
        if leaf.slices is not None:
            fill = None
        elif last == "master":
            fill = _master_rows(leaf, tables, fills, found)
        else:
            own = fill_of_state(state_fill, last, found.count_added)
            fill = leaf.fill(found, own, "state_fill")
        changes[name] = partial(leaf.renumbered, found, fill)
    return changes


def _copied(B: Backend, x: Array) -> Array:
    """A number of the new state's own: where arrays change in place, each state counts its own steps."""
    if B.is_traced(x):
        return x
    with B.scope():
        plain = B.stop_gradient(x)
        return B.made_like(B.asarray(np.array(B.to_numpy(plain)), plain), x)


def _master_rows(master: _Leaf, tables: dict[str, _Leaf], fills: dict[str, Rows], found: RowMap) -> Rows:
    """The table's new rows, before they are rounded to 16 bits: made once for both."""
    fitting = [name for name, leaf in tables.items() if name in fills and leaf.shape == master.shape]
    if not found.count_added:
        return master.fill(found, 0.0, "fill")
    if len(fitting) != 1:
        raise ValueError(
            f"state: got a master of shape {master.shape} for {len(fitting)} such tables; accepted is one table and "
            "its state"
        )
    return fills[fitting[0]]


def _at(name: str) -> str:
    return f"[{name}]" if name else ""


# ---------------------------------------------------------------------- rows
def _rows(B: Backend, x: Array, found: RowMap, fill: Rows) -> Array:
    """A new array with the kept rows of x in their new places, and new ones in the others'."""
    with B.scope():
        plain = B.stop_gradient(x)
    dtype, row_shape = B.dtype(x), B.shape(x)[1:]
    views = modes.host_views(B, [plain])
    if views is not None:
        out = empty((found.rows, *row_shape), host_dtype(dtype))  # type: ignore[arg-type]
        _move(views[0], found, fill, out, dtype)
        return B.made_like(B.from_host(out, plain), x)
    old, added = found.old_ids, found.added
    with B.scope():
        out = B.zeros((found.rows, *row_shape), dtype, plain)  # type: ignore[arg-type]
        if len(added) < found.rows:
            kept = np.flatnonzero(old != NEW)
            rows = B.take(plain, B.asarray(old[kept], plain))
            out = rows if not len(added) else B.set_rows(out, B.asarray(kept, plain), rows, donate=True)
        if len(added):
            rows = B.from_host(cast(fill(0, len(added)), dtype), plain)
            out = B.set_rows(out, B.asarray(added, plain), rows, donate=True)
    return B.made_like(out, x)


def _move(view: Host, found: RowMap, fill: Rows, out: Host, dtype: str) -> None:
    """Rows of an old table on the host into the new one, a piece at a time."""

    def read(old: Host, into: Host) -> None:
        np.take(view, old, axis=0, out=into, mode="clip")  # other modes go by way of a copy

    size, done = piece_of(out.shape), 0
    for first in range(0, found.rows, size):
        part = out[first : first + size]
        done = place_rows(part, found.part(first, first + len(part)), fill, done, dtype, read)


def piece_of(shape: tuple[int, ...], elements: int = PIECE) -> int:
    """How many rows are moved at a time."""
    return max(1, elements // max(1, math.prod(shape[1:])))


def place_rows(part: Host, old: Host, fill: Rows, done: int, dtype: str, read: Callable[[Host, Host], object]) -> int:
    """Rows of a new table into part, where old says what they are; read(rows, into) has the old table's, fill the new
    ones, of which done have been made. How many have been made then."""
    is_new = old == NEW
    count = int(np.count_nonzero(is_new))
    if not count:
        read(old, part)
        return done
    if count < len(old):
        kept = np.flatnonzero(~is_new)
        rows = empty((len(kept), *part.shape[1:]), part.dtype)
        read(old[kept], rows)
        part[kept] = rows
    part[is_new] = cast(fill(done, done + count), dtype)
    return done + count


def _pieces(B: Backend, x: Array, shape: tuple[int, ...]) -> Iterator[Host]:
    """A table's rows on the host, a piece at a time."""
    with B.scope():
        plain = B.stop_gradient(x)
    views = modes.host_views(B, [plain])
    size = piece_of(shape)
    for first in range(0, shape[0], size):
        stop = min(first + size, shape[0])
        if views is not None:
            yield views[0][first:stop]
        else:
            with B.scope():
                yield B.to_numpy(B.take(plain, B.asarray(np.arange(first, stop), plain)))


def _slices(s: IndexedSlices, found: RowMap) -> IndexedSlices:
    """Slices of the renumbered table: those of dropped rows are gone, the others keep their order."""
    B = s.backend
    old = B.to_numpy(s.indices)
    stay, new, coalesced = found._kept(old, s.coalesced, "indices")
    with B.scope():
        values = B.stop_gradient(s.values)
        if len(stay) < len(old):
            values = B.take(values, B.asarray(stay, s.indices))
        indices = B.asarray(new, s.indices)
    return IndexedSlices._trusted(B, values, indices, (found.rows, *s.dense_shape[1:]), coalesced=coalesced)
