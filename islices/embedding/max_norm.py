"""Looked-up rows clipped to a norm, with the gradient: max_norm within a lookup.

SPEC clause 12. Value and gradient are joined by `Backend.custom_gradient`, so that both have the same bits on every
framework and in every mode.
"""

from __future__ import annotations

from typing import NoReturn

import numpy as np

from islices.backend import Array, Backend
from islices.core import modes
from islices.core.linear import wide_dtype
from islices.core.shapes import size_of
from islices.norms.clip import row_factors, scale_rows
from islices.norms.exact import as_rows, row_norms, row_sums
from islices.norms.limits import Limit

__all__ = ["limit_rows"]

#: In the place of a factor: the row is within the limit, and passes its gradient as it is.
WITHIN = -2.0


def limit_rows(B: Backend, rows: Array, lead: int, limit: float) -> Array:
    """rows (..., *row_shape), as many leading axes as lead, each clipped to a norm of at most limit by clause 10."""
    shape = B.shape(rows)
    with B.scope():
        flat = B.reshape(rows, (size_of(shape[:lead]), *shape[lead:]))

    def forward(x: Array) -> Array:
        E, codes = _codes(B, x, limit)
        with E.scope():
            factors = E.where(E.less_equal(codes, WITHIN), 1.0, codes)
        return scale_rows(B, x, E, factors, None)

    def backward(arrays: tuple[Array, ...], upstream: Array) -> tuple[Array]:
        return (B.custom_gradient(gradient, _refuse)(arrays[0], upstream),)

    def gradient(x: Array, upstream: Array) -> Array:
        E, codes = _codes(B, x, limit)
        wide = wide_dtype(B.dtype(x))
        with E.scope():
            codes = E.astype(codes, wide)
        if E is modes.HOST:
            codes = B.asarray(codes, x)
        with B.scope():
            length = B.asarray(np.full(1, limit, wide), x)
        return modes.run(_gradient, B, (upstream, x, codes, length), limit=limit)

    clipped = B.custom_gradient(forward, backward)(flat)
    with B.scope():
        return B.reshape(clipped, shape)


def _codes(B: Backend, x: Array, limit: float) -> tuple[Backend, Array]:
    """(E, the factor of each row in float64, or WITHIN), arrays of E."""
    E, norms = row_norms([(B, as_rows(B, x, B.shape(x)[0]))], 2.0)
    with E.scope():
        factors = row_factors(E, norms, Limit(limit), "propagate")  # NaN where the norm is not finite
        return E, E.where(E.isfinite(norms), E.where(E.less_equal(norms, limit), WITHIN, factors), factors)


def _refuse(arrays: tuple[Array, ...], upstream: Array) -> NoReturn:
    raise NotImplementedError(
        "lookup: got a second derivative, or one in forward mode, through max_norm; accepted is a first one, or "
        "max_norm=None"
    )


def _gradient(B: Backend, upstream: Array, x: Array, codes: Array, length: Array, *, limit: float) -> Array:
    """f (g - v sum(v g)) with f the factor and v the clipped row over the limit, which is its norm."""
    g, column = B.widen(upstream), B.as_column(codes, x)
    direction = B.round_product(B.widen(x), column)
    if limit > 0:
        direction = B.div(direction, B.as_column(length, x))
    along = B.as_column(row_sums(B, B.round_product(direction, g)), x)
    moved = B.round_product(g - B.round_product(direction, along), column)
    return B.astype(B.where(B.less_equal(column, WITHIN), g, moved), B.dtype(x))
