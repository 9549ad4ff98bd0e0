"""Change a vocabulary: renumber, drop and add rows of tables, of their gradients, and of optimizer states.

SPEC clause 27. May import: `numpy`, the core below `islices.vocabulary`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np

from islices.backend import FLOATS, INDICES, Array, Backend, Host
from islices.core import modes
from islices.core.arguments import LARGEST, check_name, is_real, show, whole_number
from islices.core.conversion import from_native, to_native, without_padding
from islices.core.linear import as_float, wide_dtype
from islices.core.registry import broken_backends, describe, find_array_backend, find_backend
from islices.core.slices import IndexedSlices, check_indices
from islices.core.trees import named_leaves, rebuild
from islices.embedding.ids import check_ids
from islices.embedding.table import Table
from islices.optim.optimizer import Optimizer

__all__ = ["RowMap", "renumber"]

T = TypeVar("T")
#: patterns for the names of a tree's leaves
Patterns: TypeAlias = str | Sequence[str] | None
#: NEW stands for the old number of an added row. DROPPED stands for the new number of a dropped row.
NEW = DROPPED = -1


class RowMap:
    """A mapping from the rows of a new table to the rows of the old table.

    Parameters
    ----------
    old_ids : sequence of ints, or 1-D int32 or int64 array of any framework
        For each row of the new table, the number of its old row, or -1 if the row is added. An old row occurs at most
        once; old rows that do not occur are dropped.
    old_rows : int, optional
        The number of rows of the old table. `renumber` raises ValueError for a table with a different number of rows.

    Attributes
    ----------
    old_ids : int64 array
    old_rows : int or None
    added : int64 array
        The numbers of the new rows that have no old row, in ascending order.

    Raises
    ------
    TypeError, ValueError, IndexError
        old_ids are not 1-D integers, an old row occurs twice or is out of range, or old_rows is not an int >= 0.

    Notes
    -----
    SPEC clause 27.

    Examples
    --------
    >>> m = RowMap([2, -1, 0], old_rows=3)  # old row 1 is dropped, new row 1 is new
    >>> m
    RowMap(3 rows of 3, 1 new)
    >>> m.added.tolist()
    [1]
    """

    def __init__(self, old_ids: Any, old_rows: int | None = None) -> None:
        B = find_array_backend(old_ids)
        given = np.asarray(old_ids) if B is None or B.is_traced(old_ids) else B.to_numpy(old_ids)
        if given.ndim != 1 or (given.size and given.dtype.name not in INDICES):
            raise TypeError(f"old_ids: got {describe(old_ids)}; accepted are 1-D integers, -1 for a row that is new")
        self.old_ids, self.old_rows = given.astype(np.int64), None
        self.added = np.flatnonzero(self.old_ids == NEW)
        order = np.argsort(self.old_ids, kind="stable")
        #: the new and the old numbers of the kept rows, sorted by the old number
        self._kept = order[self.old_ids[order] != NEW]
        self._old = self.old_ids[self._kept]
        twice = np.flatnonzero(self._old[1:] == self._old[:-1])
        if len(twice):
            first, second = self._kept[twice[0] : twice[0] + 2].tolist()
            raise ValueError(
                f"old_ids: got old row {self._old[twice[0]]} for the new rows {first} and {second}; accepted is each "
                "old row at most once"
            )
        if old_rows is not None and (whole_number(old_rows) is None or not 0 <= old_rows <= LARGEST):
            raise ValueError(f"old_rows: got {show(old_rows)}; accepted is an int >= 0")
        self._check(LARGEST if old_rows is None else old_rows)
        self.old_rows = old_rows

    def _check(self, old_rows: int) -> None:
        """Raise ValueError if the mapping is not for `old_rows` rows, and IndexError for an old row out of range."""
        if self.old_rows not in (None, old_rows):
            raise ValueError(f"mapping: got one of a table of {self.old_rows} rows for one of {old_rows}")
        wrong = np.flatnonzero((self.old_ids < NEW) | (self.old_ids >= old_rows))
        if len(wrong):
            at = wrong[0]
            raise IndexError(
                f"old_ids: got {self.old_ids[at]} at position {at}; accepted is -1, or 0 <= old row < {old_rows}"
            )

    def new_ids(self, old: Any) -> Host:
        """Return the new numbers of old rows; the new number of a dropped or unknown row is -1.

        Parameters
        ----------
        old : integer array of NumPy, or a sequence
            Numbers of rows, which may be out of range.

        Returns
        -------
        int64 array of old's shape

        Raises
        ------
        TypeError
            The numbers are not integers of at most 64 bits.

        Examples
        --------
        >>> RowMap([2, -1, 0]).new_ids([0, 1, 2]).tolist()
        [2, -1, 0]
        """
        requested = np.asarray(old)
        if requested.dtype.kind not in "iu" and requested.size:
            raise TypeError(f"old: got {describe(old)}; accepted are integers of 64 bits")
        requested = requested.astype(np.int64)  # numbers beyond int64 become negative, so they match no row
        if not len(self._old):
            return np.full(requested.shape, DROPPED)
        at = np.minimum(np.searchsorted(self._old, requested), len(self._old) - 1)
        return np.where(self._old[at] == requested, self._kept[at], DROPPED)

    def ids(self, ids: T, *, missing: int | None = None) -> T:
        """Renumber the ids of a batch to fit the new table.

        Parameters
        ----------
        ids : int32 or int64 array of any shape and framework
        missing : int, optional
            The new row, such as that of the unknown token, for each id whose row is dropped. By default, the method
            raises IndexError for an id of a dropped row.

        Returns
        -------
        same type as ids, with the same dtype and shape

        Raises
        ------
        IndexError
            An id or the number `missing` is out of range. Or an id's row is dropped and `missing` is not given.
        TypeError
            ids are not integers, missing is not an int, or ids are traced. In traced code, read the new ids from the
            array ``new_ids(range(old_rows))``. SPEC clause 27.

        Examples
        --------
        >>> import numpy as np
        >>> RowMap([2, -1, 0], 3).ids(np.array([[0, 2], [2, 2]])).tolist()
        [[2, 0], [0, 0]]
        """
        B = find_array_backend(ids)
        if B is None or B.is_traced(ids):
            raise TypeError(
                f"ids: got {describe(ids)}; accepted is an int32 or int64 array whose values are known (in traced code "
                "take them from the array new_ids(range(old_rows)))"
            )
        checked = check_ids(B, ids, ids)
        old = B.to_numpy(checked)
        new = self.new_ids(old)
        if missing is not None:
            row = whole_number(missing)
            if row is None:
                raise TypeError(f"missing: got {describe(missing)}; accepted is an int or None")
            if not 0 <= row < len(self.old_ids):
                raise IndexError(f"missing: got {show(missing)}; accepted is 0 <= row < {len(self.old_ids)}")
            new[new == DROPPED] = row
        bound = LARGEST if self.old_rows is None else self.old_rows
        beyond = (old < 0) | (old >= bound)
        wrong = np.flatnonzero(beyond | (new == DROPPED))
        if len(wrong):
            at, why = int(wrong[0]), f"accepted is 0 <= id < {bound}"
            if not beyond.reshape(-1)[at]:
                why = "whose row the mapping drops; accepted is missing=, the row for such ids"
            raise IndexError(f"ids: got {old.reshape(-1)[at]} at position {at}; {why}")
        return B.from_host(np.ascontiguousarray(new.astype(old.dtype)), checked)  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        of = "" if self.old_rows is None else f" of {self.old_rows}"
        return f"RowMap({len(self.old_ids)} rows{of}, {len(self.added)} new)"


def renumber(
    table: Any,
    mapping: Any,
    state: Any = None,
    *,
    fill: Any = 0.0,
    state_fill: Any = None,
    tables: Patterns = None,
    states: Patterns = None,
) -> Any:
    """Renumber, drop and add rows of a table, and of its optimizer's state.

    Parameters
    ----------
    table : Table, array of shape (rows, *row_shape), or sparse gradient; or a list, tuple or dict of them
        Tables that share a vocabulary, such as an embedding and its output layer, or gradients of these tables.
    mapping : RowMap, or sequence of ints, or 1-D int32 or int64 array
        The old row of each new row, or -1 for an added row.
    state : tree of arrays, optional
        The state of an optimizer of islices, or of a framework. Arrays with as many rows as the table are renumbered.
        Arrays of shape () or (1,), such as "step", are copied. If the table has one row, an array of shape (1,) is
        copied only if it is named "step". None and objects that are not arrays are unchanged.
    fill : number, "mean", array, or function of a shape
        The values of the added rows. An array has the shape of the added rows, or ``(1, *row_shape)``; a function is
        called with the shape of the added rows. "mean" stands for the mean of the old rows, without the padding row.
    state_fill : Optimizer, number, or mapping of name to number
        The values of the added rows of the state: the initial values of an islices optimizer, or numbers. The argument
        is required if an array of the state, other than a "master" copy, gets added rows.
    tables, states : str, or sequence of them, optional
        Patterns that select leaves of table and of state by their names, such as ``"*.embedding"``. A name consists of
        keys and positions, joined by dots. Leaves that are not selected are unchanged. By default, all leaves are
        selected.

    Returns
    -------
    same type as table, or (table, state) if state is given
        The renumbered tables, and the state if it is given. No array changes in place, and kept rows have the same
        bits.

    Raises
    ------
    TypeError, ValueError, IndexError
        The mapping drops the padding row, has an old row out of range, or was made for a different number of rows. Or
        leaves differ in their number of rows, or no leaf matches a pattern. Or fill or state_fill is not valid, or
        state_fill is missing for added rows. Or a table or gradient has unknown values or an unknown number of
        rows, or the gradient of a Table is being taken.

    Notes
    -----
    The state of a 16-bit table may contain a float32 copy of the table, named "master". The added rows of this copy are
    not rounded to 16 bits. SPEC clause 27.

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
    names = _chosen([name for name, leaf in named.items() if leaf is not None], tables, "tables")
    leaves = {name: _leaf(named[name], f"table{_at(name)}") for name in names}
    if not leaves:
        raise TypeError(f"table: got {describe(table)}; accepted is a Table, an array, or a sparse gradient")
    rows = next(iter(leaves.values())).shape[0]
    if rows is None:
        raise ValueError("table: got a gradient whose number of rows is unknown; accepted is one that knows it")
    m = mapping if isinstance(mapping, RowMap) else RowMap(mapping, rows)
    m._check(rows)
    made: dict[str, Any] = {}
    new_rows: list[tuple[Any, Any]] = []
    for name, leaf in leaves.items():
        leaf.check(rows, f"table{_at(name)}")
        made[name], new = leaf.renumbered(m, fill, "fill")
        new_rows.append((leaf.shape, new))
    out = rebuild(table, iter([made.get(name, x) for name, x in named.items()]))
    if state is None:
        return out
    of_state, made = named_leaves(state, "state"), {}
    for name in _chosen(list(of_state), states, "states"):
        x, last = of_state[name], name.rpartition(".")[2]
        B = find_backend(x)
        if B is None:
            continue
        shape = B.shape(x) if B.is_array(x) else None
        if shape == () or (shape == (1,) and (last == "step" or rows != 1)):
            made[name] = _copied(B, x)
            continue
        leaf = _leaf(x, f"state{_at(name)}")
        leaf.check(rows, f"state{_at(name)}")
        if not len(m.added) or leaf.slices is not None:
            new = 0.0
        elif last != "master":
            new = _state_fill(state_fill, last)
        else:
            fitting = [rows for shape, rows in new_rows if shape == leaf.shape]
            if len(fitting) != 1:
                raise ValueError(f"state: got a master for {len(fitting)} tables of its shape; accepted is one")
            (new,) = fitting
        made[name], _ = leaf.renumbered(m, new, "state_fill")
    return out, rebuild(state, iter([made.get(name, x) for name, x in of_state.items()]))


