"""Causes that change what stands in the rows: types, signs, frequencies, sums in 16 bits."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from islices.porting.compare.cause import Beside, Cause, Change, both_ways, each_tensor
from islices.porting.compare.comparison import Comparison, Side
from islices.porting.compare.evidence import PRECISION, Rows
from islices.porting.compare.half import HALVES, fold
from islices.porting.compare.stored import Array, contained, wide

__all__ = ["DTYPE", "FREQUENCY", "HALF_SUMS", "ROUNDED", "SIGN"]


# ---------------------------------------------------------------------- types and signs
def same_values(both: Comparison, which: int) -> Iterator[Change]:
    """The values are the same in types of different width."""
    found = each_tensor(both, which, lambda x, y, _: replace(x, dtype=y.dtype) if x.dtype != y.dtype else None)
    if found:
        a, b = ("/".join(sorted({side[t].dtype for t in found.numbers})) for side in (both.a, both.b))
        text = f"only the types differ: {{a}} is {a}, {{b}} {b}, the values are the same"
        yield Change(found.rows, text, found.named, again=found.again)


DTYPE = Cause(
    "dtype", "only the types", 10, propose=same_values, sides="a", narrows=True, exact="always", subsumes=("rounded",)
)


def rounded(both: Comparison, which: int) -> Iterator[Change]:
    """One side is the other, rounded to a narrower type."""

    def change(x: Rows, y: Rows, _: Beside) -> Rows | None:
        if PRECISION[y.dtype] >= PRECISION[x.dtype] or not y.dtype.startswith(("float", "bfloat")):
            return None
        return replace(x, values=_round_to(x.values, y.dtype), dtype=y.dtype)

    found = each_tensor(both, which, change)
    if found:
        type_ = both.side(1 - which)[found.numbers[0]].dtype
        details = {"dtype": type_, **found.named}
        yield Change(found.rows, f"{{y}} is {{x}} rounded to {type_}", details, again=found.again)


ROUNDED = Cause(
    "rounded", "rounded to a narrower type", 70, propose=rounded, narrows=True, exact="always", scales=False
)


def _round_to(x: Array, dtype: str) -> Array:
    with np.errstate(over="ignore", invalid="ignore"):
        if dtype in HALVES:
            return wide(HALVES[dtype](x.astype(np.float32)))
        return x.astype(dtype).astype(np.float64)


def sign(both: Comparison, which: int) -> Iterator[Change]:
    """The opposite sign: a loss maximised, a step added."""

    def again(part: Comparison) -> tuple[Side, float]:
        return tuple(replace(x, values=-x.values) for x in part.side(which)), 0.0

    yield Change(again(both)[0], "sign: {x} has the opposite sign of {y}", again=again)


SIGN = Cause("sign", "sign", 20, propose=sign, sides="a", fix=both_ways("loss = -loss"))


# ---------------------------------------------------------------------- what stands in a row
RATIOS = "the ratios of the rows"


def by_frequency(both: Comparison, which: int) -> Iterator[Change]:
    """Each row divided by how often it occurs; counts from whoever has the slots, else whole ratios of the rows."""
    cost, source = 0.0, ""
    sources: dict[str, str] = {}  # where each tensor's counts stand

    def change(x: Rows, y: Rows, beside: Beside) -> Rows | None:
        nonlocal cost, source
        holders = {"{x}": x, "{y}": y, "before": beside.raw}
        known = sources.get(beside.name) or next((name for name, c in holders.items() if _has_counts(c)), RATIOS)
        holder = holders.get(known)
        if known != RATIOS:
            counts = np.ones(len(x.ids), np.int64) if holder is None else _counts_of(holder, x.ids)
        else:
            fitted = _whole_ratios(x, y, more_than_one=beside.name not in sources)
            if fitted is None:
                return None
            counts = fitted
            cost += float((2 * np.log2(counts) + 1).sum())
        sources[beside.name] = source = known
        if counts.max(initial=1) <= 1:
            return None
        column = counts.reshape(-1, *[1] * (x.values.ndim - 1))
        terms = None if x.terms is None else x.terms / column
        return replace(x, values=x.values / column, terms=terms, slot_ids=None, slots=None)

    found = each_tensor(both, which, change, lambda: cost)
    if found:
        where = "whole ratios of the rows" if "ratios" in source else f"counted in {source}'s slots"
        text = f"frequency: {{y}} divides each row by how often it occurs (scale_by_freq; {where}), {{x}} does not"
        details = {"counts": source.strip("{}"), **found.named}
        yield Change(found.rows, text, details, by_row=cost, again=found.again)


FREQUENCY = Cause(
    "frequency", "frequency scaling", 50, propose=by_frequency, exact="never",
    fix={"": ("grad = islices.scale_by_frequency(grad)", "take `islices.scale_by_frequency(grad)` out")},
)  # fmt: skip


def _has_counts(x: Rows | None) -> bool:
    return x is not None and x.counts is not None and bool(x.counts.max(initial=1) > 1)


def _counts_of(holder: Any, ids: Array) -> Array:
    counts = np.ones(len(ids), np.int64)
    if holder.counts is None:
        return counts
    known = contained(ids, holder.ids)
    counts[known] = holder.counts[np.searchsorted(holder.ids, ids[known])]
    return counts


def _whole_ratios(x: Rows, y: Rows, *, more_than_one: bool) -> Array | None:
    """For each row the whole number that x is of y; None where a row is no whole multiple, or all are the same."""
    if not np.array_equal(x.ids, y.ids) or x.values.shape != y.values.shape or not len(x.ids):
        return None
    a, b = (z.values.reshape(len(z.ids), math.prod(z.values.shape[1:])) for z in (x, y))
    if a.shape[1] < 2:
        return None
    some = slice(None, None, max(1, len(a) // 64))
    return None if _counts_between(a[some], b[some]) is None else _counts_between(a, b, more_than_one=more_than_one)


def _counts_between(a: Array, b: Array, *, more_than_one: bool = False) -> Array | None:
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        return None
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ratio = np.abs(a).sum(axis=1) / np.abs(b).sum(axis=1)
    ratio[~np.isfinite(ratio)] = 1.0
    counts = np.rint(ratio)
    whole = counts.min() >= 1 and counts.max() <= 2**20 and bool((np.abs(ratio - counts) <= 0.01 * counts).all())
    return counts.astype(np.int64) if whole and (counts.min() < counts.max() or not more_than_one) else None


def half_sums(both: Comparison, which: int) -> Iterator[Change]:
    """Sums formed in 16 bits: every addition rounded, instead of once at the end."""
    for dtype in HALVES:

        def change(x: Rows, y: Rows, beside: Beside, dtype: str = dtype) -> Rows | None:
            source = _slots_of(x, y, beside.raw)
            if source is None or source.slot_ids is None or source.slots is None:
                return None
            if not np.array_equal(source.ids, x.ids) or x.values.shape[1:] != source.slots.shape[1:]:
                return None
            if not _representable(y.values, dtype):
                return None
            place = np.searchsorted(source.ids, source.slot_ids)
            return replace(x, values=fold(source.slots, place, len(x.ids), dtype), dtype=y.dtype)

        found = each_tensor(both, which, change)
        if found:
            text = f"half accumulation: {{y}} has formed its sums in {dtype}, {{x}} in a wider type"
            yield Change(found.rows, text, {"dtype": dtype, **found.named}, again=found.again)


HALF_SUMS = Cause("half_sums", "sums in half precision", 60, propose=half_sums, exact="always", scales=False)


def _slots_of(x: Rows, y: Rows, raw: Rows | None) -> Rows | None:
    """x itself if it has slots; else another holder of slots whose sums, rounded to x's type, x is."""
    if x.slots is not None:
        return x
    for holder in (raw, y):
        if holder is None or holder.slots is None or holder.values.shape != x.values.shape:
            continue
        if np.array_equal(holder.ids, x.ids) and np.array_equal(_round_to(holder.values, x.dtype), x.values):
            return holder
    return None


def _representable(x: Array, dtype: str) -> bool:
    some = x.reshape(-1)[:: max(1, x.size // 256)]
    return bool(np.array_equal(_round_to(some, dtype), some, equal_nan=True))
