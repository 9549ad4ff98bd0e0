"""`Cause`: one thing that makes two sides differ, with how it is looked for and its traits.

Search and explanation know of a cause what stands in its record, and no cause by name. To add one, write its record and
its function in a module of `islices.compare.causes`, where they are found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from islices.compare.comparison import NOWHERE, Comparison, Side
from islices.compare.evidence import Interval, Rows
from islices.compare.stored import Array, contained

__all__ = ["Cause", "Change", "Factor", "Proposal", "each_tensor"]

#: What has to be known: the sides are gradients, or what a step has changed in tables; another cause acts before.
Need: TypeAlias = Literal["gradients", "steps", "another"]


@dataclass(frozen=True, eq=False)
class Change:
    """One side as it would be, had it been treated as the other one may have been.

    text speaks of {x}, the side that was changed, and {y}, the other one. cost: bits read off the data.
    """

    rows: Side
    text: str
    details: dict[str, Any] = field(default_factory=dict)
    cost: float = 0.0


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


# ---------------------------------------------------------------------- for the causes' own functions
class Changed(NamedTuple):
    """A side of which some tensors are changed, their numbers, and for a cause's details their names."""

    rows: Side
    numbers: list[int]
    named: dict[str, Any]


def each_tensor(both: Comparison, which: int, change: Callable[[Rows, Rows, int], Rows | None]) -> Changed | None:
    """A side with each tensor changed that change() changes, or None if it changes none."""
    out, numbers = [], []
    for t, (x, y) in enumerate(zip(both.side(which), both.side(1 - which), strict=True)):
        new = None if _same(x, y, both.telling[t] if both.telling else NOWHERE) else change(x, y, t)
        out.append(x if new is None else new)
        if new is not None:
            numbers.append(t)
    return Changed(tuple(out), numbers, {"tensors": [both.context.names[t] for t in numbers]}) if numbers else None


def _same(x: Rows, y: Rows, telling: Array) -> bool:
    """Whether nothing is left to explain in a tensor."""
    if (x.dtype, x.shape) != (y.dtype, y.shape) or not np.array_equal(x.ids, y.ids):
        return False
    places = np.flatnonzero(contained(x.ids, telling)) if len(telling) else slice(None, None, max(1, len(x.ids) // 64))
    return all(np.array_equal(x.values[some], y.values[some], equal_nan=True) for some in (places, slice(None)))
