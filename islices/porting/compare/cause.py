"""Define `Cause`, one possible reason for a difference, with its test, its traits and the line that fixes it.

Search and report read only the record of a cause, and contain no names of causes. To add a cause, write its record and
its function in a module of `islices.porting.compare.causes`, which collects them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal, TypeAlias

from islices.porting.compare.comparison import Comparison, TwoSides
from islices.porting.compare.rows import Rows
from islices.porting.compare.stored import Stored

#: (the line if only the first side has the cause, the line if only the second has it), formatted with a cause's
#: details; or the same line for both.
Lines: TypeAlias = str | tuple[str, str]


@dataclass(frozen=True, eq=False)
class Change:
    """A change of one side by a treatment that the other side may have had.

    apply: (rows of the side, rows of the other side, the tensor) -> the changed rows, or None without a change. It
    accepts any rows of a tensor; its numbers are already read from the data. text uses {x} for the changed side and
    {y} for the other one. cost: the bits read from the data. everywhere: the change also applies to equal tensors.
    moved: in place of apply, the tensors of a with other row numbers, None for an unchanged one.
    """

    apply: Callable[[Rows, Rows, TwoSides], Rows | None] | None
    text: str
    details: dict[str, Any] = field(default_factory=dict)
    cost: float = 0.0
    everywhere: bool = False
    moved: Sequence[Stored | None] = ()


@dataclass(frozen=True, eq=False)
class Factor:
    """The factor a / b of each tensor that a cause predicts.

    text uses {a} and {b} for the sides. cost: the bits read from the data.
    """

    ratios: Sequence[float]
    text: str
    details: dict[str, Any] = field(default_factory=dict)
    tolerance: float = 0.0
    cost: float = 0.0


@dataclass(frozen=True, eq=False)
class Cause:
    """One possible reason for a difference.

    Its function changes or moves rows (`propose`), or gives a factor (`foretell`). The other attributes are traits.
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
    #: Its factor comes from the elements themselves, so it is reported only if nothing else explains the difference.
    fitted: bool = False
    #: The more general causes that are not reported if this one explains.
    subsumes: tuple[str, ...] = ()
    #: The line that fixes the cause, or a function from its details and the framework to the line.
    fix: Lines | Callable[[Mapping[str, Any], str], Lines] = ""
    #: True if the side in its details is the one with the cause, False if the one without.
    side_does: bool = False

    def line(self, details: Mapping[str, Any], framework: str) -> str:
        """Return the line that fixes the cause on the second side, in a framework; "" if there is none."""
        lines = self.fix(details, framework) if callable(self.fix) else self.fix
        lacks = details.get("side", "a") == ("a" if self.side_does else "b")
        line = lines if isinstance(lines, str) else lines[not lacks]
        try:
            return line.format_map(details)
        except KeyError:  # the details do not contain the line's values
            return ""