def _chosen(names: list[str], patterns: Patterns, argument: str) -> list[str]:
    """Return the names that match at least one of the patterns, or all names if `patterns` is None.

    Raise TypeError if a pattern is not a str, and ValueError for a pattern that matches no name.
    """
    if patterns is None:
        return names
    wanted = [patterns] if isinstance(patterns, str) else patterns
    if not isinstance(wanted, (list, tuple)) or not all(isinstance(pattern, str) for pattern in wanted):
        raise TypeError(f"{argument}: got {describe(patterns)}; accepted is a str, or a sequence of them")
    for pattern in wanted:
        if not any(fnmatchcase(name, pattern) for name in names):
            known = ", ".join(map(repr, names[:20]))
            raise ValueError(f"{argument}: got {pattern!r}, which no leaf is named; accepted are {known}")
    return [name for name in names if any(fnmatchcase(name, pattern) for pattern in wanted)]


def _at(name: str) -> str:
    return f"[{name}]" if name else ""


# ---------------------------------------------------------------------- leaves
class _Leaf(NamedTuple):
    """A leaf to renumber: a table, an array or a gradient."""

    given: Any
    B: Backend
    array: Array  # None for slices
    slices: IndexedSlices | None
    shape: tuple[int | None, ...]

    def check(self, rows: int, argument: str) -> None:
        if self.shape[0] != rows:
            raise ValueError(
                f"{argument}: got shape {self.shape} for a vocabulary of {rows} rows; accepted are arrays with as many "
                f"({argument.partition('[')[0]}s= selects leaves by name)"
            )

    def renumbered(self, m: RowMap, fill: Any, argument: str) -> tuple[Any, Any]:
        """Return (the renumbered leaf, the leaf's added rows). The added rows of a 16-bit leaf are float32.

        For sparse gradients, the second item is None.
        """
        if self.slices is not None:
            s = _slices(self.slices, m)
            return (s if isinstance(self.given, IndexedSlices) else to_native(s, like=self.given)), None
        padding = new_padding = self.given.padding_idx if isinstance(self.given, Table) else None
        if padding is not None:
            new_padding = int(m.new_ids(padding))
            if new_padding < 0:
                raise ValueError(
                    f"mapping: got one that drops row {padding}, the table's padding; accepted is one that keeps it, "
                    "or a Table without padding_idx"
                )
        B = self.B
        with B.scope():
            plain = B.stop_gradient(self.array)
        shape: tuple[int, ...] = (len(m.added), *self.shape[1:])  # type: ignore[arg-type]
        if isinstance(fill, str) and fill == "mean":
            fill = _mean(B.to_numpy(plain), padding)
        new = _new_rows(fill, argument, shape, B.dtype(plain))
        changed = B.made_like(_rows(B, plain, m, new), self.array)
        if isinstance(self.given, Table):
            changed = Table(changed, padding_idx=new_padding, scale_by_freq=self.given.scale_by_freq)
        return changed, new


