"""Norms that do not depend on the order of summation.

Frameworks sum in different orders, with different numbers of threads, so a plain sum of squares differs between
them in its last bits. Here every term is cut, by additions alone, into a part that is a multiple of one large
power of two and a rest: parts that share such a unit add up without any rounding, in whatever order. Two cuts and
the sum of the rests give about 100 bits, so that the order can no longer be seen in a float64 result.

The cut is ExtractVector of S. M. Rump, T. Ogita, S. Oishi, "Accurate floating-point summation, part I: faithful
rounding", SIAM J. Sci. Comput. 31(1), 2008, which also gives `_power_of_two` (its NextPowerTwo). A square of a
float32 is exact in float64; a float64 is first cut in two halves whose products are exact.

The same code runs on NumPy, on every framework's float64 arrays, and under a trace. SPEC clause 7.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from islices import modes, powers
from islices.backend import Array, Backend
from islices.shapes import size_of

__all__ = [
    "UNKNOWN_COUNT",
    "Cuts",
    "Extent",
    "Groups",
    "Matrices",
    "Ranks",
    "Sums",
    "as_rows",
    "computing",
    "extent_of",
    "row_norms",
    "row_sums",
    "sample_keys",
    "sums_of",
]

#: Without a known count of terms (dynamic shapes under a trace) room is left for this many.
UNKNOWN_COUNT = 2.0**40
HUGE, TINY = 2.0**400, 2.0**-400
RESCALE = 2.0**600


class Groups(NamedTuple):
    """Which rows of a leaf belong together: the group of each row, ascending, and how many groups there are."""

    segments: Array  # (k,), of NumPy unless traced; the number of groups, in traced code, is none
    number: int


#: Leaves whose rows are measured together: (backend, float array of shape (k, m)) each.
Matrices = Sequence[tuple[Backend, Array]]
Members = Sequence[Groups | None]


def as_rows(B: Backend, values: Array, k: int | None) -> Array:
    """values as a matrix: one row (k = 1), or one for each along axis 0 (k = its length)."""
    shape = B.shape(values)
    inner = shape if k == 1 else shape[1:]
    with B.scope():
        return B.reshape(values, (k, size_of(inner)))


def sample_keys(B: Backend, values: Array, indices: Array, samples: Array, rows: int) -> Array:
    """sample * rows + index of each slot, int64: what names a row of one sample. values say where arrays lie."""
    # as an array: JAX narrows 64-bit numbers in traced code
    stride = B.astype(B.asarray(np.full(1, rows), values), "int64")
    return B.astype(samples, "int64") * stride + B.astype(indices, "int64")


def row_norms(
    leaves: Matrices, ord: float, groups: Members | None = None, *, ranks: Ranks | None = None
) -> tuple[Backend, Array]:
    """The norm of each row over all leaves together, in float64.

    Parameters
    ----------
    leaves : sequence of (backend, float array of shape (k, m))
        The k agrees (or there are no leaves at all).
    ord : float
        More than 0, or inf.
    groups : sequence of Groups or None, one for each leaf, optional
        The rows of a group count as one; then k is the number of groups.
    ranks : Ranks, optional
        Those that hold the other leaves, where these are not all.

    Returns
    -------
    (Backend, array of shape (k,))
        float64, with the backend whose primitives work on it: `HostBackend` unless a leaf is traced. NaN if the row
        holds NaN, else infinite if it holds an infinity.
    """
    E = computing(leaves)
    members = [None] * len(leaves) if groups is None else groups
    with E.scope():
        extent = ranks.extent(E) if ranks else extent_of(E, leaves, members)
        if ord == float("inf"):
            return E, extent.top
        cuts = _cuts_of(E, extent, ord)
        sums = ranks.sums(E, extent.top, cuts) if ranks else sums_of(E, leaves, members, cuts, ord)
        return E, _norms_of(E, extent.top, cuts, sums, ord)


class Ranks(Protocol):
    """Ranks that hold the leaves of one norm together (islices.distributed.norms): the two sums that each tells."""

    def extent(self, E: Backend) -> Extent:
        """`extent_of` all ranks' leaves."""
        ...

    def sums(self, E: Backend, top: Array, cuts: Cuts) -> Sums:
        """`sums_of` all ranks' leaves, whose largest number is top."""
        ...


# ---------------------------------------------------------------------- step by step
class Extent(NamedTuple):
    """What decides where terms are cut, of all leaves that are measured together."""

    top: Array  # (k,), the largest |x| of each row, in float64
    count: Any  # at most how many terms make one norm, and some: a number, or an array that broadcasts with top
    wide: bool  # whether a leaf is float64


