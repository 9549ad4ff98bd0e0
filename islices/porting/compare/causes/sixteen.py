"""Causes by which one side went through 16 bits and was widened again: its type does not show it.

What speaks for it is that the other side, rounded so, agrees beyond sixteen bits. A loss scale S is divided out after
the rounding: float16(S g) / S; it shows in the numbers that float16 holds as subnormals, or not at all.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from islices.porting.compare.cause import Beside, Cause, Change, each_tensor
from islices.porting.compare.comparison import Comparison
from islices.porting.compare.half import HALVES
from islices.porting.compare.rows import Rows, extent
from islices.porting.compare.stored import Array, wide

__all__ = ["SIXTEEN", "SIXTEEN_UPSTREAM"]

#: Loss scales that are tried where float16's subnormals tell one from another.
SCALES = (1.0, 2.0**10, 2.0**15, 2.0**16, 1000.0)
#: Smallest normal number, and bits of the significand.
FORMATS = {"float16": (2.0**-14, 11), "bfloat16": (2.0**-126, 8)}
#: A number that nearly ties may have been rounded to either neighbour: what is rounded had been rounded itself.
TIE = 1 + 2.0**-7
SAMPLED = 8192


def _widened_again(x: Rows, y: Rows, _: Beside, *, dtype: str, scale: float, slots: bool) -> Rows | None:
    """x as it comes back from 16 bits: its slots one by one, or its sums, where ties go as y's did."""
    if x.dtype not in ("float32", "float64") or y.dtype not in ("float32", "float64"):
        return None
    if slots:
        return _rounded_slots(x, dtype, scale)
    values = _at_ties(x, y, _rounded(x.values, dtype, scale), dtype, scale)
    return replace(x, values=values, slot_ids=None, slots=None)


def sixteen(both: Comparison, which: int) -> Iterator[Change]:
    """One side was rounded to 16 bits, its sums or each of its slots, by a loss scale or not."""
    for dtype in HALVES:
        seen: set[bytes] = set()
        for scale in _scales(both, which, dtype):
            for slots in (False, True):
                change = partial(_widened_again, dtype=dtype, scale=scale, slots=slots)
                found = each_tensor(both, which, change)
                if not found:
                    continue
                tried = b"".join(found.rows[t].values.reshape(-1)[:4096].tobytes() for t in found.numbers)
                if tried in seen or not _nearer(both, which, found.rows, found.numbers):
                    continue
                seen.add(tried)
                where = "each of its slots" if slots else "its gradient"
                by = "" if scale == 1 else f", with a loss scale of {scale:g} divided out"
                text = f"rounded to 16 bits: {{y}} has rounded {where} to {dtype} and widened it again{by}"
                details = {"dtype": dtype, "scale": scale, "slots": slots, **found.named}
                yield Change(found.rows, text, details, 4.0, again=found.again)


SIXTEEN = Cause(
    "sixteen_bits", "rounded to 16 bits and widened again", 65, propose=sixteen, needs=("gradients",),
    subsumes=("autocast",), fix={"": ("round gradients to {dtype}", "keep gradients out of {dtype}")},
)  # fmt: skip


def _scales(both: Comparison, which: int, dtype: str) -> list[float]:
    if dtype == "bfloat16":  # it has float32's exponents: a power of two changes nothing
        return [1.0]
    sizes = [np.abs(x.values[x.values != 0]).min(initial=math.inf) for x in both.side(which)]
    if min(sizes, default=math.inf) >= FORMATS[dtype][0]:
        return [1.0, 1000.0]
    return list(SCALES)


def _rounded(x: Array, dtype: str, scale: float) -> Array:
    with np.errstate(over="ignore", invalid="ignore"):
        once = (x * scale).astype(np.float32)
        half = wide(HALVES[dtype](once)).astype(np.float32)
        return (half / np.float32(scale)).astype(np.float64)


def _half_ulp(x: Array, dtype: str, scale: float) -> Array:
    """Half the spacing of a type at x."""
    least, bits = FORMATS[dtype]
    exponents = np.frexp(np.maximum(np.abs(x * scale), least))[1]
    result: Array = np.ldexp(1.0, exponents - bits - 1) / scale
    return result


def _at_ties(x: Rows, y: Rows, values: Array, dtype: str, scale: float) -> Array:
    """y's numbers where x lies as near to them as to their neighbours."""
    if not np.array_equal(x.ids, y.ids) or x.values.shape != y.values.shape:
        return values
    off = values != y.values
    if not off.any() or off.mean() > 0.05:
        return values
    at = np.nonzero(off)
    near = np.abs(x.values[at] - y.values[at]) <= TIE * _half_ulp(x.values[at], dtype, scale)
    near &= _rounded(y.values[at], dtype, scale) == y.values[at]
    values[at] = np.where(near, y.values[at], values[at])
    return values


