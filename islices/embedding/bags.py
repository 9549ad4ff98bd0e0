"""Bags of rows reduced to one row each, with the gradient: sum, mean, sqrtn and max.

Value and gradient are two operations on the primitives, joined by `Backend.custom_gradient`, so that both are the same
bits on every framework, and run on the host where nothing else is recorded. SPEC clause 19.

Members that do not count (padding, masked, out of range under a trace) keep their slot and hold zeros: adding a zero
changes no left fold, shapes stay static, and the gradient has one slice for each occurrence.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache, partial
from types import ModuleType
from typing import Any, Literal, TypeAlias

import numpy as np

from islices import kernels
from islices.backend import Array, Backend
from islices.core import modes
from islices.norms.exact import row_sums

__all__ = [
    "COMBINERS",
    "Combiner",
    "divided_upstream",
    "read_bags",
    "reduce_bags",
    "reduce_bags_backward",
    "sums_of_views",
]

#: How the rows of a bag become one.
Combiner: TypeAlias = Literal["sum", "mean", "sqrtn", "max"]
COMBINERS = ("sum", "mean", "sqrtn", "max")


def reduce_bags(
    B: Backend,
    rows: Array,
    segments: Array,
    bags: Array,
    combiner: str,
    *,
    keep: Array | None = None,
    weights: Array | None = None,
) -> Array:
    """The bags' rows, differentiable with respect to rows and weights.

    Parameters
    ----------
    rows : float array, shape (n, *row_shape)
    segments : integer array, shape (n,)
        The bag of each member, ascending.
    bags : array whose length is the number of bags
        Its contents do not matter.
    combiner : {"sum", "mean", "sqrtn", "max"}
    keep : int32 array of 0 and 1, shape (n,), optional
        Which members count; all by default.
    weights : array of rows' dtype, shape (n,), optional

    Returns
    -------
    array, shape (number of bags, *row_shape)
        Of rows' dtype; formed in float32 for 16-bit rows and rounded once.
    """
    arrays, given = _arguments(rows, segments, bags, combiner, keep, weights)

    def forward(*arrays: Array) -> Array:
        return modes.run(_reduce, B, arrays, **given)

    def backward(arrays: tuple[Any, ...], upstream: Array) -> tuple[Any, ...]:
        d_rows, d_weights = modes.run(_reduce_backward, B, (upstream, *arrays), **given)
        return (d_rows, None, None, *[None] * given["kept"], *[d_weights] * given["weighted"])

    return B.custom_gradient(forward, backward)(*arrays)


def reduce_bags_backward(
    B: Backend,
    upstream: Array,
    rows: Array,
    segments: Array,
    bags: Array,
    combiner: str,
    *,
    keep: Array | None = None,
    weights: Array | None = None,
) -> Array:
    """The gradient of the members' rows alone, where the framework's own layer reduced them (`capture`)."""
    arrays, given = _arguments(rows, segments, bags, combiner, keep, weights)
    return modes.run(_reduce_backward, B, (upstream, *arrays), weights_too=False, **given)[0]


def read_bags(
    B: Backend, table: Array, ids: Array, segments: Array, bags: Array, combiner: str, keep: Array | None = None
) -> Array:
    """The bags of a table's rows, ids (n,), as `reduce_bags` forms them; "sum", "mean" or "sqrtn".

    Traced ids that are out of range do not count.
    """
    # a mean is rounded once: sums of 16 bits would have been, before
    wide = combiner == "sum" or B.dtype(table) not in ("float16", "bfloat16")
    sums = None
    if wide and modes.is_traced(B, table, ids, segments):
        with B.scope():
            if combiner != "sum":
                keep = _in_range(B, table, ids, keep)
            sums = B.traced_bags(table, ids, segments, bags, keep, _sums_of_rows(B))
    elif wide:
        arrays = [table, ids, segments, bags, *([] if keep is None else [keep])]
        compiled = kernels.active()
        views = modes.host_views(B, arrays) if compiled else None
        sums = B.from_host(sums_of_views(compiled, views), table) if compiled and views else None
    if sums is None:
        return _bags_of_rows(B, table, ids, segments, bags, keep, combiner=combiner)
    given = [sums, segments, bags, *([] if keep is None else [keep])]
    return sums if combiner == "sum" else modes.run(_divide_sums, B, given, combiner=combiner)


def sums_of_views(compiled: ModuleType, views: Sequence[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    """The bags' sums by a compiled kernel, of arrays of the host, keep the last where there is one; ids and segments
    are in range."""
    table, ids, segments, bags, *keep = views
    named = [ids, segments] if not keep else [x[keep[0] != 0] for x in (ids, segments)]
    if (named[1][1:] < named[1][:-1]).any():  # the places of a tf.SparseTensor may come in any order
        order = np.argsort(named[1], kind="stable")
        named = [x[order] for x in named]
    sums: np.ndarray[Any, Any] = compiled.read_bags(table, *named, len(bags))
    return sums


def _bags_of_rows(
    B: Backend, table: Array, ids: Array, segments: Array, bags: Array, keep: Array | None = None, *, combiner: str
) -> Array:
    with B.scope():
        if B.is_traced(ids):
            keep = _in_range(B, table, ids, keep)
        rows = B.read_rows(table, ids)
    return reduce_bags(B, rows, segments, bags, combiner, keep=keep)


def _in_range(B: Backend, table: Array, ids: Array, keep: Array | None) -> Array:
    """keep, and 0 for ids that name no row."""
    named = B.astype(B.in_range(ids, B.shape(table)[0]), "int32")
    return named if keep is None else keep * named


@cache
def _sums_of_rows(B: Backend) -> Callable[..., Array]:
    """The same object each time, by which compiled code is found again."""
    return partial(_bags_of_rows, B, combiner="sum")


def _divide_sums(B: Backend, sums: Array, segments: Array, bags: Array, *keep: Array, combiner: str) -> Array:
    divisor = _divisor(B, segments, bags, keep[0] if keep else None, None, combiner, B.dtype(sums))
    assert divisor is not None, "not a plain sum"
    return _divided(B, sums, divisor)


def divided_upstream(
    B: Backend, upstream: Array, segments: Array, bags: Array, combiner: str, keep: Array | None = None
) -> Array:
    """The gradient that each member of a bag gets, (bags, *row_shape), where there are no weights and no maximum."""
    if combiner == "sum":
        return upstream
    arrays = [upstream, segments, bags, *([] if keep is None else [keep])]
    return modes.run(_divided_upstream, B, arrays, combiner=combiner, kept=keep is not None)


def _divided_upstream(
    B: Backend, upstream: Array, segments: Array, bags: Array, *keep: Array, combiner: str, kept: bool
) -> Array:
    h = B.widen(upstream)
    divisor = _divisor(B, segments, bags, keep[0] if kept else None, None, combiner, B.dtype(h))
    return B.astype(_divided(B, h, divisor), B.dtype(upstream))


def _arguments(
    rows: Array, segments: Array, bags: Array, combiner: str, keep: Array | None, weights: Array | None
) -> tuple[list[Array], dict[str, Any]]:
    """(arrays, static arguments) of the operations below."""
    arrays = [rows, segments, bags, *(x for x in (keep, weights) if x is not None)]
    return arrays, {"combiner": combiner, "kept": keep is not None, "weighted": weights is not None}


def _unpack(arrays: tuple[Array, ...], kept: bool, weighted: bool) -> tuple[Any, ...]:
    rest = list(arrays)
    keep = rest.pop(0) if kept else None
    return keep, rest.pop(0) if weighted else None


# ---------------------------------------------------------------------- value
def _reduce(
    B: Backend, rows: Array, segments: Array, bags: Array, *optional: Array, combiner: str, kept: bool, weighted: bool
) -> Array:
    keep, weights = _unpack(optional, kept, weighted)
    x = _only(B, B.widen(rows), keep)
    if combiner == "max":
        return B.astype(_maximum(B, x, segments, bags, keep), B.dtype(rows))
    weights = None if weights is None else _only(B, B.widen(weights), keep)
    return B.astype(_average(B, x, segments, bags, keep, weights, combiner), B.dtype(rows))


def _average(
    B: Backend, x: Array, segments: Array, bags: Array, keep: Array | None, weights: Array | None, combiner: str
) -> Array:
    """The bags' sums divided by their divisor, in the wide type; x and weights are zeros where they do not count."""
    if weights is not None:
        x = B.round_product(x, B.as_column(weights, x))
    sums = _fold(B, x, segments, bags)
    divisor = _divisor(B, segments, bags, keep, weights, combiner, B.dtype(x))
    return sums if divisor is None else _divided(B, sums, divisor)


