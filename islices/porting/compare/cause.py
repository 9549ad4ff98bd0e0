"""Define `Cause`, one possible reason for a difference.

A record of a cause has a function that proposes changes or factors, and the line of code that fixes the cause. The
search and the report use only these records, and no name of a cause. To add a cause, write its record and its function
in a module of `islices.porting.compare.causes`. That package collects the records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal, TypeAlias

from islices.porting.compare.comparison import Comparison, TwoSides
from islices.porting.compare.rows import Rows
from islices.porting.compare.stored import Stored

#: Either a pair (the line if only the first side has the cause, the line if only the second side has it), or one line
#: for both cases. The lines are formatted with the details of the cause.
Lines: TypeAlias = str | tuple[str, str]


@dataclass(frozen=True, eq=False)
class Change:
    """A change of one side that may make the side equal to the other.

    `apply` maps (rows of the side, rows of the other side, the tensor) to the changed rows, or to None if nothing
    changes. `apply` accepts any rows of a tensor, and may use numbers that were estimated from the data. `cost` is the
    evidence in bits that these numbers use up. `text` has {x} for the changed side and {y} for the other side. If
    `everywhere` is True, equal tensors change as well. If `moved` is not empty, `moved` replaces `apply`: for each
    tensor, `moved` has side a with other row numbers, or None if the tensor stays unchanged.
    """

    apply: Callable[[Rows, Rows, TwoSides], Rows | None] | None
    text: str
    details: dict[str, Any] = field(default_factory=dict)
    cost: float = 0.0
    everywhere: bool = False
    moved: Sequence[Stored | None] = ()


@dataclass(frozen=True, eq=False)
class Factor:
    """The factor a / b that a cause predicts for each tensor, within the relative `tolerance`.

    `text` has {a} and {b} for the sides. `cost` is the evidence in bits that numbers estimated from the data use up.
    """

    ratios: Sequence[float]
    text: str
    details: dict[str, Any] = field(default_factory=dict)
    tolerance: float = 0.0
    cost: float = 0.0


@dataclass(frozen=True, eq=False)
class Cause:
    """One possible reason for a difference.

    The function `propose` proposes changes of values or of row numbers; the function `foretell` predicts a factor
    between the sides. The other attributes describe the cause for the search and the report.
    """

    #: Programs read the name, so the name never changes; docs/diff.md has a line for each name.
    name: str
    #: Causes with a lower rank are more specific; they are tried and reported first.
    rank: int
    _: KW_ONLY
    #: (both sides, 0 for side a or 1 for side b) -> changes of that side; the search tests whether the sides are then
    #: equal.
    propose: Callable[[Comparison, int], Iterator[Change]] | None = None
    #: (the comparison after the changes so far) -> factors that may explain the rest of the difference.
    foretell: Callable[[Comparison], Iterator[Factor]] | None = None
    #: A change of side a explains the same as the change of side b, so the search changes only side a.
    symmetric: bool = False
    #: The cause removes rows that are missing on the other side. Rows may be missing on both sides, so the search may
    #: use the cause for both.
    drops: bool = False
    #: The cause removes precision that the other side does not have.
    narrows: bool = False
    #: Whether the sides must agree to the bit: "always" if agreement within rounding would be no evidence, "never" if
    #: the cause rounds.
    exact: Literal["always", "maybe", "never"] = "maybe"
    #: True if a factor may explain the rest of the difference.
    scales: bool = True
    #: The factor is estimated from the elements, so the cause is reported only if nothing else explains the difference.
    fitted: bool = False
    #: The more general causes that are not reported if this cause explains the difference.
    subsumes: tuple[str, ...] = ()
    #: The line that fixes the cause, or a function that computes the line from the details and the framework.
    fix: Lines | Callable[[Mapping[str, Any], str], Lines] = ""
    #: True if the side named in the details has the cause, False if the other side has it.
    side_does: bool = False

    def line(self, details: Mapping[str, Any], framework: str) -> str:
        """Return the line of code that fixes the cause on the second side, which uses `framework`. Return "" if there
        is no line, or if `details` lack a value of the line."""
        lines = self.fix(details, framework) if callable(self.fix) else self.fix
        lacks = details.get("side", "a") == ("a" if self.side_does else "b")
        line = lines if isinstance(lines, str) else lines[not lacks]
        try:
            return line.format_map(details)
        except KeyError:  # the details lack a value of the line
            return ""
