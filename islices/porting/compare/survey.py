"""Whether an explanation holds for every row, and what speaks for it: one pass over both sides, block by block.

Some rows of large tensors are looked at first: what does not hold there need not be looked at everywhere.

May import: `numpy`, the core below `islices.porting.compare.search`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

import numpy as np

from islices.porting.compare.cause import Proposal
from islices.porting.compare.comparison import Comparison
from islices.porting.compare.evidence import NONE, Evidence, Factors, Interval, Paired, Told, agrees, paired
from islices.porting.compare.rows import Rows, extent
from islices.porting.compare.stored import Array, contained

__all__ = ["Factored", "Multiple", "Survey", "agree", "distance", "factored", "within_rounding"]

#: Rows of a large tensor that are looked at first.
SAMPLED = 128
#: Both sides as they came, and after each change.
States: TypeAlias = tuple[Comparison, ...]


@dataclass
class Survey:
    """What has been seen: told of each proposal in each tensor, bits that each has cost.

    exact: all agree to the bit.
    """

    chain: Sequence[Proposal]
    told: list[list[Told]]
    read: list[float]
    exact: bool = False

    @classmethod
    def of(cls, chain: Sequence[Proposal], tensors: int, *, exact: bool = False) -> Survey:
        """Of nothing yet."""
        return cls(chain, [[Told() for _ in range(tensors)] for _ in chain], [0.0] * len(chain), exact)

    def add(self, states: States, t: int, pair: Paired) -> None:
        """What a pair of rows of tensor t says of each proposal."""
        for k, p in enumerate(self.chain):
            old, new = (s.side(p.which)[t] for s in states[k : k + 2])
            self.told[k][t].add(pair, _was(p, old, new, states[-1], t, len(pair.x)))

    def spend(self, states: States) -> None:
        """Count the bits that were read off the rows of a block."""
        for k in range(len(self.chain)):
            self.read[k] += states[k + 1].bits

    @property
    def tells(self) -> bool:
        """Whether anything speaks for each proposal, whatever it costs."""
        return all(e.bits > 0 for e in self._evidence())

    @property
    def least(self) -> float | None:
        """The least that speaks for one of the proposals; None where it is not enough."""
        found = [
            e.less(p.change.cost + read) for e, p, read in zip(self._evidence(), self.chain, self.read, strict=True)
        ]
        return min((e.bits for e in found), default=None) if all(e.enough for e in found) else None

    def _evidence(self) -> Iterator[Evidence]:
        for told in self.told:
            yield sum((x.evidence(exact=self.exact) for x in told), NONE)


# ---------------------------------------------------------------------- the sides agree
def agree(both: Comparison, chain: Sequence[Proposal], *, exactly: bool = False) -> Survey | None:
    """What is seen of both sides after the changes of chain; None where they do not agree, nor speaks anything for it.

    exactly: to the bit, or not at all.
    """
    if not all(agrees(pair, exact=False) for pair in _samples(both)):
        return None
    first = _agree([(*both.past, both)], chain, len(both.a), exactly=exactly, some=True)
    if both.whole is None:
        return first
    return _agree(both.states(), chain, len(both.a), exactly=exactly) if first and first.tells else None


def _agree(
    blocks: Iterable[States], chain: Sequence[Proposal], tensors: int, *, exactly: bool, some: bool = False
) -> Survey | None:
    seen = Survey.of(chain, tensors, exact=all(p.exact for p in chain))
    strict = exactly or any(p.cause.exact == "always" for p in chain)
    for states in blocks:
        last = states[-1]
        for t, (x, y) in enumerate(zip(last.a, last.b, strict=True)):
            pair = paired(x, y, last.slack, some=some)
            if pair is None:
                return None
            seen.exact = seen.exact and agrees(pair, exact=True)
            if not seen.exact and (strict or not agrees(pair, exact=False)):
                return None
            seen.add(states, t, pair)
        seen.spend(states)
    return seen


def within_rounding(both: Comparison) -> bool:
    """Whether the sides agree as they are, within the bound on rounding."""
    if not all(agrees(pair, exact=False) for pair in _samples(both)):
        return False
    rows: Iterable[States] = [(both,)] if both.whole is None else both.states()
    return all(
        (pair := paired(x, y, both.slack)) is not None and agrees(pair, exact=False)
        for states in rows for x, y in zip(states[-1].a, states[-1].b, strict=True)
    )  # fmt: skip


def distance(both: Comparison) -> float:
    """The largest |a - b| of an element, as a part of the largest |value| of its tensor."""
    found = [0.0]
    for states in both.states():
        for x, y in zip(states[-1].a, states[-1].b, strict=True):
            pair = paired(x, y, both.slack)
            if pair is None:
                return 0.0
            if max(pair.tops) > 0:
                with np.errstate(invalid="ignore"):
                    found.append(float(np.nan_to_num(np.abs(pair.x - pair.y)).max(initial=0.0)) / max(pair.tops))
    return max(found)


# ---------------------------------------------------------------------- one is a multiple of the other
class Multiple(NamedTuple):
    """A tensor of one side as a multiple of the other's: the factors there may be, what its elements tell, the size of
    a's beside b's."""

    interval: Interval
    told: Told
    ratio: float


class Factored(NamedTuple):
    """Each tensor, and what has been seen of the changes made before."""

    tensors: tuple[Multiple, ...]
    seen: Survey

    @property
    def precision(self) -> int:
        """Bits of the most precise tensor."""
        return max(m.told.precision for m in self.tensors)


def _top(x: Array) -> float:
    """The largest |value|; one that is no number counts for 0, infinity for the largest that there is."""
    top = float(np.abs(x).max(initial=0.0))
    return top if np.isfinite(top) else float(np.nan_to_num(np.abs(x)).max(initial=0.0))


def factored(both: Comparison, chain: Sequence[Proposal]) -> Factored | None:
    """The factors between both sides, after the changes of chain; None where there is none."""
    if "factored" not in both.kept:
        both.kept["factored"] = _looked_for(both, chain)
    found: Factored | None = both.kept["factored"]
    return found


def _looked_for(both: Comparison, chain: Sequence[Proposal]) -> Factored | None:
    if not all(Factors().narrow(pair) for pair in _samples(both)):
        return None
    first = _factored([(*both.past, both)], chain, [Factors() for _ in both.a], some=True)
    if first is None or both.whole is None:
        return first
    if not first.seen.tells:
        return None
    guesses = [m.interval.fit or None for m in first.tensors]
    tops = [_top(y.values) for y in both.b]
    return _factored(both.states(), chain, [Factors(g, top) for g, top in zip(guesses, tops, strict=True)])


def _factored(
    blocks: Iterable[States], chain: Sequence[Proposal], factors: Sequence[Factors], *, some: bool = False
) -> Factored | None:
    seen, told = Survey.of(chain, len(factors)), [Told() for _ in factors]
    tops = np.zeros((len(factors), 2))
    for states in blocks:
        last = states[-1]
        for t, (x, y) in enumerate(zip(last.a, last.b, strict=True)):
            pair = paired(x, y, last.slack, some=some)
            if pair is None or not factors[t].narrow(pair):
                return None
            seen.add(states, t, pair)
            told[t].add(pair, np.abs(pair.x))
            tops[t] = np.maximum(tops[t], [_top(s) for s in (pair.x, pair.y)])
        seen.spend(states)
    ratios = [float(x / y) if y else 1.0 for x, y in tops]
    return Factored(tuple(map(Multiple, (f.interval for f in factors), told, ratios)), seen)


# ---------------------------------------------------------------------- what a proposal has changed
def _was(p: Proposal, old: Rows, new: Rows, after: Comparison, t: int, size: int) -> Array:
    """For each element of the final pairing, how much the proposal changed there, or how much agrees."""
    final = after.side(p.which)[t]
    if p.cause.moves:  # no value changes, so that what counts is how much agrees
        return np.zeros(size) if new is old else _flat(final, _of_moved_rows(final, old), after, t)
    if p.cause.drops or p.cause.narrows:  # what speaks for it is that all the rest agrees
        return _flat(final, np.abs(final.values), after, t)
    if new is old or new.values.shape[1:] != old.values.shape[1:]:
        return np.zeros(size)
    if not np.array_equal(new.ids, old.ids):  # rows have joined: what stands in them is what has changed there
        here = np.zeros(new.values.shape)
        there = contained(new.ids, old.ids)
        here[there] = old.values[np.searchsorted(old.ids, new.ids[there])]
        old = replace(old, ids=new.ids, values=here)
    with np.errstate(invalid="ignore"):
        moved = np.abs(new.values - old.values)
    if moved[:0].shape[1:] != final.values.shape[1:] or not len(new.ids):
        return np.zeros(size)
    if new.ids is not final.ids:
        moved = moved[np.minimum(np.searchsorted(new.ids, final.ids), len(new.ids) - 1)]
    return _flat(final, moved, after, t)


def _of_moved_rows(final: Rows, old: Rows) -> Array:
    """|values|, and zeros in rows that were the same before."""
    sizes: Array = np.abs(final.values)
    if final.values.shape[1:] == old.values.shape[1:]:
        there = np.flatnonzero(contained(final.ids, old.ids))
        before = old.values[np.searchsorted(old.ids, final.ids[there])]
        same = (before == final.values[there]).reshape(len(there), -1).all(axis=1) if len(there) else there > 0
        sizes[there[same]] = 0.0
    return sizes


def _flat(final: Rows, sizes: Array, after: Comparison, t: int) -> Array:
    """Sizes on final's rows, laid out as the pairing of tensor t."""
    one, other = after.a[t].ids, after.b[t].ids
    if np.array_equal(one, other):
        return sizes.reshape(-1)
    ids = np.union1d(one, other)
    if len(ids) == len(final.ids):
        return sizes.reshape(-1)
    out = np.zeros((len(ids), *sizes.shape[1:]))
    out[np.searchsorted(ids, final.ids)] = sizes
    return out.reshape(-1)


# ---------------------------------------------------------------------- some rows first
def _samples(both: Comparison) -> Iterator[Paired]:
    """Some rows of each large tensor: what does not hold there need not be looked at everywhere."""
    for t, (x, y) in enumerate(zip(both.a, both.b, strict=True)):
        if len(x.ids) > 8 * SAMPLED and np.array_equal(x.ids, y.ids):
            some = np.linspace(0, len(x.ids) - 1, SAMPLED).astype(np.int64)
            if both.telling:
                some = np.union1d(some, np.flatnonzero(contained(x.ids, both.telling[t])))
            pair = paired(x.rearranged(some, x.ids[some]), y.rearranged(some, y.ids[some]))
            if pair is not None:
                tops = (extent(x.values)[0], extent(y.values)[0]) if both.slack else pair.tops
                yield replace(pair, slack=both.slack, tops=tops)
