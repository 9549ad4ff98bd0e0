"""Compute the distance between both sides of each tensor at one position of a step.

May import: `numpy`, the core below `islices.files`, `islices.porting.compare.measure`, `islices.porting.compare.rows`,
`islices.porting.compare.stored`, `islices.porting.trajectory.positions`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from islices.core.dtypes import dtype_name
from islices.porting.compare.measure import same_shape
from islices.porting.compare.rows import eps_of as eps_of_type
from islices.porting.compare.rows import rows_at
from islices.porting.compare.stored import Array, apart, bits_equal, blocks, dot, placed, read, wide
from islices.porting.trajectory.positions import Leaf, Leaves


def beside(x: Leaf, y: Leaf) -> Iterator[tuple[Array, Array, Array]] | None:
    """Return an iterator over blocks (row numbers, rows of x, rows of y), in which the rows are float64. Return None if
    the shapes differ.

    Duplicates are summed first. If only one side stores a row, the row of the other side contains zeros. Rows that
    contain only zeros on both sides may be left out.
    """
    a, b = (read(leaf, "", "").without_zeros for leaf in (x, y))
    if not same_shape(a.shape, b.shape):
        return None
    every = a.ids if np.array_equal(a.ids, b.ids) else np.union1d(a.ids, b.ids)
    parts = (every[part] for part in blocks(len(every), a.row_shape))
    return ((ids, wide(placed(a.ids, a.values, ids)), wide(placed(b.ids, b.values, ids))) for ids in parts)


def values_of(x: Leaf) -> Array:
    return x if isinstance(x, np.ndarray) else x.values


def eps_of(x: Leaf) -> float:
    """Return the machine epsilon of a leaf's dtype, or 0 for integers and bools."""
    return eps_of_type(dtype_name(values_of(x).dtype))


def same_values(x: Leaf, y: Leaf) -> bool:
    """Sum the duplicates of two leaves, and return True if they then have the same shape and the same numbers. The
    dtypes may differ."""
    if isinstance(x, np.ndarray) and isinstance(y, np.ndarray) and x.dtype == y.dtype != np.uint16:
        return x.shape == y.shape and bool(np.all(bits_equal(x, y)))  # this copies nothing, so it is fast
    pairs = beside(x, y)
    return pairs is not None and not any(apart(p, q).any() for _, p, q in pairs)


def gap(x: Array, y: Array) -> float:
    """Return the largest |x - y| of two arrays with the same shape, which has at least one axis."""
    found = 0.0
    for part in blocks(len(x), x.shape[1:]):
        p, q = x[part], y[part]
        some = p != q
        found = max(found, float(apart(wide(p[some]), wide(q[some])).max(initial=0.0)))
    return found


def relative(x: Array, y: Array) -> Array:
    """Return |x - y| / max(|x|, |y|) for each element. The result is 0 if x equals y, and 1 if the quotient is not
    finite."""
    away = apart(x, y)
    with np.errstate(divide="ignore", invalid="ignore"):
        found = away / np.maximum(np.abs(x), np.abs(y))
    out: Array = np.where(away > 0, np.nan_to_num(found, nan=1.0, posinf=1.0), 0.0)
    return out


def summed(x: Leaf) -> tuple[Array, Array] | None:
    """Return (row numbers, one relative distance per element) for slices that contain duplicates. Return None for all
    other leaves.

    The relative distance is the largest that may arise if both sides sum the duplicates in different orders, but at
    most 1. Two sums of m terms may differ by (m - 1) eps times the sum of |terms|.
    """
    if isinstance(x, np.ndarray) or x.coalesced:
        return None
    rows = rows_at(read(x, "", ""), slice(None))
    if not rows.known:
        return None
    counts = rows.counts.reshape(-1, *[1] * (rows.values.ndim - 1))
    with np.errstate(divide="ignore", invalid="ignore"):
        found = (counts - 1) * rows.eps * rows.terms / np.abs(rows.values)
    return rows.ids, np.minimum(np.nan_to_num(found, nan=0.0, posinf=1.0), 1.0)


def distances(pair: tuple[Leaves, Leaves]) -> dict[str, tuple[float, float, float]]:
    """Return a dict with the distance of each tensor that both sides have. The dict maps the tensor's name to (the norm
    of the difference, the larger of both norms, the larger eps of both dtypes).

    Elements that are not finite do not count in the norms of the sides. If the shapes differ, the three numbers are
    infinity, 0 and 0.
    """
    found, (a, b) = {}, pair
    for name in filter(b.__contains__, a):
        pairs = beside(a[name], b[name])
        if pairs is None:
            found[name] = (math.inf, 0.0, 0.0)
            continue
        sizes = [0.0, 0.0, 0.0]
        for _, x, y in pairs:
            sizes = list(map(math.hypot, sizes, (_norm(apart(x, y)), _finite_norm(x), _finite_norm(y))))
        found[name] = (sizes[0], max(sizes[1:]), max(eps_of(a[name]), eps_of(b[name])))
    return found


def _norm(x: Array) -> float:
    """Return the 2-norm of all elements. The function scales the elements first, so that their squares do not
    overflow."""
    top = float(np.abs(x).max(initial=0.0))
    if not 0 < top < math.inf:
        return top
    x = (x / top).ravel()
    return top * math.sqrt(dot(x, x))


def _finite_norm(x: Array) -> float:
    found = _norm(x)
    return found if math.isfinite(found) else _norm(np.where(np.isfinite(x), x, 0.0))
