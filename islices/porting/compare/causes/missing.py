"""Causes that remove rows from one side."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from islices.porting.compare.cause import Cause, Change
from islices.porting.compare.comparison import Comparison, TwoSides
from islices.porting.compare.rows import Rows
from islices.porting.compare.stored import Array, contained

#: Rows that a cause's details hold.
SHOWN = 10


def _shown(rows: list[int]) -> str:
    """Return the first rows of a sorted list, in words."""
    shown = ", ".join(map(str, rows[:5]))
    return f"row {shown}" if len(rows) == 1 else f"rows {shown}{', ...' if len(rows) > 5 else ''}"


def _zeros(x: Rows) -> Array:
    zero: Array = (x.flat == 0).all(axis=1)
    return zero


def padding_row(both: Comparison, which: int) -> Iterator[Change]:
    """Propose that one side has a gradient for the padding row, while the other has none or zeros."""
    given = both.context.padding_idx is not None
    pads: dict[str, int] = {}  # of each tensor
    count = 1
    for pair in both.pairs:
        x, y = pair.side(which), pair.side(1 - which)
        count += x.size // max(1, math.prod(x.values.shape[1:]))
        holds = x.ids[~_zeros(x)]
        lacking = holds[~contained(holds, y.ids[~_zeros(y)])]
        if pair.padding is not None and pair.padding in lacking:
            pads[pair.name] = pair.padding
        elif not given and len(lacking) == 1:
            pads[pair.name] = int(lacking[0])

    def drop(x: Rows, y: Rows, pair: TwoSides) -> Rows | None:
        p = pads.get(pair.name)
        if p is None or p not in x.ids:
            return None
        if p not in y.ids:
            return x.select(x.ids != p)
        values = x.values.copy()
        values[x.ids == p] = 0.0
        return replace(x, values=values)

    rows = sorted(set(pads.values()))
    if given or len(rows) == 1:
        known = "the padding row" if given else "one row that {y} has not, as for padding_idx:"
        known = f"{known} {', '.join(map(str, rows))}"
        text = f"padding: {{x}} keeps the gradient of {known}" + (", {y} does not" if given else "")
        yield Change(drop, text, {"rows": rows}, 0.0 if given else math.log2(count))


PADDING = Cause(
    "padding", 40, propose=padding_row, drops=True,
    fix={"": ("rows = islices.lookup(table, ids, padding_idx={rows[0]})", "rows = islices.lookup(table, ids)")},
)  # fmt: skip


def zero_rows(both: Comparison, which: int) -> Iterator[Change]:
    """Propose that one side stores rows of zeros, such as a masked padding row, which the other side drops."""
    rows = [row for p in both.pairs for row in _extra_zeros(p.side(which), p.side(1 - which)).tolist()]
    text = f"{{y}} has dropped stored rows of zeros that {{x}} has ({_shown(rows)}); a lazy optimizer moves such rows"
    if len(set(rows)) == 1 and set(rows) <= {p.padding or 0 for p in both.pairs}:  # frameworks' masks are of row 0
        text = f"mask against padding_idx: {{x}} stores row {rows[0]} as zeros, {{y}} has no such row"
    yield Change(_without_zeros, text, {"rows": rows[:SHOWN]})


ZERO_ROWS = Cause("zero_rows", 110, propose=zero_rows, drops=True)


def _without_zeros(x: Rows, y: Rows, pair: TwoSides) -> Rows | None:
    extra = _extra_zeros(x, y)
    return x.select(~contained(x.ids, extra)) if len(extra) else None


def _extra_zeros(x: Rows, y: Rows) -> Array:
    zeros = x.ids[_zeros(x)] if x.sparse and y.sparse else x.ids[:0]
    return zeros[~contained(zeros, y.ids)]
