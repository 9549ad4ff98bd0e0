"""The cause that stores rows under the next row number."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from islices.porting.compare.cause import Cause, Change, both_directions
from islices.porting.compare.comparison import Comparison
from islices.porting.compare.rows import Held
from islices.porting.compare.stored import Stored, contained


def shifted(both: Comparison, which: int) -> Iterator[Change]:
    """Propose that the ids of one side are increased or decreased by one. It is tried before any other change."""
    for step in () if both.chain else (1, -1):
        moved = [_shifted(x, y, step) for x, y in zip(both.source.a, both.source.b, strict=True)]
        if any(moved):
            text = f"off by one: row r of {{x}} is row r {'+' if step > 0 else '-'} 1 of {{y}}"
            yield Change(None, text, {"shift": step}, 1.0, moved=moved)


def _shifted(one: Held, other: Held, step: int) -> Stored | None:
    """Return a tensor with shifted row numbers, or None if this matches no further rows."""
    x, y = one.stored, other.stored
    limit = y.shape[0] if y.shape and y.shape[0] is not None else math.inf
    more = contained(one.ids + step, other.ids).sum() > contained(one.ids, other.ids).sum()
    if x.row_shape != y.row_shape or not more:
        return None
    kept, slots = ((ids >= -step) & (ids < limit - step) for ids in (x.ids, x.slot_ids))
    return replace(
        x, shape=y.shape, ids=x.ids[kept] + step, values=x.values[kept], slot_ids=x.slot_ids[slots] + step,
        slots=x.slots[slots],
    )  # fmt: skip


OFF_BY_ONE = Cause(
    "off_by_one", 80, propose=shifted, symmetric=True, fix=both_directions("ids = ids - ({shift})"),
)  # fmt: skip