def _leaf(x: Any, argument: str) -> _Leaf:
    if isinstance(x, Table):
        if x._source.watched:
            raise TypeError(f"{argument}: got one whose gradient is being taken; accepted is one outside of that")
        return _Leaf(x, x.backend, x._source.weights, None, x.shape)
    B = find_backend(x)
    if B is not None and (isinstance(x, IndexedSlices) or B.is_native(x)):
        s = without_padding(from_native(x))
        if modes.is_traced(s.backend, s.values, s.indices):
            raise TypeError(f"{argument}: got traced slices; accepted are those whose values are known")
        check_indices(s.backend, s.indices, s.dense_shape[0])
        return _Leaf(x, s.backend, None, s, s.dense_shape)
    if B is None or not B.is_array(x) or B.is_traced(x) or not B.shape(x):
        raise TypeError(
            f"{argument}: got {describe(x)}; accepted is a Table, an array (rows, *row_shape) with known values, or a "
            f"sparse gradient{broken_backends()}"
        )
    return _Leaf(x, B, x, None, B.shape(x))


def _copied(B: Backend, x: Array) -> Array:
    """Return a copy of an array of one number from a state, such as the step count. A traced array is returned
    unchanged.

    Without the copy, two states whose arrays change in place would share one step count.
    """
    if B.is_traced(x):
        return x
    with B.scope():
        plain = B.stop_gradient(x)
        return B.made_like(B.asarray(np.array(B.to_numpy(plain)), plain), x)


