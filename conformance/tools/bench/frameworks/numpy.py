"""NumPy: sums by np.unique or by sorting."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from islices.conformance.tools.bench.rates import RATE
from islices.conformance.tools.bench.rounds import Call

Sums = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]


def zeros(shape: tuple[int, ...]) -> Any:
    return np.full(shape, 0.0, np.float32)


def calls(v: Any, i: Any, rows: int, max_norm: float) -> dict[str, dict[str, Call]]:
    table = zeros((rows, v.shape[1]))

    def unique_add_at() -> Sums:
        ids, inverse = np.unique(i, return_inverse=True)
        sums = np.zeros((len(ids), v.shape[1]), np.float32)
        np.add.at(sums, inverse.reshape(-1), v)
        return sums, ids

    def sort_reduceat() -> Sums:
        order = np.argsort(i, kind="stable")
        ordered = i[order]
        starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
        return np.add.reduceat(v[order], starts, axis=0), ordered[starts]

    def clipped(summed: Callable[[], Sums]) -> Sums:
        return v * np.float32(min(1.0, max_norm / float(np.linalg.norm(summed()[0])))), i

    coalesce: dict[str, Callable[[], Sums]] = {
        "unique + add.at": unique_add_at, "argsort + add.reduceat": sort_reduceat
    }  # fmt: skip
    return {
        "coalesce": {**coalesce},
        "clip_by_global_norm": {f"{label}, norm, scale": partial(clipped, x) for label, x in coalesce.items()},
        "sgd step": {"add.at": lambda: np.add.at(table, i, -RATE * v)},
    }
