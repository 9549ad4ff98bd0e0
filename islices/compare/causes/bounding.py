"""Causes that bound values or rows, and one that loses duplicates: what one side makes of the slots it was handed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from islices.compare.cause import Cause, Change, each_tensor
from islices.compare.comparison import Comparison, Side
from islices.compare.evidence import Rows
from islices.compare.stored import Array, wide

__all__ = ["LAST_DUPLICATE", "ROW_CLIP", "VALUE_CLIP"]

SAMPLED = 1 << 16


# ---------------------------------------------------------------------- duplicates
def last_duplicate(both: Comparison, which: int) -> Iterator[Change]:
    """The last of duplicates is written over the others."""

    def change(x: Rows, y: Rows, t: int) -> Rows | None:
        source = next((s for s in (x, both.raw(t)) if s is not None and s.slots is not None), None)
        if source is None or source.slots is None or source.slot_ids is None or not np.array_equal(source.ids, x.ids):
            return None
        if source is not x and not np.array_equal(source.values, x.values):
            return None
        values = np.zeros(x.values.shape)
        values[np.searchsorted(x.ids, source.slot_ids)] = wide(source.slots)  # of equal places NumPy keeps the last
        return replace(x, values=values, terms=None, counts=None, slot_ids=None, slots=None)

    found = each_tensor(both, which, change)
    if found:
        text = "duplicates overwritten: {y} keeps the last slot of each row, {x} sums them"
        yield Change(found.rows, text, found.named, 1.0)


LAST_DUPLICATE = Cause("last_duplicate", "the last duplicate wins", 55, propose=last_duplicate, needs=("gradients",))


# ---------------------------------------------------------------------- values
def value_clip(both: Comparison, which: int) -> Iterator[Change]:
    """No element of one side is larger than a limit, which several reach."""
    limit = _reached(both.side(1 - which))
    if limit is None:
        return
    scale = _scale_below(both, which, 0.999 * limit)
    least, bits = _short(limit / scale)

    def change(x: Rows, y: Rows, t: int) -> Rows | None:
        if not (np.abs(x.values) > least).any():
            return None
        bounded = np.clip(x.values, -least, least)
        terms = None if x.terms is None else np.where(np.abs(x.values) > least, least, x.terms)
        return replace(x, values=bounded, terms=terms, slot_ids=None, slots=None)

    found = each_tensor(both, which, change)
    if found:
        text = f"values clipped: {{y}} bounds each element by {least:.6g}, {{x}} does not"
        yield Change(found.rows, text, {"limit": least, **found.named}, bits)


VALUE_CLIP = Cause(
    "value_clip", "values clipped", 130, propose=value_clip, needs=("gradients",), exact="never"
)  # fmt: skip


def _reached(side: Side) -> float | None:
    """The largest |value|, if three elements have it."""
    top = max((y.top for y in side), default=0.0)
    reach = sum(int((np.abs(y.values) >= top * (1 - 4 * y.eps)).sum()) for y in side)
    return top if 0 < top < math.inf and reach >= 3 else None


def _scale_below(both: Comparison, which: int, limit: float) -> float:
    """How many times this side's elements the other's are, where those are below the limit."""
    ratios = []
    for x, y in zip(both.side(which), both.side(1 - which), strict=True):
        if not np.array_equal(x.ids, y.ids) or x.values.shape != y.values.shape:
            continue
        u, v = x.values.reshape(-1)[:SAMPLED], y.values.reshape(-1)[:SAMPLED]
        some = (np.abs(v) < limit) & (v != 0) & (u != 0)
        ratios.append(v[some] / u[some])
    return _one_ratio(ratios)


def _one_ratio(ratios: list[Array]) -> float:
    every = np.concatenate(ratios) if ratios else np.ones(0)
    ratio = float(np.median(every)) if len(every) else 1.0
    return ratio if 0 < ratio < math.inf and abs(ratio - 1) > 1e-5 else 1.0


def _short(x: float) -> tuple[float, float]:
    """A number as short as people write it, if it is one, and what it costs in bits."""
    for digits in (1, 2, 3):
        short = float(f"{x:.{digits - 1}e}")
        if abs(short - x) <= 1e-6 * x:
            return short, 4.0 + 4 * digits
    return x, 24.0


# ---------------------------------------------------------------------- rows
def row_clip(both: Comparison, which: int) -> Iterator[Change]:
    """No row of one side has a norm above a limit, which several have."""
    norms = [_row_norms(y) for y in both.side(1 - which)]
    limit = max((float(n.max(initial=0.0)) for n in norms), default=0.0)
    reach = sum(int((n >= limit * (1 - 1e-5)).sum()) for n in norms)
    if not 0 < limit < math.inf or reach < 3:
        return
    ratios = []
    for x, y, n in zip(both.side(which), both.side(1 - which), norms, strict=True):
        if np.array_equal(x.ids, y.ids) and x.values.shape == y.values.shape:
            own = _row_norms(x)
            below = (n < limit * (1 - 1e-5)) & (own > 0) & (n > 0)
            ratios.append(n[below] / own[below])
    least, bits = _short(limit / _one_ratio(ratios))

    def change(x: Rows, y: Rows, t: int) -> Rows | None:
        own = _row_norms(x)
        if not (own > least * (1 + 1e-6)).any():
            return None
        factor = np.minimum(1.0, least / np.maximum(own, 1e-300)).reshape(-1, *[1] * (x.values.ndim - 1))
        terms = None if x.terms is None else x.terms * factor
        return replace(x, values=x.values * factor, terms=terms, slot_ids=None, slots=None)

    found = each_tensor(both, which, change)
    if found:
        text = f"rows clipped: {{y}} bounds the norm of each row by {least:.6g}, {{x}} does not"
        yield Change(found.rows, text, {"limit": least, **found.named}, bits)


ROW_CLIP = Cause("row_clip", "rows clipped", 132, propose=row_clip, needs=("gradients",), exact="never")


def _row_norms(x: Rows) -> Array:
    flat = x.values.reshape(len(x.ids), math.prod(x.values.shape[1:]))
    with np.errstate(over="ignore", invalid="ignore"):
        norms: Array = np.sqrt((flat * flat).sum(axis=1))
    return np.nan_to_num(norms, posinf=0.0)
