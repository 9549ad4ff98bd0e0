"""Causes that bound values or rows, and one that loses duplicates: what one side makes of the slots it was handed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from islices.porting.compare.cause import Beside, Cause, Change, each_tensor
from islices.porting.compare.comparison import Comparison
from islices.porting.compare.digits import as_written
from islices.porting.compare.evidence import Rows
from islices.porting.compare.stored import Array, wide

__all__ = ["LAST_DUPLICATE", "ROW_CLIP", "VALUE_CLIP"]

#: Limits nearer to one another than this, relatively, are one: 16 bits round all elements by so much.
CLOSE = 2.0**-8


# ---------------------------------------------------------------------- duplicates
def last_duplicate(both: Comparison, which: int) -> Iterator[Change]:
    """The last of duplicates is written over the others."""

    def change(x: Rows, y: Rows, beside: Beside) -> Rows | None:
        source = next((s for s in (x, beside.raw) if s is not None and s.slots is not None), None)
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
        yield Change(found.rows, text, found.named, 1.0, again=found.again)


LAST_DUPLICATE = Cause(
    "last_duplicate", "the last duplicate wins", 55, propose=last_duplicate, needs=("gradients",),
    fix={"": ("grad = np.zeros(shape, rows.dtype); grad[ids] = rows",
              "grad = islices.IndexedSlices(rows, ids, shape)")},
)  # fmt: skip


# ---------------------------------------------------------------------- values
def value_clip(both: Comparison, which: int) -> Iterator[Change]:
    """No element of one side is larger than a limit, which several reach."""
    for least, bits in _limits(both, which, lambda x: np.abs(x.values)):
        yield from _with_values_clipped(both, which, least, bits)


def _with_values_clipped(both: Comparison, which: int, least: float, bits: float) -> Iterator[Change]:
    def change(x: Rows, y: Rows, _: Beside) -> Rows | None:
        if not (np.abs(x.values) > least).any():
            return None
        bounded = np.clip(x.values, -least, least)
        terms = None if x.terms is None else np.where(np.abs(x.values) > least, least, x.terms)
        return replace(x, values=bounded, terms=terms, slot_ids=None, slots=None)

    found = each_tensor(both, which, change)
    if found:
        text = f"values clipped: {{y}} bounds each element by {least:.6g}, {{x}} does not"
        yield Change(found.rows, text, {"limit": least, **found.named}, bits, again=found.again)


VALUE_CLIP = Cause(
    "value_clip", "values clipped", 130, propose=value_clip, needs=("gradients",), exact="never",
    fix={"": ("grads = islices.clip_by_value(grads, -{limit:.6g}, {limit:.6g})",
              "take `islices.clip_by_value(grads, -{limit:.6g}, {limit:.6g})` out")},
)  # fmt: skip


def _limits(both: Comparison, which: int, sizes: Callable[[Rows], Array]) -> Iterator[tuple[float, float]]:
    """(limit, bits): what the sizes of the other side's elements or rows reach, three of them at least.

    First as it stands there; then in this side's units, where each tensor may be a multiple besides, which those below
    the limit tell. Tensors have to agree.
    """
    plain, scaled = [], []
    for x, y in zip(both.side(which), both.side(1 - which), strict=True):
        theirs = sizes(y)
        top = float(theirs.max(initial=0.0))
        below = theirs < top * (1 - 1e-5)
        if not 0 < top < math.inf or below.size - below.sum() < 3:
            continue
        plain.append(top)
        if np.array_equal(x.ids, y.ids) and x.values.shape == y.values.shape:
            own = sizes(x)
            below &= (own > 0) & (theirs > 0)
            if below.any():
                scaled.append(top / float(np.median(theirs[below] / own[below])))
    if plain:  # the others reach a limit of their own
        yield _short(max(plain))
    if scaled and max(scaled) <= min(scaled) * (1 + 1e-5) and abs(scaled[0] / max(plain) - 1) > CLOSE:
        yield _short(scaled[0])


def _short(x: float) -> tuple[float, float]:
    return as_written(x, lambda short: abs(short - x) <= 1e-6 * x, 3)


# ---------------------------------------------------------------------- rows
def row_clip(both: Comparison, which: int) -> Iterator[Change]:
    """No row of one side has a norm above a limit, which several have."""
    for least, bits in _limits(both, which, _row_norms):
        yield from _with_rows_clipped(both, which, least, bits)


def _with_rows_clipped(both: Comparison, which: int, least: float, bits: float) -> Iterator[Change]:
    def change(x: Rows, y: Rows, _: Beside) -> Rows | None:
        own = _row_norms(x)
        if not (own > least * (1 + 1e-6)).any():
            return None
        factor = np.minimum(1.0, least / np.maximum(own, 1e-300)).reshape(-1, *[1] * (x.values.ndim - 1))
        terms = None if x.terms is None else x.terms * factor
        return replace(x, values=x.values * factor, terms=terms, slot_ids=None, slots=None)

    found = each_tensor(both, which, change)
    if found:
        text = f"rows clipped: {{y}} bounds the norm of each row by {least:.6g}, {{x}} does not"
        yield Change(found.rows, text, {"limit": least, **found.named}, bits, again=found.again)


ROW_CLIP = Cause(
    "row_clip", "rows clipped", 132, propose=row_clip, needs=("gradients",), exact="never",
    fix={"": ("grads = islices.clip_by_row_norm(grads, {limit:.6g})",
              "take `islices.clip_by_row_norm(grads, {limit:.6g})` out")},
)  # fmt: skip


def _row_norms(x: Rows) -> Array:
    flat = x.values.reshape(len(x.ids), math.prod(x.values.shape[1:]))
    with np.errstate(over="ignore", invalid="ignore"):
        norms: Array = np.sqrt((flat * flat).sum(axis=1))
    return np.nan_to_num(norms, posinf=0.0)
