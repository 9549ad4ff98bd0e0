"""`Cause`: one thing that makes two sides differ, with how it is looked for and its traits.

Search and explanation know of a cause what stands in its record, and no cause by name. To add one, write its record and
its function in a module of `islices.porting.compare.causes`, where they are found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from islices.porting.compare.comparison import NOWHERE, Again, Comparison, Side
from islices.porting.compare.evidence import Interval
from islices.porting.compare.rows import Facts, Measured, Rows
from islices.porting.compare.stored import Array, contained
from islices.porting.compare.whole import Source, rows_between

__all__ = ["Beside", "Cause", "Change", "Factor", "Lines", "Proposal", "both_ways", "each_source", "each_tensor"]

#: What has to be known: the sides are gradients, or what a step has changed in tables; another cause acts before.
Need: TypeAlias = Literal["gradients", "steps", "another"]
#: Framework ("" for any other) -> (the line where the second side lacks what the first does, the line where it does it
#: and the first does not), formatted with a cause's details.
Lines: TypeAlias = Mapping[str, tuple[str, str]]


def both_ways(line: str) -> Lines:
    """Return the lines of a cause that one line fixes, whichever side has it."""
    return {"": (line, line)}


@dataclass(frozen=True, eq=False)
class Change:
    """One side as it would be, had it been treated as the other one may have been.

    text speaks of {x}, the side that was changed, and {y}, the other one. cost: bits read off the data; by_row: those
    read off these rows besides. again: the change of other rows, without which it is not tried on large tensors. say:
    text and details once all rows have been seen.
    """

    rows: Side
    text: str
    details: dict[str, Any] = field(default_factory=dict)
    cost: float = 0.0
    by_row: float = 0.0
    again: Again | None = None
    say: Callable[[], tuple[str, dict[str, Any]]] | None = None


@dataclass(frozen=True, eq=False)
class Factor:
    """a / b of each tensor, as a cause foretells it: nothing in it is fitted to the elements.

    text speaks of {a} and {b}. cost: bits read off the data. granted: other causes (name, text, details) that hold if
    this one does.
    """

    ratios: tuple[float, ...]
    text: str
    details: dict[str, Any] = field(default_factory=dict)
    tolerance: float = 0.0
    cost: float = 0.0
    granted: tuple[tuple[str, str, dict[str, Any]], ...] = ()


@dataclass(frozen=True, eq=False)
class Cause:
    """One thing that makes two sides differ.

    It is looked for in the ways whose functions it has: as a change of rows (`propose`), as a factor that is known in
    advance (`foretell`), as a factor that is read off the elements (`fit`). All else are its traits.
    """

    #: Programs read it, so that it stays; docs/diff.md has a line for each.
    name: str
    #: What ``islices diff --help`` says.
    title: str
    #: What can explain less is tried, and named, before what can explain more.
    rank: int
    _: KW_ONLY
    #: (both, which) -> that side changed, wherever there is something to change; whether it helps is not its business.
    propose: Callable[[Comparison, int], Iterator[Change]] | None = None
    #: (original, now) -> factors that the sides as they came allow; now: after what has been explained already.
    foretell: Callable[[Comparison, Comparison], Iterator[Factor]] | None = None
    #: (now, interval) -> text and details of the factors that the elements allow, or None.
    fit: Callable[[Comparison, Interval], tuple[str, dict[str, Any]] | None] | None = None
    #: Of propose: "each", it says something else of a than of b; "a", it says the same of both; "either", it does too,
    #: but may have something to do on b alone.
    sides: Literal["each", "either", "a"] = "each"
    needs: tuple[Need, ...] = ()
    #: It takes away rows that the other side lacks, here some and there others: it may act on both sides.
    drops: bool = False
    #: It takes away precision that the other side lacks.
    narrows: bool = False
    #: Rows stand elsewhere, and no value is another.
    moves: bool = False
    #: Where sides may agree to the bit: "always", since within a bound on rounding it would say nothing; on gradients,
    #: since changes of tables are rounded; "never", since it rounds itself.
    exact: Literal["always", "gradients", "never"] = "gradients"
    #: A factor may act beside it.
    scales: bool = True
    #: The more general causes that have nothing to say where this one explains.
    subsumes: tuple[str, ...] = ()
    #: It is named only where nothing else explains.
    last: bool = False
    #: The line that fixes it, or a function of its details that gives it (`islices.porting.compare.fix`).
    fix: Lines | Callable[[Mapping[str, Any]], Lines] | None = None
    #: The side in its details is the one that does it; else the one that does not.
    side_does: bool = False

    def applies(self, both: Comparison, *, another: bool) -> bool:
        """Whether it can be looked for here."""
        known = {"gradients": not both.steps, "steps": both.steps, "another": another}
        return all(known[need] for need in self.needs)


class Proposal(NamedTuple):
    """A cause as it would explain one side."""

    cause: Cause
    which: int
    change: Change
    exact: bool

    @property
    def key(self) -> tuple[str, int]:
        return self.cause.name, self.which

    def after(self, both: Comparison) -> Comparison:
        """The comparison with the change made."""
        return both.with_side(self.which, self.change.rows, self.change.again, self.change.by_row)


# ---------------------------------------------------------------------- for the causes' own functions
class Beside(NamedTuple):
    """What is known of a tensor beside both sides: its name, the raw gradient, the table, the rows that a step's
    gradient names."""

    name: str
    raw: Rows | None = None
    table: Array | None = None
    named: Array | None = None


class Changed(NamedTuple):
    """A side of which some tensors are changed, their numbers, for a cause's details their names, and the change."""

    rows: Side
    numbers: list[int]
    named: dict[str, Any]
    again: Again


