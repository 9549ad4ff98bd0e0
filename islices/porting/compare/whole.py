"""Large tensors: some rows of them, on which causes are tried, and all of them block by block, on which the explanation
is confirmed.

Which rows are looked at is decided by what stands in them: some spread evenly, those that differ, those that differ
most, those in one side alone, the largest and the smallest values, rows with duplicates. Numbers of the whole, such as
norms, are computed once (`islices.porting.compare.rows.Facts`).

May import: `numpy`, the core below `islices.porting.compare.why`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Protocol

import numpy as np

from islices.core.locks import lazy_property
from islices.porting.compare.comparison import Comparison, Context, telling_rows
from islices.porting.compare.rows import Facts, Measured, Rows, extent
from islices.porting.compare.stored import (
    BLOCK,
    Array,
    Stored,
    bits_equal,
    blocks,
    contained,
    nonzero_rows,
    norm_of,
    wide,
)

__all__ = ["Held", "Moved", "Source", "Tensors", "rows_between"]

#: Elements from which on causes are tried on some rows first; elements of all these rows.
LARGE, SAMPLE = 1 << 17, 1 << 15
#: Rows of a tensor that are looked at, at least; behind every row.
LEAST, END = 64, np.iinfo(np.int64).max
NOTHING = (0, 0)


class Source(Protocol):
    """A tensor of one side, of which `at` gives any rows as causes see them."""

    ids: Array
    row_shape: tuple[int, ...]
    shape: tuple[int | None, ...]
    dtype: str
    sparse: bool
    facts: Facts

    def at(self, places: Any) -> Rows:
        """The rows at places of ids."""
        raise NotImplementedError

    def values_at(self, places: Any) -> Array:
        """Their values alone, in the type in which they are stored, or float64."""
        raise NotImplementedError

    def parts(self) -> Iterator[Array]:
        """All values as `values_at` gives them, block by block."""
        yield from map(self.values_at, blocks(len(self.ids), self.row_shape))

    @lazy_property
    def contents(self) -> tuple[Array, Array, Array]:
        """Of each row the largest |value|, inf where one is NaN, the least that is not 0, and the sum of squares."""
        told: list[list[Array]] = [[np.zeros(0)], [np.zeros(0)], [np.zeros(0)]]
        for values in self.parts():
            sizes = np.abs(values.reshape(len(values), math.prod(self.row_shape)))
            with np.errstate(over="ignore", invalid="ignore"):
                told[0].append(np.nan_to_num(sizes.max(axis=1, initial=0.0), nan=math.inf, posinf=math.inf))
                told[2].append(np.nan_to_num(np.einsum("ij,ij->i", sizes, sizes)))
            if not sizes.all():
                sizes[sizes == 0] = math.inf
            told[1].append(np.nan_to_num(sizes.min(axis=1, initial=math.inf), nan=0.0, posinf=math.inf))
        tops, leasts, squares = (np.concatenate(x).astype(np.float64, copy=False) for x in told)
        return tops, leasts, squares

    def _extent(self) -> tuple[float, float]:
        """(the largest finite |value|, the least that is not 0)."""
        tops, leasts, _ = self.contents
        top = float(tops.max(initial=0.0))
        if math.isinf(top):
            return max(extent(wide(x))[0] for x in self.parts()), min(extent(wide(x))[1] for x in self.parts())
        return top, float(leasts.min(initial=math.inf))

    def rearranged(self, places: Array, ids: Array, shape: tuple[int | None, ...] | None = None) -> Renumbered:
        """The rows at places, a mask or positions, under other ids."""
        return Renumbered(self, np.flatnonzero(places) if places.dtype == bool else places, ids, shape or self.shape)


class Held(Source):
    """A tensor as it was read."""

    def __init__(self, x: Stored) -> None:
        self.stored = x
        places = None if x.sparse else np.flatnonzero(nonzero_rows(x.values))
        self._places = None if places is None or len(places) == len(x.ids) else places
        self.ids = x.ids if self._places is None else x.ids[self._places]
        self.row_shape, self.shape, self.dtype, self.sparse = x.row_shape, x.shape, x.dtype, x.sparse
        self._lender: tuple[Held, float] | None = None
        slots = (x.slot_ids, x.slots) if x.sparse else None
        self.facts = Facts(len(self.ids) * math.prod(x.row_shape), self._measure, slots)

    def lend(self, before: Held) -> None:
        """Let the sizes of the slots that it was computed from be known, if `before` has them, in proportion."""
        x = self.stored
        if (x.sparse and x.has_duplicates) or not before.stored.has_duplicates or x.row_shape != before.row_shape:
            return
        if contained(self.ids, before.ids).all():
            norm = before.stored.norm
            self._lender = before, x.norm / norm if 0 < norm < math.inf else 1.0

    def values_at(self, places: Any) -> Array:
        """As they are stored, where those are floats of NumPy's."""
        values: Array = self.stored.values[places if self._places is None else self._places[places]]
        return values if values.dtype.kind == "f" else wide(values)

    def at(self, places: Any) -> Rows:
        """The rows at places of ids."""
        x = self.stored
        at = places if self._places is None else self._places[places]
        ids = x.ids[at]
        rows = Rows(ids, wide(x.values[at]), x.shape, x.dtype, x.sparse, facts=self.facts)
        if x.sparse and x.has_duplicates:
            order, starts = self._by_row
            first, counts = starts[:-1][at], np.diff(starts)[at]
            begin = np.cumsum(counts) - counts
            some = order[np.repeat(first - begin, counts) + np.arange(counts.sum())]
            slots = x.slots[some]
            terms = np.add.reduceat(np.abs(wide(slots)), begin, axis=0) if len(begin) else np.zeros(rows.values.shape)
            return replace(rows, terms=terms, counts=counts, slot_ids=x.slot_ids[some], slots=slots)
        if self._lender is not None:
            before, scale = self._lender
            lent = before.at(np.searchsorted(before.ids, ids))
            if lent.terms is not None:
                return replace(rows, terms=lent.terms * scale, counts=lent.counts)
        return rows

    @lazy_property
    def _by_row(self) -> tuple[Array, Array]:
        """Slots in the order of their rows, and where each row's begin."""
        order = np.argsort(self.stored.slot_ids, kind="stable")
        return order, np.append(0, np.cumsum(self.stored.counts))

    def _measure(self) -> Measured:
        x = self.stored
        return Measured(x.norm, norm_of([x.slots]) if x.has_duplicates else x.norm, *self._extent())


