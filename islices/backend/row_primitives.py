"""Primitives for rows: the framework's sparse objects, indices, sums of slices, and tables.

May import: `numpy`, `islices.backend.arrays`, `islices.backend.contract`, `islices.backend.memory`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from islices.backend.arrays import Arrays
from islices.backend.contract import FLOATS, Array, Shape, optional, primitive
from islices.backend.memory import Look


class NativeParts(NamedTuple):
    """The parts of a framework's sparse object, as the object stores them.

    `Backend.from_native` returns an instance; the core checks the instance as SPEC clauses 1 and 2 require.

    Parameters
    ----------
    values : array, shape (n, *row_shape)
    indices : array, shape (n,)
    dense_shape : tuple of int
        (rows, *row_shape); rows is None if the number is unknown.
    coalesced : bool
        True if the object claims that its indices are strictly ascending.
    padded : bool
        True if the index ``rows`` marks empty slots.
    look : Look, optional
        The result of `Backend.look` for values and indices, if the adapter has computed it. If there are views and the
        backend sets `native_of_views`, indices may be None; the core makes the array from the view on first use.

    Examples
    --------
    >>> import numpy as np
    >>> parts = NativeParts(np.ones((1, 2)), np.array([3]), (4, 2))
    >>> parts.coalesced, parts.padded
    (False, False)
    """

    values: Array
    indices: Array
    dense_shape: Shape
    coalesced: bool = False
    padded: bool = False
    look: Look | None = None


class RaggedParts(NamedTuple):
    """The parts of a framework's array of rows that differ in length, as `Backend.take_ragged` returns them.

    Rows may be nested: the innermost rows are bags, and the outermost rows are samples.
    """

    kind: str  # the framework's name of such an array
    values: Array  # (n, ...): the numbers of all rows, concatenated
    segments: Array  # (n,) integers: the innermost row of each number
    bags: Array  # an array with one entry per innermost row
    samples: Array  # (n,) integers: the outermost row of each number
    batch: Array  # an array with one entry per outermost row
    structure: tuple[Array, ...]  # integers that are equal for arrays whose rows have the same structure
    #: a function from one row per number, (n, ..., *row_shape), to a ragged array of rows with the same structure; None
    #: if the framework has none
    with_rows: Callable[[Array], Any] | None
    #: a function from one entry per bag, (bags, *row_shape), to an array with the structure of the bags
    with_bags: Callable[[Array], Any]


class Slots(NamedTuple):
    """The slots of a gradient, stored as the arrays from which the slots' values are computed.

    Slot k belongs to row indices[k], and contains ``values[positions[k]] * factor``, rounded to the dtype of values.
    """

    values: Array  # (m, *row_shape)
    indices: Array | None = None  # (n,) int32 or int64; None if duplicates need no sum, as in a dense array
    rows: int | None = None  # the number of rows of the table; None if it is unknown
    positions: Array | None = None  # (n,) int32 or int64; None if slot k has position k
    factor: Array | None = None  # a float, or an array (1,) of the widened dtype of values; None means 1


class RowPrimitives(Arrays):
    """The part of `Backend` for rows: the framework's sparse objects, indices, sums of slices, and tables.

    Attributes
    ----------
    native_name : str
        The framework's name for its row-sparse object, which messages use. The name is empty if there is no such
        object.
    native_float_dtypes : tuple of str
        The floating dtypes that the native sparse type supports.
    native_needs_coalesced : bool
        True if `to_native` accepts only coalesced slices (the core coalesces first).
    native_of_views : bool
        True if `to_native` also accepts indices as a NumPy array.
    sentinel_padding : bool
        True if traced code cannot drop slots, so that `select` gives the slots to drop the sentinel index instead.
    whole_floats : bool
        True if the framework's layers accept ids and masks that are floats with whole numbers (MXNet).
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
        """Return True if x is a sparse object of this framework, even one that `from_native` does not accept."""
        return False

    @optional("there is no row-sparse type")
    def from_native(self, x: Any) -> NativeParts:
        """Return the parts of a native sparse object, as the object stores them. The core checks the parts.

        Raise ValueError for an object that is not row-sparse, such as an object with several sparse dimensions, or with
        a batch dimension.
        """
        raise TypeError(f"{self.name} has no row-sparse type of its own")

    @optional("there is no row-sparse type")
    def to_native(
        self,
        values: Array,
        indices: Array,
        dense_shape: Shape,
        *,
        coalesced: bool,
        padded: bool,
        like: Any = None,
    ) -> Any:
        """Build a native sparse object, with the type details of ``like`` if this other native object is given.

        Empty slots of padded slices have been dropped already, unless the backend sets `sentinel_padding`.
        """
        raise TypeError(f"{self.name} has no row-sparse type of its own")

    @optional("coalesce takes longer for small sparse objects")
    def coalesce_few(self, x: Any) -> Any:
        """Coalesce a native sparse object with one kernel call, which also checks the indices.

        Return None if x is dense, coalesced or padded, or if no kernel can do this. The core then coalesces x, or
        raises an error if x is not valid. Adapters may implement this method to make small calls faster.
        """
        return None

    @optional("there is no ragged type")
    def take_ragged(self, x: Any, argument: str) -> RaggedParts | None:
        """Return the parts of a ragged array of the framework, of any dtype, or None for any other object.

        Raise ValueError for an array that does not consist of rows of numbers. Raise TypeError if the caller should
        pass the data in another form. Both errors name the argument.
        """
        return None

    # ------------------------------------------------------------------ indices
    @primitive
    def equal(self, x: Array, value: int | Array) -> Array:
        """Return the mask of the integers that are equal to `value`, an int or an array that broadcasts."""
        raise NotImplementedError

    @primitive
    def in_range(self, indices: Array, rows: int | None) -> Array:
        """Return the mask of 0 <= indices < rows (no upper bound if rows is None)."""
        raise NotImplementedError

    @primitive
    def logical_not(self, mask: Array) -> Array:
        """Return the negation of a mask that `equal`, `isin`, `in_range` or `less_equal` made."""
        raise NotImplementedError

    @primitive
    def isin(self, indices: Array, rows: Array) -> Array:
        """Return the mask of the indices that occur in `rows` (1-D integers, in any order, duplicates allowed)."""
        raise NotImplementedError

    @primitive
    def arange(self, x: Array) -> Array:
        """Return the numbers 0, 1, ..., n - 1 as an int32 or int64 array, where n is the length of x along axis 0."""
        raise NotImplementedError

    @primitive
    def searchsorted(self, ordered: Array, queries: Array, *, right: bool) -> Array:
        """Return the positions of 1-D `queries` in the ascending 1-D integers `ordered`, as `numpy.searchsorted` does.

        If `right` is True the side is "right", else "left". The result is int32 or int64, with the shape of `queries`.
        Both arrays may be empty.
        """
        raise NotImplementedError

    @primitive
    def select(self, values: Array, indices: Array, keep: Array, rows: int | None) -> tuple[Array, Array]:
        """Return the slots for which the mask `keep` is True, in order.

        With `sentinel_padding` and traced arrays, slots cannot be dropped. The slots for which `keep` is False then get
        the index ``rows``, and zeros as values.
        """
        raise NotImplementedError

    @primitive
    def unique(self, indices: Array, rows: int | None) -> tuple[Array, Array]:
        """Return (ids, inverse). ids contains the distinct indices in ascending order, in the dtype of `indices`.
        inverse contains, for each slot, the position of the slot's index in ids.

        In traced code with static shapes, there are as many ids as slots, and the spare ids at the end are ``rows``.
        """
        raise NotImplementedError

    @optional("`concat` does it")
    def running_sum(self, x: Array) -> Array:
        """Return the running sums of 1-D integers, in their dtype: item k is the sum of the first k + 1 integers.

        Override this method if traced shapes are dynamic.
        """
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
        """Return out[s] = the sum of values[k] over segments[k] == s, added left to right in order of k.

        The shape is (count, *row_shape). The dtype is that of values: float32, float64 or an integer. `count` is None
        only if traced shapes are dynamic.
        """
        raise NotImplementedError

    @primitive
    def segment_max(self, values: Array, segments: Array, count: int | None, *, least: float | None = None) -> Array:
        """Return out[s] = the elementwise largest values[k] over segments[k] == s, or NaN if one of these values is
        NaN.

        The shape is (count, *row_shape). values are float32, float64, int32 or int64. An empty segment gets -inf, or
        the smallest integer. If ``least`` is given, an empty segment gets ``least`` instead. All values are then floats
        that are NaN or at least ``least``, so the result contains no -inf. The result needs no gradient.
        """
        raise NotImplementedError

    @primitive
    def scatter_rows(self, values: Array, ids: Array, shape: tuple[int, ...]) -> Array:
        """Return a dense array of zeros in which the rows at `ids` have the bits of `values`. `ids` are unique and
        ascending.

        An id out of range, which only traced code may have, sets no row.
        """
        raise NotImplementedError

    @primitive
    def add_rows(self, dense: Array, values: Array, ids: Array) -> Array:
        """Return a copy of `dense` with values added to the rows at `ids`. `ids` are unique and in range; in traced
        code ids out of range are ignored.

        dense and values have the same dtype; 16-bit sums are computed in float32 and rounded once.
        """
        raise NotImplementedError

    @optional("no mul and div into tables in traced code")
    def fold_rows(self, op: str, rows: Array, values: Array, segments: Array) -> Array:
        """Return rows[s] multiplied (op "mul") or divided ("div") by values[k] for each segments[k] == s, in order of
        k.

        The arrays are traced, of 32 or 64 bits; segments out of range change nothing. Only adapters with traced code
        need this method.
        """
        raise self.lacks("fold_rows")

    # ------------------------------------------------------------------ tables
    @optional("a copy of the table is written")
    def set_rows(self, table: Array, ids: Array, values: Array, *, donate: bool = False) -> Array:
        """Return the table with the rows at `ids` set to values. `ids` are unique, in any order.

        An id out of range, which only traced code may have, sets no row. If the table is an array that can change, the
        table changes in place and is the result. For any other table, the result is a new array, which may reuse the
        memory of a donated table. No gradient flows through the table.
        """
        return self.stand_in("set_rows", np.array(self.to_numpy(table)), ids, values)

    @optional("the rows are read, summed and set")
    def add_in_order(self, table: Array, ids: Array, values: Array, *, donate: bool = False) -> Array | None:
        """Return a concrete table of 32 or 64 bits with values added in order to the rows at `ids`.

        `ids` are in range and may have duplicates. The table changes as in `set_rows`. Return None if the framework
        cannot add in order, or if separate calls that read, sum and set the rows are as fast.
        """
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
        """Return the tables after an optimizer's step, computed by a compiled kernel in traced code.

        Return None if no kernel can be called. The tables are the weights, then the arrays of the state; `formula` is
        an `islices.optim.formulas.Formula`. Slots with indices out of range are ignored.
        ``otherwise(slots, numbers, *tables)`` computes the same with the framework's operations.
        """
        return None

    @optional("the primitives do it")
    def traced_norm(
        self, leaves: Sequence[Slots], ord: int, otherwise: Callable[[Sequence[Slots]], Array]
    ) -> Array | None:
        """Return the float64 norm (1,) of order 1 or 2 of all leaves, computed by a compiled kernel in traced code.

        Duplicates of a leaf with indices are summed first; slots with indices out of range are ignored. No leaf has a
        factor. Return None if no kernel can be called. ``otherwise(leaves)`` computes the same with the framework's
        operations.
        """
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
        """Return the sums by segment of the table's rows at ids (n,), computed by a compiled kernel in traced code.

        There is one sum per element of `bags`, added left to right. Ids that are out of range, or whose `keep`
        (int32) is 0, are left out. Return None if no kernel can be called.
        ``otherwise(table, ids, segments, bags, keep)`` computes the same without a kernel, and the framework
        differentiates it.
        """
        return None

    # ------------------------------------------------------------------ made of the others
    @optional("`take` does it")
    def read_rows(self, table: Array, ids: Array) -> Array:
        """Return table[ids], an array of shape ``(*ids.shape, *row_shape)``.

        An id out of range, which only traced code may have, reads as zeros.
        """
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
        """Return (sums, ids): the sum of the values of each distinct index, and the distinct indices in ascending
        order.

        Override this method if one pass can compute both.
        """
        ids, inverse = self.unique(indices, rows)
        return self.segment_sum(values, inverse, self.shape(ids)[0]), ids

    @optional("`sum_duplicates` does it")
    def sum_rows(self, values: Array, indices: Array, rows: int | None, *, loose: bool) -> tuple[Array, Array]:
        """Return (sums, ids) as `sum_duplicates` does, with sums in the dtype of values. 16-bit floats are summed in
        float32 and rounded once.

        If `loose` is True, slots with indices out of range are left out.
        """
        if loose:
            values, indices = self.select(values, indices, self.in_range(indices, rows), rows)
        sums, ids = self.sum_duplicates(self.widen(values), indices, rows)
        return self.astype(sums, self.dtype(values)), ids

    @optional("`sum_rows` and `scatter_rows` do it")
    def dense_rows(self, values: Array, indices: Array, shape: tuple[int, ...], *, loose: bool) -> Array:
        """Return a dense array of this shape. Rows contain the sums of `sum_rows`, or zeros where there is no sum."""
        sums, ids = self.sum_rows(values, indices, shape[0], loose=loose)
        return self.scatter_rows(sums, ids, shape)
