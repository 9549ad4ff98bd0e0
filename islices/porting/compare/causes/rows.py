"""Causes by which rows are missing, or stand under other numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from islices.porting.compare.cause import Beside, Cause, Change, both_ways, each_source, each_tensor
from islices.porting.compare.comparison import Comparison
from islices.porting.compare.evidence import Rows
from islices.porting.compare.stored import Array, contained, wide
from islices.porting.compare.whole import Source

__all__ = ["LAZY_STEP", "MASK", "OFF_BY_ONE", "PADDING", "PERMUTED", "TRANSPOSED", "ZERO_ROWS"]


def _rows(numbers: list[int]) -> str:
    shown = ", ".join(f"{n}" for n in numbers[:5])
    return f"row {shown}" if len(numbers) == 1 else f"rows {shown}{', ...' if len(numbers) > 5 else ''}"


def _numbers(rows: set[tuple[str, int]], both: Comparison) -> list[int]:
    """Rows of tensors, in the order of both."""
    order = {name: t for t, name in enumerate(both.context.names)}
    return [row for _, row in sorted(rows, key=lambda found: (order[found[0]], found[1]))]


def _zeros(x: Rows) -> Array:
    zero: Array = (x.values == 0).reshape(len(x.ids), math.prod(x.values.shape[1:])).all(axis=1)
    return zero


# ---------------------------------------------------------------------- rows that one side lacks
def padding_row(both: Comparison, which: int) -> Iterator[Change]:
    """One side has a gradient for the padding row; the other has none, or zeros."""
    rows: list[int] = []
    pads: dict[str, int] = {}  # each tensor's
    given = both.context.padding_idx is not None

    def change(x: Rows, y: Rows, beside: Beside) -> Rows | None:
        absent, masked = _lacking(x, y)
        p = pads.get(beside.name, both.context.padding_row(x))
        if p is None:
            extra = np.concatenate([absent, masked])
            if len(extra) != 1:
                return None
            p = int(extra[0])
        if p not in absent and p not in masked:
            return None
        pads[beside.name] = p
        rows.append(p)
        if p in absent:
            return x.select(x.ids != p)
        values = x.values.copy()
        values[x.ids == p] = 0.0
        return replace(x, values=values)

    found = each_tensor(both, which, change)
    if found and (given or len(set(rows)) == 1):
        one = sorted(set(rows))
        does = "moves" if both.steps else "keeps the gradient of"
        known = "the padding row" if given else "one row that {y} has not, as for padding_idx:"
        text = f"padding: {{x}} {does} {known} {', '.join(map(str, one))}" + (", {y} does not" if given else "")
        count = sum(x.size // max(1, math.prod(x.row_shape)) for x in both.side(which))
        cost = 0.0 if given else math.log2(1 + count)
        yield Change(found.rows, text, {"rows": one, **found.named}, cost, again=found.again)


PADDING = Cause(
    "padding", "padding row kept", 40, propose=padding_row, drops=True,
    fix={"": ("rows = islices.lookup(table, ids, padding_idx={rows[0]})", "rows = islices.lookup(table, ids)")},
)  # fmt: skip


def _lacking(x: Rows, y: Rows) -> tuple[Array, Array]:
    """Rows of x, none of them zeros, that y has not, and those that y stores as zeros."""
    holds = x.ids[~_zeros(x)]
    there = contained(holds, y.ids)
    return holds[~there], holds[contained(holds, y.ids[_zeros(y)])] if there.any() else holds[:0]


def masked_padding(both: Comparison, which: int) -> Iterator[Change]:
    """One side masks the padding, which leaves a stored row of zeros; the other drops it."""
    rows: list[int] = []

    def change(x: Rows, y: Rows, _: Beside) -> Rows | None:
        extra = _extra_zeros(x, y)
        p = both.context.padding_row(x)
        if len(extra) != 1 or extra[0] != (p or 0):  # the mask that frameworks make themselves is row 0's
            return None
        rows.append(int(extra[0]))
        return x.select(x.ids != extra[0])

    found = each_tensor(both, which, change)
    if found and len(set(rows)) == 1:
        text = f"mask against padding_idx: {{x}} stores row {rows[0]} as zeros, {{y}} has no such row"
        yield Change(found.rows, text, {"rows": rows[:1], **found.named}, again=found.again)


MASK = Cause("mask", "mask against padding_idx", 30, propose=masked_padding, drops=True, subsumes=("zero_rows",))


def zero_rows(both: Comparison, which: int) -> Iterator[Change]:
    """Stored rows of zeros that the other side has dropped."""
    dropped: set[tuple[str, int]] = set()

    def change(x: Rows, y: Rows, beside: Beside) -> Rows | None:
        extra = _extra_zeros(x, y)
        if not len(extra):
            return None
        dropped.update((beside.name, row) for row in extra.tolist())
        return x.select(~contained(x.ids, extra))

    found = each_tensor(both, which, change)
    if found:

        def say() -> tuple[str, dict[str, Any]]:
            rows = _numbers(dropped, both)
            what = "a stored row" if len(rows) == 1 else f"{len(rows):,} stored rows"
            text = f"{{y}} has dropped {what} of zeros that {{x}} has ({_rows(rows)}); a lazy optimizer moves such rows"
            return text, {"rows": rows, **found.named}

        yield Change(found.rows, *say(), again=found.again, say=say)


ZERO_ROWS = Cause("zero_rows", "dropped zero rows", 110, propose=zero_rows, drops=True)


def _extra_zeros(x: Rows, y: Rows) -> Array:
    if not (x.sparse and y.sparse):
        return x.ids[:0]
    zeros = x.ids[_zeros(x)]
    return zeros[~contained(zeros, y.ids)]


# ---------------------------------------------------------------------- which row is which
def shifted(both: Comparison, which: int) -> Iterator[Change]:
    """Ids off by one."""
    for step in (1, -1):

        def change(x: Any, y: Any, _: Beside, step: int = step) -> Any:
            moved = x.ids + step
            limit = y.shape[0] if y.shape and y.shape[0] is not None else math.inf
            keep = (moved >= 0) & (moved < limit)
            if contained(moved[keep], y.ids).sum() <= contained(x.ids, y.ids).sum():
                return None
            return x.rearranged(keep, moved[keep], y.shape)

        found = each_source(both, which, change)
        if found:
            text = f"off by one: row r of {{x}} is row r {'+' if step > 0 else '-'} 1 of {{y}}"
            yield Change(found.rows, text, {"shift": step, **found.named}, 1.0, again=found.again)


OFF_BY_ONE = Cause(
    "off_by_one", "off-by-one ids", 80, propose=shifted, sides="a", moves=True, subsumes=("permuted",),
    fix=both_ways("ids = ids - ({shift})"),
)  # fmt: skip


def permuted(both: Comparison, which: int) -> Iterator[Change]:
    """Ids permuted: rows are told by their contents, in the order of their norms."""
    maps: list[tuple[int, int]] = []
    cost = 0.0

    def change(x: Any, y: Any, _: Beside) -> Any:
        nonlocal cost
        n = len(x.ids)
        if n < 2 or n != len(y.ids) or x.row_shape != y.row_shape or 0 in x.row_shape:
            return None
        keys = _content(x), _content(y)
        one, other = (np.argsort(key, kind="stable") for key in keys)
        if not _alike(keys[0][one], keys[1][other]):
            return None
        target = np.empty(n, np.int64)
        target[one] = y.ids[other]
        moved = target != x.ids
        if not moved.any():
            return None
        maps.extend(zip(x.ids[moved][:10].tolist(), target[moved][:10].tolist(), strict=True))
        cost += math.lgamma(int(moved.sum()) + 1) / math.log(2)
        order = np.argsort(target)
        return x.rearranged(order, target[order])

    found = each_source(both, which, change)
    if found:
        shown = ", ".join(f"{i} is {j}" for i, j in maps[:3])
        text = f"permuted ids: the same rows under other numbers (of {{x}} and of {{y}}: {shown}, ...)"
        details = {"first": [list(pair) for pair in maps], **found.named}
        yield Change(found.rows, text, details, cost, again=found.again)


PERMUTED = Cause("permuted", "permuted ids", 120, propose=permuted, sides="a", moves=True)


def _content(x: Rows | Source) -> Array:
    """A number for each row that its elements decide, in their order; a factor leaves the order of rows as it is."""
    width = math.prod(x.row_shape)
    weights = 1.0 + np.sin(1.0 + np.arange(width))
    keys = []
    for values in x.parts():
        flat = wide(values).reshape(len(values), width)
        with np.errstate(over="ignore", invalid="ignore"):
            key = np.einsum("ij,j->i", flat, weights)  # of one row the same, whichever rows stand beside it
            odd = ~np.isfinite(key)
            key[odd] = np.nan_to_num(flat[odd]) @ weights
        keys.append(key)
    return np.concatenate(keys)


def _alike(one: Array, other: Array) -> bool:
    """Whether sorted numbers may be multiples of one another: most are within one part in 10^4."""
    some = np.linspace(0, len(one) - 1, min(len(one), 1024)).astype(np.int64)
    one, other = one[some], other[some]
    sizes = np.abs(one).sum(), np.abs(other).sum()
    if not (np.isfinite(sizes).all() and min(sizes) > 0):
        return False
    return bool(np.median(np.abs(one / sizes[0] - other / sizes[1])) <= 1e-4 / len(some))


def transposed(both: Comparison, which: int) -> Iterator[Change]:
    """Rows transposed, or a dense (d, rows) beside (rows, d)."""

    def rows_turned(x: Rows, y: Rows, _: Beside) -> Rows | None:
        if x.values.ndim != 3 or x.values.shape[1:] != y.values.shape[:0:-1]:
            return None
        return replace(
            x, shape=(x.shape[0], *y.shape[1:]), values=np.ascontiguousarray(x.values.transpose(0, 2, 1)),
            terms=None if x.terms is None else x.terms.transpose(0, 2, 1), slot_ids=None, slots=None,
        )  # fmt: skip

    def turned(x: Any, y: Any, _: Beside) -> Any:
        if x.sparse or len(x.shape) != 2 or x.shape != y.shape[::-1]:
            return None
        rows, columns = x.shape
        if rows is None or columns is None:
            return None
        x = x.at(slice(None))
        whole = np.zeros((rows, columns))
        whole[x.ids] = x.values
        whole = np.ascontiguousarray(whole.T)
        ids = np.flatnonzero((whole != 0).any(axis=1))
        return replace(x, ids=ids, values=whole[ids], shape=y.shape, terms=None, counts=None)  # those were of its rows

    found = each_tensor(both, which, rows_turned) or each_source(both, which, turned)
    if found:
        x, y = (side[found.numbers[0]] for side in (both.side(which), both.side(1 - which)))
        text = f"transposed: {{x}} is {x.shape[0]}x{x.shape[-1]}, {{y}} is {y.shape[0]}x{y.shape[-1]}"
        if x.values.ndim == 3:
            text = "transposed: rows of {x} are transposed rows of {y}"
        yield Change(found.rows, text, found.named, again=found.again)


TRANSPOSED = Cause("transposed", "transposed rows", 90, propose=transposed, sides="either", moves=True)


# ---------------------------------------------------------------------- tables
def lazy_step(both: Comparison, which: int) -> Iterator[Change]:
    """Rows that no gradient names, moved by a dense step only; a lazy step leaves them their bits."""
    moved: set[tuple[str, int]] = set()

    def change(x: Rows, y: Rows, beside: Beside) -> Rows | None:
        named = beside.named
        still = x.ids[~contained(x.ids, y.ids)]  # moved in x, all bits kept in y
        if named is not None:
            still = still[~contained(still, named)]
        still = still[still != both.context.padding_row(x)]
        if len(still) < (
            2 if named is None and not moved else 1
        ):  # one alone may have had a gradient: padding's affair
            return None
        moved.update((beside.name, row) for row in still.tolist())
        return x.select(~contained(x.ids, still))

    found = each_tensor(both, which, change)
    if found:

        def say() -> tuple[str, dict[str, Any]]:
            rows = _numbers(moved, both)
            known = "that no gradient names" if both.named is not None else "that {y} leaves alone"
            text = f"lazy against dense step: {{x}} moves {len(rows):,} rows {known} ({_rows(rows)})"
            return text, {"rows": rows, **found.named}

        yield Change(found.rows, *say(), again=found.again, say=say)


LAZY_STEP = Cause(
    "lazy_step", "lazy against dense steps", 100, propose=lazy_step, needs=("steps",), drops=True,
    subsumes=("padding",),
)  # fmt: skip
