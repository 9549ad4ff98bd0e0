"""What causes are given: both sides, what both were computed from, and what the caller knows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import numpy as np

from islices.compare.evidence import Rows
from islices.compare.stored import Array, contained

__all__ = ["Case", "Context", "Proposal", "Side", "StructuralCause", "each_tensor", "telling_rows", "tensor_names"]

#: No rows.
NOWHERE = np.zeros(0, np.int64)
#: All tensors that both sides have, in the same order on each.
Side = tuple[Rows, ...]


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


@dataclass(frozen=True, eq=False)
class Case:
    """a and b; before: the raw gradient both were computed from; named: for each tensor the rows that a step's
    gradients name. steps: a and b are changes of tables, whose rounding is part of `terms`; nothing is exact then.
    slack: what two models' arithmetic is granted beside rounding (`islices.compare.evidence`). telling: for each
    tensor some rows that differ, as long as nothing is explained: what fails there need not be tried everywhere."""

    a: Side
    b: Side
    context: Context
    before: tuple[Rows | None, ...] | None = None
    named: tuple[Array | None, ...] | None = None
    steps: bool = False
    slack: float = 0.0
    telling: tuple[Array, ...] = ()

    def side(self, which: int) -> Side:
        """a for 0, b for 1."""
        return self.b if which else self.a

    def with_side(self, which: int, rows: Side) -> Case:
        """The case in which a side has been transformed."""
        return replace(self, b=rows) if which else replace(self, a=rows)

    def raw(self, t: int) -> Rows | None:
        """The raw gradient of tensor t."""
        return None if self.before is None else self.before[t]


@dataclass(frozen=True, eq=False)
class Proposal:
    """One side as it would be, had it been treated as the other one may have been.

    text speaks of {x}, the side that was transformed, and {y}, the other one. agreement: the transformation only
    removes what the other side lacks, so that what speaks for it is that all the rest agrees. cost: bits read off the
    data.
    """

    name: str
    which: int
    rows: Side
    text: str
    details: dict[str, Any] = field(default_factory=dict)
    cost: float = 0.0
    exact: bool = True
    agreement: bool = False

    @property
    def key(self) -> tuple[str, int]:
        return self.name, self.which


class StructuralCause(NamedTuple):
    """A cause that changes rows: propose(case, which) gives that side transformed, where there is anything to do.

    sides: "each" where it says something else of a than of b; "a" where it says the same of both; "either" where it
    does too, but may have something to do on b alone.
    """

    name: str
    propose: Callable[[Case, int], Iterator[Proposal]]
    sides: Literal["each", "either", "a"] = "each"


def each_tensor(
    case: Case, which: int, change: Callable[[Rows, Rows, int], Rows | None]
) -> tuple[Side, list[int]] | None:
    """(a side with each tensor changed that change() changes, their numbers), or None if it changes none."""
    out, changed = [], []
    for t, (x, y) in enumerate(zip(case.side(which), case.side(1 - which), strict=True)):
        new = None if _same(x, y, case.telling[t] if case.telling else NOWHERE) else change(x, y, t)
        out.append(x if new is None else new)
        if new is not None:
            changed.append(t)
    return (tuple(out), changed) if changed else None


def telling_rows(x: Rows, y: Rows) -> Array:
    """Some of the rows that differ; none where other rows are stored, which shows at once."""
    if not np.array_equal(x.ids, y.ids) or x.values.shape != y.values.shape:
        return NOWHERE
    with np.errstate(invalid="ignore"):
        differ = (x.values != y.values) & ~((x.values != x.values) & (y.values != y.values))
    found: Array = x.ids[differ.reshape(len(x.ids), math.prod(x.values.shape[1:])).any(axis=1)]
    return found[:: max(1, len(found) // 64)]


def _same(x: Rows, y: Rows, telling: Array) -> bool:
    """Whether nothing is left to explain in a tensor."""
    if (x.dtype, x.shape) != (y.dtype, y.shape) or not np.array_equal(x.ids, y.ids):
        return False
    places = np.flatnonzero(contained(x.ids, telling)) if len(telling) else slice(None, None, max(1, len(x.ids) // 64))
    return all(np.array_equal(x.values[some], y.values[some], equal_nan=True) for some in (places, slice(None)))


def tensor_names(case: Case, changed: list[int]) -> dict[str, Any]:
    """The tensors that were changed, for a cause's details."""
    return {"tensors": [case.context.names[t] for t in changed]}
