"""Causes that change the values of rows by types, signs or 16-bit rounding."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from islices.core.host import bfloat16_bits
from islices.porting.compare.cause import Cause, Change, both_directions
from islices.porting.compare.comparison import Comparison, TwoSides
from islices.porting.compare.rows import PRECISION, Rows
from islices.porting.compare.stored import Array, wide

#: dtype -> float32 rounded to it, as a host array
HALVES: dict[str, Callable[[Array], Array]] = {"float16": lambda x: x.astype(np.float16), "bfloat16": bfloat16_bits}
#: The number of slots to check for 16-bit values.
SAMPLED = 8192


# ---------------------------------------------------------------------- types and signs
def same_values(both: Comparison, which: int) -> Iterator[Change]:
    """Propose that the values are the same in types of different width."""
    a, b = ("/".join(sorted({p.side(k).dtype for p in both.pairs if p.a.dtype != p.b.dtype})) for k in (0, 1))
    text = f"only the types differ: {{a}} is {a}, {{b}} {b}, the values are the same"
    yield Change(lambda x, y, pair: replace(x, dtype=y.dtype) if x.dtype != y.dtype else None, text)


DTYPE = Cause(
    "dtype", 10, propose=same_values, symmetric=True, narrows=True, exact="always",
    subsumes=("rounded",),
)  # fmt: skip


def rounded(both: Comparison, which: int) -> Iterator[Change]:
    """Propose that one side is the other, rounded to a narrower type."""
    for type_ in sorted({y.dtype for p in both.pairs if _narrower(p.side(which), y := p.side(1 - which))}):

        def change(x: Rows, y: Rows, pair: TwoSides) -> Rows | None:
            return replace(x, values=_round_to(x.values, y.dtype), dtype=y.dtype) if _narrower(x, y) else None

        yield Change(change, f"{{y}} is {{x}} rounded to {type_}", {"dtype": type_})
        return  # all tensors at once


def _narrower(x: Rows, y: Rows) -> bool:
    return PRECISION[y.dtype] < PRECISION[x.dtype] and y.dtype.startswith(("float", "bfloat"))


def _round_to(x: Array, dtype: str) -> Array:
    """Return float64 values after rounding to another type."""
    with np.errstate(over="ignore", invalid="ignore"):
        if dtype in HALVES:
            return wide(HALVES[dtype](x.astype(np.float32)))
        return x.astype(dtype).astype(np.float64)


ROUNDED = Cause("rounded", 70, propose=rounded, narrows=True, exact="always", scales=False)


def sign(both: Comparison, which: int) -> Iterator[Change]:
    """Propose the opposite sign: a maximised loss, or an added step."""
    text = "sign: {x} has the opposite sign of {y}"
    yield Change(lambda x, y, pair: replace(x, values=-x.values), text, everywhere=True)


SIGN = Cause("sign", 20, propose=sign, symmetric=True, fix=both_directions("loss = -loss"))


# ---------------------------------------------------------------------- 16 bits
def autocast(both: Comparison, which: int) -> Iterator[Change]:
    """Find slots of the other side that hold 16-bit numbers in a wider type."""
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


AUTOCAST = Cause(
    "autocast", 140, propose=autocast, narrows=True, exact="never",
    fix={"": ("compute the layers in {dtype}", "compute the layers in float32")},
)  # fmt: skip


def _representable(y: Rows, dtype: str) -> bool:
    """Return whether slots have as few bits as a type's significand, for any exponents."""
    some = (y.values if y.slots is None else wide(y.slots)).reshape(-1)[:SAMPLED]
    mantissa, exponent = np.frexp(some)
    bits = PRECISION[dtype]
    return bool(some.any()) and bool((np.ldexp(np.rint(np.ldexp(mantissa, bits)), exponent - bits) == some).all())
