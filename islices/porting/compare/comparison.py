"""What causes are given: both sides, what both were computed from, and what the caller knows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np

from islices.porting.compare.rows import Facts, Measured, Rows
from islices.porting.compare.stored import Array

__all__ = ["NOWHERE", "Again", "Comparison", "Context", "Side", "Whole", "telling_rows"]

#: No rows.
NOWHERE = np.zeros(0, np.int64)
#: All tensors that both sides have, in the same order on each.
Side = tuple[Rows, ...]
#: A change once more, with all that was read off the data as it was: of other rows of both sides, and the bits that
#: were read off these rows.
Again: TypeAlias = "Callable[[Comparison], tuple[Side, float]]"


@dataclass(frozen=True, eq=False)
class Context:
    """What the caller says; names are those of the tensors, named those of the sides."""

    names: tuple[str, ...] = ()
    named: tuple[str, str] = ("a", "b")
    max_norm: float | None = None
    padding_idx: int | None = None
    batch_size: int | None = None
    tokens: int | None = None

    def padding_row(self, x: Rows) -> int | None:
        """padding_idx as a row of x; negative ones count from the end."""
        if self.padding_idx is None or self.padding_idx >= 0 or not x.shape or x.shape[0] is None:
            return self.padding_idx
        return self.padding_idx + x.shape[0]


class Whole(Protocol):
    """All rows of large tensors, of which a comparison holds some."""

    def side(self, which: int) -> tuple[Any, ...]:
        """The sources of a's tensors for 0, of b's for 1 (`islices.porting.compare.whole`)."""
        ...

    def blocks(self, both: Comparison) -> Iterator[Comparison]:
        """Every row of both sides as they came, block by block, compared as `both` is."""
        ...


class Done(NamedTuple):
    """A change of a side that has been made; facts: of its tensors since."""

    which: int
    again: Again
    facts: tuple[Facts | None, ...]


@dataclass(frozen=True, eq=False)
class Comparison:
    """a and b; before: the raw gradient both were computed from; named: for each tensor the rows that a step's
    gradients name. steps: a and b are changes of tables, whose rounding is part of `terms`; nothing is exact then.
    slack: what two models' arithmetic is granted beside rounding (`islices.porting.compare.evidence`). telling: for
    each tensor some rows that differ, as long as nothing is explained: what fails there need not be tried everywhere.
    tables: the tables that gradients are of, host arrays as they are stored.

    whole: where a and b are some rows of large tensors, all of them; None where they are all there is. Then done are
    the changes made so far. past: the comparisons before each of them. bits: read off the rows by the last change.
    cuts: of a block, for each tensor in it its first row's number and the one behind its last."""

    a: Side
    b: Side
    context: Context
    before: tuple[Rows | None, ...] | None = None
    named: tuple[Array | None, ...] | None = None
    steps: bool = False
    slack: float = 0.0
    telling: tuple[Array, ...] = ()
    tables: tuple[Array | None, ...] | None = None
    whole: Whole | None = None
    done: tuple[Done, ...] = ()
    past: tuple[Comparison, ...] = ()
    bits: float = 0.0
    cuts: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    #: What has been found of it, for those who ask again.
    kept: dict[str, Any] = field(default_factory=dict, init=False, repr=False)

    def side(self, which: int) -> Side:
        """a for 0, b for 1."""
        return self.b if which else self.a

    def with_side(self, which: int, rows: Side, again: Again | None = None, bits: float = 0.0) -> Comparison:
        """The comparison in which a side has been transformed; again: as it is of other rows of it."""
        past = (*self.past, self)
        if self.whole is None or again is None:
            return self._with(which, rows, past=past, bits=bits)
        measured = _Changed()
        rows = tuple(
            new if new is old else replace(new, facts=measured.facts_of(old, which, t))
            for t, (new, old) in enumerate(zip(rows, self.side(which), strict=True))
        )
        done = (*self.done, Done(which, again, tuple(x.facts for x in rows)))
        measured.comparison = self._with(which, rows, past=past, bits=bits, done=done)
        return measured.comparison

    def _with(self, which: int, rows: Side, **more: Any) -> Comparison:
        return replace(self, b=rows, **more) if which else replace(self, a=rows, **more)

    def raw(self, t: int) -> Rows | None:
        """The raw gradient of tensor t."""
        return None if self.before is None else self.before[t]

    def states(self) -> Iterator[tuple[Comparison, ...]]:
        """Both sides as they came and after each change: of every row, block by block."""
        if self.whole is None:
            yield (*self.past, self)
            return
        for block in self.whole.blocks(self):
            states = [block]
            for done in self.done:
                rows, bits = done.again(states[-1])
                old = states[-1].side(done.which)
                rows = tuple(
                    x if x is was else replace(x, facts=f) for x, was, f in zip(rows, old, done.facts, strict=True)
                )
                states.append(states[-1]._with(done.which, rows, bits=bits))
            yield tuple(states)


class _Changed:
    """Measures the tensors of a comparison after a change, all at once, when one of them is asked for."""

    comparison: Comparison

    def __init__(self) -> None:
        self._found: dict[tuple[int, int], Measured] = {}

    def facts_of(self, old: Rows, which: int, t: int) -> Facts:
        return Facts(old.size, lambda: self._measured(which, t))

    def _measured(self, which: int, t: int) -> Measured:
        if not self._found:
            for states in self.comparison.states():
                self._add(states[-1])
        return self._found[which, t]

    def _add(self, block: Comparison) -> None:
        done = self.comparison.done[-1]
        for t, x in enumerate(block.side(done.which)):
            here, key = replace(x, facts=None), (done.which, t)
            found = Measured(here.norm, here.raw_norm, here.top, here.least)
            old = self._found.get(key, Measured(0.0, 0.0, 0.0, math.inf))
            norms = math.hypot(old.norm, found.norm), math.hypot(old.raw_norm, found.raw_norm)
            self._found[key] = Measured(*norms, max(old.top, found.top), min(old.least, found.least))


def telling_rows(x: Rows, y: Rows) -> Array:
    """Some of the rows that differ; none where other rows are stored, which shows at once."""
    if not np.array_equal(x.ids, y.ids) or x.values.shape != y.values.shape:
        return NOWHERE
    with np.errstate(invalid="ignore"):
        differ = (x.values != y.values) & ~((x.values != x.values) & (y.values != y.values))
    found: Array = x.ids[differ.reshape(len(x.ids), math.prod(x.values.shape[1:])).any(axis=1)]
    return found[:: max(1, len(found) // 64)]
