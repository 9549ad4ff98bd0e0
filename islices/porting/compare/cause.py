"""`Cause`: one possible reason of a difference, with its test, its traits and the line that fixes it.

Search and report read only the record of a cause, and contain no names of causes. To add a cause, write its record and
its function in a module of `islices.porting.compare.causes`, which collects them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal, TypeAlias

from islices.porting.compare.comparison import Comparison, TwoSides
from islices.porting.compare.rows import Rows

#: The line that fixes the second side if only the first has the cause, and if only the second has it. A cause's details
#: fill its fields.
Lines: TypeAlias = tuple[str, str]


@dataclass(frozen=True, eq=False)
class Change:
    """One side as it would be, had it been treated as the other one may have been.

    apply: (rows of the side, those of the other, the tensor) -> the rows changed, None where nothing changes. It takes
    any rows of a tensor, and has read off the data all that it needs. text speaks of {x}, the side that is changed, and
    {y}, the other one. cost: bits read off the data. everywhere: it acts on equal tensors as well.
    """

    apply: Callable[[Rows, Rows, TwoSides], Rows | None]
    text: str
    details: dict[str, Any] = field(default_factory=dict)
    cost: float = 0.0
    everywhere: bool = False


@dataclass(frozen=True, eq=False)
class Factor:
    """a / b of each tensor, as a cause foretells it.

    text speaks of {a} and {b}. cost: bits read off the data. fitted: the ratio comes from the elements themselves; such
    a factor is tried only if nothing else explains the difference.
    """

    ratios: Sequence[float]
    text: str
    details: dict[str, Any] = field(default_factory=dict)
    tolerance: float = 0.0
    cost: float = 0.0
    fitted: bool = False


@dataclass(frozen=True, eq=False)
class Cause:
    """One possible reason of a difference.

    Its function decides the test: a change of rows (`propose`), or a factor (`foretell`). The other attributes are
    traits.
    """

    #: Programs read the name, so it never changes; docs/diff.md has a line for each.
    name: str
    #: Specific causes are tried, and reported, before general ones.
    rank: int
    _: KW_ONLY
    #: (both, which) -> changes of that side; the search tests whether they help.
    propose: Callable[[Comparison, int], Iterator[Change]] | None = None
    #: (now) -> factors that the sides allow, after the changes so far.
    foretell: Callable[[Comparison], Iterator[Factor]] | None = None
    #: The cause means the same for a as for b.
    symmetric: bool = False
    #: It removes rows that are missing on the other side; because both sides may miss rows, it may act on both.
    drops: bool = False
    #: It removes precision that the other side does not have.
    narrows: bool = False
    #: The agreement of the sides to the bit: "always", if agreement within rounding would be no evidence; "never", if
    #: the cause rounds.
    exact: Literal["always", "maybe", "never"] = "maybe"
    #: A factor may act as well.
    scales: bool = True
    #: The more general causes that are not reported if this one explains.
    subsumes: tuple[str, ...] = ()
    #: The lines that fix the cause, or a function from its details to the lines.
    fix: Lines | Callable[[Mapping[str, Any]], Lines] | None = None
    #: True if the side in its details is the one with the cause, False if the one without.
    side_does: bool = False

    def line(self, details: Mapping[str, Any]) -> str:
        """Return the line that fixes the cause on the second side; "" if there is none."""
        lines = self.fix(details) if callable(self.fix) else self.fix
        if lines is None:
            return ""
        lacks = details.get("side", "a") == ("a" if self.side_does else "b")
        return lines[not lacks].format_map(details)
