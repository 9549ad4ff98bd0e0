"""`Cause`: one thing that makes two sides differ, with how it is looked for, its traits and the line that fixes it.

Search and report know of a cause what stands in its record, and no cause by name. To add one, write its record and its
function in a module of `islices.porting.compare.causes`, where they are found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal, TypeAlias

from islices.porting.compare.comparison import Comparison, TwoSides
from islices.porting.compare.rows import Held, Rows
from islices.porting.compare.stored import Stored

#: Framework ("" for any other) -> (the line where the second side lacks what the first does, the line where it does it
#: and the first does not), formatted with a cause's details.
Lines: TypeAlias = Mapping[str, tuple[str, str]]


def both_ways(line: str) -> Lines:
    """Return the lines of a cause that one line fixes, whichever side has it."""
    return {"": (line, line)}


@dataclass(frozen=True, eq=False)
class Change:
    """One side as it would be, had it been treated as the other one may have been.

    apply: (rows of the side, those of the other, the tensor) -> the rows changed, None where nothing changes. It takes
    any rows of a tensor, and has read off the data all that it needs. text speaks of {x}, the side that is changed, and
    {y}, the other one. cost: bits read off the data. everywhere: it acts on equal tensors as well. Without apply the
    rows have been moved already.
    """

    apply: Callable[[Rows, Rows, TwoSides], Rows | None] | None
    text: str
    details: dict[str, Any] = field(default_factory=dict)
    cost: float = 0.0
    everywhere: bool = False


@dataclass(frozen=True, eq=False)
class Factor:
    """a / b of each tensor, as a cause foretells it: nothing in it is fitted to the elements.

    text speaks of {a} and {b}. cost: bits read off the data.
    """

    ratios: Sequence[float]
    text: str
    details: dict[str, Any] = field(default_factory=dict)
    tolerance: float = 0.0
    cost: float = 0.0


@dataclass(frozen=True, eq=False)
class Cause:
    """One thing that makes two sides differ.

    It is looked for in the way whose function it has: as a change of rows (`propose`), as rows in other places
    (`move`), as a factor that is known in advance (`foretell`) or read off the elements (`fit`: only where nothing else
    explains). All else are its traits.
    """

    #: Programs read it, so that it stays; docs/diff.md has a line for each.
    name: str
    #: What can explain less is tried, and named, before what can explain more.
    rank: int
    _: KW_ONLY
    #: (both, which) -> changes of that side; whether they help is not its business.
    propose: Callable[[Comparison, int], Iterator[Change]] | None = None
    #: (tensors of a, those of b) -> those of a with their rows elsewhere, None for one that stays as it is.
    move: Callable[[Sequence[Held], Sequence[Held]], Iterator[tuple[Sequence[Stored | None], Change]]] | None = None
    #: (now) -> factors that the sides allow, after what has been explained already.
    foretell: Callable[[Comparison], Iterator[Factor]] | None = None
    #: A factor that the elements allow -> text and details.
    fit: Callable[[float], tuple[str, dict[str, Any]]] | None = None
    #: It says the same of a as of b.
    symmetric: bool = False
    #: It takes away rows that the other side lacks, here some and there others: it may act on both sides.
    drops: bool = False
    #: It takes away precision that the other side lacks.
    narrows: bool = False
    #: Whether sides agree to the bit: "always", since within a bound on rounding it would say nothing; "never", since
    #: it rounds itself.
    exact: Literal["always", "maybe", "never"] = "maybe"
    #: A factor may act as well.
    scales: bool = True
    #: The more general causes that have nothing to say where this one explains.
    subsumes: tuple[str, ...] = ()
    #: The line that fixes it, or a function of its details that gives it.
    fix: Lines | Callable[[Mapping[str, Any]], Lines] | None = None
    #: The side in its details is the one that does it; else the one that does not.
    side_does: bool = False

    def line(self, details: Mapping[str, Any], framework: str) -> str:
        """Return the line that fixes it on the second side, in a framework; "" where there is none."""
        lines = self.fix(details) if callable(self.fix) else self.fix
        if not lines:
            return ""
        lacks = details.get("side", "a") == ("a" if self.side_does else "b")
        try:
            return lines.get(framework, lines[""])[not lacks].format_map(details)
        except KeyError:  # the cause does not say what stands in the line
            return ""
