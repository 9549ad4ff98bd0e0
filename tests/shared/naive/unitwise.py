"""A second opinion on what is clipped by parts of the dense array: on the dense array itself (clause 10)."""

from __future__ import annotations

from typing import Any

import numpy as np

from islices.conformance.data import Array, Slices
from naive.operations import clip_by_norm as clip_whole
from naive.operations import clip_number, coalesce, mapped, norm64, numbers_of, to_dense, tree_map, values_of

__all__ = ["NAIVE"]


def places_of(x: Any, axes: Any) -> tuple[np.ndarray, np.ndarray]:
    """(dense, unit): the numbers of the dense array, and for each of them the number of its unit."""
    table = to_dense(x)
    dense = np.array([float(v) for v in table.data], object).reshape(table.shape)
    kept = [k for k in range(dense.ndim) if k not in [a % dense.ndim for a in np.atleast_1d(axes).astype(int)]]
    sizes = [dense.shape[k] for k in kept]
    unit = np.zeros(dense.shape, int)
    if unit.size and kept:
        unit += np.ravel_multi_index([np.indices(dense.shape)[k] for k in kept], sizes)
    return dense, unit


def norms_of(dense: np.ndarray, unit: np.ndarray) -> dict[int, float]:
    groups: dict[int, list[float]] = {}
    for v, u in zip(dense.ravel().tolist(), unit.ravel().tolist(), strict=True):
        groups.setdefault(u, []).append(v)
    return {u: norm64(numbers, 2) for u, numbers in groups.items()}


def clip_each(x: Any, unit: np.ndarray, norms: dict[int, float], limits: dict[int, float], nonfinite: str) -> Any:
    x = coalesce(x)
    stored = unit[x.indices.data] if isinstance(x, Slices) else unit
    dtype, own = values_of(x).dtype, iter(np.asarray(stored, int).ravel().tolist())
    return mapped(x, lambda v: clip_number(v, dtype, norms[u := next(own)], limits[u], nonfinite))


def clip_by_norm(x: Any, max_norm: Any, nonfinite: str = "propagate", axes: Any = None) -> Any:
    if axes is None:
        return clip_whole(x, max_norm, nonfinite)

    def one(leaf: Any) -> Any:
        dense, unit = places_of(leaf, axes)
        norms = norms_of(dense, unit)
        return clip_each(leaf, unit, norms, dict.fromkeys(norms, float(max_norm)), nonfinite)

    return tree_map(x, one)


def clip_by_block_rms(x: Any, threshold: Any, nonfinite: str = "propagate") -> Any:
    def one(leaf: Any) -> Any:
        count = 1
        for n in leaf.dense_shape if isinstance(leaf, Slices) else leaf.shape:
            count *= n
        rms = float(np.float64(norm64(numbers_of([leaf]), 2)) / np.sqrt(np.float64(max(count, 1))))
        dtype = values_of(leaf).dtype
        return mapped(coalesce(leaf), lambda v: clip_number(v, dtype, rms, float(threshold), nonfinite))

    return tree_map(x, one)


def adaptive_grad_clip(
    x: Any, params: Any, clipping: Any, eps: float = 1e-3, axes: Any = None, nonfinite: str = "propagate"
) -> Any:
    def one(leaf: Any, table: Array) -> Any:
        shape, along = table.shape, axes
        if along is None:
            whole = np.squeeze(np.empty(shape)).ndim <= 1
            along = np.arange(len(shape) if whole else max(1, len(shape) - 1) if len(shape) > 3 else 1)
        dense, unit = places_of(leaf, along)
        own = norms_of(*places_of(table, along))
        limits = {u: float(np.maximum(own[u], eps) * np.float64(clipping)) for u in own}
        return clip_each(leaf, unit, norms_of(dense, unit), limits, nonfinite)

    if isinstance(x, list):
        return [leaf if leaf is None else one(leaf, p) for leaf, p in zip(x, params, strict=True)]
    return one(x, params)


NAIVE = {
    "adaptive_grad_clip": adaptive_grad_clip, "clip_by_block_rms": clip_by_block_rms, "clip_by_norm": clip_by_norm,
}  # fmt: skip
