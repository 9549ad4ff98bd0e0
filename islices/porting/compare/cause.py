"""Define `Cause`, one possible reason for a difference.

Each `Cause` is a record that contains a function, which proposes changes or factors. Most records also contain the line
of code that fixes the cause. The search and the report read only the records, so they need no code for any particular
cause. To add a cause, write its record and its function in a module of `islices.porting.compare.causes`, which collects
all records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal, TypeAlias

from islices.porting.compare.comparison import Comparison, TwoSides
from islices.porting.compare.rows import Rows
from islices.porting.compare.stored import Stored

#: One line of code, or a pair of lines: the first if only the first side has the cause, the second if only the second
#: side has it. `Cause.line` inserts the details of the cause into the line.
Lines: TypeAlias = str | tuple[str, str]


@dataclass(frozen=True, eq=False)
class Change:
    """A change of one side, which may make both sides equal.

    The function `apply` gets (rows of the side, rows of the other side, both sides of the tensor). The result is the
    changed rows, or None if the change does not affect them. `apply` accepts any subset of a tensor's rows, and may use
    numbers that were estimated from the data. `cost` is the cost in bits of these numbers and of other assumptions; the
    search subtracts `cost` from the evidence. In `text`, {x} stands for the changed side and {y} for the other side. If
    `everywhere` is True, the change also applies to tensors that are already equal. If `moved` is not empty, the search
    uses it instead of `apply`. For each tensor, `moved` contains side a with other row numbers, or None if the tensor
    stays unchanged.
    """

    apply: Callable[[Rows, Rows, TwoSides], Rows | None] | None
    text: str
    details: dict[str, Any] = field(default_factory=dict)
    cost: float = 0.0
    everywhere: bool = False
    moved: Sequence[Stored | None] = ()


@dataclass(frozen=True, eq=False)
class Factor:
    """The factors a / b that a cause predicts, one per tensor, within the relative `tolerance`.

    In `text`, {a} and {b} stand for the sides. `cost` is the cost in bits of estimated numbers and of other
    assumptions. The search subtracts `cost` from the evidence.
    """

    ratios: Sequence[float]
    text: str
    details: dict[str, Any] = field(default_factory=dict)
    tolerance: float = 0.0
    cost: float = 0.0


@dataclass(frozen=True, eq=False)
class Cause:
    """One possible reason for a difference.

    The function `propose` proposes changes of values or of row numbers. The function `foretell` predicts a factor
    between the sides. The search and the report read the other attributes.
    """

    #: Programs read the name, so the name never changes; docs/diff.md lists all names.
    name: str
    #: Causes with a lower rank are more specific; they are tried and reported first.
    rank: int
    _: KW_ONLY
    #: This function gets both sides, and 0 for side a or 1 for side b. The function yields changes of that side. The
    #: search tests whether these changes make the sides equal.
    propose: Callable[[Comparison, int], Iterator[Change]] | None = None
    #: This function gets the comparison after the changes so far. The function yields factors that may explain the rest
    #: of the difference.
    foretell: Callable[[Comparison], Iterator[Factor]] | None = None
    #: True if a change of side a explains the same difference as a change of side b. The search then changes only side
    #: a.
    symmetric: bool = False
    #: True if the cause removes rows that the other side does not have or has as zeros. Each side may lack rows of the
    #: other, so the search may apply the cause to both sides.
    drops: bool = False
    #: True if the cause gives one side the dtype or the precision of the other side.
    narrows: bool = False
    #: This attribute says whether the sides must agree to the bit. The value is "always" if agreement within rounding
    #: would prove nothing, "never" if the cause itself rounds, and "maybe" for all other causes.
    exact: Literal["always", "maybe", "never"] = "maybe"
    #: True if the cause may be combined with a factor that explains the rest of the difference.
    scales: bool = True
    #: True if the factor is estimated from the elements. The search reports such a cause only if no other cause
    #: explains the difference.
    fitted: bool = False
    #: The names of more general causes, which the search does not report if this cause explains the difference.
    subsumes: tuple[str, ...] = ()
    #: The line or pair of lines that fixes the cause, or a function that computes this from the details and the
    #: framework.
    fix: Lines | Callable[[Mapping[str, Any], str], Lines] = ""
    #: True if the side named in the details has the cause, False if the other side has it.
    side_does: bool = False

    def line(self, details: Mapping[str, Any], framework: str) -> str:
        """Return the line of code that fixes the cause on the second side, which uses `framework`. Return "" if the
        cause has no line, or if `details` does not contain a value that the line needs."""
        lines = self.fix(details, framework) if callable(self.fix) else self.fix
        lacks = details.get("side", "a") == ("a" if self.side_does else "b")
        line = lines if isinstance(lines, str) else lines[not lacks]
        try:
            return line.format_map(details)
        except KeyError:  # the details lack a value of the line
            return ""
