"""Do one step of an optimizer: read rows of the table and the state, apply the rule to them, and write the new rows.

`Request` describes a step. `rows_step` does the step with the backend's primitives. `islices.optim.fused` does the step
with a kernel if a kernel supports it. If arrays change in place, a step outside traced code allocates no table-sized
array, unless a dense gradient and duplicates="raw" occur together.
SPEC clause 16.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, lru_cache, partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from islices.backend import Array, Backend, Host, Look
from islices.core import modes
from islices.core.host_memory import empty
from islices.core.rows import check_memory, coalesce, drop_ordered
from islices.core.scatter import write_rows
from islices.core.shapes import size_of
from islices.core.slices import IndexedSlices
from islices.norms.exact import row_sums
from islices.optim import rules
from islices.optim.formulas import DECAYS, Formula, Rule
from islices.optim.inputs import Tables
from islices.optim.operators import bind

#: The approximate number of elements in a block if a step changes all rows of a table in place.
BLOCK = 1 << 20
#: The approximate number of elements that the host computes at a time, so that a rule's temporary arrays stay in the
#: caches.
PIECE = 1 << 14


#: Pairs (row numbers, or None for whole tables; the new rows of each table).
Pieces = Iterator[tuple[Array | None, list[Array]]]
#: A table and its state after a step.
Stepped: TypeAlias = tuple[Any, dict[str, Array]]


class Request(NamedTuple):
    """A checked step, with the arrays to change, the gradient and the rule's numbers."""

    formula: Formula
    at: Tables
    grad: IndexedSlices | Array = None  # None if nothing changes
    look: Look | None = None  # the `Look` at the gradient's arrays, if it is still valid
    known: Array | None = None  # the rule's numbers, a NumPy array unless traced
    frozen: Host | None = None  # row numbers, ascending and unique
    apply: Array | None = None  # in traced code: int32 (1,), 0 if the step changes nothing
    traced: bool = False  # True if the table or the step count is traced
    touched: bool = True  # True if only the rows of the slices are updated
    donate: bool = False

    @property
    def names(self) -> list[str]:
        """Return the names of `tables`: "master" if it exists, else "" for the weights, then the formula's states."""
        return ["master" if "master" in self.at.arrays else "", *(spec.name for spec in self.formula.state)]

    @property
    def tables(self) -> list[Array]:
        """Return the weights (or the float32 master), then the arrays of the state."""
        return [self.at.arrays.get(name, self.at.weights) for name in self.names]

    @property
    def numbers(self) -> Array:
        """Return the rule's numbers as an array of the table's backend."""
        if not isinstance(self.known, np.ndarray):
            return self.known
        with self.at.B.scope():
            return self.at.B.asarray(self.known, self.at.weights)

    def pieces(self) -> Pieces:
        """Return an iterator over (row numbers, new rows). The caller must write each pair before it reads the next."""
        if self.touched:
            return self.some_rows()
        B, grad = self.at.B, self.grad
        parts = (grad.values, grad.indices) if isinstance(grad, IndexedSlices) else (grad,)
        whole = not B.in_place(self.at.weights) or modes.is_traced(B, self.at.weights, self.at.arrays["step"], *parts)
        return self.whole_tables() if whole else self.blocks()

    def some_rows(self) -> Pieces:
        """Yield one pair (row numbers, new rows) for the rows that the slices contain, without the frozen rows."""
        B = self.at.B
        ids, gradient = self._gradient()
        ids = self.where_taken(ids)
        with B.scope():
            old = [B.stop_gradient(B.read_rows(x, ids)) for x in self.tables]
        yield ids, self._changed(gradient, old)

    def where_taken(self, ids: Array) -> Array:
        """Return `ids`, or row numbers out of range if `apply` is 0, so that nothing is written."""
        if self.apply is None:
            return ids
        B = self.at.B
        with B.scope():
            nowhere = B.asarray(np.full(1, self.at.shape[0], B.dtype(ids)), ids)
            return B.where(B.equal(self.apply, 1), ids, nowhere)

    def whole_tables(self) -> Pieces:
        """Yield the new values of all rows at once, for arrays that do not change in place and for traced code."""
        B, shape = self.at.B, self.at.shape
        if isinstance(self.grad, IndexedSlices):
            check_memory(repr(self.grad), shape, B.dtype(self.tables[0]), 'rows="touched"')
        ids, gradient = self._gradient()
        if ids is not None:
            gradient = [modes.run("scatter_rows", B, (x, ids), shape=shape) for x in gradient]
        old = [B.stop_gradient(x) for x in self.tables]
        new = self._changed(gradient, old)
        if self.frozen is not None:
            stays = np.zeros(shape[0], np.int32)
            stays[self.frozen] = 1
            with B.scope():
                mask = B.asarray(stays, old[0])
            new = [modes.run(_where_one, B, (mask, x, y)) for x, y in zip(old, new, strict=True)]
        if self.apply is not None:
            with B.scope():
                new = [_where_one(B, self.apply, y, x) for x, y in zip(old, new, strict=True)]
        yield None, new

    def blocks(self) -> Pieces:
        """Yield pairs (row numbers, new rows) for blocks of all rows, without the frozen rows.

        No table-sized array is allocated, except the squares of a dense gradient for a raw formula.
        """
        B, like, shape = self.at.B, self.tables[0], self.at.shape
        ids, gradient = self._gradient()
        named = None if ids is None else B.to_numpy(ids)
        for block in row_blocks(shape, self.frozen):
            taken, at = block, None
            if named is not None:  # the positions of the block's sums, and of their rows in the block
                taken = np.arange(*np.searchsorted(named, (block[0], block[-1] + 1)))
                at = np.searchsorted(block, named[taken])
            with B.scope():
                places, found = B.asarray(block, like), B.asarray(taken, like)
                old = [B.stop_gradient(B.read_rows(x, places)) for x in self.tables]
                part = [B.take(x, found) for x in gradient]
                into = None if at is None else B.asarray(at, like)
            if into is not None:
                part = [modes.run("scatter_rows", B, (x, into), shape=(len(block), *shape[1:])) for x in part]
            yield places, self._changed(part, old)

    def _gradient(self) -> tuple[Array | None, list[Array]]:
        """Return (ids, [sums]) for slices, or (None, [whole array]) for a dense gradient.

        The sums do not include frozen rows. For a raw formula, the list also contains the sums of the duplicates'
        squares, or a dense gradient's squares.
        """
        B, raw = self.at.B, self.formula.raw
        if not isinstance(self.grad, IndexedSlices):
            dense = B.stop_gradient(self.grad)
            return None, [dense, modes.run(_square, B, (dense,))] if raw else [dense]
        s = self.grad if self.frozen is None else drop_ordered(self.grad, self.frozen)
        if raw:
            loose = modes.is_traced(B, s.values, s.indices) or s.padded
            ids, *gradient = modes.run(_sum_raw, B, (s.values, s.indices), rows=s.dense_shape[0], loose=loose)
        else:
            s = coalesce(s)
            ids, gradient = s.indices, [s.values]
        return ids, [B.stop_gradient(x) for x in gradient]

    def _changed(self, gradient: Sequence[Array], old: Sequence[Array]) -> list[Array]:
        return list(modes.run(_change, self.at.B, (self.numbers, *gradient, *old), formula=self.formula))


