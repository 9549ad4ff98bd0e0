"""NumPy's own calls: what a NumPy user writes by hand. Nothing here imports islices.

NumPy has no embedding layer, no autodiff and no sparse type, so a gradient is the pair (upstream rows, ids).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["block", "own_calls", "trainable"]


def own_calls(
    values: np.ndarray[Any, Any], indices: np.ndarray[Any, Any], num_rows: int, max_norm: float
) -> dict[str, dict[str, Callable[[], Any]]]:
    """NumPy's ways to do what islices does: operation -> label -> call."""

    def unique_add_at() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        ids, inverse = np.unique(indices, return_inverse=True)
        sums = np.zeros((len(ids), *values.shape[1:]), values.dtype)
        np.add.at(sums, inverse.reshape(-1), values)
        return sums, ids

    def sort_reduceat() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        order = np.argsort(indices, kind="stable")
        ordered = indices[order]
        starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
        return np.add.reduceat(values[order], starts, axis=0), ordered[starts]

    def dense_add_at() -> np.ndarray[Any, Any]:
        dense = np.zeros((num_rows, *values.shape[1:]), values.dtype)
        np.add.at(dense, indices, values)
        return dense

    def clip() -> np.ndarray[Any, Any]:
        sums, _ = unique_add_at()
        norm = np.sqrt(np.sum(sums * sums))
        return values * np.float32(min(1.0, max_norm / norm))

    return {
        "coalesce": {"unique + add.at": unique_add_at, "argsort + add.reduceat (no left fold)": sort_reduceat},
        "to_dense": {"add.at": dense_add_at},
        "clip_by_global_norm": {"unique + add.at, norm, scale": clip},
    }


def trainable(array: np.ndarray) -> Any:
    return np.array(array)


def block(x: Any) -> None:
    """NumPy computes at once."""
