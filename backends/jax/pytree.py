"""IndexedSlices, Table and PerSample as JAX pytrees, so that jax.jit, jax.tree and the others take and return them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from jax import tree_util

from islices.backend import Array, Backend, Source
from islices.persample import PerSample
from islices.registry import get_backend
from islices.slices import IndexedSlices
from islices.table import Table

__all__ = ["register"]


def register(backend: Backend) -> None:
    """Make their arrays children, and the rest static."""
    _register_slices(backend)
    _register_table(backend)
    _register_per_sample(backend)


def _owner(backend: Backend, child: Any) -> Backend:
    """The backend of a child: nothing is validated, since JAX also puts placeholders there."""
    return get_backend("numpy") if isinstance(child, np.ndarray) else backend  # what jax.device_get fetched


def _register_slices(backend: Backend) -> None:

    def flatten(s: IndexedSlices) -> tuple[tuple[Array, Array], tuple[Any, ...]]:
        return (s.values, s.indices), (s.dense_shape, s.coalesced, s.padded)

    def flatten_with_keys(s: IndexedSlices) -> tuple[Any, tuple[Any, ...]]:
        children, static = flatten(s)
        return tuple(zip(map(tree_util.GetAttrKey, ("values", "indices")), children, strict=True)), static

    def unflatten(static: tuple[Any, ...], children: Iterable[Any]) -> IndexedSlices:
        shape, coalesced, padded = static
        values, indices = children
        owner = _owner(backend, values)
        return IndexedSlices._trusted(owner, values, indices, shape, coalesced=coalesced, padded=padded)

    tree_util.register_pytree_with_keys(IndexedSlices, flatten_with_keys, unflatten, flatten)


def _register_table(backend: Backend) -> None:
    def flatten(t: Table) -> tuple[tuple[Array], tuple[Any, ...]]:
        return (t._source.weights,), (t._source.recorder, t.padding_idx, t.scale_by_freq)

    def flatten_with_keys(t: Table) -> tuple[Any, tuple[Any, ...]]:
        (weights,), static = flatten(t)
        return ((tree_util.GetAttrKey("weights"), weights),), static

    def unflatten(static: tuple[Any, ...], children: Iterable[Any]) -> Table:
        recorder, padding_idx, scale_by_freq = static
        (weights,) = children
        return Table._trusted(_owner(backend, weights), Source(weights, recorder), padding_idx, scale_by_freq)

    tree_util.register_pytree_with_keys(Table, flatten_with_keys, unflatten, flatten)


def _register_per_sample(backend: Backend) -> None:
    names = ("values", "indices", "samples", "products")

    def flatten(g: PerSample) -> tuple[tuple[Any, ...], tuple[int, ...]]:
        return (g.values, g.indices, g.samples, g.products), g.dense_shape

    def flatten_with_keys(g: PerSample) -> tuple[Any, tuple[int, ...]]:
        children, shape = flatten(g)
        return tuple(zip(map(tree_util.GetAttrKey, names), children, strict=True)), shape

    def unflatten(shape: tuple[int, ...], children: Iterable[Any]) -> PerSample:
        values, indices, samples, products = children
        return PerSample._trusted(_owner(backend, values), values, indices, samples, shape, products)

    tree_util.register_pytree_with_keys(PerSample, flatten_with_keys, unflatten, flatten)
