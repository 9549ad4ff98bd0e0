"""Causes that change what stands in the rows: types, signs, frequencies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from islices.core.host import bfloat16_bits
from islices.porting.compare.cause import Cause, Change, both_ways
from islices.porting.compare.comparison import Comparison, TwoSides
from islices.porting.compare.rows import PRECISION, Rows
from islices.porting.compare.stored import Array, contained, wide

__all__ = ["DTYPE", "FREQUENCY", "HALVES", "ROUNDED", "SIGN", "round_to"]

#: dtype -> float32 rounded to it, as a host array
HALVES: dict[str, Callable[[Array], Array]] = {"float16": lambda x: x.astype(np.float16), "bfloat16": bfloat16_bits}


# ---------------------------------------------------------------------- types and signs
def same_values(both: Comparison, which: int) -> Iterator[Change]:
    """The values are the same in types of different width."""
    a, b = ("/".join(sorted({p.side(k).dtype for p in both.pairs if p.a.dtype != p.b.dtype})) for k in (0, 1))
    text = f"only the types differ: {{a}} is {a}, {{b}} {b}, the values are the same"
    yield Change(lambda x, y, pair: replace(x, dtype=y.dtype) if x.dtype != y.dtype else None, text)


DTYPE = Cause(
    "dtype", "only the types", 10, propose=same_values, symmetric=True, narrows=True, exact="always",
    subsumes=("rounded",),
)  # fmt: skip


def rounded(both: Comparison, which: int) -> Iterator[Change]:
    """One side is the other, rounded to a narrower type."""
    for type_ in sorted({y.dtype for p in both.pairs if _narrower(p.side(which), y := p.side(1 - which))}):

        def change(x: Rows, y: Rows, pair: TwoSides) -> Rows | None:
            return replace(x, values=round_to(x.values, y.dtype), dtype=y.dtype) if _narrower(x, y) else None

        yield Change(change, f"{{y}} is {{x}} rounded to {type_}", {"dtype": type_})
        return  # all tensors at once


def _narrower(x: Rows, y: Rows) -> bool:
    return PRECISION[y.dtype] < PRECISION[x.dtype] and y.dtype.startswith(("float", "bfloat"))


ROUNDED = Cause(
    "rounded", "rounded to a narrower type", 70, propose=rounded, narrows=True, exact="always", scales=False
)


def round_to(x: Array, dtype: str) -> Array:
    """Return float64 values as they come back from another type."""
    with np.errstate(over="ignore", invalid="ignore"):
        if dtype in HALVES:
            return wide(HALVES[dtype](x.astype(np.float32)))
        return x.astype(dtype).astype(np.float64)


def sign(both: Comparison, which: int) -> Iterator[Change]:
    """The opposite sign: a loss maximised, a step added."""
    text = "sign: {x} has the opposite sign of {y}"
    yield Change(lambda x, y, pair: replace(x, values=-x.values), text, everywhere=True)


SIGN = Cause("sign", "sign", 20, propose=sign, symmetric=True, fix=both_ways("loss = -loss"))


# ---------------------------------------------------------------------- what stands in a row
def by_frequency(both: Comparison, which: int) -> Iterator[Change]:
    """Each row divided by how often it occurs; counts from whoever has the slots, else whole ratios of the rows."""
    cost, source = 0.0, ""
    for pair in both.pairs:
        x, y = pair.side(which), pair.side(1 - which)
        holders = {"{x}": x, "{y}": y, "before": pair.raw}
        source = next((name for name, c in holders.items() if c is not None and c.counts is not None), "")
        if not source and not pair.same and (counts := _whole_ratios(x, y)) is not None:
            if counts.min() == counts.max():
                return
            cost += float((2 * np.log2(counts) + 1).sum())

    def divide(x: Rows, y: Rows, pair: TwoSides) -> Rows | None:
        holder = next((c for c in (x, y, pair.raw) if c is not None and c.counts is not None), None)
        counts = _whole_ratios(x, y) if holder is None else _counts_of(holder, x.ids)
        if counts is None or counts.max(initial=1) <= 1:
            return None
        column = counts.reshape(-1, *[1] * (x.values.ndim - 1))
        return x.having(x.values / column, None if x.terms is None else x.terms / column)

    where = f"counted in {source}'s slots" if source else "whole ratios of the rows"
    text = f"frequency: {{y}} divides each row by how often it occurs (scale_by_freq; {where}), {{x}} does not"
    yield Change(divide, text, {"counts": source.strip("{}") or "the ratios of the rows"}, cost)


FREQUENCY = Cause(
    "frequency", "frequency scaling", 50, propose=by_frequency, exact="never",
    fix={"": ("grad = islices.scale_by_frequency(grad)", "take `islices.scale_by_frequency(grad)` out")},
)  # fmt: skip


def _counts_of(holder: Rows, ids: Array) -> Array:
    counts = np.ones(len(ids), np.int64)
    known = contained(ids, holder.ids)
    if holder.counts is not None:
        counts[known] = holder.counts[np.searchsorted(holder.ids, ids[known])]
    return counts


def _whole_ratios(x: Rows, y: Rows) -> Array | None:
    """Return for each row the whole number that x is of y; None where a row is no whole multiple."""
    if not x.meets(y) or not len(x.ids) or x.flat.shape[1] < 2:
        return None
    if not (np.isfinite(x.values).all() and np.isfinite(y.values).all()):
        return None
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ratio = np.abs(x.flat).sum(axis=1) / np.abs(y.flat).sum(axis=1)
    ratio[~np.isfinite(ratio)] = 1.0
    counts = np.rint(ratio)
    whole = counts.min() >= 1 and counts.max() <= 2**20 and bool((np.abs(ratio - counts) <= 0.01 * counts).all())
    return counts.astype(np.int64) if whole else None
