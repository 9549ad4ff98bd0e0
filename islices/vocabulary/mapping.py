"""Which old row each row of a new table takes: `RowMap`.

May import: `numpy`, the core below `islices.vocabulary`.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import numpy as np

from islices.arguments import LARGEST, show, whole_number
from islices.backend import INDICES
from islices.ids import check_ids
from islices.registry import describe, find_backend

__all__ = ["NEW", "RowMap", "as_map", "count_of_rows"]

T = TypeVar("T")
Host = np.ndarray[Any, Any]

#: In place of an old row's number: the row is new. In that of a new row's: the old one is dropped.
NEW = DROPPED = -1
#: An inverse with a place for each old row is made where those are at most so many times the new ones.
SPREAD = 4


class RowMap:
    """Which old row each row of the new table takes; -1 where it is new.

    Parameters
    ----------
    old_ids : 1-D integers, one a row of the new table
        The number of the old row that it takes, each at most once, or -1. Old rows that are not named are dropped.
    old_rows : int, optional
        How many rows the old table has. Where it is not given, the table says it.

    Attributes
    ----------
    old_rows : int or None
    rows : int
        Of the new table.

    Raises
    ------
    TypeError, ValueError, IndexError
        No integers, an old row named twice, or one that the old table has not.

    Notes
    -----
    Takes 8 bytes a row. SPEC clause 27.

    Examples
    --------
    >>> m = RowMap([2, -1, 0], old_rows=3)  # old row 1 is dropped, new row 1 is new
    >>> m
    RowMap(3 rows of 3, 1 new)
    >>> m.added.tolist()
    [1]
    """

    old_rows: int | None
    rows: int
    #: the old rows of the new ones; None where the first old_rows stay, and the others are new
    _old_ids: Host | None

    def __init__(self, old_ids: Any, old_rows: int | None = None) -> None:
        given = old_ids
        if not isinstance(old_ids, np.ndarray):
            backend = find_backend(old_ids)
            known = backend is not None and backend.is_array(old_ids) and not backend.is_traced(old_ids)
            old_ids = backend.to_numpy(old_ids) if known else _from_sequence(old_ids)  # type: ignore[union-attr]
        if old_ids.ndim != 1 or old_ids.dtype.name not in INDICES:
            raise TypeError(f"old_ids: got {describe(given)}; accepted are 1-D integers, -1 for a row that is new")
        held = old_ids.astype(np.int64)  # copied
        held.flags.writeable = False
        self._old_ids, self.rows = held, len(held)
        self._inverse: tuple[Host | None, Host] | None = None
        self.old_rows = None if old_rows is None else count_of_rows(old_rows, "old_rows")
        self._check(self.old_rows)
        self._check_once()

    def _check(self, old_rows: int | None) -> None:
        bound = LARGEST if old_rows is None else old_rows
        wrong = (self.old_ids < NEW) | (self.old_ids >= bound)
        if wrong.any():
            at = int(np.argmax(wrong))
            accepted = "-1 or an old row" if old_rows is None else f"-1, or 0 <= old row < {old_rows}"
            raise IndexError(f"old_ids: got {self.old_ids[at]} at position {at}; accepted is {accepted}")

    def _check_once(self) -> None:
        """Each old row is named at most once."""
        ordered = np.sort(self.old_ids[self.old_ids != NEW])
        twice = ordered[1:] == ordered[:-1]
        if twice.any():
            row = ordered[np.argmax(twice)]
            first, second = np.flatnonzero(self.old_ids == row)[:2].tolist()
            raise ValueError(
                f"old_ids: got old row {row} for the new rows {first} and {second}; accepted is each old row at most "
                "once"
            )

    # ------------------------------------------------------------------ other ways to say it
    @classmethod
    def from_dict(
        cls, new_of_old: Mapping[int, int], *, rows: int | None = None, old_rows: int | None = None
    ) -> RowMap:
        """The map of {old row: new row}.

        Parameters
        ----------
        new_of_old : mapping of int to int
            Old rows that it lacks are dropped, new rows that it lacks are new.
        rows, old_rows : int, optional
            How many the new table and the old one have; by default the new one has no row behind the last that is
            named.

        Returns
        -------
        RowMap

        Raises
        ------
        TypeError, ValueError, IndexError
            Two old rows for one new one; rows that are none.

        Examples
        --------
        >>> RowMap.from_dict({0: 0, 7: 1}, rows=3).old_ids.tolist()
        [0, 7, -1]
        """
        if not isinstance(new_of_old, Mapping):
            raise TypeError(f"new_of_old: got {describe(new_of_old)}; accepted is a mapping of old rows to new rows")
        old = _from_sequence(list(new_of_old), "new_of_old: old rows")
        new = _from_sequence(list(new_of_old.values()), "new_of_old: new rows")
        count = int(new.max(initial=-1)) + 1 if rows is None else count_of_rows(rows, "rows")
        for numbers, what, bound in ((old, "old", LARGEST), (new, "new", count)):
            wrong = (numbers < 0) | (numbers >= bound)
            if wrong.any():
                row = numbers[np.argmax(wrong)]
                raise IndexError(f"new_of_old: got the {what} row {row}; accepted is 0 <= {what} row < {bound}")
        names, counts = np.unique(new, return_counts=True)
        if (counts > 1).any():
            row = names[np.argmax(counts > 1)]
            pair = old[new == row][:2].tolist()
            raise ValueError(f"new_of_old: got new row {row} for the old rows {pair}; accepted is one")
        old_ids = np.full(count, NEW, np.int64)
        old_ids[new] = old
        return cls(old_ids, old_rows)

    @classmethod
    def from_tokens(cls, old: Iterable[Any] | Mapping[Any, int], new: Iterable[Any] | Mapping[Any, int]) -> RowMap:
        """The map from one vocabulary to another: a token keeps its row, wherever it stands.

        Parameters
        ----------
        old, new : iterable of tokens, or mapping of token to row
            Tokens are strings or any others that can be hashed, in the order of rows. A mapping's rows are 0 to
            len - 1, each once.

        Returns
        -------
        RowMap

        Raises
        ------
        TypeError, ValueError
            A token twice, or rows with gaps.

        Examples
        --------
        >>> RowMap.from_tokens({"a": 0, "b": 1}, ["b", "c", "a"]).old_ids.tolist()
        [1, -1, 0]
        """
        before, after = _rows_of_tokens(old, "old"), _rows_of_tokens(new, "new")
        old_ids = np.full(len(after), NEW, np.int64)
        for token, row in after.items():
            old_ids[row] = before.get(token, NEW)
        return cls(old_ids, len(before))

    @classmethod
    def grown(cls, old_rows: int, rows: int) -> RowMap:
        """The map that keeps each row in its place, new ones behind the last.

        Parameters
        ----------
        old_rows, rows : int

        Returns
        -------
        RowMap

        Raises
        ------
        ValueError
            Fewer rows than there are.

        Examples
        --------
        >>> RowMap.grown(2, 4).old_ids.tolist()
        [0, 1, -1, -1]
        """
        old_rows, rows = count_of_rows(old_rows, "old_rows"), count_of_rows(rows, "rows")
        if rows < old_rows:
            raise ValueError(
                f"rows: got {rows} for a table of {old_rows}; accepted is at least as many (to drop rows: renumber)"
            )
        self = object.__new__(cls)
        self._old_ids, self.rows, self.old_rows, self._inverse = None, rows, old_rows, None
        return self

    # ------------------------------------------------------------------ reading it
    @property
    def old_ids(self) -> Host:
        """The old row of each new one, -1 where it is new: int64, read-only."""
        return self.part(0, self.rows)

    @property
    def added(self) -> Host:
        """The new rows that the old table had not, ascending."""
        return np.flatnonzero(self.old_ids == NEW)

    @property
    def count_added(self) -> int:
        """How many they are."""
        if self._old_ids is None:
            return self.rows - (self.old_rows or 0)
        return int(np.count_nonzero(self._old_ids == NEW))

    def part(self, first: int, stop: int) -> Host:
        """`old_ids` of some of the new rows, where all of them would be too many.

        Parameters
        ----------
        first, stop : int
            The rows first to stop - 1.

        Returns
        -------
        int64 array
        """
        if self._old_ids is not None:
            return self._old_ids[first:stop]
        rows = np.arange(first, min(stop, self.rows), dtype=np.int64)
        rows[rows >= (self.old_rows or 0)] = NEW
        rows.flags.writeable = False
        return rows

    def _of(self, old_rows: int) -> RowMap:
        """This map for a table of so many rows; ValueError or IndexError where it is another's."""
        if self.old_rows is None:
            self._check(old_rows)
            known = copy.copy(self)
            known.old_rows = old_rows
            return known
        if self.old_rows != old_rows:
            raise ValueError(f"mapping: got one of a table of {self.old_rows} rows for one of {old_rows}")
        return self

    def new_ids(self, old: Any) -> Host:
        """The new numbers of old rows, -1 for one that is dropped.

        Parameters
        ----------
        old : integer array of NumPy
            Numbers of any size.

        Returns
        -------
        int64 array of old's shape

        Raises
        ------
        TypeError
            Numbers that are no integers, or of more than 64 bits.

        Examples
        --------
        >>> RowMap([2, -1, 0]).new_ids([0, 1, 2]).tolist()
        [2, -1, 0]
        """
        given, old = old, np.asarray(old)
        if old.dtype.kind not in "iu" and old.size:
            raise TypeError(f"old: got {describe(given)}; accepted are integers of 64 bits")
        old = old.astype(np.int64, copy=False)  # those that it cannot hold become negative: no rows
        if self._old_ids is None:
            return np.where((old >= 0) & (old < (self.old_rows or 0)), old, DROPPED)
        if self._inverse is None:
            self._inverse = self._inverted()
        named, new = self._inverse
        if named is None:
            inside = (old >= 0) & (old < len(new) - 1)
            return new[np.where(inside, old, -1)]
        at = np.minimum(np.searchsorted(named, old), len(named) - 1)
        return np.where(named[at] == old, new[at], DROPPED)

    def _kept(self, indices: Host, coalesced: bool, argument: str) -> tuple[Host, Host, bool]:
        """Of slices: the slots whose rows stay, in their order, the rows' new indices, and whether those ascend."""
        new = self.new_ids(indices)
        stay = np.flatnonzero(new >= 0)
        new = new[stay]
        if len(new) and new.max() > np.iinfo(indices.dtype).max:
            raise IndexError(f"{argument}: got {indices.dtype}, which cannot hold row {new.max()}; accepted is int64")
        return stay, new.astype(indices.dtype), coalesced and bool((np.diff(new) > 0).all())

    def _inverted(self) -> tuple[Host | None, Host]:
        """(None, the new number of each old row and a last -1), or where those are too many: (the old rows that stay,
        ascending, their new numbers)."""
        kept = np.flatnonzero(self.old_ids != NEW)
        old = self.old_ids[kept]
        bound = int(old.max(initial=-1)) + 1
        if bound <= SPREAD * (self.rows + 1):
            new = np.full(bound + 1, DROPPED, np.int64)
            new[old] = kept
            return None, new
        order = np.argsort(old)
        return old[order], kept[order]

    def ids(self, ids: T, *, missing: int | None = None) -> T:
        """The ids of a batch, renumbered as the table is.

        Parameters
        ----------
        ids : int32 or int64 array of any shape and framework
        missing : int, optional
            The new row for ids whose row is dropped, an unknown token's for example. Without it they raise.

        Returns
        -------
        same type as ids, of its dtype and shape

        Raises
        ------
        IndexError
            An id that the old table has not, or whose row is dropped.
        TypeError
            No ids, a missing that is no int, or traced ids: take them from ``new_ids(range(old_rows))``, an array,
            instead. SPEC clause 27.

        Examples
        --------
        >>> import numpy as np
        >>> RowMap([2, -1, 0], 3).ids(np.array([[0, 2], [2, 2]])).tolist()
        [[2, 0], [0, 0]]
        """
        B = find_backend(ids)
        if B is None or not B.is_array(ids):
            raise TypeError(f"ids: got {describe(ids)}; accepted is an int32 or int64 array")
        checked = check_ids(B, ids, ids)
        if B.is_traced(checked):
            raise TypeError(
                "ids: got traced ones; accepted are ids whose values are known (in traced code take them from the "
                "array new_ids(range(old_rows)))"
            )
        old = B.to_numpy(checked)
        new = self.new_ids(old)
        if missing is not None:
            row = whole_number(missing)
            if row is None:
                raise TypeError(f"missing: got {describe(missing)}; accepted is an int or None")
            if not 0 <= row < self.rows:
                raise IndexError(f"missing: got {show(missing)}; accepted is 0 <= row < {self.rows}")
            new[new == DROPPED] = row
        beyond = old < 0 if self.old_rows is None else (old < 0) | (old >= self.old_rows)
        wrong = beyond | (new == DROPPED)
        if wrong.any():
            at = int(np.argmax(wrong))
            row = int(old.reshape(-1)[at])
            bound = "" if self.old_rows is None else f" < {self.old_rows}"
            why = f"accepted is 0 <= id{bound}"
            if not beyond.reshape(-1)[at]:
                why = "whose row the mapping drops; accepted is missing=, the row for such ids"
            raise IndexError(f"ids: got {row} at position {at}; {why}")
        if new.size and new.max() > np.iinfo(old.dtype).max:
            raise IndexError(f"ids: got {old.dtype}, which cannot hold row {new.max()}; accepted is int64")
        return B.from_host(np.ascontiguousarray(new.astype(old.dtype)), checked)  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        of = "" if self.old_rows is None else f" of {self.old_rows}"
        return f"RowMap({self.rows} rows{of}, {self.count_added} new)"


