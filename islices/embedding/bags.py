"""Reduce bags of rows to one row each (sum, mean, sqrtn or max), and compute the gradient of the reduction.

The value and the gradient are two operations that use the primitives; `Backend.custom_gradient` combines them. So on
the CPU, the value and the gradient have the same bits in every framework. The host computes both for arrays in CPU
memory, unless the code is traced, a second derivative is recorded, or the mode of `execution` is "framework". In traced
code, compiled kernels can still add the rows of bags. SPEC clause 19.

Members that do not count (padding, masked, absent, out of range under a trace) keep their slots in these operations.
The values of these slots are zeros, or -inf for "max". So these members change no result, shapes stay static, and the
gradient with respect to the rows has one row per member.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from types import ModuleType
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from islices.backend import Array, Backend, Host
from islices.core import modes
from islices.norms.exact import row_sums

#: the reduction of the rows of a bag to one row
Combiner: TypeAlias = Literal["sum", "mean", "sqrtn", "max"]
COMBINERS = ("sum", "mean", "sqrtn", "max")
#: combiners whose result is linear in the rows: they accept weights, and the gradient with respect to the rows does not
#: depend on the rows
LINEAR = ("sum", "mean", "sqrtn")


class BagMembers(NamedTuple):
    """The assignment of members to bags, and the reduction of the bags."""

    segments: Array  # the bag of each member, integers (n,), in the order that `BagLayout` describes
    bags: Array  # an array with one entry per bag
    combiner: str
    keep: Array | None = None  # int32 (n,): 0 for each member that does not count
    weights: Array | None = None  # (n,), with the dtype of rows

    @property
    def arrays(self) -> list[Array]:
        return [x for x in (self.segments, self.bags, self.keep, self.weights) if x is not None]

    def over(self, arrays: Sequence[Array]) -> BagMembers:
        """Return the same bags with other arrays, given in the order of the property `arrays`."""
        segments, bags, *rest = arrays
        keep = None if self.keep is None else rest.pop(0)
        return BagMembers(segments, bags, self.combiner, keep, rest[0] if rest else None)

    def run(self, fn: Callable[..., Any], B: Backend, *arrays: Array) -> Any:
        """Return `fn(B, *arrays, bags)`, run as an operation (see `islices.core.modes`)."""
        own = len(arrays)
        return modes.run(lambda B, *xs: fn(B, *xs[:own], self.over(xs[own:])), B, (*arrays, *self.arrays))


def reduce_bags(B: Backend, rows: Array, bags: BagMembers) -> Array:
    """Return one row per bag, as a differentiable function of rows (n, *row_shape) and weights.

    Returns
    -------
    array, shape (number of bags, *row_shape)
        The dtype is that of rows. Sums of 16-bit rows are computed in float32 and rounded once.
    """

    def forward(*arrays: Array) -> Array:
        return bags.over(arrays[1:]).run(_reduce, B, arrays[0])

    def backward(arrays: tuple[Any, ...], upstream: Array) -> tuple[Any, ...]:
        d_rows, d_weights = bags.over(arrays[1:]).run(_reduce_backward, B, upstream, arrays[0])
        none = len(arrays) - 1 - (bags.weights is not None)
        return (d_rows, *[None] * none, *([] if bags.weights is None else [d_weights]))

    return B.custom_gradient(forward, backward)(rows, *bags.arrays)


def reduce_bags_backward(B: Backend, upstream: Array, rows: Array, bags: BagMembers) -> Array:
    """Return the gradient with respect to the members' rows, for bags that a framework's layer reduced."""
    return bags.run(_reduce_backward, B, upstream, rows)[0]


def read_bags(B: Backend, table: Array, ids: Array, bags: BagMembers) -> Array:
    """Read a table's rows at ids (n,), and return one row per bag. The result has the bits of `reduce_bags`.

    Where compiled kernels run, they add the rows without copying them first. The combiner must be in `LINEAR`, without
    weights. Traced ids that are out of range do not count.
    """
    segments, number, combiner, keep, _ = bags
    # a mean must be rounded once, but a 16-bit sum would be rounded before the division too
    wide = combiner == "sum" or B.dtype(table) not in ("float16", "bfloat16")
    sums = None
    views = modes.host_views(B, [table, ids, *bags.arrays]) if wide else None
    if wide and modes.is_traced(B, table, ids, segments):
        with B.scope():
            if combiner != "sum":
                bags = bags._replace(keep=_in_range(B, table, ids, keep))
            sums = B.traced_bags(table, ids, segments, number, bags.keep, _sums_of_rows(B))
    elif views and (compiled := modes.kernels_on(views[1:])):
        sums = B.from_host(sums_of_views(compiled, views), table)
    if sums is None:
        return _bags_of_rows(B, table, ids, bags)
    return sums if combiner == "sum" else bags.run(_divided, B, sums)


def sums_of_views(compiled: ModuleType, views: Sequence[Host]) -> Host:
    """Return the sums of the bags, computed by a compiled kernel.

    `views` are host arrays: the table, the ids, and the arrays of `BagMembers` except the weights. Ids and segments are
    in range.
    """
    table, ids, segments, bags, *keep = views
    named = [ids, segments] if not keep else [x[keep[0] != 0] for x in (ids, segments)]
    if (named[1][1:] < named[1][:-1]).any():  # the segments of a tf.SparseTensor may be in any order
        order = np.argsort(named[1], kind="stable")
        named = [x[order] for x in named]
    sums: Host = compiled.read_bags(table, *named, len(bags))
    return sums


def _in_range(B: Backend, table: Array, ids: Array, keep: Array | None) -> Array:
    """Return `keep`, or ones if `keep` is None. Each id that is out of range gets 0."""
    named = B.astype(B.in_range(ids, B.shape(table)[0]), "int32")
    return named if keep is None else keep * named


def _bags_of_rows(B: Backend, table: Array, ids: Array, bags: BagMembers) -> Array:
    with B.scope():
        if B.is_traced(ids):
            bags = bags._replace(keep=_in_range(B, table, ids, bags.keep))
        rows = B.read_rows(table, ids)
    return reduce_bags(B, rows, bags)


@cache
def _sums_of_rows(B: Backend) -> Callable[..., Array]:
    """Return a function that sums bags. Each backend has one function object, because caches of compiled code use the
    function as a key.
    """
    return lambda table, ids, segments, bags, keep=None: _bags_of_rows(
        B, table, ids, BagMembers(segments, bags, "sum", keep)
    )


def divided_upstream(B: Backend, upstream: Array, bags: BagMembers) -> Array:
    """Return the gradient with respect to one member of each bag, an array of shape ``(bags, *row_shape)``.

    Weights are not supported, nor is the combiner "max".
    """
    return upstream if bags.combiner == "sum" else bags.run(_divided_upstream, B, upstream)


def _divided_upstream(B: Backend, upstream: Array, bags: BagMembers) -> Array:
    return B.astype(_divided(B, B.widen(upstream), bags), B.dtype(upstream))


# ---------------------------------------------------------------------- value
def _reduce(B: Backend, rows: Array, bags: BagMembers) -> Array:
    x, bags = _counting(B, rows, bags)
    out = _maximum(B, x, bags) if bags.combiner == "max" else _average(B, x, bags)
    return B.astype(out, B.dtype(rows))


def _counting(B: Backend, rows: Array, bags: BagMembers) -> tuple[Array, BagMembers]:
    """Return (rows, bags) with rows and weights in the dtype of sums, and with zeros for members that do not count."""
    weights = None if bags.weights is None else _only(B, B.widen(bags.weights), bags.keep)
    return _only(B, B.widen(rows), bags.keep), bags._replace(weights=weights)


def _average(B: Backend, x: Array, bags: BagMembers) -> Array:
    """Return the (weighted) sums of the bags, divided by the bags' divisors; the arguments are from `_counting`."""
    if bags.weights is not None:
        x = B.round_product(x, B.as_column(bags.weights, x))
    return _divided(B, _fold(B, x, bags), bags)