class Cuts(NamedTuple):
    """Where terms are cut; float64 arrays of shape (k,)."""

    scale: Array  # the power of two that x is multiplied by first; of other orders than 1 and 2 what it is divided by
    half: Array  # what leaves the upper half of an x
    unit: Array  # what leaves the coarse part of a term
    fine: Array  # and the fine part of the rest
    wide: bool


#: (sum of coarse parts, sum of fine parts, sum of rests) of each row, (k,) each; the first two are exact.
Sums = tuple[Array, Array, Array]


def computing(leaves: Matrices) -> Backend:
    """The backend whose primitives work on norms of these: that of a traced leaf, else the host's."""
    return next((B for B, x in leaves if B.is_traced(x)), modes.HOST)


def extent_of(E: Backend, leaves: Matrices, members: Members) -> Extent:
    """The extent of some leaves, of one at least."""
    tops = [_top_of_groups(E, _top(E, B, x), g) for (B, x), g in zip(leaves, members, strict=True)]
    top = tops[0]
    for other in tops[1:]:
        top = E.maximum(top, other)
    widths = [_terms_of(B.shape(x), g) for (B, x), g in zip(leaves, members, strict=True)]
    count = UNKNOWN_COUNT if None in widths else 3.0 * sum(w for w in widths if w is not None) + 4.0
    return Extent(top, count, any(B.dtype(x) == "float64" for B, x in leaves))


def _cuts_of(E: Backend, extent: Extent, ord: float) -> Cuts:
    """Where terms of this extent are cut."""
    top, count, wide = extent
    one = E.minimum(E.maximum(top, 1.0), 1.0)
    if not powers.is_exact(ord):
        scale = E.where(E.less_equal(top, 0.0), one, top)
        unit, fine = _units(E, one, one, count)
        return Cuts(scale, one, unit, fine, wide)
    scale = one
    if wide:  # then every leaf is scaled: they share one sum
        scale = E.where(E.less_equal(top, TINY), _times(E, one, RESCALE), one)
        scale = E.where(E.less_equal(HUGE, top), _times(E, one, 1.0 / RESCALE), scale)
    largest = E.round_product(top, scale)
    bound = largest if ord == 1 else _times(E, largest * largest, 4.0)
    unit, fine = _units(E, bound, one, count)
    half = _times(E, _power_of_two(E, largest), 2.0**27)
    return Cuts(scale, half, unit, fine, wide)


def _units(E: Backend, bound: Array, one: Array, count: Any) -> tuple[Array, Array]:
    """What leaves the coarse and the fine part of that many terms up to bound."""
    unit = _power_of_two(E, _times(E, bound, count))
    return unit, unit * _times(E, _power_of_two(E, _times(E, one, count)), 2.0**-53)


def sums_of(E: Backend, leaves: Matrices, members: Members, cuts: Cuts, ord: float) -> Sums:
    """The sums of the parts that the terms of some leaves, of one at least, are cut into."""
    parts = [_cut_groups(E, B, x, g, cuts, ord) for (B, x), g in zip(leaves, members, strict=True)]
    total, middle, rest = parts[0]
    for a, b, c in parts[1:]:
        total, middle, rest = total + a, middle + b, rest + c
    return total, middle, rest


def _norms_of(E: Backend, top: Array, cuts: Cuts, sums: Sums, ord: float) -> Array:
    """The norms whose terms have these sums."""
    total, middle, rest = sums
    result = total + (middle + rest)
    if not powers.is_exact(ord):
        return E.where(E.isfinite(top), powers.norm_from(E, top, E.maximum(result, 1.0), ord), top)
    if ord == 2:
        result = E.sqrt(result)
    return E.where(E.isfinite(top), E.div(result, cuts.scale), top)


def _terms_of(shape: tuple[int | None, ...], group: Groups | None) -> int | None:
    """At most how many numbers of a leaf make one norm."""
    if group is None:
        return shape[1]
    return None if None in shape[:2] else shape[0] * shape[1]  # type: ignore[operator]


def _top_of_groups(E: Backend, top: Array, group: Groups | None) -> Array:
    if group is None:
        return top
    if E is modes.HOST:
        return E.maximum(E.segment_max(top, group.segments, group.number), 0.0)  # a group may be empty
    return E.segment_max(top, group.segments, group.number, least=0.0)


