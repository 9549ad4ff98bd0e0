"""Compute the expected results of clips along axes, by the root mean square, and by the norms of parameters (clause
10). A unit is a part of the dense array. Each unit is clipped by its norm, or by its root mean square."""

from __future__ import annotations

import itertools
import math
from typing import Any

from islices.conformance.data import Array, Shape, Slices
from islices.conformance.oracle import clip_by_norm as clip_whole
from islices.conformance.oracle import (
    clip_data,
    coalesce,
    exact_norm,
    norm_of,
    over,
    square_root,
    times,
    values_of,
    with_values,
)


def shape_of(x: Any) -> Shape:
    return tuple(x.dense_shape if isinstance(x, Slices) else x.shape)


def unit_of_each(x: Any, axes: Any) -> list[Shape]:
    """Return the unit of each stored number: its coordinates along the axes that are not in `axes`. `x` must be
    coalesced."""
    rank = len(shape_of(x))
    reduced = {axis % rank for axis in ([axes] if isinstance(axes, int) else axes)}
    rows = x.indices.data if isinstance(x, Slices) else None
    places = []
    for place in itertools.product(*map(range, values_of(x).shape)):
        place = place if rows is None else (rows[place[0]], *place[1:])
        places.append(tuple(k for axis, k in enumerate(place) if axis not in reduced))
    return places


def unit_norms(x: Any, axes: Any) -> dict[Shape, float]:
    units: dict[Shape, list[Any]] = {}
    for unit, v in zip(unit_of_each(x, axes), values_of(x).data, strict=True):
        units.setdefault(unit, []).append(v)
    return {unit: norm_of(data) for unit, data in units.items()}


def clipped_units(x: Any, axes: Any, norms: dict[Any, float], limits: Any, nonfinite: str) -> Any:
    """Coalesce x, and clip each unit to `limits(unit)`."""
    x = coalesce(x)
    values = values_of(x)
    data = []
    for unit, v in zip(unit_of_each(x, axes), values.data, strict=True):
        data += clip_data([v], values.dtype, norms[unit], limits(unit), nonfinite)
    return with_values(x, data)


def over_leaves(x: Any, fn: Any, *others: Any) -> Any:
    if isinstance(x, list):
        return [over_leaves(leaf, fn, *(o[k] for o in others)) for k, leaf in enumerate(x)]
    return None if x is None else fn(x, *others)


def clip_by_norm(x: Any, max_norm: float, nonfinite: str = "propagate", axes: Any = None) -> Any:
    if axes is None:
        return clip_whole(x, max_norm, nonfinite)

    def one(leaf: Any) -> Any:
        return clipped_units(leaf, axes, unit_norms(coalesce(leaf), axes), lambda unit: max_norm, nonfinite)

    return over_leaves(x, one)


def clip_by_block_rms(x: Any, threshold: float, nonfinite: str = "propagate") -> Any:
    def one(leaf: Any) -> Any:
        count = square_root(float(max(math.prod(shape_of(leaf)), 1)))
        rms = over(exact_norm([leaf], 2), count, "float64")
        axes = range(len(shape_of(leaf)))
        return clipped_units(leaf, axes, {(): rms}, lambda unit: threshold, nonfinite)

    return over_leaves(x, one)


def adaptive_grad_clip(
    x: Any, params: Any, clipping: float, eps: float = 1e-3, axes: Any = None, nonfinite: str = "propagate"
) -> Any:
    def one(leaf: Any, table: Array) -> Any:
        along = default_axes(table.shape) if axes is None else axes
        norms = unit_norms(table, along)

        def limit(unit: Any) -> float:
            if math.isnan(norms[unit]):
                return math.nan
            return float(times(max(norms[unit], eps), float(clipping), "float64"))

        return clipped_units(leaf, along, unit_norms(coalesce(leaf), along), limit, nonfinite)

    return over_leaves(x, one, params)


def default_axes(shape: Shape) -> Any:
    if sum(n != 1 for n in shape) <= 1:
        return range(len(shape))
    return {2: [0], 3: [0], 4: [0, 1, 2], 5: [0, 1, 2, 3]}[len(shape)]