def each_tensor(
    both: Comparison,
    which: int,
    change: Callable[[Rows, Rows, Beside], Rows | None],
    read_off: Callable[[], float] = lambda: 0.0,
) -> Changed | None:
    """A side with each tensor changed that change() changes, or None if it changes none.

    change is called again with other rows: what it has read off the first ones has to hold for them. read_off: the bits
    that its calls so far have read off rows.
    """
    out, numbers = [], []
    for t, (x, y) in enumerate(zip(both.side(which), both.side(1 - which), strict=True)):
        new = None if _same(x, y, both.telling[t] if both.telling else NOWHERE) else change(x, y, _beside(both, t))
        out.append(x if new is None else new)
        if new is not None:
            numbers.append(t)

    def again(part: Comparison) -> tuple[Side, float]:
        before = read_off()
        side = list(part.side(which))
        for t in numbers:
            x, y = side[t], part.side(1 - which)[t]
            if len(x.ids) or len(y.ids):
                side[t] = change(x, y, _beside(part, t)) or x
        return tuple(side), read_off() - before

    return Changed(tuple(out), numbers, _named(both, numbers), again) if numbers else None


def each_source(both: Comparison, which: int, change: Callable[[Any, Any, Beside], Any]) -> Changed | None:
    """As `each_tensor` for changes that take rows from anywhere: of large tensors whole ones are changed."""
    if both.whole is None:
        return each_tensor(both, which, change)
    if any(done.which == which for done in both.done):
        return None  # a side's rows are fetched as they came
    sources: dict[int, Source | Rows] = {}
    out = list(both.side(which))
    for t, (x, y) in enumerate(zip(both.whole.side(which), both.whole.side(1 - which), strict=True)):
        here, other = both.side(which)[t], both.side(1 - which)[t]
        if _same(here, other, both.telling[t]) or (new := change(x, y, _beside(both, t))) is None:
            continue
        sources[t] = new if not isinstance(new, Rows) else replace(new, facts=_facts_of(new))
        places = np.flatnonzero(contained(sources[t].ids, np.union1d(here.ids, other.ids)))
        out[t] = sources[t].at(places)

    def again(part: Comparison) -> tuple[Side, float]:
        side = part.side(which)
        return tuple(
            rows_between(sources[t], *part.cuts[t]) if t in sources and t in part.cuts else x
            for t, x in enumerate(side)
        ), 0.0

    return Changed(tuple(out), list(sources), _named(both, list(sources)), again) if sources else None


def _facts_of(x: Rows) -> Facts:
    return Facts(x.values.size, lambda: Measured(x.norm, x.raw_norm, x.top, x.least))


def _named(both: Comparison, numbers: list[int]) -> dict[str, Any]:
    return {"tensors": [both.context.names[t] for t in numbers]}


def _beside(both: Comparison, t: int) -> Beside:
    table, named = (None if x is None else x[t] for x in (both.tables, both.named))
    return Beside(both.context.names[t], both.raw(t), table, named)


def _same(x: Rows, y: Rows, telling: Array) -> bool:
    """Whether nothing is left to explain in a tensor."""
    if (x.dtype, x.shape) != (y.dtype, y.shape) or not np.array_equal(x.ids, y.ids):
        return False
    places = np.flatnonzero(contained(x.ids, telling)) if len(telling) else slice(None, None, max(1, len(x.ids) // 64))
    return all(np.array_equal(x.values[some], y.values[some], equal_nan=True) for some in (places, slice(None)))
