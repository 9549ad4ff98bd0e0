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
from typing import Any, NamedTuple

from islices import modes
from islices.backend import Array, Backend

__all__ = ["Groups", "row_norms", "row_sums"]

#: Without a known count of terms (dynamic shapes under a trace) room is left for this many.
UNKNOWN_COUNT = 2.0**40
HUGE, TINY = 2.0**400, 2.0**-400
RESCALE = 2.0**600


class Groups(NamedTuple):
    """Which rows of a leaf belong together: the group of each row, ascending, and how many groups there are."""

    segments: Array  # (k,), of NumPy unless traced; the number of groups, in traced code, is none
    number: int


def row_norms(
    leaves: Sequence[tuple[Backend, Array]], ord: float, groups: Sequence[Groups | None] | None = None
) -> tuple[Backend, Array]:
    """The norm of each row over all leaves together, in float64.

    Parameters
    ----------
    leaves : sequence of (backend, float array of shape (k, m))
        The k agrees (or there are no leaves at all).
    ord : 1, 2 or inf
    groups : sequence of Groups or None, one for each leaf, optional
        The rows of a group count as one; then k is the number of groups.

    Returns
    -------
    (Backend, array of shape (k,))
        float64, with the backend whose primitives work on it: `HostBackend` unless a leaf is traced. NaN if the row
        holds NaN, else infinite if it holds an infinity.
    """
    traced = next((B for B, x in leaves if B.is_traced(x)), None)
    E = modes.HOST if traced is None else traced
    members = [None] * len(leaves) if groups is None else list(groups)
    with E.scope():
        tops = [_top_of_groups(E, _top(B, x, traced), g) for (B, x), g in zip(leaves, members, strict=True)]
        top = tops[0]
        for other in tops[1:]:
            top = E.maximum(top, other)
        if ord == float("inf"):
            return E, top
        one = E.minimum(E.maximum(top, 1.0), 1.0)
        scale = one
        rescaled = any(B.dtype(x) == "float64" for B, x in leaves)  # then every leaf is: they share one sum
        if rescaled:
            scale = E.where(E.less_equal(top, TINY), _times(E, one, RESCALE), one)
            scale = E.where(E.less_equal(HUGE, top), _times(E, one, 1.0 / RESCALE), scale)
        largest = E.round_product(top, scale)
        widths = [_terms_of(B.shape(x), g) for (B, x), g in zip(leaves, members, strict=True)]
        count = UNKNOWN_COUNT if None in widths else 3.0 * sum(w for w in widths if w is not None) + 4.0
        bound = largest if ord == 1 else _times(E, largest * largest, 4.0)
        unit = _power_of_two(E, _times(E, bound, count))
        fine = unit * _times(E, _power_of_two(E, _times(E, one, count)), 2.0**-53)
        half = _times(E, _power_of_two(E, largest), 2.0**27)
        cuts = (scale, half, unit, fine)
        parts = [
            _cut_groups(E, B, x, g, cuts, ord, traced, rescaled) for (B, x), g in zip(leaves, members, strict=True)
        ]
        total, middle, rest = parts[0]
        for a, b, c in parts[1:]:
            total, middle, rest = total + a, middle + b, rest + c
        result = total + (middle + rest)
        if ord == 2:
            result = E.sqrt(result)
        return E, E.where(E.isfinite(top), E.div(result, scale), top)


def _terms_of(shape: tuple[int | None, ...], group: Groups | None) -> int | None:
    """At most how many numbers of a leaf make one norm."""
    if group is None:
        return shape[1]
    return None if None in shape[:2] else shape[0] * shape[1]  # type: ignore[operator]


def _top_of_groups(E: Backend, top: Array, group: Groups | None) -> Array:
    if group is None:
        return top
    return E.maximum(E.segment_max(top, group.segments, group.number), 0.0)  # a group may be empty


def _cut_groups(
    E: Backend,
    B: Backend,
    x: Array,
    group: Groups | None,
    cuts: tuple[Array, ...],
    ord: float,
    traced: Backend | None,
    rescaled: bool,
) -> tuple[Any, ...]:
    """`_cut_sums`, with every row cut at its group's units, and the rows' sums added up by group: as exactly."""
    if group is None:
        return _cut_sums(B, x, cuts, ord, traced, rescaled)
    if 0 in B.shape(x) or group.number == 0:
        return (cuts[0] - cuts[0],) * 3
    sums = _cut_sums(B, x, tuple(E.take(u, group.segments) for u in cuts), ord, traced, rescaled)
    return tuple(E.segment_sum(s, group.segments, group.number) for s in sums)


def _top(B: Backend, x: Array, traced: Backend | None) -> Array:
    """The largest |x| of each row, in float64, where the small arithmetic happens."""
    views = modes.host_views(B, (x,)) if traced is None else None
    if views is not None:  # not by modes.run: the way through the framework and back costs more than the numbers
        return _amax(modes.HOST, views[0])
    with B.scope():
        top = _amax(B, x)
    return B.to_numpy(top) if traced is None else top


def _cut_sums(
    B: Backend, x: Array, units: tuple[Array, ...], ord: float, traced: Backend | None, rescaled: bool
) -> tuple[Any, ...]:
    E = modes.HOST if traced is None else traced
    columns = [E.reshape(u, (E.shape(u)[0], 1)) for u in units]
    views = modes.host_views(B, (x,)) if traced is None else None
    if views is not None:
        return _cut_and_sum(modes.HOST, views[0], units=columns, ord=ord, rescaled=rescaled)
    with B.scope():
        if traced is None:
            columns = [B.asarray(u, x) for u in columns]  # not Python numbers: MXNet parses those from text, inexactly
        sums = _cut_and_sum(B, x, units=columns, ord=ord, rescaled=rescaled)
    return tuple(map(B.to_numpy, sums)) if traced is None else sums


def _amax(B: Backend, x: Array) -> Array:
    return B.astype(B.row_amax(x if B.dtype(x) != "bfloat16" else B.widen(x)), "float64")


def _cut_and_sum(
    B: Backend, x: Array, *, units: Sequence[Any], ord: float, rescaled: bool
) -> tuple[Array, Array, Array]:
    """(sum of coarse parts, sum of fine parts, sum of rests) of the terms of each row; the first two are exact."""
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
    if rescaled:
        x = B.round_product(x, scale)
    if ord == 1:
        return [B.abs(x)]
    if not split:
        return [x * x]
    upper = (x + half) - half
    lower = x - upper
    return [upper * upper, 2.0 * (upper * lower), lower * lower]


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
