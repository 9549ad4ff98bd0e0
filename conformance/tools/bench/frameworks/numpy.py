"""Define NumPy's steps for the bench. Each step is written by hand, and updates only the rows of the gradient."""

from __future__ import annotations

from itertools import count
from typing import Any

import numpy as np

from islices.conformance.tools.bench.rates import RATE, corrections, rule, shapes
from islices.conformance.tools.bench.rounds import Call
from islices.conformance.tools.bench.variants import Ready, Way


def zeros(shape: tuple[int, ...]) -> Any:
    return np.full(shape, 0.0, np.float32)


def updates(kind: str, values: Any, ids: Any, rows: int) -> dict[str, Ready]:
    dim = values.shape[1]

    def add_at() -> Way:
        table = zeros((rows, dim))
        return Way(lambda: np.add.at(table, ids, -RATE * values), lambda: [table])

    def by_hand() -> Way:
        arrays, times = [zeros(shape) for shape in ((rows, dim), *shapes(kind, rows, dim))], count(1)

        def step() -> None:
            distinct, place = np.unique(ids, return_inverse=True)
            g = np.zeros((len(distinct), dim), values.dtype)
            np.add.at(g, place.reshape(-1), values)
            numbers = corrections(kind, next(times))
            new = rule(kind, np.sqrt, lambda x: x.mean(1, keepdims=True), g, *(x[distinct] for x in arrays), *numbers)
            for x, part in zip(arrays, new, strict=True):
                x[distinct] = part

        return Way(step, lambda: arrays[:1])

    variants: dict[str, Ready] = {"unique + add.at, optimizer by hand": by_hand}
    return variants | {"add.at": add_at} if kind == "sgd" else variants


def small(values: Any, ids: Any, rows: int, max_norm: float) -> dict[str, dict[str, Call]]:
    return {}
