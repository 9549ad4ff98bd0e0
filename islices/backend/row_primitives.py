"""Rows: the framework's own sparse objects, indices, sums of slices, tables.

May import: `numpy`, `islices.backend.arrays`, `islices.backend.contract`, `islices.backend.memory`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from islices.backend.arrays import Arrays
from islices.backend.contract import FLOATS, Array, optional, primitive
from islices.backend.memory import Look


class NativeParts(NamedTuple):
    """A framework's sparse object, taken apart without letting the framework compute on it.

    What `Backend.from_native` returns; the core validates it by SPEC clauses 1 and 2.

    Parameters
    ----------
    values : array, shape (n, *row_shape)
    indices : array, shape (n,)
    dense_shape : tuple of int
        (rows, *row_shape); rows may be None for unknown.
    coalesced : bool
        The object's own word that its indices are strictly ascending.
    padded : bool
        The index ``rows`` marks slots that hold nothing.
    look : Look, optional
        `Backend.look` at values and indices, where it is known on the way. With views, and of a backend that is
        `native_of_views`, indices may be None: an array is made of the view if somebody asks for it.

    Examples
    --------
    >>> import numpy as np
    >>> parts = NativeParts(np.ones((1, 2)), np.array([3]), (4, 2))
    >>> parts.coalesced, parts.padded
    (False, False)
    """

    values: Array
    indices: Array
    dense_shape: tuple[int | None, ...]
    coalesced: bool = False
    padded: bool = False
    look: Look | None = None


class RaggedParts(NamedTuple):
    """A framework's own array of rows that differ in length, taken apart: what `Backend.take_ragged` returns.

    Rows may be nested: the innermost ones are bags, the outermost ones samples.
    """

    kind: str  # what the framework calls it
    values: Array  # (n, ...): the numbers of all rows, one after the other
    segments: Array  # (n,) integers: the innermost row of each
    bags: Array  # an array as long as there are innermost rows
    samples: Array  # (n,) integers: the outermost row of each
    batch: Array  # an array as long as there are outermost rows
    structure: tuple[Array, ...]  # integers that are equal where rows lie alike
    #: of arrays (n, ..., *row_shape), one a number: the same structure with them in place of the numbers; None if none
    with_rows: Callable[[Array], Any] | None
    #: of arrays (innermost rows, *row_shape), one a bag: what is left of the structure with them
    with_bags: Callable[[Array], Any]


class Slots(NamedTuple):
    """The slots of a gradient before anything is computed on them: slot k is for row indices[k], and holds
    ``values[positions[k]] * factor``, rounded to values' dtype."""

    values: Array  # (m, *row_shape)
    indices: Array | None = None  # (n,) int32 or int64; None for a dense array: all numbers of values
    rows: int | None = None  # how many rows there are
    positions: Array | None = None  # (n,) int32 or int64; None: the slots' own places
    factor: Array | None = None  # (1,) of the widened dtype of values; None: 1


