"""NumPy's equivalents of operations on sparse gradients, as users write them by hand. This module does not import
islices.

NumPy has no embedding layer, no autodiff and no sparse type, so a gradient is the pair (upstream rows, ids).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Host = np.ndarray[Any, Any]
#: (sums, their row numbers)
Sums = tuple[Host, Host]
#: `by_layers` is measured only if no row occurs more often than this. The Python loop of `by_layers` has one step for
#: each occurrence of the most frequent row except the first occurrence.
MOST_LAYERS = 256


def timed_calls(
    operation: str, values: Host, indices: Host, num_rows: int, max_norm: float
) -> dict[str, Callable[[], Any]]:
    """Return {label: call} for NumPy's equivalents of one operation of islices."""
    shape = values.shape[1:]

    def unique_add_at() -> Sums:
        ids, inverse = np.unique(indices, return_inverse=True)
        sums = np.zeros((len(ids), *shape), values.dtype)
        np.add.at(sums, inverse.reshape(-1), values)
        return sums, ids

    def sort_reduceat() -> Sums:
        order, ids, starts = _grouped(indices)
        return np.add.reduceat(values[order], starts, axis=0), ids

    def by_layers() -> Sums:
        order, ids, starts = _grouped(indices)
        counts = np.diff(starts, append=len(order))
        sums = values[order[starts]]
        for k in range(1, int(counts.max(initial=1))):
            more = np.flatnonzero(counts > k)
            sums[more] += values[order[starts[more] + k]]
        return sums, ids

    def dense_add_at() -> Host:
        dense = np.zeros((num_rows, *shape), values.dtype)
        np.add.at(dense, indices, values)
        return dense

    def total(sums: Host) -> Any:
        return np.linalg.norm(sums.reshape(-1))

    def clipped(summed: Callable[[], Any]) -> Callable[[], Any]:
        def call() -> Any:
            factor = np.float32(min(1.0, max_norm / total(summed()[0])))
            return values * factor, indices

        return call

    variants: dict[str, Callable[[], Any]] = {
        "unique + add.at": unique_add_at,
        "argsort + add.reduceat": sort_reduceat,
    }
    if np.unique(indices, return_counts=True)[1].max(initial=0) <= MOST_LAYERS:
        variants["argsort + layers of k-th occurrences"] = by_layers
    if operation == "coalesce":
        return variants
    if operation == "to_dense":
        return {"add.at": dense_add_at}
    if operation == "norm":
        return {f"{label}, norm": lambda variant=variant: total(variant()[0]) for label, variant in variants.items()}  # type: ignore[misc]
    return {f"{label}, norm, scale": clipped(variant) for label, variant in variants.items()}


def _grouped(indices: Host) -> tuple[Host, Host, Host]:
    """Return (the order that sorts the indices, the distinct indices, the start of each distinct index in this
    order)."""
    order = np.argsort(indices, kind="stable")
    ordered = indices[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    return order, ordered[starts], starts


def trainable(array: np.ndarray) -> Any:
    return np.array(array)


def block(x: Any) -> None:
    """Do nothing, because NumPy computes before a call returns."""