def _only(B: Backend, x: Array, keep: Array | None, other: float = 0.0) -> Array:
    """x where its slot counts, else another number."""
    return x if keep is None else B.where(B.equal(B.as_column(keep, x), 0), other, x)


def _members(B: Backend, segments: Array, keep: Array | None) -> Array:
    """1 for each slot that counts, as int32."""
    return B.astype(B.equal(segments, segments), "int32") if keep is None else keep


def _divisor(
    B: Backend, segments: Array, bags: Array, keep: Array | None, weights: Array | None, combiner: str, dtype: str
) -> Array | None:
    """What each bag's sum is divided by, in the wide type: 0 where the bag is empty. None for a plain sum."""
    if combiner == "sum":
        return None
    if weights is None:
        total = B.astype(_fold(B, _members(B, segments, keep), segments, bags), dtype)
    elif combiner == "mean":
        total = _fold(B, weights, segments, bags)
    else:
        total = _fold(B, B.round_product(weights, weights), segments, bags)
    return B.sqrt(total) if combiner == "sqrtn" else total


def _divided(B: Backend, x: Array, divisor: Array) -> Array:
    """x / divisor by row, and zeros where the divisor is 0."""
    column = B.as_column(divisor, x)
    nothing = B.less_equal(B.abs(column), 0.0)
    return B.where(nothing, 0.0, B.div(x, B.where(nothing, 1.0, column)))