# ---------------------------------------------------------------------- rows
def _mean(rows: Host, padding: int | None) -> Host:
    """Return the mean of the rows in float64. The padding row does not count, and the rows are added in order."""
    kept = rows if padding is None else np.delete(rows, padding, axis=0)
    wide = np.concatenate([np.zeros((1, *rows.shape[1:])), _cast(kept, "float64")])
    total = modes.run("segment_sum", modes.HOST, (wide, np.zeros(len(wide), np.int32)), count=1)
    mean: Host = total / max(1, len(kept))
    return mean


def _new_rows(fill: Any, argument: str, shape: tuple[int, ...], dtype: str) -> Host:
    """Compute the added rows from `fill`, in float32 for 16-bit tables. Raise TypeError or ValueError for an invalid
    `fill`."""
    made, accepted = fill, "a number, 'mean', an array or a function of a shape"
    if isinstance(fill, str):
        check_name(fill, ("mean",), argument)
    if callable(fill) and find_backend(fill) is None:
        made = fill(shape)
    if is_real(made):
        made = np.full((1,) * len(shape), as_float(made))
    B = find_array_backend(made)
    if B is None or B.is_traced(made) or (dtype in FLOATS and B.dtype(made) not in FLOATS):
        raise TypeError(f"{argument}: got {describe(made)}; accepted is {accepted}")
    bfloat16, made = B.dtype(made) == "bfloat16", B.to_numpy(made)
    if made.shape not in (shape, (1, *shape[1:]), (1,) * len(shape)):
        raise ValueError(
            f"{argument}: got shape {made.shape} for {shape[0]} new rows; accepted is {shape}, or {(1, *shape[1:])}"
        )
    if bfloat16 and dtype not in FLOATS:
        made = _cast(made, "float32")  # otherwise, the bits would count as whole numbers
    out = _cast(made, wide_dtype(dtype))
    if dtype not in FLOATS and not (out == made).all():
        raise ValueError(f"{argument}: got {show(fill)} for an array of {dtype}; accepted are its whole numbers")
    return np.broadcast_to(out, shape)


