"""Gradient accumulation for sparse leaves: what `optax.MultiSteps` is for dense ones.

The sums lie in arrays like the parameters, as optax's do, but a micro-step adds to the rows its gradient names, and the
optimizer sees the rows that any of them named. SPEC clauses 6 and 16.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from islices.arguments import check_flag, show, whole_number
from islices.backend import Array
from islices.backends.jax.optax.rows import (
    Rows,
    check_transformation,
    checked,
    is_leaf,
    map_slices,
    named_rows,
    weights_of,
)
from islices.backends.jax.optax.transforms import Transformation
from islices.slices import IndexedSlices

__all__ = ["Accumulated", "accumulate"]


class Accumulated(NamedTuple):
    """The state of `accumulate`."""

    mini_step: Array  # micro-steps since the last step, int32 ()
    inner_state: Any
    sums: Any  # of gradients, like the parameters
    named: Any  # bool (rows,): rows that a gradient has named since the last step


def accumulate(inner: Any, every_k: int, *, use_grad_mean: bool = True) -> Transformation:
    """`optax.MultiSteps` for updates with sparse leaves: inner takes a step at every k-th call, on the mean or sum.

    Parameters
    ----------
    inner : optax.GradientTransformation
        Of this front.
    every_k : int
        At least 1. In jit all gradients of a step have the same number of slices, n: the step sees min(k n, rows) rows,
        n being that of the last one. Where more have been named, its updates are NaN, since none may be left out.
    use_grad_mean : bool
        The mean of the k gradients, or their sum.

    Returns
    -------
    optax.GradientTransformationExtraArgs
        In between, updates are zeros: slices that name no row (in jit: sentinels), zeros of dense leaves.

    Raises
    ------
    TypeError, ValueError
        inner is no transformation; every_k is no int, or below 1.

    Notes
    -----
    Sums are float32 for 16-bit gradients, each micro-step's duplicates first, divided by k at the end, and then rounded
    to the gradients' type, which is that of inner's state.
    (optax keeps a running mean, on all rows.) Memory: an array like the parameters. A step reads one flag a row.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from islices import IndexedSlices
    >>> from islices.backends.jax.optax import sgd
    >>> tx = accumulate(sgd(1.0), 2)
    >>> state = tx.init(jnp.zeros((5, 1)))
    >>> for row in (3, 1):
    ...     update, state = tx.update(IndexedSlices(jnp.ones((1, 1)), jnp.array([row]), (5, 1)), state)
    >>> update.indices.tolist(), update.values.tolist()
    ([1, 3], [[-0.5], [-0.5]])
    """
    inner = check_transformation(inner, "inner")
    count = whole_number(every_k)
    if count is None or count < 1:
        raise (TypeError if count is None else ValueError)(f"every_k: got {show(every_k)}; accepted is an int >= 1")
    divisor = count if check_flag(use_grad_mean, "use_grad_mean") else 1

    def init(params: Any) -> Accumulated:
        sums = jax.tree.map(lambda x: jnp.zeros_like(x, jnp.promote_types(x.dtype, jnp.float32)), weights_of(params))
        named = jax.tree.map(lambda x: jnp.zeros(jnp.shape(x)[:1], bool), sums)
        return Accumulated(jnp.zeros([], jnp.int32), inner.init(params), sums, named)

    def update(updates: Any, state: Accumulated, params: Any = None, **extra: Any) -> tuple[Any, Accumulated]:
        rows = map_slices(named_rows, checked(updates, "accumulate"))
        sums = jax.tree.map(_added, rows, state.sums)
        named = jax.tree.map(_marked, rows, state.named)

        mini_step = (state.mini_step + 1) % count
        due = mini_step == 0

        # sums and flags stay outside of the branches, where XLA would copy them
        sizes = jax.tree.map(partial(_size, count=count, due=due), rows, named)

        def gather() -> Any:
            return jax.tree.map(partial(_mean, divisor=divisor), rows, sums, named, sizes)

        def step() -> tuple[Any, Any]:
            return inner.update(means, state.inner_state, params, **extra)  # type: ignore[no-any-return]

        means = jax.lax.cond(due, gather, lambda: _nothing(gather))
        stepped, after = jax.lax.cond(due, step, lambda: (_nothing(lambda: step()[0]), state.inner_state))
        sums = jax.tree.map(partial(_emptied, due), means, sums, is_leaf=is_leaf)
        named = jax.tree.map(partial(_emptied, due), means, named, is_leaf=is_leaf)
        return stepped, Accumulated(mini_step, after, sums, named)

    return Transformation(init, update)  # pyright: ignore[reportArgumentType]


def _added(rows: Any, total: Array) -> Array:
    if not isinstance(rows, Rows):
        return total + rows
    return rows.write(total, rows.read(total) + rows.B.widen(rows.slices.values))


def _marked(rows: Any, named: Array) -> Array:
    if not isinstance(rows, Rows):
        return named
    return rows.write(named, jnp.ones(rows.slices.indices.shape, bool))


def _size(rows: Any, named: Array, *, count: int, due: Array) -> int:
    """How many rows a step sees: as many as were named where that is known, else as many as may have been."""
    if not isinstance(rows, Rows):
        return 0
    if not rows.B.is_traced(named) and not rows.B.is_traced(due) and bool(due):
        return int(jnp.count_nonzero(named))
    return int(min(count * rows.slices.indices.shape[0], named.shape[0]))


def _mean(rows: Any, total: Array, named: Array, size: int, *, divisor: int) -> Any:
    """The sum over the micro-steps, divided: of slices, in the rows that were named; always traced."""
    if not isinstance(rows, Rows):
        return (total / divisor).astype(jnp.result_type(rows))
    B, s = rows.B, rows.slices
    (ids,) = jnp.nonzero(named, size=size, fill_value=named.shape[0])
    ids = ids.astype(s.indices.dtype)
    mean = B.astype(B.div(B.read_rows(total, ids), float(divisor)), B.dtype(s.values))
    mean = jnp.where(jnp.count_nonzero(named) > size, jnp.asarray(jnp.nan, mean.dtype), mean)
    return Rows(IndexedSlices._trusted(B, mean, ids, s.dense_shape, coalesced=True, padded=True)).update(mean)


def _emptied(due: Array, mean: Any, x: Array) -> Array:
    """Sums or flags as after a step, where one was due."""
    if not isinstance(mean, IndexedSlices):
        return jnp.where(due, jnp.zeros_like(x), x)
    rows = named_rows(mean)
    return rows.write(x, jnp.zeros((*rows.slices.indices.shape, *x.shape[1:]), x.dtype))


def _nothing(fn: Callable[[], Any]) -> Any:
    """Updates of the shapes of those that fn returns, which name no row and are zeros."""

    def zeros(like: Any) -> Any:
        if not isinstance(like, IndexedSlices):
            return jnp.zeros(like.shape, like.dtype)
        rows: Any = like.dense_shape[0]
        nowhere = jnp.full(like.indices.shape, rows, like.indices.dtype)
        values, flags = jnp.zeros(like.values.shape, like.values.dtype), {"coalesced": like.coalesced}
        return IndexedSlices._trusted(like.backend, values, nowhere, like.dense_shape, padded=like.padded, **flags)

    return jax.tree.map(zeros, jax.eval_shape(fn), is_leaf=is_leaf)