class RowPrimitives(Arrays):
    """Rows: the framework's own sparse objects, indices, sums of slices, tables.

    Attributes
    ----------
    native_name : str
        What the framework calls its row-sparse object, for messages; empty if it has none.
    native_float_dtypes : tuple of str
        The floating dtypes the native sparse type can hold.
    native_needs_coalesced : bool
        True if `to_native` takes only coalesced slices (the core coalesces first).
    native_of_views : bool
        True if `to_native` takes indices as a NumPy array too.
    sentinel_padding : bool
        True where traced code cannot drop slots, so that `select` moves them to the sentinel row instead.
    whole_floats : bool
        True where the framework's own layers take ids and masks as floats that are whole numbers (MXNet).
    """

    native_name: ClassVar[str] = ""
    native_float_dtypes: ClassVar[tuple[str, ...]] = FLOATS
    native_needs_coalesced: ClassVar[bool] = False
    native_of_views: ClassVar[bool] = False
    sentinel_padding: ClassVar[bool] = False
    whole_floats: ClassVar[bool] = False

    # ------------------------------------------------------------------ the framework's sparse form
    @optional("there is no row-sparse type")
    def is_native(self, x: object) -> bool:
        """Whether x is this framework's own row-sparse object."""
        return False

    @optional("there is no row-sparse type")
    def from_native(self, x: Any) -> NativeParts:
        """Take a native sparse object apart without touching its contents; the core validates them.

        Raises ValueError for a native form that is not row-sparse (more than one sparse dimension, a batch).
        """
        raise TypeError(f"{self.name} has no row-sparse type of its own")

    @optional("there is no row-sparse type")
    def to_native(
        self,
        values: Array,
        indices: Array,
        dense_shape: tuple[int | None, ...],
        *,
        coalesced: bool,
        padded: bool,
        like: Any = None,
    ) -> Any:
        """Build the native sparse object. ``like``, if given, is the native object this result answers.

        Slots of padded slices have been dropped already unless `sentinel_padding`.
        """
        raise TypeError(f"{self.name} has no row-sparse type of its own")

    @optional("there is no ragged type")
    def take_ragged(self, x: Any, argument: str) -> RaggedParts | None:
        """The framework's own ragged array, of any dtype, taken apart; None for anything else. ValueError for a form
        that is not rows of numbers, TypeError where there is a better one to ask for, which name the argument."""
        return None

    # ------------------------------------------------------------------ indices
    @primitive
    def equal(self, x: Array, value: int | Array) -> Array:
        """The mask of where integers equal value (an int, or an array that broadcasts)."""
        raise NotImplementedError

    @primitive
    def in_range(self, indices: Array, rows: int | None) -> Array:
        """The mask of 0 <= indices < rows (no upper bound if rows is None)."""
        raise NotImplementedError

    @primitive
    def logical_not(self, mask: Array) -> Array:
        """The other slots of a mask that `equal`, `isin` or `in_range` made."""
        raise NotImplementedError

    @primitive
    def isin(self, indices: Array, rows: Array) -> Array:
        """The mask of the indices that occur in rows (1-D integers, any order, duplicates allowed)."""
        raise NotImplementedError

    @primitive
    def arange(self, x: Array) -> Array:
        """0, 1, ... up to the length of x along axis 0, as int32 or int64, shape (n,)."""
        raise NotImplementedError

    @primitive
    def searchsorted(self, ordered: Array, queries: Array, *, right: bool) -> Array:
        """Return the place of each query (1-D) in the ascending 1-D integers ``ordered``, as `numpy.searchsorted`
        says for side "right" or "left": int32 or int64, queries' shape. Both may be empty."""
        raise NotImplementedError

    @primitive
    def select(self, values: Array, indices: Array, keep: Array, rows: int | None) -> tuple[Array, Array]:
        """The slots where the mask keep holds, in order.

        Where `sentinel_padding` and the arrays are traced, no slot can go: the others get index ``rows`` and
        values of zero.
        """
        raise NotImplementedError

    @primitive
    def unique(self, indices: Array, rows: int | None) -> tuple[Array, Array]:
        """(ids, inverse): the distinct indices ascending, in their own dtype, and for each slot its place in ids.

        Traced with static shapes: as many ids as slots, filled up with ``rows`` at the end.
        """
        raise NotImplementedError

    @optional("`concat` does it")
    def running_sum(self, x: Array) -> Array:
        """The sums of the first 1, 2, ... of 1-D integers, in their dtype. To be overridden where traced shapes are
        dynamic."""
        (n,) = self.shape(x)
        assert n is not None, "shapes are known here"
        step = 1
        while step < n:
            head = self.reshape(self.columns(self.reshape(x, (1, n)), 0, n - step), (n - step,))
            x = x + self.concat([self.zeros((step,), self.dtype(x), x), head])
            step *= 2
        return x

    # ------------------------------------------------------------------ sums and maxima of slices
    @primitive
    def segment_sum(self, values: Array, segments: Array, count: int | None) -> Array:
        """out[s] = the sum of values[k] over segments[k] == s, added left to right in order of k, shape
        (count, *row_shape). The dtype is values' own (float32, float64 or an integer); count is None only
        where traced shapes are dynamic."""
        raise NotImplementedError

    @primitive
    def segment_max(self, values: Array, segments: Array, count: int | None, *, least: float | None = None) -> Array:
        """out[s] = the largest values[k] over segments[k] == s, elementwise, shape (count, *row_shape); NaN if one is.

        values: float32, float64, int32 or int64. An empty segment holds -inf, or the smallest
        integer; or ``least``, asked for of traced floats that are at least that or NaN: then no -inf is made on the
        way. No gradient need pass.
        """
        raise NotImplementedError

    @primitive
    def scatter_rows(self, values: Array, ids: Array, shape: tuple[int, ...]) -> Array:
        """A dense array of zeros with rows ids (unique, ascending) set to values. Out-of-range ids, possible in
        traced code only, set nothing. Bit for bit the values."""
        raise NotImplementedError

    @primitive
    def add_rows(self, dense: Array, values: Array, ids: Array) -> Array:
        """A new array: dense with values added to rows ids (unique, in range, or dropped while traced).

        dense and values have the same dtype; 16-bit sums are taken in float32 and rounded once.
        """
        raise NotImplementedError

    @optional("no mul and div into tables in traced code")
    def fold_rows(self, op: str, rows: Array, values: Array, segments: Array) -> Array:
        """Return rows[s] times (op "mul") or divided ("div") by values[k], of traced 32 or 64-bit arrays,
        for each segments[k] == s, one after the other in order of k; segments out of range change nothing. Only for
        adapters that trace."""
        raise self.lacks("fold_rows")

    # ------------------------------------------------------------------ tables
    @optional("a copy of the table is written")
    def set_rows(self, table: Array, ids: Array, values: Array, *, donate: bool = False) -> Array:
        """The table with rows ids (unique, any order; out of range, possible in traced code only, nowhere) set to
        values, in place and itself where the framework's arrays can change; else a new array, which takes the place
        of a table that is donated. Gradients are not recorded."""
        return self.stand_in("set_rows", np.array(self.to_numpy(table)), ids, values)

    @optional("the rows are read, summed and set")
    def add_in_order(self, table: Array, ids: Array, values: Array, *, donate: bool = False) -> Array | None:
        """Return a concrete table of 32 or 64 bits with values added to rows ids (in range, duplicates allowed),
        one after the other, written as `set_rows` says. None where reading, summing and setting the rows is as fast."""
        return None

    @optional("the primitives do it")
    def traced_step(
        self,
        formula: Any,
        slots: Slots,
        numbers: Array,
        tables: Sequence[Array],
        otherwise: Callable[..., Sequence[Array]],
    ) -> Sequence[Array] | None:
        """Return, in traced code, the tables (the weights, then the state's) after an optimizer's step, an
        `islices.optim.formulas.Formula`, by a compiled kernel; indices out of range name no row. None where none can
        be called. ``otherwise(slots, numbers, *tables)`` is the same in the framework's operations."""
        return None

    @optional("the primitives do it")
    def traced_norm(
        self, leaves: Sequence[Slots], ord: int, otherwise: Callable[[Sequence[Slots]], Array]
    ) -> Array | None:
        """Return, in traced code, the norm of order 1 or 2 of all leaves, float64 of shape (1,), by a compiled kernel;
        duplicates are summed first, indices out of range name no row. None where none can be called.
        ``otherwise(leaves)`` is the same in the framework's operations."""
        return None

    @optional("the primitives do it")
    def traced_bags(
        self,
        table: Array,
        ids: Array,
        segments: Array,
        bags: Array,
        keep: Array | None,
        otherwise: Callable[[Array, Array, Array, Array, Array | None], Array],
    ) -> Array | None:
        """Return, in traced code, sums of the table's rows ids (n,) by segment, as many as bags has elements, left to
        right, by a compiled kernel; without the members that keep, int32, has as 0, and those out of range. None where
        none can be called. ``otherwise(table, ids, segments, bags, keep)`` is the same without one, and has the
        gradient."""
        return None

    # ------------------------------------------------------------------ made of the others
    @optional("`take` does it")
    def read_rows(self, table: Array, ids: Array) -> Array:
        """table[ids], shape (*ids.shape, *row_shape); out-of-range ids, possible in traced code only, read as zeros."""
        rows = self.shape(table)[0]
        if not self.is_traced(ids):
            return self.take(table, ids)
        if rows == 0:
            return self.zeros((*self.shape(ids), *self.shape(table)[1:]), self.dtype(table), table)  # type: ignore[arg-type]
        valid = self.in_range(ids, rows)
        found = self.take(table, self.where(valid, ids, self.zeros_like(ids)))
        return self.where(self.as_column(valid, found), found, self.zeros_like(found))

    @optional("`unique` and `segment_sum` do it")
    def sum_duplicates(self, values: Array, indices: Array, rows: int | None) -> tuple[Array, Array]:
        """(sums, ids): `unique` then `segment_sum`; override where one pass can do both."""
        ids, inverse = self.unique(indices, rows)
        return self.segment_sum(values, inverse, self.shape(ids)[0]), ids

    @optional("`sum_duplicates` does it")
    def sum_rows(self, values: Array, indices: Array, rows: int | None, *, loose: bool) -> tuple[Array, Array]:
        """(sums, ids) of values' own dtype: `sum_duplicates` of 16-bit floats in float32, rounded once. Where loose,
        indices may be out of range: those slots are left out."""
        if loose:
            values, indices = self.select(values, indices, self.in_range(indices, rows), rows)
        sums, ids = self.sum_duplicates(self.widen(values), indices, rows)
        return self.astype(sums, self.dtype(values)), ids

    @optional("`sum_rows` and `scatter_rows` do it")
    def dense_rows(self, values: Array, indices: Array, shape: tuple[int, ...], *, loose: bool) -> Array:
        """Zeros of a shape with the sums of `sum_rows` in their rows."""
        sums, ids = self.sum_rows(values, indices, shape[0], loose=loose)
        return self.scatter_rows(sums, ids, shape)
