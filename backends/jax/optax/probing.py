"""Detect transformations that `on_rows` cannot run. The module compares steps on some rows with optax's steps on all
rows.

The result depends only on the updates that a transformation returns, not on its name or the class of its state.
SPEC clause 24.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from islices.backends.jax.optax.named_rows import is_leaf, leaves_of, map_slices, on_named_rows
from islices.core.registry import get_backend
from islices.core.rows import to_dense
from islices.core.slices import IndexedSlices

#: `GRADIENTS` contains the magnitude of each row's gradient, and `WEIGHTS` the magnitude of each row's weights.
#: Gradients of the first steps contain all rows, and gradients of later steps contain only the rows `NAMED`.
GRADIENTS = np.array([3e4, 1e-3, 1e2, 1.0, 2e3, 50.0, 0.1, 0.0])
WEIGHTS = np.array([1e3, 1.0, 1e2, 10.0, 0.1, 1e3, 1.0, 0.0])
NAMED = np.array([1, 3, 4, 6])
FIRST, LATER = 2, 4  # steps
WAY_OUT = (
    "accepted are transformations that treat each row by itself, those of islices.backends.jax.optax, and any with "
    'rows="all", which makes the gradient dense'
)


def check_rows(inner: Any, updates: Any, params: Any, extra: Mapping[str, Any]) -> None:
    """Raise ValueError if steps of `inner` on the rows of a gradient differ from steps on the dense gradient.

    Parameters
    ----------
    inner : optax.GradientTransformationExtraArgs
    updates, params, extra
        The arguments of the next update. The probe replaces `updates` and `params` by small arrays with the same
        structure and, for slices, the same row shapes. In `extra`, ones replace traced values.

    Notes
    -----
    No error is raised if `inner` raises TypeError, ValueError or LookupError on the small arrays, or if its updates are
    traced.
    """
    with jax.ensure_compile_time_eval():
        try:
            differ = _differ(inner, updates, params is not None, {name: _known(x) for name, x in extra.items()})
        except (TypeError, ValueError, LookupError):
            return  # the update will raise this error, unless only the small sizes of the probe cause it
    if differ:
        raise ValueError(
            "inner: got a transformation that computes a row's update from the other rows, their number or its place "
            f"(or adds noise); {WAY_OUT}"
        )


def _differ(inner: Any, updates: Any, has_params: bool, extra: Mapping[str, Any]) -> bool:
    """Return True if steps on the rows of a gradient differ from steps on all rows. If `inner` returns traced updates,
    they cannot be compared, so return False."""
    draw = np.random.default_rng(0)

    def like(x: Any, scales: Any) -> Any:
        """Return a random array in place of a leaf. If the leaf is slices, `scales` contains the magnitude of each
        row."""
        sparse = isinstance(x, IndexedSlices)
        shape: Any = (len(scales), *x.dense_shape[1:]) if sparse else (1,) * jnp.ndim(x)
        values = draw.uniform(0.5, 1.0, shape) * draw.choice([-1.0, 1.0], shape)
        if sparse:
            values *= scales.reshape(-1, *[1] * (len(shape) - 1))
        dtype = jnp.result_type(x.values if sparse else x)
        return jnp.asarray(values, jnp.float32 if jnp.issubdtype(dtype, jnp.floating) else dtype)

    def named(x: Any) -> Any:
        grad = like(x, GRADIENTS[NAMED])
        if not isinstance(x, IndexedSlices):
            return grad
        return IndexedSlices(grad, jnp.asarray(NAMED, x.indices.dtype), (len(GRADIENTS), *grad.shape[1:]))

    def tree(fn: Callable[[Any], Any]) -> Any:
        return jax.tree.map(fn, updates, is_leaf=is_leaf)

    @jax.jit
    def step(grads: Any, state: Any, weights: Any) -> Any:
        return inner.update(grads, state, weights if has_params else None, **extra)

    @jax.jit
    def step_rows(grads: Any, state: Any, weights: Any) -> Any:
        return on_named_rows(inner, grads, state, weights if has_params else None, extra)

    weights = tree(lambda x: like(x, WEIGHTS))
    state = inner.init(weights)
    for _ in range(FIRST):
        moved, state = step(tree(lambda x: like(x, GRADIENTS)), state, weights)
        if any(map(get_backend("jax").is_traced, jax.tree.leaves(moved))):
            return False
        weights = jax.tree.map(jnp.add, weights, moved)

    dense = state
    for _ in range(LATER):
        grads = tree(named)
        rows, state = step_rows(grads, state, weights)
        moved, dense = step(map_slices(to_dense, grads), dense, weights)
        for x, whole in zip(leaves_of(rows), jax.tree.leaves(moved), strict=True):
            got, expected = (x.values, whole[NAMED]) if isinstance(x, IndexedSlices) else (x, whole)
            if not np.allclose(got, expected, rtol=1e-2, atol=0, equal_nan=True):
                return True
        weights = jax.tree.map(jnp.add, weights, moved)
    return False


def _known(x: Any) -> Any:
    """Replace traced values in an extra argument by ones."""
    traced = get_backend("jax").is_traced
    return jax.tree.map(lambda v: jnp.ones(v.shape, v.dtype) if traced(v) else v, x)
