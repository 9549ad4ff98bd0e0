"""The data that causes read: every tensor on both sides, the gradient before clipping, and the caller's facts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from islices.core.locks import lazy_property
from islices.porting.compare.evidence import Paired, agrees, fitted, paired
from islices.porting.compare.rows import Held, Norm, Rows, sample_rows
from islices.porting.compare.stored import BLOCK, Array, contained

if TYPE_CHECKING:
    from islices.porting.compare.cause import Cause, Change

#: Elements from which on causes are tried on some rows first; elements of all these rows.
LARGE, SAMPLE = 1 << 17, 1 << 15
#: Behind every row.
END = np.iinfo(np.int64).max


@dataclass(frozen=True, eq=False)
class Context:
    """The facts that the caller knows."""

    max_norm: float | None = None
    padding_idx: int | None = None
    batch_size: int | None = None
    tokens: int | None = None


@dataclass(frozen=True, eq=False)
class TwoSides:
    """One tensor on both sides, its raw gradient and table."""

    name: str
    a: Rows
    b: Rows
    raw: Rows | None = None
    table: Array | None = None
    padding: int | None = None

    def side(self, which: int) -> Rows:
        """Return a for 0, b for 1."""
        return self.b if which else self.a

    def changed(self, which: int, change: Change) -> TwoSides:
        """Return both sides with one of them changed, or this object if nothing changes."""
        rows = change.apply and change.apply(self.side(which), self.side(1 - which), self)
        return self if rows is None else replace(self, b=rows) if which else replace(self, a=rows)

    @property
    def same(self) -> bool:
        """Return True if nothing is left to explain."""
        a, b = self.a, self.b
        return (a.dtype, a.shape) == (b.dtype, b.shape) and a.meets(b) and np.array_equal(a.values, b.values, True)


class Done(NamedTuple):
    """A change that was made, and the tensors that it changed."""

    cause: Cause
    which: int
    change: Change
    tensors: frozenset[int]

    @property
    def key(self) -> tuple[str, int]:
        return self.cause.name, self.which


@dataclass(frozen=True, eq=False)
class Tensors:
    """All tensors of both sides and of the gradient before clipping."""

    a: tuple[Held, ...]
    b: tuple[Held, ...]
    raw: tuple[Held | None, ...] = ()
    tables: Sequence[Array | None] = ()

    @property
    def large(self) -> bool:
        """Return True if causes are tried on some rows first."""
        return sum(max(x.size, y.size) for x, y in zip(self.a, self.b, strict=True)) > LARGE

    def side(self, which: int) -> tuple[Held, ...]:
        """Return a for 0, b for 1."""
        return self.b if which else self.a

    @property
    def sides(self) -> tuple[Sequence[Held | None], ...]:
        """Return a, b and the raw gradient."""
        return self.a, self.b, self.raw or (None,) * len(self.a)

    def compared(self, context: Context) -> Comparison:
        """Return the comparison of all rows, or of a sample if there are many."""
        share = SAMPLE // max(1, len(self.a))
        pairs = []
        for t, (x, y) in enumerate(zip(self.a, self.b, strict=True)):
            ids = sample_rows(x, y, max(share, SAMPLE // 16)) if self.large and max(x.size, y.size) > share else None
            pairs.append(self._pair(t, context, ids))
        return Comparison(tuple(pairs), context, self)

    def blocks(self, t: int, context: Context) -> Iterator[TwoSides]:
        """Yield every row of a tensor, block by block."""
        x, y = self.a[t], self.b[t]
        rows = max(1, BLOCK // max(1, math.prod(x.stored.row_shape), math.prod(y.stored.row_shape)))
        for first, last in pairwise([0, *np.union1d(x.ids[rows::rows], y.ids[rows::rows]).tolist(), END]):
            yield self._pair(t, context, (first, last))

    def _pair(self, t: int, context: Context, which: Array | tuple[int, int] | None) -> TwoSides:
        def rows(x: Held) -> Rows:
            if which is None:
                return x.at(slice(None))
            if isinstance(which, tuple):
                return x.at(slice(*np.searchsorted(x.ids, which).tolist()))
            return x.at(np.flatnonzero(contained(x.ids, which)))

        x, padding = self.a[t], context.padding_idx
        raw = self.raw[t] if self.raw else None
        count = x.stored.shape[0] if x.stored.shape else None
        if padding is not None and padding < 0 and count is not None:
            padding += count
        table = self.tables[t] if self.tables else None
        return TwoSides(x.stored.name, rows(x), rows(self.b[t]), None if raw is None else rows(raw), table, padding)


@dataclass(frozen=True, eq=False)
class Comparison:
    """All tensors on both sides, with all rows or a sample, after the changes of chain.

    slack: the allowance for two models' arithmetic in addition to rounding. past: the comparisons before each change.
    """

    pairs: tuple[TwoSides, ...]
    context: Context
    source: Tensors
    slack: float = 0.0
    chain: tuple[Done, ...] = ()
    past: tuple[Comparison, ...] = ()

    @property
    def original(self) -> Comparison:
        """Return the comparison before any change."""
        return self.past[0] if self.past else self

    @property
    def eps(self) -> float:
        """Return the largest eps of all types."""
        return max((max(p.a.eps, p.b.eps) for p in self.pairs), default=0.0)

    def after(self, cause: Cause, which: int, change: Change) -> Comparison | None:
        """Return the comparison with a side changed; None if that changes nothing."""
        if change.moved:
            held = tuple(old if x is None else Held(x) for x, old in zip(change.moved, self.source.a, strict=True))
            done = Done(cause, 0, change, frozenset(t for t, x in enumerate(change.moved) if x is not None))
            return replace(replace(self.source, a=held).compared(self.context), chain=(done,), past=(self,))
        pairs, tensors = list(self.pairs), set()
        for t, pair in enumerate(pairs):
            if change.everywhere or not pair.same:
                pairs[t] = pair.changed(which, change)
                tensors |= {t} if pairs[t] is not pair else set()
        done = Done(cause, which, change, frozenset(tensors))
        past, chain = (*self.past, self), (*self.chain, done)
        return replace(self, pairs=tuple(pairs), chain=chain, past=past) if tensors else None

    def blocks(self) -> Iterator[tuple[int, TwoSides]]:
        """Yield every row of each tensor, block by block, with all changes made."""
        if not self.source.large:
            yield from enumerate(self.pairs)
            return
        for t in range(len(self.pairs)):
            for pair in self.source.blocks(t, self.context):
                for _, which, change, tensors in self.chain:
                    pair = pair.changed(which, change) if t in tensors else pair
                yield t, pair

    @lazy_property
    def norms(self) -> tuple[list[Norm], list[Norm], list[Norm]]:
        """Return the norms of each tensor of a, of b and of the raw gradient."""
        found = [[Norm() if x is None or self.chain else x.norms for x in side] for side in self.source.sides]
        if not self.chain:
            return found[0], found[1], found[2]
        for t, pair in self.blocks():
            for of, rows in zip(found, (pair.a, pair.b, pair.raw), strict=True):
                of[t] = of[t].joined(rows)
        return found[0], found[1], found[2]

    @property
    def has_raw(self) -> bool:
        """Return True if the raw gradient is known in full."""
        return bool(self.pairs) and all(p.raw is not None for p in self.pairs)

    # ------------------------------------------------------------------ the sides agree
    @lazy_property
    def elements(self) -> list[Paired | None]:
        """The paired elements of each tensor."""
        return [paired(p.a, p.b, self.slack) for p in self.pairs]

    def agree(self, *, exact: bool, ratios: Sequence[float] = (), tolerance: float = 0.0) -> bool:
        """Return True if both sides agree in every row, to the bit or within the bound.

        With ratios, each tensor of a must be this multiple of b's within a relative tolerance.
        """

        def near(t: int, p: Paired | None) -> bool:
            factor = ratios[t] if ratios else 1.0
            return p is not None and agrees(p, exact=exact, factor=factor, tolerance=tolerance)

        if not all(near(t, p) for t, p in enumerate(self.elements)):
            return False
        return not self.source.large or all(near(t, p) for t, p in self._all_elements())

    def _all_elements(self) -> Iterator[tuple[int, Paired | None]]:
        for t, pair in self.blocks():
            seen = self.elements[t]
            yield t, paired(pair.a, pair.b, self.slack, seen.tops if seen else None)

    @lazy_property
    def fits(self) -> list[float]:
        """The factor between the sides that fits the compared rows best, per tensor."""
        return [fitted([p]) for p in self.elements]

    def distance(self) -> float:
        """Return the largest |a - b| of an element, divided by the largest |value| of its tensor."""
        found = [0.0]
        for _, p in self._all_elements():
            top = max(p.tops) if p else 0.0
            if p is not None and top > 0:
                with np.errstate(invalid="ignore"):
                    found.append(float(np.nan_to_num(np.abs(p.x - p.y)).max(initial=0.0)) / top)
        return max(found)
