"""Accumulate gradients with sparse leaves, as `optax.MultiSteps` does for dense leaves.

The sums are arrays like the parameters, as in optax. A micro-step only adds to the rows of its gradient, and the
optimizer gets the rows of all micro-steps. SPEC clauses 6 and 16.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from islices.backend import Array
from islices.backends.jax.optax.named_rows import (
    NamedRows,
    check_transformation,
    checked,
    is_leaf,
    map_slices,
    named_rows,
    weights_of,
)
from islices.backends.jax.optax.transforms import Transformation
from islices.core.arguments import check_flag, show, whole_number
from islices.core.slices import IndexedSlices

__all__ = ["Accumulated", "accumulate"]


class Accumulated(NamedTuple):
    """The state of `accumulate`."""

    mini_step: Array  # micro-steps since the last step, int32 ()
    inner_state: Any
    sums: Any  # sums of gradients, like the parameters
    named: Any  # bool (rows,): rows of the gradients since the last step


def accumulate(inner: Any, every_k: int, *, use_grad_mean: bool = True, slots: int | None = None) -> Transformation:
    """Accumulate updates with sparse leaves as `optax.MultiSteps` does: inner steps at every k-th call.

    Parameters
    ----------
    inner : optax.GradientTransformation
        A transformation of this module.
    every_k : int
        Number of micro-steps per step; at least 1.
    use_grad_mean : bool
        Step on the mean of the k gradients, or on their sum.
    slots : int, optional
        The largest number of slices in a table's gradient. In jit a step has room for k times as many rows, at most the
        table's. None uses the largest number seen when the step is compiled.

    Returns
    -------
    optax.GradientTransformationExtraArgs
        Between steps updates are zeros: slices without rows (in jit: sentinels), and zeros for dense leaves.

    Raises
    ------
    TypeError, ValueError
        inner is not a transformation, or every_k or slots is not an int of at least 1. In update: a gradient has more
        slices than slots, or more than a compiled step has room for. The state has not been changed then.

    Notes
    -----
    If micro-batches differ in size, compile the largest one first, or set slots. A compiled step from jax.export cannot
    raise: its updates are NaN where it has no room for a row. Each micro-step sums duplicates first. The sums of 16-bit
    gradients are float32; they are divided by k at the end and rounded to the gradients' type, as inner's state is.
    (optax keeps a running mean, on all rows.) The sums need an array like the parameters. A step reads one flag per
    row.

    Examples
    --------
    >>> import jax.numpy as jnp, optax
    >>> from islices import IndexedSlices
    >>> from islices.backends.jax.optax import on_rows
    >>> tx = accumulate(on_rows(optax.sgd(1.0)), 2)
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
    if slots is not None and not (whole_number(slots) or 0) >= 1:
        kind = TypeError if whole_number(slots) is None else ValueError
        raise kind(f"slots: got {show(slots)}; accepted is an int >= 1, or None")
    largest: dict[Any, int] = {}  # the most slices of a gradient of each table so far
    compiled: dict[Any, int] = {}  # table -> number of rows that its first compiled step has room for

    def room(leaf: int, rows: Any, named: Array, due: Array) -> int:
        """Return the number of rows for a step; raise ValueError if a compiled step has no room for them."""
        if not isinstance(rows, NamedRows):
            return 0
        shape, n = rows.slices.dense_shape, rows.slices.indices.shape[0]
        if slots is not None and n > slots:
            raise ValueError(
                f"updates: got {n} slices for a table of shape {shape}; accepted are at most slots={slots}"
            )
        key = (leaf, shape)
        most = slots or max(n, largest.get(key, 0))
        size: int = min(count * most, named.shape[0])
        if count > 1 and size > compiled.get(key, size):
            raise ValueError(
                f"updates: got {n} slices for a table of shape {shape}, after a step was compiled that has room for "
                f"{compiled[key]} rows of {count} gradients; accepted is accumulate(..., slots=N), N the most slices "
                "of a gradient"
            )
        largest[key] = most
        if rows.B.is_traced(named) or rows.B.is_traced(due):
            compiled.setdefault(key, size)
        elif bool(due):
            return int(jnp.count_nonzero(named))
        return size

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
        structure: Any
        leaves, structure = jax.tree.flatten(rows)
        marks = structure.flatten_up_to(named)
        sizes = structure.unflatten([room(k, r, m, due) for k, (r, m) in enumerate(zip(leaves, marks, strict=True))])

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
    if not isinstance(rows, NamedRows):
        return total + rows
    return rows.write(total, rows.read(total) + rows.B.widen(rows.slices.values))


def _marked(rows: Any, named: Array) -> Array:
    if not isinstance(rows, NamedRows):
        return named
    return rows.write(named, jnp.ones(rows.slices.indices.shape, bool))


def _mean(rows: Any, total: Array, named: Array, size: int, *, divisor: int) -> Any:
    """Return the sum over the micro-steps, divided; for slices, in the accumulated rows. Runs in traced code only."""
    if not isinstance(rows, NamedRows):
        return (total / divisor).astype(jnp.result_type(rows))
    B, s = rows.B, rows.slices
    (ids,) = jnp.nonzero(named, size=size, fill_value=named.shape[0])
    ids = ids.astype(s.indices.dtype)
    mean = B.astype(B.div(B.read_rows(total, ids), float(divisor)), B.dtype(s.values))
    mean = jnp.where(jnp.count_nonzero(named) > size, jnp.asarray(jnp.nan, mean.dtype), mean)
    return NamedRows(IndexedSlices._trusted(B, mean, ids, s.dense_shape, coalesced=True, padded=True)).update(mean)


def _emptied(due: Array, mean: Any, x: Array) -> Array:
    """Return sums or flags reset to zero where a step was due."""
    if not isinstance(mean, IndexedSlices):
        return jnp.where(due, jnp.zeros_like(x), x)
    rows = named_rows(mean)
    return rows.write(x, jnp.zeros((*rows.slices.indices.shape, *x.shape[1:]), x.dtype))


def _nothing(fn: Callable[[], Any]) -> Any:
    """Return updates of zeros, without rows, in the shapes of those that fn returns."""

    def zeros(like: Any) -> Any:
        if not isinstance(like, IndexedSlices):
            return jnp.zeros(like.shape, like.dtype)
        rows: Any = like.dense_shape[0]
        nowhere = jnp.full(like.indices.shape, rows, like.indices.dtype)
        values = jnp.zeros(like.values.shape, like.values.dtype)
        return IndexedSlices._trusted(
            like.backend, values, nowhere, like.dense_shape, coalesced=like.coalesced, padded=like.padded
        )

    return jax.tree.map(zeros, jax.eval_shape(fn), is_leaf=is_leaf)