def _cut_groups(E: Backend, B: Backend, x: Array, group: Groups | None, cuts: Cuts, ord: float) -> Sums:
    """`_cut_sums`, with every row cut at its group's units, and the rows' sums added up by group: as exactly."""
    if group is None:
        return _cut_sums(E, B, x, cuts, ord)
    if 0 in B.shape(x) or group.number == 0:
        return (cuts.scale - cuts.scale,) * 3
    scale, half, unit, fine = (E.take(u, group.segments) for u in cuts[:4])
    own = Cuts(scale, half, unit, fine, cuts.wide)
    a, b, c = (E.segment_sum(s, group.segments, group.number) for s in _cut_sums(E, B, x, own, ord))
    return a, b, c


def _top(E: Backend, B: Backend, x: Array) -> Array:
    """The largest |x| of each row, in float64, where the small arithmetic happens."""
    views = modes.host_views(B, (x,)) if E is modes.HOST else None
    if views is not None:  # not by modes.run: the way through the framework and back costs more than the numbers
        return _amax(modes.HOST, views[0])
    with B.scope():
        top = _amax(B, x)
    return B.to_numpy(top) if E is modes.HOST else top


def _cut_sums(E: Backend, B: Backend, x: Array, cuts: Cuts, ord: float) -> Sums:
    columns = [E.reshape(u, (E.shape(u)[0], 1)) for u in cuts[:4]]
    views = modes.host_views(B, (x,)) if E is modes.HOST else None
    if views is not None:
        return _cut_and_sum(modes.HOST, views[0], units=columns, ord=ord, rescaled=cuts.wide)
    with B.scope():
        if E is modes.HOST:
            columns = [B.asarray(u, x) for u in columns]  # not Python numbers: MXNet parses those from text, inexactly
        a, b, c = _cut_and_sum(B, x, units=columns, ord=ord, rescaled=cuts.wide)
    return (B.to_numpy(a), B.to_numpy(b), B.to_numpy(c)) if E is modes.HOST else (a, b, c)


def _amax(B: Backend, x: Array) -> Array:
    return B.astype(B.row_amax(x if B.dtype(x) != "bfloat16" else B.widen(x)), "float64")


def _cut_and_sum(B: Backend, x: Array, *, units: Sequence[Any], ord: float, rescaled: bool) -> Sums:
    scale, half, unit, fine = units
    dtype = B.dtype(x)
    total = middle = rest = None
    for block in B.blocks(x):
        wide = B.astype(block, "float64")
        for term in _terms(B, wide, scale, half, ord, split=dtype == "float64", rescaled=rescaled):
            coarse = (term + unit) - unit
            term = term - coarse
            small = (term + fine) - fine
            a, b, c = B.row_sum(coarse), B.row_sum(small), B.row_sum(term - small)
            if total is None:
                total, middle, rest = a, b, c
            else:
                total, middle, rest = total + a, middle + b, rest + c
    return total, middle, rest


def _terms(B: Backend, x: Array, scale: Any, half: Any, ord: float, *, split: bool, rescaled: bool) -> list[Array]:
    if not powers.is_exact(ord):
        return [powers.terms(B, x, scale, ord)]
    if rescaled:
        x = B.round_product(x, scale)
    if ord == 1:
        return [B.abs(x)]
    if not split:
        return [x * x]
    upper = (x + half) - half
    lower = x - upper
    cross = upper * lower
    return [upper * upper, cross + cross, lower * lower]  # a number times an array would be narrowed, as in `_times`


def _power_of_two(E: Backend, x: Array) -> Array:
    """The smallest power of two that is at least x (x >= 0; 0 gives 0)."""
    q = _times(E, x, 2.0**53)
    power = E.abs((q + x) - q)
    return E.where(E.less_equal(power, 0.0), x, power)


def _times(E: Backend, x: Array, c: float) -> Array:
    """x * c; under a trace by the adapter: JAX 0.7 narrows a Python number in float64 arithmetic there, and
    TensorFlow's graph optimiser moves constant factors to where they overflow."""
    return x * c if E is modes.HOST else E.round_product(x, c)


# ---------------------------------------------------------------------- in a fixed order
def row_sums(B: Backend, x: Array) -> Array:
    """The sum of each row by halves: the second half is added to the first until one column is left (clause 19)."""
    n, m = B.shape(x)[0], math.prod(k for k in B.shape(x)[1:] if k is not None)
    if m == 0:
        return B.astype(B.zeros_like(B.arange(x)), B.dtype(x))
    x = B.reshape(x, (n, m))
    rest = None
    while m > 1:
        half = m // 2
        if m % 2:
            last = B.columns(x, m - 1, m)
            rest = last if rest is None else rest + last
        x = B.columns(x, 0, half) + B.columns(x, half, 2 * half)
        m = half
    return B.reshape(x if rest is None else x + rest, (n,))