def _fold(B: Backend, x: Array, segments: Array, bags: Array) -> Array:
    """The left folds of x by bag, as many as there are bags."""
    x, segments = _with_every_bag(B, x, segments, bags, 0)
    return B.segment_sum(x, segments, B.shape(bags)[0])


def _with_every_bag(B: Backend, x: Array, segments: Array, bags: Array, neutral: float) -> tuple[Array, Array]:
    """x and segments; where the number of bags is not known while tracing, a neutral row for each bag in front shows it
    (segments do not ascend then)."""
    if B.shape(bags)[0] is not None:
        return x, segments
    rows = B.zeros((None, *B.shape(x)[1:]), B.dtype(x), bags)  # type: ignore[arg-type]
    number = B.astype(B.arange(bags), B.dtype(segments))
    return B.concat([rows + neutral if neutral else rows, x]), B.concat([number, segments])


def _maximum(B: Backend, x: Array, segments: Array, bags: Array, keep: Array | None) -> Array:
    """The largest kept member of each bag; zeros for a bag without any."""
    top = _segment_max(B, _only(B, x, keep, -math.inf), segments, bags)
    members = _fold(B, _members(B, segments, keep), segments, bags)
    return B.where(B.equal(B.as_column(members, top), 0), B.zeros_like(top), top)


def _segment_max(B: Backend, x: Array, segments: Array, bags: Array) -> Array:
    lowest = -math.inf if B.dtype(x).startswith("float") else -(2**31) + 1
    x, segments = _with_every_bag(B, x, segments, bags, lowest)
    return B.segment_max(x, segments, B.shape(bags)[0])


# ---------------------------------------------------------------------- gradient
def _reduce_backward(
    B: Backend,
    upstream: Array,
    rows: Array,
    segments: Array,
    bags: Array,
    *optional: Array,
    combiner: str,
    kept: bool,
    weighted: bool,
    weights_too: bool = True,
) -> tuple[Array, Array | None]:
    """(gradient of rows, gradient of weights or None)."""
    keep, weights = _unpack(optional, kept, weighted)
    dtype = B.dtype(rows)
    x = _only(B, B.widen(rows), keep)
    h = B.widen(upstream)
    if combiner == "max":
        h = B.take(h, segments)
        first = _first_maximum(B, x, segments, bags, keep)
        return B.astype(B.where(first, h, B.zeros_like(h)), dtype), None
    w = None if weights is None else _only(B, B.widen(weights), keep)
    divisor = _divisor(B, segments, bags, keep, w, combiner, B.dtype(x))
    h = B.take(h if divisor is None else _divided(B, h, divisor), segments)
    if w is None:
        return B.astype(_only(B, h, keep), dtype), None
    d_rows = B.astype(_only(B, B.round_product(h, B.as_column(w, h)), keep), dtype)
    if not weights_too:
        return d_rows, None
    if divisor is not None:  # the weight also moves the divisor
        y = B.take(_average(B, x, segments, bags, keep, w, combiner), segments)
        if combiner == "sqrtn":
            y = B.round_product(y, B.as_column(_divided(B, w, B.take(divisor, segments)), y))
        x = x - y
    return d_rows, B.astype(_only(B, row_sums(B, B.round_product(h, x)), keep), dtype)


def _first_maximum(B: Backend, x: Array, segments: Array, bags: Array, keep: Array | None) -> Array:
    """The mask of the elements that are the first in their bag to equal its maximum (a NaN equals a NaN here)."""
    lowered = _only(B, x, keep, -math.inf)
    top = B.take(_segment_max(B, lowered, segments, bags), segments)
    # positions counted downwards, so that the first is the largest; two numbers that are none
    place = -B.astype(B.arange(x), "int32")
    none, never = (B.asarray(np.full(1, n, np.int32), x) for n in (1 - 2**31, -(2**31)))
    if keep is not None:
        place = B.where(B.equal(keep, 0), none, place)
    place = B.as_column(place, x)
    at_top = B.where(B.less_equal(top, lowered), place, none)  # nothing is above the maximum
    at_top = B.where(B.less_equal(lowered, lowered), at_top, place)  # but a NaN, which is it then
    first = B.take(_segment_max(B, at_top, segments, bags), segments)
    return B.equal(B.where(B.equal(at_top, none), never, at_top), first)