def row_blocks(shape: tuple[int, ...], frozen: Host | None) -> Iterator[Host]:
    """Yield the ascending numbers of a table's rows in blocks, without the frozen rows."""
    size = max(1, BLOCK // max(1, math.prod(shape[1:])))
    for first in range(0, shape[0], size):
        block = np.arange(first, min(first + size, shape[0]))
        if frozen is not None:
            block = np.setdiff1d(block, frozen, assume_unique=True)
        if len(block):
            yield block


# ---------------------------------------------------------------------- writing
def rows_step(request: Request) -> Stepped:
    """Do a step with the backend's primitives: write the new rows, count the step, and return the table and state."""
    B, arrays, names, pieces = request.at.B, request.at.arrays, request.names, request.pieces()
    if "master" in arrays:
        names.append("")
        dtype = B.dtype(request.at.weights)  # the table contains the master's rounded rows
        pieces = ((ids, [*rows, modes.run("astype", B, rows[:1], dtype=dtype)]) for ids, rows in pieces)
    now: dict[str, Any] = {"": request.at.table, **arrays}
    changed = write_pieces(B, [now[name] for name in names], pieces, donate=request.donate)
    now.update(zip(names, changed, strict=True))
    now["step"] = count_step(request)
    return now.pop(""), now


def count_step(request: Request) -> Array:
    """Add one to the state's "step", or zero if `apply` is 0, and return the array after the step."""
    B, step = request.at.B, request.at.arrays["step"]
    with B.scope():
        one = B.asarray(np.ones(1, np.int32), step)
        count = step + (one if request.apply is None else request.apply)
    return write_rows(B, step, None, count, donate=request.donate)


def write_pieces(B: Backend, tables: Sequence[Any], pieces: Pieces, *, donate: bool) -> Sequence[Any]:
    """Write each pair (row numbers, new rows) into the tables before computing the next, and return the tables."""
    for ids, rows in pieces:
        tables = [write_rows(B, x, ids, new, donate=donate) for x, new in zip(tables, rows, strict=True)]
    return tables


# ---------------------------------------------------------------------- the gradient
def _sum_raw(B: Backend, values: Array, indices: Array, *, rows: int | None, loose: bool) -> tuple[Array, ...]:
    if loose:
        values, indices = B.select(values, indices, B.in_range(indices, rows), rows)
    ids, place = B.unique(indices, rows)
    count, wide = B.shape(ids)[0], B.widen(values)
    return ids, B.segment_sum(wide, place, count), B.segment_sum(B.round_product(wide, wide), place, count)


def _square(B: Backend, x: Array) -> Array:
    wide = B.widen(x)
    return B.round_product(wide, wide)


def _where_one(B: Backend, mask: Array, a: Array, b: Array) -> Array:
    """Return a where `mask` is 1, else b."""
    return B.where(B.equal(B.as_column(mask, a), 1), a, b)


# ---------------------------------------------------------------------- the rule on rows
def _change(B: Backend, numbers: Array, g: Array, *rest: Array, formula: Formula) -> tuple[Array, ...]:
    """Return the new rows of the weights and the state. `rest` contains q, if the formula is raw, and then the old
    rows."""
    q, (w, *state) = (rest[0], rest[1:]) if formula.raw else (None, rest)
    if B is not modes.HOST or w.size <= PIECE:
        return _rule(B, formula, numbers, g, q, w, state)
    out = tuple(empty(x.shape, x.dtype) for x in (w, *state))
    step = max(1, PIECE * len(w) // w.size)
    for i in range(0, len(w), step):
        part = slice(i, i + step)
        new = _rule(B, formula, numbers, g[part], None if q is None else q[part], w[part], [x[part] for x in state])
        for into, x in zip(out, new, strict=True):
            into[part] = x
    return out


def _rule(
    B: Backend, formula: Formula, numbers: Array, g: Array, q: Array | None, w: Array, state: Sequence[Array]
) -> tuple[Array, ...]:
    dtype, given = B.dtype(w), _named(B, formula, numbers, w)
    ahead = [given.pop(name) for name in DECAYS[formula.decay]]
    g, w = B.widen(g), B.widen(w)
    if formula.maximize:
        g = -g
    if formula.decay == "coupled":
        g = array_rule(rules.coupled, B)(g, w, *ahead)
    if formula.squares:
        if q is None:
            q = B.round_product(g, g)
            if formula.squares == "row":
                q = array_operators(B)["row_mean"](q)
        given["q"] = q
    if formula.decay in ("decoupled", "shrunk"):
        w = array_rule(getattr(rules, formula.decay), B)(w, *ahead)
    for spec, rows in zip(formula.state, state, strict=True):
        given[spec.name] = B.as_column(rows, w) if spec.per_row else rows
    changed = array_rule(formula.rule, B)(g=g, w=w, **given, **formula.constants)
    new_w, *new_state = [x for x in changed if x is not None]
    reshaped = [B.reshape(x, B.shape(old)) for x, old in zip(new_state, state, strict=True)]
    return (B.astype(new_w, dtype), *reshaped)


def _named(B: Backend, formula: Formula, numbers: Array, w: Array) -> dict[str, Array]:
    """Return a dict from names to numbers, each of shape (1, ..., 1), which broadcasts with w."""
    row, ones = B.reshape(numbers, (1, len(formula.names))), (1,) * len(B.shape(w))
    return {name: B.reshape(B.columns(row, k, k + 1), ones) for k, name in enumerate(formula.names)}


@lru_cache(maxsize=256)
def array_rule(rule: Rule, B: Backend) -> Rule:
    """Return the rule bound to operators on arrays of a backend."""
    return bind(rule, array_operators(B))


@cache
def array_operators(B: Backend) -> Mapping[str, Any]:
    """Return a dict from operator names to functions on arrays of a backend."""
    return {
        "absolute": B.abs, "div": B.div, "less_equal": B.less_equal, "maximum": B.maximum, "minimum": B.minimum,
        "mul": B.round_product, "power": partial(array_power, B), "row_mean": partial(_row_mean, B), "sqrt": B.sqrt,
        "where": B.where,
    }  # fmt: skip


def _row_mean(B: Backend, x: Array) -> Array:
    width = size_of(B.shape(x)[1:]) or 1
    return B.as_column(B.div(row_sums(B, x), B.asarray(np.full(1, width, B.dtype(x)), x)), x)


#: The numbers of binary digits that `array_power` uses: for an exponent's whole part, and for its fraction by dtype.
WHOLE = 8
FRACTION = {"float32": 32, "float64": 64}


def array_power(B: Backend, x: Array, exponent: Array, one: Array) -> Array:
    """Return x^exponent for 0 <= exponent < 256, with `x` and `exponent` of one dtype (SPEC clause 16).

    `exponent` and `one` have the shape (1, ..., 1). Roots and products are correctly rounded; no framework's pow is.
    The result r starts at 1. For each binary digit of the exponent's fraction, from the last to the first, r becomes
    sqrt(r), times sqrt(x) if the digit is 1. So each root halves the relative error so far. Then, for each binary digit
    k of the exponent's whole part that is 1, r is multiplied by x^(2^k).
    """
    whole, fraction = _digits(B, exponent, one)
    result, root = one, B.sqrt(x)
    for digit in reversed(fraction):
        result = B.sqrt(result) if result is not one else one
        result = B.where(digit, B.round_product(root, result), result)
    for digit in whole:
        result = B.where(digit, B.round_product(x, result), result)
        x = B.round_product(x, x)
    return result


def _digits(B: Backend, exponent: Array, one: Array) -> tuple[list[Array], list[Array]]:
    """Return masks of the whole part's binary digits, lowest first, and of the fraction's digits, highest first."""
    powers = [one]
    for _ in range(WHOLE - 1):
        powers.append(powers[-1] + powers[-1])
    masks = []
    for value in reversed(powers):
        masks.append(B.less_equal(value, exponent))
        exponent = B.where(masks[-1], exponent - value, exponent)
    fraction = []
    for _ in range(FRACTION[B.dtype(exponent)]):
        exponent = exponent + exponent
        fraction.append(B.less_equal(one, exponent))
        exponent = B.where(fraction[-1], exponent - one, exponent)
    return masks[::-1], fraction
