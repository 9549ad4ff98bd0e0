"""Compute derivatives of norms and of clipped gradients. Autograd uses these formulas instead of differentiating the
computation of the norms.

`islices.norms.exact` computes a norm with cuts and exact sums, on the host or in traced code. Autograd through these
steps would give no finite gradient at 0. So callers compute a norm or a clipped gradient from constants. This module
then *attaches* the value: `Backend.with_gradient` makes the known value a function of its inputs. The gradient
consists of primitives and attached norms, so derivatives of every order are those of the formula. The gradient is
computed in the norm's dtype, because JAX without x64 has no wider dtype. SPEC clauses 7 and 10.

To attach another norm or scale, describe with a `Member` how the slots of a leaf contribute to norms. (`of_leaf`
describes one norm of all elements.) Pass the norms, an array of shape (k,), to `attach_norms`, and the scaled values to
`attach_scaled`. A norm of another order needs one more case in `_direction`. A function is an operation, or a part of
one (see `islices.core.modes`), if its name starts with an underscore and its first argument is ``B``. May import: the
core below `islices.norms.norm`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, NoReturn

from islices.backend import Array, Backend
from islices.core import modes
from islices.core.slices import IndexedSlices, with_values
from islices.core.slots import slots_in, with_slots
from islices.norms.exact import as_rows


class Layout(NamedTuple):
    """The static part of a `Member`, which describes how the slots of a leaf contribute to norms."""

    #: True for one norm per distinct row (per entry along axis 0 of a dense array), False for one norm of all elements
    by_row: bool = False
    summed: bool = False  # True if duplicates count as their sum
    rows: int | None = None  # the number of the table's rows, for slices


class Member(NamedTuple):
    """A leaf that contributes to norms."""

    layout: Layout
    values: Array
    #: () for a dense array, and for slices that need no sums and no mask of empty slots. Other slices have (indices,),
    #: or (indices, the position of each slot's norm) if each row has a norm.
    keys: tuple[Array, ...] = ()


def of_leaf(leaf: Any, *, raw: bool = False) -> Member:
    """Return the `Member` of an accepted leaf for a norm over all elements. If `raw` is True, duplicates are not
    summed."""
    if not isinstance(leaf, IndexedSlices):
        return Member(Layout(), leaf)
    layout = Layout(False, not raw and not leaf.coalesced, leaf.dense_shape[0])
    # indices are needed only to find duplicates and empty slots
    bare = not layout.summed and not leaf.padded and not modes.is_traced(leaf.backend, leaf.indices)
    return Member(layout, leaf.values, () if bare else (leaf.indices,))


def requests(backend: Backend, *arrays: Array) -> bool:
    """Return True if a gradient with respect to one of the arrays may be needed."""
    return any(backend.is_traced(x) or backend.records_gradient(x) for x in arrays)


def constant(backend: Backend, leaf: Any) -> Any:
    """Return an accepted leaf, or an array, with values that differentiation treats as constants."""
    sparse = isinstance(leaf, IndexedSlices)
    slots = slots_in(leaf) if sparse else None
    values = slots.values if slots else leaf.values if sparse else leaf
    if not requests(backend, values):
        return leaf
    with backend.scope():
        values = backend.stop_gradient(values)
    return with_slots(leaf, slots._replace(values=values)) if slots else with_values(leaf, values)


# ---------------------------------------------------------------------- norms
def attach_norms(backend: Backend, norms: Array, members: Sequence[Member], ord: float = 2.0) -> Array:
    """Return known norms as functions of their leaves.

    Parameters
    ----------
    backend : Backend
    norms : float32 or float64 array, shape (k,)
        The rounded norms that the user gets, computed from constants.
    members : sequence of Member
        All leaves that contribute to the norms; the leaves belong to one framework.
    ord : float
        The order 1, 2 or inf. The orders 1 and inf are supported only for one norm of all elements.

    Returns
    -------
    array, shape (k,)
        The bits of `norms`. A stored slot gets the gradient of its row's sum, or 0 if the norm is 0. SPEC clause 7.
    """
    layouts = tuple((m.layout, len(m.keys)) for m in members)

    def attach(value: Array, arrays: tuple[Array, ...]) -> Array:
        return backend.with_gradient(value, arrays, backward)

    def backward(value: Array, arrays: tuple[Array, ...], upstream: Array) -> tuple[Array | None, ...]:
        known = attach(value, arrays)  # a second derivative passes through the norm too
        return modes.run(  # type: ignore[no-any-return]
            _gradient_of_norms, backend, (known, upstream, *arrays), layouts=layouts, ord=ord
        )

    with backend.scope():
        return attach(norms, tuple(x for m in members for x in (m.values, *m.keys)))


def attach_refusal(backend: Backend, norms: Array, values: Array, reason: str) -> Array:
    """Return known norms whose gradient with respect to `values` is not supported.

    Raise ValueError if the framework is recording operations on `values`. Only the computation of the gradient shows
    whether traced code is differentiated, so in traced code the error comes later.
    """

    def refuse(*_: object) -> NoReturn:
        raise ValueError(reason)

    if backend.records_gradient(values):
        refuse()
    return _attached(backend, norms, (values,), refuse)


def _gradient_of_norms(
    B: Backend, norms: Array, upstream: Array, *arrays: Array, layouts: Sequence[tuple[Layout, int]], ord: float
) -> tuple[Array | None, ...]:
    dtype, rest = B.dtype(norms), iter(arrays)
    leaves = [(layout, next(rest), tuple(next(rest) for _ in range(n))) for layout, n in layouts]
    rows = [_distinct(B, layout, x, keys, norms) for layout, x, keys in leaves]
    if ord == math.inf:
        upstream = _shared(B, norms, upstream, [B.astype(sums, dtype) for sums, _, _ in rows])
    out: list[Array | None] = []
    for (layout, x, keys), (sums, place, valid) in zip(leaves, rows, strict=True):
        wide = B.astype(sums, dtype)
        of_sums = layout.by_row, keys if place is None else ()
        own = _spread(B, norms, wide, *of_sums)
        slope = _direction(B, wide, own, ord) * _spread(B, upstream, wide, *of_sums)
        if place is not None:
            slope = B.take(slope, place)
        out += [B.astype(_masked(B, valid, slope), B.dtype(x)), *(None for _ in keys)]
    return tuple(out)


def _direction(B: Backend, x: Array, norm: Array, ord: float) -> Array:
    """Return the derivative of a norm with respect to the elements x; where the norm is 0, the derivative is 0.

    For order inf, the derivative is 1 or -1 for each element with the largest absolute value, and 0 for all others.
    """
    none = B.less_equal(norm, 0.0)
    if ord == 2:
        return B.where(none, 0.0, B.div(x, B.where(none, 1.0, norm)))
    sign = _sign(B, x)
    if ord == 1:
        return sign
    size = B.abs(x)
    return B.where(none, 0.0, B.where(B.less_equal(norm, size), sign, 0.0))


def _sign(B: Backend, x: Array) -> Array:
    return B.where(B.less_equal(x, 0.0), B.where(B.less_equal(0.0, x), B.zeros_like(x), -1.0), 1.0)


def _shared(B: Backend, norm: Array, upstream: Array, rows: Sequence[Array]) -> Array:
    """Return `upstream` divided by the number of elements with the largest absolute value (for order inf)."""
    total = None
    for x in rows:
        largest = B.less_equal(_spread(B, norm, x), B.abs(x))
        count = _gathered(B, B.where(largest, B.zeros_like(x) + 1.0, 0.0), 1)
        total = count if total is None else total + count
    assert total is not None
    return B.div(upstream, B.maximum(total, 1.0))


# ---------------------------------------------------------------------- values scaled by a norm
def attach_scaled(
    backend: Backend, scaled: Array, member: Member, norms: Array, limit: Array, over: Array, slack: float = 0.0
) -> Array:
    """Return scaled values as a differentiable function of the unscaled values and the norms.

    Parameters
    ----------
    backend : Backend
    scaled : array of the member's values' dtype and shape
        The scaled values, computed from constants.
    member : Member
    norms : array, shape (k,)
        The result of `attach_norms`.
    limit : array of norms' dtype, shape (1,) or (k,)
    over : array of norms' dtype, shape (k,)
        1 where values are multiplied by limit / (norms + slack), 0 where they are unchanged, -1 where they become
        zeros.
    slack : float

    Returns
    -------
    array
        The bits of `scaled`. SPEC clause 10.
    """
    gradient = partial(_gradient_of_scaled, layout=member.layout, slack=slack)
    return _attached(backend, scaled, (norms, limit, over, member.values, *member.keys), gradient)


def _attached(
    backend: Backend, value: Array, arrays: tuple[Array, ...], gradient: Callable[..., tuple[Array | None, ...]]
) -> Array:
    """Return a known value as a function of `arrays`. The gradient of this function is `gradient(B, upstream,
    *arrays)`."""

    def backward(value: Array, arrays: tuple[Array, ...], upstream: Array) -> tuple[Array | None, ...]:
        return modes.run(gradient, backend, (upstream, *arrays))  # type: ignore[no-any-return]

    with backend.scope():
        return backend.with_gradient(value, arrays, backward)


def _gradient_of_scaled(
    B: Backend,
    upstream: Array,
    norms: Array,
    limit: Array,
    over: Array,
    x: Array,
    *keys: Array,
    layout: Layout,
    slack: float,
) -> tuple[Array | None, ...]:
    dtype = B.dtype(norms)
    clipped = B.less_equal(1.0, over)
    divisor = B.where(clipped, norms + slack if slack else norms, 1.0)
    factor = B.where(clipped, B.div(limit, divisor), 1.0) + (norms - norms)  # NaN where the norm is not finite
    factor = B.where(B.less_equal(over, -1.0), 0.0, factor)
    wide, upstream = B.astype(x, dtype), B.astype(upstream, dtype)

    def spread(c: Array) -> Array:
        return _spread(B, c, wide, layout.by_row, keys)

    # the dot product of upstream and x / norm; x is divided first, so that no square of a norm overflows
    products = B.where(B.less_equal(1.0, spread(over)), upstream * B.div(wide, spread(divisor)), 0.0)
    if keys:
        products = _masked(B, B.as_column(B.in_range(keys[0], layout.rows), wide), products)
    inner = _gathered(B, products, B.shape(norms)[0], layout.by_row, keys)
    by_values = B.astype(upstream * spread(factor), B.dtype(x))
    return (-(inner * factor), None, None, by_values, *(None for _ in keys))


# ---------------------------------------------------------------------- values limited to a range
def attach_clamped(backend: Backend, clamped: Array, values: Array, lo: Array, hi: Array) -> Array:
    """Return values limited to [lo, hi] as a differentiable function of the unlimited values.

    Parameters
    ----------
    backend : Backend
    clamped : array of values' dtype and shape
        The limited values, computed from constants.
    values : float array
    lo, hi : arrays of shape (1,), in the dtype in which values are compared

    Returns
    -------
    array
        The bits of `clamped`. The gradient passes through a value equal to a bound; a NaN gets the gradient 0. SPEC
        clause 9.
    """

    return _attached(backend, clamped, (values, lo, hi), _gradient_of_clamped)


def _gradient_of_clamped(B: Backend, upstream: Array, x: Array, lo: Array, hi: Array) -> tuple[Array | None, ...]:
    wide, g = B.widen(x), B.widen(upstream)
    least, most = (_spread(B, c, wide) for c in (lo, hi))
    within = B.where(B.less_equal(least, wide), B.where(B.less_equal(wide, most), g, 0.0), 0.0)
    return B.astype(within, B.dtype(x)), None, None


# ---------------------------------------------------------------------- slots, rows and norms
def _distinct(
    B: Backend, layout: Layout, x: Array, keys: tuple[Array, ...], norms: Array
) -> tuple[Array, Array | None, Array | None]:
    """Return (rows, place, valid). `rows` are the rows from which norms are computed, in x's dtype, with duplicates
    summed if the layout says so.

    `place` contains the position of each slot's row in `rows`; None means that slot k has row k. `valid` is the mask of
    slots that are not empty; None means that no slot is empty.
    """
    if not keys:
        return x, None, None
    valid = B.as_column(B.in_range(keys[0], layout.rows), x)
    x = _masked(B, valid, x)
    if not layout.summed:
        return x, None, valid
    if layout.by_row:
        place, count = keys[1], B.shape(norms)[0]
    else:
        ids, place = B.unique(keys[0], layout.rows)
        count = B.shape(ids)[0]
    sums = B.segment_sum(B.widen(x), place, count)
    return B.astype(sums, B.dtype(x)), place, valid


def _masked(B: Backend, valid: Array | None, x: Array) -> Array:
    return x if valid is None else B.where(valid, x, 0.0)


def _spread(B: Backend, c: Array, x: Array, by_row: bool = False, keys: tuple[Array, ...] = ()) -> Array:
    """Return c, an array of one number per norm, in a shape that broadcasts with the slots of x."""
    if not by_row:
        return B.reshape(c, (1,) * len(B.shape(x)))
    return B.as_column(B.take(c, keys[1]) if keys else c, x)


def _gathered(B: Backend, x: Array, count: int | None, by_row: bool = False, keys: tuple[Array, ...] = ()) -> Array:
    """Return an array of shape (k,) that contains, for each norm, the sum of the elements of x that belong to the
    norm."""
    if not by_row:
        return B.row_sum(as_rows(B, x, 1))
    sums = B.row_sum(as_rows(B, x, B.shape(x)[0]))
    return B.segment_sum(sums, keys[1], count) if keys else sums
