"""What makes two sides equal, as it is told, and what speaks for it.

An `Explanation` is one cause or two; each has to have enough evidence of its own (`islices.compare.evidence`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from islices.compare.cause import Proposal
from islices.compare.comparison import Comparison
from islices.compare.evidence import NONE, Paired, Rows, evidence, paired
from islices.compare.stored import Array, contained

__all__ = ["Explanation", "Finding", "distance", "evidence_of", "name_sides", "paired_sides", "said", "samples"]

#: Rows of a large tensor that are looked at first.
SAMPLED = 128


@dataclass(frozen=True)
class Finding:
    """One cause as it is told: its stable name, the sentence, and what was found."""

    name: str
    text: str
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Explanation:
    """One cause, or two that act together, that make the sides equal.

    Attributes
    ----------
    causes : tuple of Finding
    exact : bool
        To the bit; else within the bound on rounding of SPEC clause 22.
    bits : float
        The evidence: random data agree so far once in 2^bits pairs.
    slack : float
        What was granted to the arithmetic of two models beside rounding, as a part of each tensor's largest |value|.
    """

    causes: tuple[Finding, ...]
    exact: bool
    bits: float
    slack: float = 0.0

    @property
    def names(self) -> tuple[str, ...]:
        """The causes' names."""
        return tuple(cause.name for cause in self.causes)


def name_sides(text: str, names: tuple[str, str]) -> str:
    """A sentence with what the sides are called in the places of {a} and {b}."""
    return re.sub(r"\{([ab])\}", lambda found: names["ab".index(found[1])], text)


def said(p: Proposal) -> Finding:
    """A proposal in words: {x} and {y} become {a} and {b}."""
    x, y = "ab"[p.which], "ba"[p.which]
    text = p.change.text.replace("{x}", f"{{{x}}}").replace("{y}", f"{{{y}}}")
    return Finding(p.cause.name, text, {"side": x, **p.change.details})


def evidence_of(
    both: Comparison, chain: Sequence[Proposal], after: Comparison, pairs: Sequence[Paired], exact: bool
) -> float | None:
    """The least that speaks for one of the proposals; None where it is not enough."""
    least, before = math.inf, both
    for p in chain:
        told = NONE
        for t, pair in enumerate(pairs):
            was = _was(p, before.side(p.which)[t], after, t, len(pair.x))
            told += evidence(pair, was, exact=exact)
        before = before.with_side(p.which, p.change.rows)
        told = told.less(p.change.cost)
        if not told.enough:
            return None
        least = min(least, told.bits)
    return least


def _was(p: Proposal, old: Rows, after: Comparison, t: int, size: int) -> Array:
    """For each element of the final pairing, how much the proposal changed there, or how much agrees."""
    final = after.side(p.which)[t]
    new = p.change.rows[t]
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
    place = np.minimum(np.searchsorted(new.ids, final.ids), max(len(new.ids) - 1, 0))
    if moved[:0].shape[1:] != final.values.shape[1:] or not len(new.ids):
        return np.zeros(size)
    return _flat(final, moved[place], after, t)


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
    ids = np.union1d(after.a[t].ids, after.b[t].ids)
    if len(ids) == len(final.ids):
        return sizes.reshape(-1)
    out = np.zeros((len(ids), *sizes.shape[1:]))
    out[np.searchsorted(ids, final.ids)] = sizes
    return out.reshape(-1)


def paired_sides(both: Comparison) -> list[Paired] | None:
    out = []
    for x, y in zip(both.a, both.b, strict=True):
        pair = paired(x, y, both.slack)
        if pair is None:
            return None
        out.append(pair)
    return out


def distance(both: Comparison) -> float:
    """The largest |a - b| of an element, as a part of the largest |value| of its tensor."""
    found = [
        float(np.nan_to_num(np.abs(p.x - p.y)).max(initial=0.0)) / max(p.tops)
        for p in paired_sides(both) or []
        if max(p.tops) > 0
    ]
    return max(found, default=0.0)


def samples(both: Comparison) -> Iterator[Paired]:
    """Some rows of each large tensor: what does not hold there need not be looked at everywhere."""
    for t, (x, y) in enumerate(zip(both.a, both.b, strict=True)):
        if len(x.ids) > 8 * SAMPLED and np.array_equal(x.ids, y.ids):
            some = np.linspace(0, len(x.ids) - 1, SAMPLED).astype(np.int64)
            if both.telling:
                some = np.union1d(some, np.flatnonzero(contained(x.ids, both.telling[t])))
            pair = paired(x.rearranged(some, x.ids[some]), y.rearranged(some, y.ids[some]), both.slack)
            if pair is not None:
                yield replace(pair, tops=(x.top, y.top)) if both.slack else pair
