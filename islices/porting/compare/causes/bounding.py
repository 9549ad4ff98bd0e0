"""Causes that treat the slots of one side wrongly: bounds on values or rows, and lost duplicates."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np

from islices.porting.compare.cause import Cause, Change
from islices.porting.compare.comparison import Comparison, TwoSides
from islices.porting.compare.digits import as_written
from islices.porting.compare.rows import Rows
from islices.porting.compare.stored import Array, wide

#: Limits nearer to one another than this, relatively, are one: 16 bits round all elements by so much.
CLOSE = 2.0**-8


# ---------------------------------------------------------------------- duplicates
def last_duplicate(both: Comparison, which: int) -> Iterator[Change]:
    """Propose that one side overwrites duplicates with the last one."""
    text = "duplicates overwritten: {y} keeps the last slot of each row, {x} sums them"
    yield Change(_last, text, cost=1.0)


def _last(x: Rows, y: Rows, pair: TwoSides) -> Rows | None:
    source = next((s for s in (x, pair.raw) if s is not None and s.slots is not None), None)
    if source is None or source.slots is None or source.slot_ids is None or not source.meets(x):
        return None
    if not np.array_equal(source.values, x.values):
        return None
    values = np.zeros(x.values.shape)
    values[np.searchsorted(x.ids, source.slot_ids)] = wide(source.slots)  # of equal places NumPy keeps the last
    return x.having(values, counts=None)


LAST_DUPLICATE = Cause(
    "last_duplicate", 55, propose=last_duplicate,
    fix={"": ("grad = np.zeros(shape, rows.dtype); grad[ids] = rows",
              "grad = islices.IndexedSlices(rows, ids, shape)")},
)  # fmt: skip


# ---------------------------------------------------------------------- values and rows
def _bounded(name: str, rank: int, bounded: str, sizes: Callable[[Rows], Array], fix: str) -> Cause:
    """Return the cause that bounds some sizes on one side, if several of them reach the limit."""

    def propose(both: Comparison, which: int) -> Iterator[Change]:
        for limit, bits in _limits(both, which, sizes):

            def clip(x: Rows, y: Rows, pair: TwoSides, limit: float = limit) -> Rows | None:
                own = sizes(x)
                factor = np.minimum(1.0, limit / np.maximum(own, 1e-300))
                terms = None if x.terms is None else x.terms * factor
                return x.having(x.values * factor, terms) if (own > limit * (1 + 1e-6)).any() else None

            text = f"{name.split('_')[0]}s clipped: {{y}} bounds {bounded} by {limit:.6g}, {{x}} does not"
            yield Change(clip, text, {"limit": limit}, bits)

    lines = {"": (f"grads = {fix}", f"take `{fix}` out")}
    return Cause(name, rank, propose=propose, exact="never", fix=lines)


def _limits(both: Comparison, which: int, sizes: Callable[[Rows], Array]) -> Iterator[tuple[float, float]]:
    """Yield (limit, bits): the largest size that at least three of the other side's elements or rows reach.

    The first limit is in the other side's units. The second is in this side's units, because each tensor may also be
    a multiple; the sizes below the limit give the factor. All tensors must agree.
    """
    plain, scaled = [], []
    for pair in both.pairs:
        x, y = pair.side(which), pair.side(1 - which)
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
    if plain:  # the tensors of the other side reach a limit in its units
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
