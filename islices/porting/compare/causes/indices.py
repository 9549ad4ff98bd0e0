"""Define the causes that concern row numbers: missing rows, row numbers that are off by one, and overwritten
duplicates."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from islices.core.conversion import nonzero_rows
from islices.porting.compare.cause import Cause, Change
from islices.porting.compare.comparison import Comparison, TwoSides
from islices.porting.compare.rows import Rows
from islices.porting.compare.stored import Array, Stored, contained, wide

#: The largest number of row numbers in the details of the cause "zero_rows".
SHOWN = 10


# ---------------------------------------------------------------------- missing rows
def _shown(rows: list[int]) -> str:
    """Return a phrase with the first five row numbers of a list."""
    shown = ", ".join(map(str, rows[:5]))
    return f"row {shown}" if len(rows) == 1 else f"rows {shown}{', ...' if len(rows) > 5 else ''}"


def padding_row(both: Comparison, which: int) -> Iterator[Change]:
    """Propose that one side has a gradient for the padding row, and the other side has zeros or no row there.

    If the caller passed no padding_idx, the padding row must be the only nonzero row that the other side lacks.
    """
    given = both.context.padding_idx is not None
    pads: dict[str, int] = {}  # tensor -> number of its padding row
    for x, y, pair in both.sides(which):
        holds, others = (z.ids[nonzero_rows(z.values)] for z in (x, y))
        lacking = holds[~contained(holds, others)]
        if pair.whole.padding is not None and pair.whole.padding in lacking:
            pads[pair.name] = pair.whole.padding
        elif not given and len(lacking) == 1:
            pads[pair.name] = int(lacking[0])

    def drop(x: Rows, y: Rows, pair: TwoSides) -> Rows | None:
        p = pads.get(pair.name)
        if p is None or p not in x.ids:
            return None
        kept = x.select(x.ids != p)
        return kept.onto(x.ids) if p in y.ids else kept

    rows = sorted(set(pads.values()))
    if given or len(rows) == 1:
        known = "the padding row" if given else "one row that {y} has not, as for padding_idx:"
        known = f"{known} {', '.join(map(str, rows))}"
        text = f"padding: {{x}} keeps the gradient of {known}" + (", {y} does not" if given else "")
        count = 1 + sum(len((whole.a, whole.b)[which].ids) for whole in both.source)
        yield Change(drop, text, {"rows": rows}, 0.0 if given else math.log2(count))


PADDING = Cause(
    "padding", 40, propose=padding_row, drops=True,
    fix=("rows = islices.lookup(table, ids, padding_idx={rows[0]})", "rows = islices.lookup(table, ids)"),
)  # fmt: skip


def zero_rows(both: Comparison, which: int) -> Iterator[Change]:
    """Propose that one side stores rows of zeros that the other side does not store. A masked padding row is an
    example."""
    rows = [row for x, y, _ in both.sides(which) for row in _extra_zeros(x, y).tolist()]
    text = f"{{y}} has dropped stored rows of zeros that {{x}} has ({_shown(rows)}); a lazy optimizer moves such rows"
    if len(set(rows)) == 1 and set(rows) <= {whole.padding or 0 for whole in both.source}:  # frameworks mask row 0
        text = f"mask against padding_idx: {{x}} stores row {rows[0]} as zeros, {{y}} has no such row"
    yield Change(_without_zeros, text, {"rows": rows[:SHOWN]})


ZERO_ROWS = Cause("zero_rows", 110, propose=zero_rows, drops=True)


def _without_zeros(x: Rows, y: Rows, pair: TwoSides) -> Rows | None:
    extra = _extra_zeros(x, y)
    return x.select(~contained(x.ids, extra)) if len(extra) else None


def _extra_zeros(x: Rows, y: Rows) -> Array:
    zeros = x.ids[~nonzero_rows(x.values)] if x.sparse and y.sparse else x.ids[:0]
    return zeros[~contained(zeros, y.ids)]


# ---------------------------------------------------------------------- row numbers
def shifted(both: Comparison, which: int) -> Iterator[Change]:
    """Propose that row numbers on one side are larger or smaller by one than on the other side.

    Yield nothing if the comparison already contains a change, because only unchanged tensors can be renumbered.
    """
    for step in () if both.chain else (1, -1):
        moved = [_shifted(whole.a, whole.b, step) for whole in both.source]
        if any(moved):
            text = f"off by one: row r of {{x}} is row r {'+' if step > 0 else '-'} 1 of {{y}}"
            yield Change(None, text, {"shift": step}, 1.0, moved=moved)


def _shifted(x: Stored, y: Stored, step: int) -> Stored | None:
    """Return the tensor x with `step` added to its row numbers. Return None if x and y then do not have more rows in
    common than before, or if the row shapes differ."""
    limit = y.shape[0] if y.shape and y.shape[0] is not None else math.inf
    more = contained(x.ids + step, y.ids).sum() > contained(x.ids, y.ids).sum()
    if x.row_shape != y.row_shape or not more:
        return None
    kept, slots = ((ids >= -step) & (ids < limit - step) for ids in (x.ids, x.slot_ids))
    return replace(
        x, shape=y.shape, ids=x.ids[kept] + step, values=x.values[kept], slot_ids=x.slot_ids[slots] + step,
        slots=x.slots[slots],
    )  # fmt: skip


OFF_BY_ONE = Cause("off_by_one", 80, propose=shifted, symmetric=True, fix="ids = ids - ({shift})")


# ---------------------------------------------------------------------- duplicates
def last_duplicate(both: Comparison, which: int) -> Iterator[Change]:
    """Propose that one side keeps the last duplicate of each row instead of the sum."""
    text = "duplicates overwritten: {y} keeps the last slot of each row, {x} sums them"
    yield Change(_last, text, cost=1.0)


def _last(x: Rows, y: Rows, pair: TwoSides) -> Rows | None:
    source = next((s for s in (x, pair.raw) if s is not None and s.slots is not None), None)
    if source is None or source.slots is None or not source.meets(x) or not np.array_equal(source.values, x.values):
        return None
    ids, slots = source.slots
    values = np.zeros(x.values.shape)
    values[np.searchsorted(x.ids, ids)] = wide(slots)  # NumPy keeps the last of several values for one place
    return x.having(values)


LAST_DUPLICATE = Cause(
    "last_duplicate", 55, propose=last_duplicate,
    fix=("grad = np.zeros(shape, rows.dtype); grad[ids] = rows", "grad = islices.IndexedSlices(rows, ids, shape)"),
)  # fmt: skip
