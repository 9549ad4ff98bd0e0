"""Define `Comparison`, the input of each cause: the tensors of both sides, the gradient before clipping, the tables,
and options of `diff`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from islices.core.locks import lazy_property
from islices.porting.compare.evidence import Paired, agrees, fitted, paired
from islices.porting.compare.rows import Rows, rows_at, sample_rows
from islices.porting.compare.stored import BLOCK, Array, Stored, contained

if TYPE_CHECKING:
    from islices.porting.compare.cause import Cause, Change

#: If all tensors together have more than `LARGE` elements, the search first tries causes on a sample of about `SAMPLE`
#: elements. The sample is larger if there are many tensors or if rows are wide.
LARGE, SAMPLE = 1 << 17, 1 << 15
#: A row number above all others.
END = np.iinfo(np.int64).max


@dataclass(frozen=True, eq=False)
class Context:
    """The options with which the caller of `diff` describes the gradients."""

    max_norm: float | None = None
    padding_idx: int | None = None
    batch_size: int | None = None
    tokens: int | None = None


@dataclass(frozen=True, eq=False)
class Whole:
    """One tensor on both sides. On a dense side, rows of zeros are left out. No other row is left out.

    `raw` is the gradient before clipping, and `padding` is the number of the padding row. `raw`, `table` and `padding`
    may be None.
    """

    name: str
    a: Stored
    b: Stored
    raw: Stored | None = None
    table: Array | None = None
    padding: int | None = None

    @classmethod
    def of(
        cls, x: Stored, y: Stored, context: Context, raw: Stored | None = None, table: Stored | None = None
    ) -> Whole:
        """Make a `Whole` from both sides of a tensor. `raw` is the gradient before clipping. `table` is the table to
        which the gradient belongs. A sparse table, or a table whose row shape differs from that of `x`, is ignored."""
        padding, count = context.padding_idx, x.shape[0] if x.shape else None
        if padding is not None and padding < 0 and count is not None:
            padding += count
        values = None
        if table is not None and not table.sparse and table.row_shape == x.row_shape:
            values = table.values
        return cls(x.name, x.without_zeros, y.without_zeros, raw and raw.without_zeros, values, padding)

    @property
    def size(self) -> int:
        """Return the number of elements on the side that has more elements."""
        return max(self.a.values.size, self.b.values.size)

    def rows(self, chosen: Callable[[Array], Any]) -> TwoSides:
        """Return some rows of both sides and of the raw gradient. The function `chosen` gets an array of row numbers,
        and returns a mask or slice that selects rows."""
        a, b = (rows_at(x, chosen(x.ids)) for x in (self.a, self.b))
        return TwoSides(self, a, b, None if self.raw is None else rows_at(self.raw, chosen(self.raw.ids)))

    def sample(self, elements: int) -> TwoSides:
        """Return a sample of the rows with about the given number of elements. The search first tries causes on this
        sample."""
        some = sample_rows(self.a, self.b, elements)
        return self.rows(lambda ids: contained(ids, some))

    def blocks(self) -> Iterator[TwoSides]:
        rows = max(1, BLOCK // max(1, math.prod(self.a.row_shape), math.prod(self.b.row_shape)))
        for ends in pairwise([0, *np.union1d(self.a.ids[rows::rows], self.b.ids[rows::rows]), END]):
            yield self.rows(partial(_between, ends))


def _between(ends: tuple[int, int], ids: Array) -> slice:
    return slice(*np.searchsorted(ids, ends))


@dataclass(frozen=True, eq=False)
class TwoSides:
    """Some or all rows of one tensor in a, in b, and in the raw gradient. `raw` is None if that gradient is unknown."""

    whole: Whole
    a: Rows
    b: Rows
    raw: Rows | None

    @property
    def name(self) -> str:
        return self.whole.name

    def side(self, which: int) -> Rows:
        """Return the rows of a if `which` is 0, and of b if `which` is 1."""
        return self.b if which else self.a

    def changed(self, which: int, change: Change) -> TwoSides:
        """Apply a change to one side, and return both sides. Return this object if the change does not affect the
        tensor."""
        rows = change.apply and change.apply(self.side(which), self.side(1 - which), self)
        return self if rows is None else replace(self, b=rows) if which else replace(self, a=rows)

    @property
    def same(self) -> bool:
        """Return True if both sides have the same dtype, shape, rows and values. NaN equals NaN."""
        a, b, whole = self.a, self.b, self.whole
        alike = a.dtype == b.dtype and whole.a.shape == whole.b.shape and a.meets(b)
        return alike and np.array_equal(a.values, b.values, True)


class Norm(NamedTuple):
    """The norm of a tensor's rows, and the norm of its slots before duplicates are summed. The second norm is None if
    the slots are unknown or contain no duplicates."""

    rows: float = 0.0
    slots: float | None = None

    def joined(self, x: Stored | Rows | None) -> Norm:
        """Return the norm of this object's rows and the rows of `x` together. If `x` is None, return this object."""
        if x is None:
            return self
        slots = None if x.slot_norm is None else math.hypot(self.slots or 0.0, x.slot_norm)
        return Norm(math.hypot(self.rows, x.norm), slots)


class Done(NamedTuple):
    """A change that the search has made, with its cause, its side, the changed tensors, and the comparison before the
    change."""

    cause: Cause
    which: int
    change: Change
    tensors: frozenset[int]
    before: Comparison


