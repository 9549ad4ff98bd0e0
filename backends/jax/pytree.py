"""IndexedSlices as a JAX pytree, so that jax.jit, jax.tree and the others take and return it."""

from __future__ import annotations

from typing import Any

import numpy as np
from jax import tree_util

from islices.backend import Array, Backend
from islices.registry import get_backend
from islices.slices import IndexedSlices

__all__ = ["register"]


def register(backend: Backend) -> None:
    """Make the arrays of an IndexedSlices its children, and the rest static."""

    def flatten(s: IndexedSlices) -> tuple[tuple[Array, Array], tuple[Any, ...]]:
        return (s.values, s.indices), (s.dense_shape, s.coalesced, s.padded)

    def flatten_with_keys(s: IndexedSlices) -> tuple[Any, tuple[Any, ...]]:
        children, static = flatten(s)
        return tuple(zip(map(tree_util.GetAttrKey, ("values", "indices")), children, strict=True)), static

    def unflatten(static: tuple[Any, ...], children: tuple[Any, Any]) -> IndexedSlices:
        shape, coalesced, padded = static
        # nothing is validated, since JAX also puts placeholders here; what jax.device_get fetched is NumPy's
        owner = get_backend("numpy") if isinstance(children[0], np.ndarray) else backend
        return IndexedSlices._trusted(owner, *children, shape, coalesced=coalesced, padded=padded)

    tree_util.register_pytree_with_keys(IndexedSlices, flatten_with_keys, unflatten, flatten)