class Moved(Source):
    """What a step has changed in a table, the rows that have moved; a sum of two rounded numbers is as exact as the
    larger."""

    def __init__(self, x: Stored, start: Stored) -> None:
        self._now, self._then = x, start
        moved = [_moved(x.values[part], start.values[part]) for part in blocks(len(x.values), x.row_shape)]
        self.ids = np.flatnonzero(np.concatenate(moved))
        self.row_shape, self.shape, self.dtype, self.sparse = x.row_shape, x.shape, x.dtype, False
        self.facts = Facts(len(self.ids) * math.prod(x.row_shape), self._measure)

    def values_at(self, places: Any) -> Array:
        """In float64."""
        ids = self.ids[places]
        step: Array = wide(self._now.values[ids]) - wide(self._then.values[ids])
        return step

    def at(self, places: Any) -> Rows:
        """The rows at places of ids."""
        ids = self.ids[places]
        now, then = wide(self._now.values[ids]), wide(self._then.values[ids])
        step = now - then
        terms = np.abs(now) + np.abs(then) + np.abs(step)
        return Rows(ids, step, self.shape, self.dtype, False, terms, facts=self.facts)

    def _measure(self) -> Measured:
        norm = math.hypot(*(norm_of([x]) for x in self.parts()))
        return Measured(norm, norm, *self._extent())