def _only(B: Backend, x: Array, keep: Array | None, other: float = 0.0) -> Array:
    """Return x with the number `other` in the slots of members that do not count."""
    return x if keep is None else B.where(B.equal(B.as_column(keep, x), 0), other, x)


def _numbers(B: Backend, bags: BagMembers) -> Array:
    """Return the number of members that count in each bag, as int32."""
    segments, keep = bags.segments, bags.keep
    return _fold(B, B.astype(B.equal(segments, segments), "int32") if keep is None else keep, bags)


def _divisor(B: Backend, bags: BagMembers, dtype: str) -> Array:
    """Return the divisor of each bag's sum in the dtype of sums, or 0 for a bag without members that count."""
    weights = bags.weights
    if weights is None:
        total = B.astype(_numbers(B, bags), dtype)
    else:
        total = _fold(B, weights if bags.combiner == "mean" else B.round_product(weights, weights), bags)
    return B.sqrt(total) if bags.combiner == "sqrtn" else total


def _divided(B: Backend, x: Array, bags: BagMembers) -> Array:
    """Return x (bags, ...) divided by the bags' divisors, or x itself if the combiner has no divisor."""
    return x if bags.combiner == "sum" else _quotients(B, x, _divisor(B, bags, B.dtype(x)))


def _quotients(B: Backend, x: Array, divisor: Array) -> Array:
    """Return each row of x divided by its divisor, or zeros if the divisor is 0."""
    column = B.as_column(divisor, x)
    nothing = B.less_equal(B.abs(column), 0.0)
    return B.where(nothing, 0.0, B.div(x, B.where(nothing, 1.0, column)))


