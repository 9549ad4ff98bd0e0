"""Causes by which one side went through 16 bits, or formed its sums there; its type need not show it.

What speaks for it is that the other side, treated so, agrees beyond sixteen bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from islices.core.host import group
from islices.porting.compare.cause import Cause, Change
from islices.porting.compare.causes.values import HALVES, round_to
from islices.porting.compare.comparison import Comparison, TwoSides
from islices.porting.compare.rows import Rows
from islices.porting.compare.stored import Array, wide

__all__ = ["HALF_SUMS", "SIXTEEN", "SIXTEEN_UPSTREAM", "fold"]

#: Smallest normal number, and bits of the significand.
FORMATS = {"float16": (2.0**-14, 11), "bfloat16": (2.0**-126, 8)}
#: A number that nearly ties may have been rounded to either neighbour: what is rounded had been rounded itself.
TIE = 1 + 2.0**-7
SAMPLED = 8192


# ---------------------------------------------------------------------- rounded, and widened again
def sixteen(both: Comparison, which: int) -> Iterator[Change]:
    """One side was rounded to 16 bits."""
    for dtype in HALVES:
        text = f"rounded to 16 bits: {{y}} has rounded its gradient to {dtype} and widened it again"
        yield Change(partial(_widened_again, dtype=dtype), text, {"dtype": dtype}, 4.0)


SIXTEEN = Cause(
    "sixteen_bits", "rounded to 16 bits and widened again", 65, propose=sixteen, needs=("gradients",),
    subsumes=("autocast",), fix={"": ("round gradients to {dtype}", "keep gradients out of {dtype}")},
)  # fmt: skip


def _widened_again(x: Rows, y: Rows, pair: TwoSides, *, dtype: str) -> Rows | None:
    """Return x's sums as they come back from 16 bits, where ties go as y's did."""
    if not all(z.dtype in ("float32", "float64") for z in (x, y)):
        return None
    values = round_to(x.values, dtype)
    off = values != y.values if x.meets(y) else np.zeros(1, bool)
    if off.any() and off.mean() <= 0.05:
        old, theirs = x.values[off], y.values[off]
        least, bits = FORMATS[dtype]
        half_ulp = np.ldexp(1.0, np.frexp(np.maximum(np.abs(old), least))[1] - bits - 1)
        near = (np.abs(old - theirs) <= TIE * half_ulp) & (round_to(theirs, dtype) == theirs)
        values[off] = np.where(near, theirs, values[off])
    return x.having(values, x.terms)


# ---------------------------------------------------------------------- computed in 16 bits
def upstream(both: Comparison, which: int) -> Iterator[Change]:
    """What the other side's slots hold are numbers of 16 bits: the layers before were computed so (autocast)."""
    for dtype in HALVES:
        tops: dict[str, float] = {}  # of each tensor
        for pair in both.pairs:
            x, y = pair.side(which), pair.side(1 - which)
            known = x.dtype != "float32" or not _representable(y, dtype) or _representable(x, dtype)
            # float16 holds bfloat16's eight bits too
            if not known and not (dtype == "float16" and _representable(y, "bfloat16")):
                tops[pair.name] = float(np.abs(x.values).max(initial=0.0))

        def widen(x: Rows, y: Rows, pair: TwoSides, dtype: str = dtype, tops: dict[str, float] = tops) -> Rows | None:
            if pair.name not in tops or (y.values.any() and not _representable(y, dtype)):
                return None
            return x.having(x.values, np.full(x.values.shape, tops[pair.name]), dtype=dtype, counts=None)

        text = (
            f"computed in 16 bits: all that {{y}}'s gradient is summed of are numbers of {dtype}, as mixed "
            "precision (autocast) leaves them; it agrees as far as such arithmetic goes"
        )
        yield Change(widen, text, {"dtype": dtype}, 8.0)


SIXTEEN_UPSTREAM = Cause(
    "autocast", "computed in 16 bits", 140, propose=upstream, narrows=True, exact="never", needs=("gradients",),
    fix={"": ("compute the layers in {dtype}", "compute the layers in float32")},
)  # fmt: skip


def _representable(y: Rows, dtype: str) -> bool:
    """Return whether slots have as few bits as a type's significand, whatever their exponents."""
    some = (y.values if y.slots is None else wide(y.slots)).reshape(-1)[:SAMPLED]
    bits = FORMATS[dtype][1]
    mantissa, exponent = np.frexp(some)
    return bool(some.any()) and bool((np.ldexp(np.rint(np.ldexp(mantissa, bits)), exponent - bits) == some).all())


# ---------------------------------------------------------------------- summed in 16 bits
def half_sums(both: Comparison, which: int) -> Iterator[Change]:
    """Sums formed in 16 bits: every addition rounded, instead of once at the end."""
    for dtype in HALVES:
        text = f"half accumulation: {{y}} has formed its sums in {dtype}, {{x}} in a wider type"
        yield Change(partial(_half_sums, dtype=dtype), text, {"dtype": dtype})


def _half_sums(x: Rows, y: Rows, pair: TwoSides, *, dtype: str) -> Rows | None:
    source = next((s for s in (x, pair.raw, y) if s is not None and s.slots is not None), None)
    if source is None or source.slots is None or source.slot_ids is None or not source.meets(x):
        return None
    if source is not x and not np.array_equal(round_to(source.values, x.dtype), x.values):
        return None
    some = y.values.reshape(-1)[:SAMPLED]
    if not np.array_equal(round_to(some, dtype), some, equal_nan=True):
        return None
    values = fold(source.slots, np.searchsorted(source.ids, source.slot_ids), len(x.ids), dtype)
    return replace(x, values=values, dtype=y.dtype)


HALF_SUMS = Cause("half_sums", "sums in half precision", 60, propose=half_sums, exact="always", scales=False)


def fold(slots: Array, place: Array, count: int, dtype: str) -> Array:
    """Return the sum of the slots of each row, left to right, every partial sum rounded to dtype.

    Parameters
    ----------
    slots : host array, shape (n, *row_shape)
        Rounded to dtype first.
    place : int64 array, shape (n,)
        The row of each slot, in [0, count); each row has one at least.
    count : int
    dtype : {"float16", "bfloat16"}

    Returns
    -------
    float64 array, shape (count, *row_shape)

    Examples
    --------
    >>> import numpy as np
    >>> ones = np.ones((4096, 1), np.float16)
    >>> float(fold(ones, np.zeros(4096, np.int64), 1, "float16")[0, 0])
    2048.0
    """
    terms = round_to(wide(slots), dtype)
    order, _, starts = group(place)
    lengths = np.diff(starts)
    sums: Array = terms[order[starts[:-1]]]
    for k in range(1, int(lengths.max(initial=1))):
        more = np.flatnonzero(lengths > k)
        # the sum of two 16-bit floats in float32, then rounded, is the sum rounded once (24 >= 2 * 11 + 2 bits)
        sums[more] = round_to(sums[more] + terms[order[starts[more] + k]], dtype)
    return sums