def _moved(now: Array, then: Array) -> Array:
    same: Array = bits_equal(now, then) if now.dtype == then.dtype else wide(now) == wide(then)
    kept: Array = np.all(same.reshape(len(same), math.prod(same.shape[1:])), axis=1)
    return ~kept


class Renumbered(Source):
    """Rows of a tensor under other numbers: those at order stand at ids."""

    def __init__(self, of: Source, order: Array, ids: Array, shape: tuple[int | None, ...]) -> None:
        self._of, self._order, self.ids = of, order, ids
        self.row_shape, self.shape, self.dtype, self.sparse = of.row_shape, shape, of.dtype, of.sparse
        self.facts = Facts(len(ids) * math.prod(of.row_shape), lambda: of.facts.measured)

    def values_at(self, places: Any) -> Array:
        """As those of what is renumbered."""
        return self._of.values_at(self._order[places])

    def at(self, places: Any) -> Rows:
        """The rows at places of ids."""
        rows = self._of.at(self._order[places])
        return replace(rows, ids=self.ids[places], shape=self.shape, slot_ids=None, slots=None, facts=self.facts)


# ---------------------------------------------------------------------- all tensors of both sides
@dataclass(frozen=True, eq=False)
class Tensors:
    """All tensors of both sides, and of the raw gradient before; what `Comparison.whole` asks of them."""

    a: tuple[Source, ...]
    b: tuple[Source, ...]
    before: tuple[Source | None, ...] | None = None

    @property
    def large(self) -> bool:
        """Whether they are looked at in parts."""
        return sum(max(x.facts.size, y.facts.size) for x, y in zip(self.a, self.b, strict=True)) > LARGE

    def side(self, which: int) -> tuple[Source, ...]:
        """a for 0, b for 1."""
        return self.b if which else self.a

    def compared(
        self,
        context: Context,
        *,
        named: tuple[Array | None, ...] | None = None,
        steps: bool = False,
        tables: tuple[Array | None, ...] | None = None,
    ) -> Comparison:
        """The comparison of both sides: of all rows, or of some where they are many."""
        pairs = list(zip(self.a, self.b, strict=True))
        if not self.large:
            everything = slice(None)
            a, b = (tuple(replace(x.at(everything), facts=None) for x in side) for side in (self.a, self.b))
            before = self._before(lambda x, t: replace(x.at(everything), facts=None))
            return Comparison(a, b, context, before, named, steps, telling=_telling(a, b), tables=tables)
        many = [t for t, (x, y) in enumerate(pairs) if max(x.facts.size, y.facts.size) > SAMPLE // len(pairs)]
        share = max(SAMPLE // max(1, len(many)), SAMPLE // 16)
        some = [_looked_at(x, y, share) if t in many else None for t, (x, y) in enumerate(pairs)]
        a, b = (tuple(map(_rows_at, side, some)) for side in (self.a, self.b))
        before = self._before(lambda x, t: _rows_at(x, some[t]))
        return Comparison(a, b, context, before, named, steps, telling=_telling(a, b), tables=tables, whole=self)

    def _before(self, rows: Callable[[Source, int], Rows]) -> tuple[Rows | None, ...] | None:
        if not self.before:
            return None if self.before is None else ()
        return tuple(None if x is None else rows(x, t) for t, x in enumerate(self.before))

    def blocks(self, both: Comparison) -> Iterator[Comparison]:
        """Every row of both sides, block by block, compared as `both` is."""
        for cuts in self._cuts():
            yield self._block(both, cuts)

    def _block(self, both: Comparison, cuts: dict[int, tuple[int, int]]) -> Comparison:
        def rows(x: Source, t: int) -> Rows:
            return rows_between(x, *cuts.get(t, NOTHING))

        a, b = (tuple(rows(x, t) for t, x in enumerate(side)) for side in (self.a, self.b))
        return Comparison(
            a, b, both.context, self._before(rows), both.named, both.steps, both.slack, (), both.tables, cuts=cuts
        )  # fmt: skip

    def _cuts(self) -> Iterator[dict[int, tuple[int, int]]]:
        """For each block the first number of a row and the one behind the last, of each tensor that has rows in it."""
        wanted: dict[int, tuple[int, int]] = {}
        room = BLOCK
        for t, (x, y) in enumerate(zip(self.a, self.b, strict=True)):
            width = max(1, math.prod(x.row_shape), math.prod(y.row_shape))
            rows = max(1, BLOCK // width)
            cuts = [0, *np.union1d(x.ids[rows::rows], y.ids[rows::rows]).tolist(), END]
            for first, last in pairwise(cuts):
                size = width * rows if len(cuts) > 2 else width * max(len(x.ids), len(y.ids))
                if wanted and (size > room or t in wanted):
                    yield wanted
                    wanted, room = {}, BLOCK
                wanted[t], room = (first, last), room - size
        if wanted:
            yield wanted


def _telling(a: Sequence[Rows], b: Sequence[Rows]) -> tuple[Array, ...]:
    return tuple(map(telling_rows, a, b))


def rows_between(x: Source | Rows, first: int, last: int) -> Rows:
    """The rows whose numbers are first or more, and less than last."""
    low, high = np.searchsorted(x.ids, (first, last)).tolist()
    return x.at(slice(low, high))


def _rows_at(x: Source, ids: Array | None) -> Rows:
    return x.at(slice(None) if ids is None else np.flatnonzero(contained(x.ids, ids)))


# ---------------------------------------------------------------------- which rows are looked at
def _looked_at(x: Source, y: Source, elements: int) -> Array:
    """Numbers of the rows of two sides that causes are tried on."""
    width = max(1, math.prod(x.row_shape), math.prod(y.row_shape))
    rows = max(LEAST, elements // width)
    few = max(4, rows // 16)
    alone = [s.ids[~contained(s.ids, o.ids)] for s, o in ((x, y), (y, x))]
    longer = x.ids if len(x.ids) >= len(y.ids) else y.ids
    some = [_spread(longer, rows // 4), *(_spread(ids, few) for ids in alone)]
    for s in (x, y):
        if isinstance(s, Held) and s.stored.sparse and s.stored.has_duplicates:
            counts = s.stored.counts
            some += [_spread(s.ids[counts > 1], few), s.ids[_largest(counts, few // 2)]]
    for s in (x, y):
        tops, leasts, squares = s.contents
        some += [s.ids[_largest(of, few)] for of in (tops, -leasts, squares)]
        some.append(_spread(s.ids[tops == 0], few))
    some += _apart(x, y, rows // 8)
    return np.unique(np.concatenate(some))


def _apart(x: Source, y: Source, rows: int) -> list[Array]:
    """Rows in both that differ: some of them, and those that differ most."""
    if x.row_shape != y.row_shape:
        return []
    same = np.array_equal(x.ids, y.ids)
    ids = x.ids if same else x.ids[contained(x.ids, y.ids)]
    gaps = np.zeros(len(ids))
    for block in blocks(len(ids), x.row_shape):
        part = ids[block]
        places = [block if same else np.searchsorted(s.ids, part) for s in (x, y)]
        one, other = (s.values_at(p).reshape(len(part), -1) for s, p in zip((x, y), places, strict=True))
        with np.errstate(invalid="ignore"):
            gaps[block] = np.nan_to_num(np.abs(one - other), nan=math.inf).max(axis=1, initial=0.0)
    return [_spread(ids[gaps > 0], rows), ids[_largest(gaps, rows // 2)]]


def _spread(x: Array, n: int) -> Array:
    return x if len(x) <= n else x[np.linspace(0, len(x) - 1, n).astype(np.int64)]


def _largest(x: Array, n: int) -> Array:
    """Where the n largest are."""
    return np.arange(len(x)) if len(x) <= n else np.argpartition(-x, n)[:n]