def _fold(B: Backend, x: Array, bags: BagMembers) -> Array:
    """Return the sum of the rows of x in each bag, added left to right."""
    x, segments = _with_every_bag(B, x, bags, 0)
    return B.segment_sum(x, segments, B.shape(bags.bags)[0])


def _with_every_bag(B: Backend, x: Array, bags: BagMembers, neutral: float) -> tuple[Array, Array]:
    """Return (x, segments). If the number of bags is unknown in a trace, put one row of `neutral` per bag before the
    rows of x.

    In that case, the segments do not ascend.
    """
    if B.shape(bags.bags)[0] is not None:
        return x, bags.segments
    rows = B.zeros((None, *B.shape(x)[1:]), B.dtype(x), bags.bags)  # type: ignore[arg-type]
    number = B.astype(B.arange(bags.bags), B.dtype(bags.segments))
    return B.concat([rows + neutral if neutral else rows, x]), B.concat([number, bags.segments])


def _maximum(B: Backend, x: Array, bags: BagMembers) -> Array:
    """Return the elementwise maximum of the members that count in each bag, or zeros for a bag without such members."""
    top = _segment_max(B, _only(B, x, bags.keep, -math.inf), bags)
    return B.where(B.equal(B.as_column(_numbers(B, bags), top), 0), 0.0, top)


def _segment_max(B: Backend, x: Array, bags: BagMembers) -> Array:
    lowest = -math.inf if B.dtype(x).startswith("float") else -(2**31) + 1
    x, segments = _with_every_bag(B, x, bags, lowest)
    return B.segment_max(x, segments, B.shape(bags.bags)[0])


# ---------------------------------------------------------------------- gradient
def _reduce_backward(B: Backend, upstream: Array, rows: Array, bags: BagMembers) -> tuple[Array, Array | None]:
    """Return (gradient of rows, gradient of weights or None)."""
    dtype, segments, keep = B.dtype(rows), bags.segments, bags.keep
    x, bags = _counting(B, rows, bags)
    h, w = B.widen(upstream), bags.weights
    if bags.combiner == "max":
        h = B.take(h, segments)
        return B.astype(B.where(_first_maximum(B, x, bags), h, 0.0), dtype), None
    divisor = None if bags.combiner == "sum" else _divisor(B, bags, B.dtype(x))
    h = B.take(h if divisor is None else _quotients(B, h, divisor), segments)
    if w is None:
        return B.astype(_only(B, h, keep), dtype), None
    d_rows = B.astype(_only(B, B.round_product(h, B.as_column(w, h)), keep), dtype)
    if divisor is not None:  # the divisor depends on the weights too
        y = B.take(_average(B, x, bags), segments)
        if bags.combiner == "sqrtn":
            y = B.round_product(y, B.as_column(_quotients(B, w, B.take(divisor, segments)), y))
        x = x - y
    return d_rows, B.astype(_only(B, row_sums(B, B.round_product(h, x)), keep), dtype)


def _first_maximum(B: Backend, x: Array, bags: BagMembers) -> Array:
    """Return the mask of the elements that are the first in their bag to equal the bag's maximum.

    If the maximum is NaN, the mask marks the first NaN.
    """
    lowered = _only(B, x, bags.keep, -math.inf)
    top = B.take(_segment_max(B, lowered, bags), bags.segments)
    # positions are negated, so that the first is the largest; none and never are not positions
    place = -B.astype(B.arange(x), "int32")
    none, never = (B.asarray(np.full(1, n, np.int32), x) for n in (1 - 2**31, -(2**31)))
    if bags.keep is not None:
        place = B.where(B.equal(bags.keep, 0), none, place)
    place = B.as_column(place, x)
    at_top = B.where(B.less_equal(top, lowered), place, none)  # nothing is above the maximum
    at_top = B.where(B.less_equal(lowered, lowered), at_top, place)  # except NaN; then the maximum is NaN
    first = B.take(_segment_max(B, at_top, bags), bags.segments)
    return B.equal(B.where(B.equal(at_top, none), never, at_top), first)