def _cast(rows: Host, dtype: str) -> Host:
    """Convert an array in host memory to a dtype.

    If the dtype is a floating dtype, uint16 stands for bfloat16 in `rows` and in the result.
    """
    if dtype not in FLOATS:
        return rows.astype(dtype)
    with modes.HOST.scope():
        out: Host = modes.HOST.astype(rows, dtype)
    return out


def _rows(B: Backend, old: Array, m: RowMap, new: Host) -> Array:
    """Return an array with the kept rows of `old` at their new positions, and new rows at all other positions."""
    dtype = B.dtype(old)
    rounded = _cast(np.ascontiguousarray(new), dtype)
    views = modes.host_views(B, [old])
    if views is not None:
        out = np.empty((len(m.old_ids), *views[0].shape[1:]), views[0].dtype)
        out[m._kept] = views[0][m._old]
        out[m.added] = rounded
        return B.from_host(out, old)
    with B.scope():
        out = B.zeros((len(m.old_ids), *B.shape(old)[1:]), dtype, old)  # type: ignore[arg-type]
        if len(m._kept):
            out = B.set_rows(out, B.asarray(m._kept, old), B.take(old, B.asarray(m._old, old)), donate=True)
        if len(m.added):
            out = B.set_rows(out, B.asarray(m.added, old), B.from_host(rounded, old), donate=True)
        return out


def _slices(s: IndexedSlices, m: RowMap) -> IndexedSlices:
    """Return slices with new indices, in the same order, without the slices of dropped rows."""
    B = s.backend
    indices = B.to_numpy(s.indices)
    new = m.new_ids(indices)
    stay = np.flatnonzero(new != DROPPED)
    new = new[stay]
    with B.scope():
        values = B.stop_gradient(s.values)
        if len(stay) < len(indices):
            values = B.take(values, B.asarray(stay, s.indices))
        found = B.asarray(new.astype(indices.dtype), s.indices)
    coalesced = s.coalesced and bool((np.diff(new) > 0).all())
    return IndexedSlices._trusted(B, values, found, (len(m.old_ids), *s.dense_shape[1:]), coalesced=coalesced)


def _state_fill(fill: Any, name: str) -> Any:
    """Return the value, usually a number, that fills the new rows of the state's array with this name."""
    if isinstance(fill, Optimizer):
        initial = {spec.name: spec.initial for spec in fill._formula.state}
        if name not in initial:
            known = ", ".join(map(repr, initial)) or "none"
            raise ValueError(f"state_fill: got {fill!r} for the array {name!r}; accepted are its arrays: {known}")
        start = initial[name]
        return as_float(fill.hyper[start]) if isinstance(start, str) else start
    if isinstance(fill, Mapping):
        if name not in fill:
            raise ValueError(f"state_fill: got nothing for the array {name!r}; accepted is a value for each")
        return fill[name]
    if fill is None:
        raise TypeError(
            f"state_fill: got None, and {name!r} has new rows; accepted is the islices optimizer of the state, a "
            "number, or a mapping of name to number"
        )
    return fill
