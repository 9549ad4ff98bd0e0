"""What causes are given: both sides, what both were computed from, and what the caller knows."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from islices.compare.evidence import Rows
from islices.compare.stored import Array

__all__ = ["NOWHERE", "Comparison", "Context", "Side", "telling_rows"]

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
    replicas: int | None = None
    accumulated: int | None = None

    def padding_row(self, x: Rows) -> int | None:
        """padding_idx as a row of x; negative ones count from the end."""
        if self.padding_idx is None or self.padding_idx >= 0 or not x.shape or x.shape[0] is None:
            return self.padding_idx
        return self.padding_idx + x.shape[0]


@dataclass(frozen=True, eq=False)
class Comparison:
    """a and b; before: the raw gradient both were computed from; named: for each tensor the rows that a step's
    gradients name. steps: a and b are changes of tables, whose rounding is part of `terms`; nothing is exact then.
    slack: what two models' arithmetic is granted beside rounding (`islices.compare.evidence`). telling: for each
    tensor some rows that differ, as long as nothing is explained: what fails there need not be tried everywhere.
    tables: the tables that gradients are of, host arrays as they are stored."""

    a: Side
    b: Side
    context: Context
    before: tuple[Rows | None, ...] | None = None
    named: tuple[Array | None, ...] | None = None
    steps: bool = False
    slack: float = 0.0
    telling: tuple[Array, ...] = ()
    tables: tuple[Array | None, ...] | None = None

    def side(self, which: int) -> Side:
        """a for 0, b for 1."""
        return self.b if which else self.a

    def with_side(self, which: int, rows: Side) -> Comparison:
        """The comparison in which a side has been transformed."""
        return replace(self, b=rows) if which else replace(self, a=rows)

    def raw(self, t: int) -> Rows | None:
        """The raw gradient of tensor t."""
        return None if self.before is None else self.before[t]


def telling_rows(x: Rows, y: Rows) -> Array:
    """Some of the rows that differ; none where other rows are stored, which shows at once."""
    if not np.array_equal(x.ids, y.ids) or x.values.shape != y.values.shape:
        return NOWHERE
    with np.errstate(invalid="ignore"):
        differ = (x.values != y.values) & ~((x.values != x.values) & (y.values != y.values))
    found: Array = x.ids[differ.reshape(len(x.ids), math.prod(x.values.shape[1:])).any(axis=1)]
    return found[:: max(1, len(found) // 64)]