def _rounded_slots(x: Rows, dtype: str, scale: float) -> Rows | None:
    if x.slots is None or x.slot_ids is None:
        return None
    slots = _rounded(wide(x.slots), dtype, scale)
    values = np.zeros(x.values.shape)
    np.add.at(values, np.searchsorted(x.ids, x.slot_ids), slots)
    return replace(x, values=values, slots=slots.astype(x.dtype))


def _nearer(both: Comparison, which: int, rows: tuple[Rows, ...], numbers: list[int]) -> bool:
    """Whether the rounded side is by far nearer to a multiple of the other than it was, or a penalty may hide it."""
    if both.tables is not None:
        return True
    for t in numbers:
        x, new, y = both.side(which)[t], rows[t], both.side(1 - which)[t]
        if not np.array_equal(x.ids, y.ids) or x.values.shape != y.values.shape:
            return True
        if x.values.ndim < 2 or new.values.shape != y.values.shape:
            return True
        some = slice(None, None, max(1, x.values.size // SAMPLED))
        old, now, other = (z.values[some].reshape(len(z.ids[some]), math.prod(z.values.shape[1:])) for z in (x, new, y))
        if not _apart(now, other) <= 0.5 * _apart(old, other):
            return False
    return True


def _apart(x: Array, y: Array) -> float:
    """How far elements' quotients are from the middle one of their row, by the middle: what bounds rows, or few
    elements, does not show in it."""
    whole = (np.isfinite(x) & np.isfinite(y) & (x != 0)).all(axis=1)
    if not whole.any() or not x.shape[1]:
        return math.inf
    ratio = y[whole] / x[whole]
    middle = np.median(ratio, axis=1, keepdims=True)
    with np.errstate(all="ignore"):
        return float(np.nan_to_num(np.median(np.abs(ratio / middle - 1)), nan=math.inf))


# ---------------------------------------------------------------------- numbers of 16 bits
def _representable(y: Rows, dtype: str) -> bool:
    slots = y.values if y.slots is None else wide(y.slots)
    some = slots.reshape(-1)[:SAMPLED]
    return bool(some.any()) and bool((_significand(some, dtype) == some).all())


def _all_representable(both: Comparison, which: int, numbers: Sequence[int], dtype: str) -> bool:
    """Whether the other side's tensors are."""
    others = [both.side(1 - which)[t] for t in numbers]
    return all(not y.values.any() or _representable(y, dtype) for y in others)


def _significand(x: Array, dtype: str) -> Array:
    """x with as many bits as a type's significand has, whatever its exponent: a power of two may scale it."""
    bits = FORMATS[dtype][1]
    mantissa, exponent = np.frexp(x)
    result: Array = np.ldexp(np.rint(np.ldexp(mantissa, bits)), exponent - bits)
    return result


# ---------------------------------------------------------------------- computed in 16 bits
def upstream(both: Comparison, which: int) -> Iterator[Change]:
    """What the other side's slots hold are numbers of 16 bits: the layers before were computed so (autocast)."""
    for dtype in HALVES:
        tops: dict[str, float] = {}  # of each tensor

        def change(x: Rows, y: Rows, beside: Beside, dtype: str = dtype, tops: dict[str, float] = tops) -> Rows | None:
            if beside.name not in tops:
                if x.dtype != "float32" or not _representable(y, dtype) or _representable(x, dtype):
                    return None
                tops[beside.name] = extent(x.values)[0]
            elif y.values.any() and not _representable(y, dtype):
                return None
            terms = np.full(x.values.shape, tops[beside.name])
            return replace(x, dtype=dtype, terms=terms, counts=None, slot_ids=None, slots=None)

        found = each_tensor(both, which, change)
        # with its eight bits bfloat16's numbers are nearly all float16's too
        if found and not (dtype == "float16" and _all_representable(both, which, found.numbers, "bfloat16")):
            text = (
                f"computed in 16 bits: all that {{y}}'s gradient is summed of are numbers of {dtype}, as mixed "
                "precision (autocast) leaves them; it agrees as far as such arithmetic goes"
            )
            yield Change(found.rows, text, {"dtype": dtype, **found.named}, 8.0, again=found.again)


SIXTEEN_UPSTREAM = Cause(
    "autocast", "computed in 16 bits", 140, propose=upstream, narrows=True, exact="never", needs=("gradients",),
    fix={"": ("compute the layers in {dtype}", "compute the layers in float32")},
)  # fmt: skip
