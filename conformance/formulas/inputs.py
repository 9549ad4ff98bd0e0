"""Weights and gradients that tell wrong formulas from rounding.

Columns have sizes of their own, from 1e-9, where epsilon counts, to 1e15, whose square float32 still holds; signs
change, some elements stay zero, a step has no gradient at all. Numbers come from `random.Random`, whose sequence Python
guarantees, by a product and a sum, so that they are the same everywhere.

May import: `numpy`.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

__all__ = ["MAKERS", "Inputs", "Rows", "inputs"]

Array = np.ndarray[Any, Any]
ROWS, STEPS = 3, 10
WIDE = (1e-9, 1e-7, 1e-5, 1e-4, 1e-2, 1.0, 1e3, 1e15)
SMALL = (1e-7, 1e-6, 2e-6, 5e-6, 1e-6, 2e-6, 1e-6, 1e-7)
NEAR = (1e-4, 1e-3, 1e-2, 0.1, 0.3, 1.0, 3.0, 10.0)


@dataclass(frozen=True)
class Rows:
    """A row-sparse gradient: values[k] belongs to row indices[k]; a row may be named several times."""

    indices: Array
    values: Array

    def summed(self, rows: int) -> tuple[Array, Array]:
        """The rows that are named, ascending, and for each stored slice the place of its row among them."""
        found, places = np.unique(self.indices, return_inverse=True)
        return found, places.reshape(-1)


@dataclass(frozen=True)
class Inputs:
    """Starting weights and the gradient of each step."""

    weights: Array
    gradients: tuple[Array | Rows, ...]

    @property
    def sparse(self) -> bool:
        return isinstance(self.gradients[0], Rows)


def _drawn(source: random.Random, shape: tuple[int, int], sizes: tuple[float, ...]) -> Array:
    flat = [(0.25 + source.random()) * (1 if source.random() < 0.6 else -1) for _ in range(shape[0] * shape[1])]
    found: Array = (np.array(flat).reshape(shape) * np.array(sizes)[: shape[1]]).astype(np.float32)
    return found


def _weights(source: random.Random, rows: int) -> Array:
    w = _drawn(source, (rows, 8), (1.0, 1.0, 0.1, 1.0, 10.0, 1.0, 3.0, 1.0))
    w[0, 0] = 0.0
    return w


def _dense(seed: int, sizes: tuple[float, ...]) -> Inputs:
    source = random.Random(seed)
    weights = _weights(source, ROWS)
    gradients = []
    for step in range(STEPS):
        g = _drawn(source, (ROWS, 8), sizes)
        g[1, :4] = 0.0 if step % 3 else g[1, :4]  # zeros between gradients
        g[2, 4] = 0.0  # an element that never has one
        gradients.append(g * np.float32(step != 4))  # a step without any
    return Inputs(weights, tuple(gradients))


def _sparse(seed: int, sizes: tuple[float, ...]) -> Inputs:
    source = random.Random(seed)
    weights = _weights(source, 5)
    named = [[1, 3, 1], [3], [4, 1, 4, 4], [0], [], [1, 3], [3, 3], [4, 0, 1], [1], [0, 3, 0]]
    gradients = []
    for step, rows in enumerate(named):
        values = _drawn(source, (len(rows), 8), sizes)
        if step == 3:
            values[:] = 0.0  # a stored row of zeros is named
        gradients.append(Rows(np.array(rows, np.int64), values))
    return Inputs(weights, tuple(gradients))


def _light(made: Inputs) -> Inputs:
    """Weights so small that what is added to a norm counts."""
    return Inputs(made.weights * np.float32(1e-5), made.gradients)


MAKERS: dict[str, Callable[[], Inputs]] = {
    "wide": lambda: _dense(1, WIDE),
    "near": lambda: _dense(2, NEAR),
    "small": lambda: _dense(5, SMALL),
    "rows wide": lambda: _sparse(3, WIDE),
    "rows near": lambda: _sparse(4, NEAR),
    "rows small": lambda: _light(_sparse(6, NEAR)),
}


@cache
def inputs(name: str) -> Inputs:
    """The inputs of a name."""
    return MAKERS[name]()
