"""The units of an array along some axes: what a norm along these axes is of.

Values become a matrix with a unit in each row; norms of its rows are those of the units (`islices.norms.exact`). SPEC
clause 10. May import: `numpy`, `islices.core.arguments`, `islices.backend`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from islices.backend import Array, Backend
from islices.core.arguments import show, whole_number

__all__ = ["Units", "check_axes", "units_of"]


class Units(NamedTuple):
    """How an array of some shape becomes a matrix (units, elements), and how that becomes the array again."""

    shape: tuple[int | None, ...]  # of the array; None for a number of rows that is not known yet
    merged: tuple[int | None, ...]  # the same, with axes that are kept, or reduced, side by side as one
    order: tuple[int, ...]  # of the merged axes: first those that are kept
    matrix: tuple[int | None, int | None]

    def of(self, B: Backend, x: Array) -> Array:
        """x as the matrix."""
        x = B.reshape(x, self.merged)
        if self.order != tuple(range(len(self.order))):
            x = B.permute(x, self.order)
        return B.reshape(x, self.matrix)

    def back(self, B: Backend, x: Array) -> Array:
        """The matrix as the array."""
        x = B.reshape(x, tuple(self.merged[k] for k in self.order))
        if self.order != tuple(range(len(self.order))):
            x = B.permute(x, tuple(int(k) for k in np.argsort(self.order)))
        return B.reshape(x, self.shape)


def check_axes(axes: Any, rank: int, argument: str) -> tuple[int, ...]:
    """Some of the axes of an array of that rank, ascending: an int or several, negative ones from the end."""
    if isinstance(axes, np.ndarray) and axes.dtype.kind in "iu":
        axes = axes.tolist()
    given = axes if isinstance(axes, (list, tuple)) else [axes]
    found = []
    for axis in given:
        number = whole_number(axis)
        if number is None:
            raise TypeError(f"{argument}: got {show(axes)}; accepted is an int or a list or tuple of ints")
        if not -rank <= number < rank:
            raise ValueError(f"{argument}: got {show(axes)}; accepted are axes from {-rank} to {rank - 1}")
        found.append(number % rank)
    if len(set(found)) < len(found):
        raise ValueError(f"{argument}: got {show(axes)}; accepted is each axis once")
    return tuple(sorted(found))


def units_of(shape: Sequence[int | None], axes: Sequence[int]) -> Units:
    """The units of an array of a shape whose norms reduce these axes."""
    if None in shape[1:]:
        raise ValueError(f"axes: got an array of shape {tuple(shape)} under a trace; accepted is a known shape of rows")
    runs = [(kept, [shape[k] for k in run]) for kept, run in groupby(range(len(shape)), lambda k: k not in axes)]
    merged = tuple(_product(sizes) for _, sizes in runs)
    kept = [k for k, (is_kept, _) in enumerate(runs) if is_kept]
    reduced = [k for k, (is_kept, _) in enumerate(runs) if not is_kept]
    sizes = [_product([merged[k] for k in group]) for group in (kept, reduced)]
    return Units(tuple(shape), merged, (*kept, *reduced), (sizes[0], sizes[1]))


def _product(sizes: Sequence[int | None]) -> int | None:
    known = math.prod(n for n in sizes if n is not None)
    return known if None not in sizes else (None if known else 0)