def as_map(mapping: Any, old_rows: int) -> RowMap:
    """A RowMap, a {old row: new row}, or the old row of each new one, for a table of so many rows."""
    if isinstance(mapping, RowMap):
        return mapping._of(old_rows)
    if isinstance(mapping, Mapping):
        return RowMap.from_dict(mapping, old_rows=old_rows)
    return RowMap(mapping, old_rows)


def count_of_rows(x: Any, argument: str) -> int:
    number = whole_number(x)
    if number is None:
        raise TypeError(f"{argument}: got {describe(x)}; accepted is an int >= 0")
    if not 0 <= number <= LARGEST:
        raise ValueError(f"{argument}: got {show(number)}; accepted is 0 <= {argument} <= {LARGEST}")
    return number


def _from_sequence(x: Any, argument: str = "old_ids") -> Host:
    """A list or a range of ints; TypeError for anything else."""
    if not isinstance(x, (list, tuple, range)):
        raise TypeError(f"{argument}: got {describe(x)}; accepted are 1-D integers, -1 for a row that is new")
    numbers = list(map(whole_number, x))
    for at, number in enumerate(numbers):
        if number is None or abs(number) > LARGEST:
            raise TypeError(f"{argument}: got {show(x[at])} at position {at}; accepted are ints of 64 bits")
    return np.array(numbers, np.int64).reshape(len(numbers))


def _rows_of_tokens(tokens: Any, argument: str) -> dict[Any, int]:
    """token -> row"""
    if isinstance(tokens, (str, bytes)) or not isinstance(tokens, Iterable):
        raise TypeError(f"{argument}: got {describe(tokens)}; accepted are tokens, or a mapping of token to row")
    if isinstance(tokens, Mapping):
        found = dict(tokens)
        rows = np.sort(_from_sequence(list(found.values()), f"{argument}: rows"))
        gaps = rows != np.arange(len(rows))
        if gaps.any():
            at = int(np.argmax(gaps))
            raise ValueError(f"{argument}: got rows of which {rows[at]} stands where {at} should; accepted are 0 to "
                             f"{len(rows) - 1}, each once")  # fmt: skip
        return found
    found = {}
    for row, token in enumerate(tokens):
        if found.setdefault(token, row) != row:
            raise ValueError(
                f"{argument}: got {show(token)} in rows {found[token]} and {row}; accepted is each token once"
            )
    return found
