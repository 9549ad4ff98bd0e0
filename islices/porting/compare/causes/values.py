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
    """Each row divided by how often it occurs, counted by whoever has the slots."""
    text = "frequency: {y} divides each row by how often it occurs (scale_by_freq), {x} does not"
    yield Change(_by_counts, text)


def _by_counts(x: Rows, y: Rows, pair: TwoSides) -> Rows | None:
    holder = next((c for c in (x, y, pair.raw) if c is not None and c.counts is not None), None)
    if holder is None or holder.counts is None or holder.counts.max(initial=1) == 1:
        return None
    known = contained(holder.ids, x.ids)
    counts = np.ones(len(x.ids), np.int64)
    counts[np.searchsorted(x.ids, holder.ids[known])] = holder.counts[known]
    column = counts.reshape(-1, *[1] * (x.values.ndim - 1))
    return x.having(x.values / column, None if x.terms is None else x.terms / column)


FREQUENCY = Cause(
    "frequency", "frequency scaling", 50, propose=by_frequency, exact="never",
    fix={"": ("grad = islices.scale_by_frequency(grad)", "take `islices.scale_by_frequency(grad)` out")},
)  # fmt: skip