@dataclass(frozen=True, eq=False)
class Comparison:
    """All tensors of both sides after the changes in `chain`. If the tensors are large, `pairs` contains only a sample
    of the rows.

    `slack` is the additional allowance for two models that compute in different orders. `ratios` contains one factor
    per tensor, which is known within the relative `tolerance`. The comparison multiplies the values of side b by these
    factors. If `ratios` is empty, the values stay unchanged.
    """

    pairs: tuple[TwoSides, ...]
    context: Context
    source: tuple[Whole, ...]
    slack: float = 0.0
    chain: tuple[Done, ...] = ()
    ratios: Sequence[float] = ()
    tolerance: float = 0.0

    @classmethod
    def of(cls, source: tuple[Whole, ...], context: Context) -> Comparison:
        """Return the comparison of all rows, or of a sample if the tensors are large."""
        share = SAMPLE // max(1, len(source))
        pairs = [
            whole.sample(max(share, SAMPLE // 16)) if _is_large(source) and whole.size > share
            else whole.rows(lambda ids: slice(None)) for whole in source
        ]  # fmt: skip
        return cls(tuple(pairs), context, source)

    @property
    def original(self) -> Comparison:
        """Return the comparison before the first change."""
        return self.chain[0].before if self.chain else self

    @property
    def eps(self) -> float:
        """Return the largest machine epsilon among the dtypes of all tensors."""
        return max((x.eps for p in self.pairs for x in (p.a, p.b)), default=0.0)

    def after(self, cause: Cause, which: int, change: Change) -> Comparison | None:
        """Return the comparison after a change of one side, or None if nothing changes."""
        now = self
        if change.moved:
            moved = {t: replace(self.source[t], a=x) for t, x in enumerate(change.moved) if x is not None}
            now = Comparison.of(tuple(moved.get(t, whole) for t, whole in enumerate(self.source)), self.context)
            tensors = set(moved)
        else:
            differ = (t for t, pair in enumerate(self.pairs) if change.everywhere or not pair.same)
            changed = {t: self.pairs[t].changed(which, change) for t in differ}
            tensors = {t for t, pair in changed.items() if pair is not self.pairs[t]}
            now = replace(self, pairs=tuple(changed.get(t, pair) for t, pair in enumerate(self.pairs)))
        done = Done(cause, which, change, frozenset(tensors), self)
        return replace(now, chain=(*self.chain, done)) if tensors else None

    def sides(self, which: int) -> Iterator[tuple[Rows, Rows, TwoSides]]:
        """Yield (rows of the side `which`, rows of the other side, both sides) for each tensor."""
        yield from ((pair.side(which), pair.side(1 - which), pair) for pair in self.pairs)

    def blocks(self) -> Iterator[tuple[int, TwoSides]]:
        """Go through all rows of all tensors block by block. Yield pairs (position of the tensor, block of its rows
        after all changes)."""
        if not _is_large(self.source):
            yield from enumerate(self.pairs)
            return
        for t, whole in enumerate(self.source):
            for pair in whole.blocks():
                for done in self.chain:
                    pair = pair.changed(done.which, done.change) if t in done.tensors else pair
                yield t, pair

    @lazy_property
    def norms(self) -> tuple[list[Norm], ...]:
        """Return three lists: the norms of all tensors in a, in b, and in the raw gradient."""
        found = tuple([Norm()] * len(self.pairs) for _ in range(3))
        for t, x in self.blocks() if self.chain else enumerate(self.source):
            for norms, side in zip(found, (x.a, x.b, x.raw), strict=True):
                norms[t] = norms[t].joined(side)
        return found

    # ------------------------------------------------------------------ the sides agree
    @lazy_property
    def elements(self) -> list[Paired | None]:
        """Return a list with the paired elements of each tensor. If the elements of a tensor cannot be paired, its item
        is None."""
        return [self._paired(t, pair) for t, pair in enumerate(self.pairs)]

    def _paired(self, t: int, pair: TwoSides, top: float | None = None) -> Paired | None:
        b = pair.b.scaled(self.ratios[t]) if self.ratios else pair.b
        return paired(pair.a, b, self.slack, top)

    def _all_elements(self) -> Iterator[Paired | None]:
        for t, pair in self.blocks():
            seen = self.elements[t]
            yield self._paired(t, pair, seen.top if seen else None)

    def agree(self, *, exact: bool) -> bool:
        """Return True if both sides agree in every row. If `exact` is True, all values must be equal; else the sides
        may differ within the bound on rounding, `slack` and `tolerance`."""

        def near(p: Paired | None) -> bool:
            return p is not None and agrees(p, exact=exact, tolerance=self.tolerance)

        return all(map(near, self.elements)) and (not _is_large(self.source) or all(map(near, self._all_elements())))

    @lazy_property
    def fits(self) -> list[float]:
        """Return, for each tensor, the factor a / b that fits the compared rows best."""
        return [fitted([p]) for p in self.elements]

    def distance(self) -> float:
        """Divide each |a - b| by the largest |value| of the element's tensor, and return the largest quotient."""
        found = [0.0]
        for p in self._all_elements():
            if p is not None and p.top > 0:
                with np.errstate(invalid="ignore"):
                    found.append(float(np.nan_to_num(np.abs(p.x - p.y)).max(initial=0.0)) / p.top)
        return max(found)


def _is_large(source: Sequence[Whole]) -> bool:
    """Return True if the tensors are so large that causes are first tried on a sample of the rows."""
    return sum(whole.size for whole in source) > LARGE
