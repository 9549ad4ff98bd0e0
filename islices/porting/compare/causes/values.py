"""Define the causes that concern values: another dtype, rounding, the opposite sign, computation in 16 bits, and bounds
on values or row norms."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from islices.core.host import bfloat16_bits
from islices.porting.compare.cause import Cause, Change
from islices.porting.compare.comparison import Comparison, TwoSides
from islices.porting.compare.evidence import as_written
from islices.porting.compare.rows import PRECISION, Rows
from islices.porting.compare.stored import Array, wide

#: dtype -> a function that rounds float32 values to this dtype and returns a host array
HALVES: dict[str, Callable[[Array], Array]] = {"float16": lambda x: x.astype(np.float16), "bfloat16": bfloat16_bits}
#: The largest number of values to check for a 16-bit dtype.
SAMPLED = 8192
#: Two limits count as equal if their relative distance is at most this number, by which 16-bit dtypes may round an
#: element.
CLOSE = 2.0**-8


# ---------------------------------------------------------------------- types and signs
def same_values(both: Comparison, which: int) -> Iterator[Change]:
    """Propose that both sides have the same values in different dtypes."""
    a, b = ("/".join(sorted({p.side(k).dtype for p in both.pairs if p.a.dtype != p.b.dtype})) for k in (0, 1))
    text = f"only the types differ: {{a}} is {a}, {{b}} {b}, the values are the same"
    yield Change(lambda x, y, pair: replace(x, dtype=y.dtype) if x.dtype != y.dtype else None, text)


DTYPE = Cause(
    "dtype", 10, propose=same_values, symmetric=True, narrows=True, exact="always",
    subsumes=("rounded",),
)  # fmt: skip


def rounded(both: Comparison, which: int) -> Iterator[Change]:
    """Propose that one side contains the values of the other side, rounded to a narrower dtype."""
    types = sorted({y.dtype for x, y, _ in both.sides(which) if _narrower(x, y)})

    def change(x: Rows, y: Rows, pair: TwoSides) -> Rows | None:
        return replace(x, values=_round_to(x.values, y.dtype), dtype=y.dtype) if _narrower(x, y) else None

    for dtype in types[:1]:
        yield Change(change, f"{{y}} is {{x}} rounded to {dtype}", {"dtype": dtype})


def _narrower(x: Rows, y: Rows) -> bool:
    return PRECISION[y.dtype] < PRECISION[x.dtype] and y.dtype.startswith(("float", "bfloat"))


def _round_to(x: Array, dtype: str) -> Array:
    """Round float64 values to another dtype, and return them as float64."""
    with np.errstate(over="ignore", invalid="ignore"):
        if dtype in HALVES:
            return wide(HALVES[dtype](x.astype(np.float32)))
        return x.astype(dtype).astype(np.float64)


ROUNDED = Cause("rounded", 70, propose=rounded, narrows=True, exact="always", scales=False)


def sign(both: Comparison, which: int) -> Iterator[Change]:
    """Propose that the sides have opposite signs, for example because one side maximizes its loss."""
    text = "sign: {x} has the opposite sign of {y}"
    yield Change(lambda x, y, pair: replace(x, values=-x.values), text, everywhere=True)


SIGN = Cause("sign", 20, propose=sign, symmetric=True, fix="loss = -loss")


# ---------------------------------------------------------------------- 16 bits
def autocast(both: Comparison, which: int) -> Iterator[Change]:
    """Propose that one side computed its slots in a 16-bit dtype, and stored them in a wider dtype."""
    for dtype in HALVES:
        tops: dict[str, float] = {}  # tensor -> its largest absolute value
        for x, y, pair in both.sides(which):
            known = x.dtype != "float32" or not _representable(y, dtype) or _representable(x, dtype)
            # float16 can also represent the eight significant bits of a bfloat16
            if not known and not (dtype == "float16" and _representable(y, "bfloat16")):
                tops[pair.name] = float(np.abs(x.values).max(initial=0.0))

        def widen(x: Rows, y: Rows, pair: TwoSides, dtype: str = dtype, tops: dict[str, float] = tops) -> Rows | None:
            if pair.name not in tops or (y.values.any() and not _representable(y, dtype)):
                return None
            return x.having(x.values, terms=np.full(x.values.shape, tops[pair.name]), known=True, dtype=dtype)

        text = (
            f"computed in 16 bits: all that {{y}}'s gradient is summed of are numbers of {dtype}, as mixed "
            "precision (autocast) leaves them; it agrees as far as such arithmetic goes"
        )
        yield Change(widen, text, {"dtype": dtype}, 8.0)


AUTOCAST = Cause(
    "autocast", 140, propose=autocast, narrows=True, exact="never",
    fix=("compute the layers in {dtype}", "compute the layers in float32"),
)  # fmt: skip


def _representable(y: Rows, dtype: str) -> bool:
    """Return True if all sampled values fit into the significand of the dtype, and at least one of them is not zero."""
    some = (y.values if y.slots is None else wide(y.slots[1])).reshape(-1)[:SAMPLED]
    mantissa, exponent = np.frexp(some)
    bits = PRECISION[dtype]
    return bool(some.any()) and bool((np.ldexp(np.rint(np.ldexp(mantissa, bits)), exponent - bits) == some).all())


# ---------------------------------------------------------------------- bounds
def _bounded(name: str, rank: int, bounded: str, sizes: Callable[[Rows], Array], fix: str) -> Cause:
    """Make a cause for the case that one side limits the absolute values of its elements, or the norms of its rows. The
    function `sizes` computes these values or norms."""

    def propose(both: Comparison, which: int) -> Iterator[Change]:
        for limit, bits in _limits(both, which, sizes):

            def clip(x: Rows, y: Rows, pair: TwoSides, limit: float = limit) -> Rows | None:
                own = sizes(x)
                factor = np.minimum(1.0, limit / np.maximum(own, 1e-300))
                over = (own > limit * (1 + 1e-6)).any()
                return replace(x, values=x.values * factor, terms=x.terms * factor, slots=None) if over else None

            text = f"{name.split('_')[0]}s clipped: {{y}} bounds {bounded} by {limit:.6g}, {{x}} does not"
            yield Change(clip, text, {"limit": limit}, bits)

    return Cause(name, rank, propose=propose, exact="never", fix=(f"grads = {fix}", f"take `{fix}` out"))


def _limits(both: Comparison, which: int, sizes: Callable[[Rows], Array]) -> Iterator[tuple[float, float]]:
    """Yield up to two pairs (limit, cost in bits). The limit is the largest size on the other side, provided that at
    least three elements or rows have this size.

    The first limit is the size as the other side contains it. The other side may also be scaled by a factor. For
    the second limit, each tensor's largest size is divided by a factor, which is estimated from the tensor's elements
    or rows below this size. The second limit must be the same for all tensors, and must differ
    from the first limit.
    """
    plain, scaled = [], []
    for x, y, _ in both.sides(which):
        theirs = sizes(y)
        top = float(theirs.max(initial=0.0))
        below = theirs < top * (1 - 1e-5)
        if not 0 < top < math.inf or below.size - below.sum() < 3:
            continue
        plain.append(top)
        if x.meets(y):
            own = sizes(x)
            below &= (own > 0) & (theirs > 0)
            if below.any():
                scaled.append(top / float(np.median(theirs[below] / own[below])))
    if plain:  # at least one tensor of the other side reaches a limit
        yield _short(max(plain))
    if scaled and max(scaled) <= min(scaled) * (1 + 1e-5) and abs(scaled[0] / max(plain) - 1) > CLOSE:
        yield _short(scaled[0])


def _short(x: float) -> tuple[float, float]:
    return as_written(x, lambda short: abs(short - x) <= 1e-6 * x, 3)


def _row_norms(x: Rows) -> Array:
    with np.errstate(over="ignore", invalid="ignore"):
        norms: Array = np.sqrt((x.flat * x.flat).sum(axis=1))
    return np.nan_to_num(norms, posinf=0.0).reshape(-1, *[1] * (x.values.ndim - 1))


VALUE_CLIP = _bounded(
    "value_clip", 130, "each element", lambda x: np.abs(x.values),
    "islices.clip_by_value(grads, -{limit:.6g}, {limit:.6g})",
)  # fmt: skip
ROW_CLIP = _bounded("row_clip", 132, "the norm of each row", _row_norms, "islices.clip_by_row_norm(grads, {limit:.6g})")
