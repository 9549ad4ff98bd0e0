"""Make weights and gradients for which the error of a wrong formula is larger than the errors of rounding.

In the inputs "wide", the sizes of the columns are from 1e-9, where epsilon matters, to 1e15, whose squares are within
float32. In "vast", sizes are up to 3e18, whose squares are just within float32. In "beyond", sizes are up to 1e37,
whose squares overflow. The elements have both signs, and some elements are zero. In the inputs of optimizers and
clips, one gradient has only zeros; if the inputs are row-sparse, another has no rows. The lookups include empty bags,
bags with repeated ids, and sizes up to 3e37. All numbers are sums and products of constants and of numbers from
`random.Random`. Python guarantees the sequence of `random.Random`, so the numbers are the same everywhere.

May import: `numpy`.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Sizes = tuple[float, ...]
ROWS, STEPS = 3, 10
WIDE = (1e-9, 1e-7, 1e-5, 1e-4, 1e-2, 1.0, 1e3, 1e15)
SMALL = (1e-7, 1e-6, 2e-6, 5e-6, 1e-6, 2e-6, 1e-6, 1e-7)
NEAR = (1e-4, 1e-3, 1e-2, 0.1, 0.3, 1.0, 3.0, 10.0)
VAST = (1e16, 3e18, 1e17, 1e18)
BEYOND = (1e19, 1e37, 1e20, 1e30)
ALMOST = (1e-9, 1e-7, 1e-5, 1e-2, 1.0, 1e3, 1e15, 3e37)


@dataclass(frozen=True)
class Rows:
    """A row-sparse gradient. ``values[k]`` belongs to row ``indices[k]``; a row may occur several times."""

    indices: Array
    values: Array

    def summed(self) -> tuple[Array, Array]:
        """Return (the distinct rows in ascending order, the position of each slice's row among the distinct rows)."""
        found, places = np.unique(self.indices, return_inverse=True)
        return found, places.reshape(-1)


@dataclass(frozen=True)
class Bags:
    """Lookups in bags of ids. Bag k contains the ids at positions ``offsets[k]`` to ``offsets[k + 1] - 1``."""

    ids: Array
    offsets: Array
    #: one weight per id, or None
    weights: Array | None
    #: the gradient of the lookup's output, one row per bag
    upstream: Array

    def lifted(self, lift: Callable[[Any], Any]) -> Bags:
        """Return the lookups with weights and upstream gradients converted by `lift`."""
        weights = None if self.weights is None else lift(self.weights)
        return Bags(self.ids, self.offsets, weights, lift(self.upstream))


Gradient = Array | Rows | Bags


@dataclass(frozen=True)
class Inputs:
    """The initial weights, and the gradient or the lookups of each step."""

    weights: Array
    gradients: tuple[Gradient, ...]
    #: the steps whose results the vectors contain
    checkpoints: tuple[int, ...] = (1, 2, 5, 10)

    @property
    def sparse(self) -> bool:
        return isinstance(self.gradients[0], Rows)


def _drawn(source: random.Random, shape: tuple[int, int], sizes: Sizes) -> Array:
    flat = [(0.25 + source.random()) * (1 if source.random() < 0.6 else -1) for _ in range(shape[0] * shape[1])]
    found: Array = (np.array(flat).reshape(shape) * np.array(sizes)[: shape[1]]).astype(np.float32)
    return found


def _weights(source: random.Random, rows: int) -> Array:
    w = _drawn(source, (rows, 8), (1.0, 1.0, 0.1, 1.0, 10.0, 1.0, 3.0, 1.0))
    w[0, 0] = 0.0
    return w


def _dense(seed: int, sizes: Sizes) -> Inputs:
    source = random.Random(seed)
    weights = _weights(source, ROWS)
    gradients = []
    for step in range(STEPS):
        g = _drawn(source, (ROWS, 8), sizes)
        g[1, :4] = 0.0 if step % 3 else g[1, :4]  # zeros between gradients
        g[2, 4] = 0.0  # an element whose gradient is always zero
        gradients.append(g * np.float32(step != 4))  # one gradient is zero
    return Inputs(weights, tuple(gradients))


def _named(source: random.Random, weights: Array, named: list[list[int]], sizes: Sizes) -> Inputs:
    """Return inputs with one gradient for each list of rows. The fourth gradient stores only zeros."""
    width = weights.shape[1]
    gradients = [Rows(np.array(rows, np.int64), _drawn(source, (len(rows), width), sizes)) for rows in named]
    gradients[3].values[:] = 0.0
    return Inputs(weights, tuple(gradients))


def _sparse(seed: int, sizes: Sizes) -> Inputs:
    source = random.Random(seed)
    named = [[1, 3, 1], [3], [4, 1, 4, 4], [0], [], [1, 3], [3, 3], [4, 0, 1], [1], [0, 3, 0]]
    return _named(source, _weights(source, 5), named, sizes)


def _vast(seed: int, sizes: Sizes) -> Inputs:
    source = random.Random(seed)
    weights = _drawn(source, (2, 3), (1.0, 10.0, 3.0))
    gradients = []
    for step in range(STEPS):
        g = _drawn(source, (2, 3), sizes)
        g[1, step % 3] = 0.0
        gradients.append(g * np.float32(step != 4))
    return Inputs(weights, tuple(gradients))


def _vast_rows(seed: int, sizes: Sizes) -> Inputs:
    source = random.Random(seed)
    named = [[1, 0, 1], [1], [0, 0, 1], [2], [], [1], [2, 2], [1, 0], [1], [0, 1, 0]]
    return _named(source, _drawn(source, (3, 4), (1.0, 10.0, 3.0, 1.0)), named, sizes)


BAGS = (
    ((1, 3, 1), (2,), (), (4, 1, 4, 4)),
    ((1,), (0, 2, 3, 0), (), (3,)),  # row 1 is the padding row: one bag has no other id
    ((2, 4), (4, 2, 0), (1, 1), (0,)),
    ((), (0, 1, 2, 3, 4, 0), (), (3,)),
)
IDS = ((1, 3, 1, 2, 4, 1), (0,), (4, 4, 4, 4, 0), (2, 0, 1, 3))


def _bags(seed: int, sizes: Sizes, batches: Any = BAGS, *, weighted: bool = False) -> Inputs:
    source = random.Random(seed)
    table = _drawn(source, (5, 8), sizes)
    gradients = []
    for bags in batches:
        ids = np.array([id for bag in bags for id in bag], np.int64)
        offsets = np.cumsum([0, *map(len, bags)], dtype=np.int64)
        upstream = _drawn(source, (len(bags), 8), sizes)
        upstream[0, :3] = 0.0
        weights = abs(_drawn(source, (len(ids), 1), (1.0,)))[:, 0] if weighted else None
        if weights is not None and len(ids) > 5:
            weights[5] = 0.0
        gradients.append(Bags(ids, offsets, weights, upstream))
    return Inputs(table, tuple(gradients), (1, 2, 3, 4))


def _light(made: Inputs) -> Inputs:
    """Return the inputs with smaller weights. With small weights, an epsilon that is added to a norm is visible in the
    result."""
    return Inputs(made.weights * np.float32(1e-5), made.gradients)


MAKERS: dict[str, Callable[[], Inputs]] = {
    "wide": lambda: _dense(1, WIDE),
    "near": lambda: _dense(2, NEAR),
    "small": lambda: _dense(5, SMALL),
    "rows wide": lambda: _sparse(3, WIDE),
    "rows near": lambda: _sparse(4, NEAR),
    "rows small": lambda: _light(_sparse(6, SMALL)),
    "vast": lambda: _vast(7, VAST),
    "rows vast": lambda: _vast_rows(8, VAST),
    "beyond": lambda: _vast(13, BEYOND),
    "rows beyond": lambda: _vast_rows(14, BEYOND),
    "bags wide": lambda: _bags(9, ALMOST),
    "bags near": lambda: _bags(10, NEAR),
    "bags weighted": lambda: _bags(11, ALMOST, weighted=True),
    "ids wide": lambda: _bags(12, ALMOST, [[(id,) for id in ids] for ids in IDS]),
}


@cache
def inputs(name: str) -> Inputs:
    return MAKERS[name]()
