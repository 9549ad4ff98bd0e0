"""Bags of a table's rows in traced code: one primitive (`primitives`), which on CPU is a compiled host kernel.

The kernel reads each row where it lies and adds it to its bag: no array of all rows is made. To JAX's transformations
bags are a linear map of the table.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from islices.backend import Array
from islices.backends.jax.lookups import mapped_in_front
from islices.backends.jax.primitives import calls, host_calls, kernels_run, primitive, shared

__all__ = ["read_bags"]

#: (table, ids, segments, bags, keep or None) to the bags
Otherwise = Callable[[Array, Array, Array, Array, Array | None], Array]


def read_bags(
    table: Array, ids: Array, segments: Array, bags: Array, keep: Array | None, otherwise: Otherwise
) -> Array | None:
    """The sums of the table's rows ids (n,) by segment, of those that keep, if there is one, has not as 0; None where
    no kernel takes them."""
    count, n = bags.shape[0], ids.shape[0]
    if not isinstance(n, int) or not isinstance(count, int):
        raise ValueError(
            f"ids: got a symbolic number of them, {n}, for {count} bags; accepted in jax.export are known numbers"
        )
    if kernels_run() is None or 0 in table.shape or 0 in (count, n):
        return None
    types = (ids.dtype.name, segments.dtype.name, None if keep is None else keep.dtype.name)
    targets = host_calls()
    if targets.members_target(*types) is None or targets.bags_target(table.dtype.name) is None:
        return None
    operands = [table, ids, segments, *([] if keep is None else [keep])]
    (out,) = bags_p.bind(*operands, count=count, otherwise=otherwise)
    return out


def _shapes(table: Any, *integers: Any, count: int, otherwise: Otherwise) -> list[Any]:
    return [shared(table, *integers, shape=(count, *table.shape[1:]))]


def _elsewhere(
    table: Array, ids: Array, segments: Array, *keep: Array, count: int, otherwise: Otherwise
) -> list[Array]:
    bags = jnp.zeros((count,), np.int32)
    return [otherwise(table, ids, segments, bags, keep[0] if keep else None)]


def _on_host(table: Array, ids: Array, segments: Array, *keep: Array, count: int, otherwise: Otherwise) -> list[Array]:
    targets, n = host_calls(), ids.shape[0]
    integers = (ids, segments, *keep)
    results: list[Any] = [((n,), np.uint64), ((n + 1,), np.uint64), ((1,), np.int64), ((n,), np.uint64)]
    results += [((n,), np.int64), ((n,), np.uint64)]
    name = targets.members_target(*(x.dtype.name for x in integers), *([] if keep else [None]))
    order, starts, named, numbers, *_ = calls(name, integers, results, bags=count, rows=table.shape[0])
    given = (table, order, starts, named, numbers)
    return calls(targets.bags_target(table.dtype.name), given, [((count, *table.shape[1:]), table.dtype)])


def _batched(args: Any, dims: Any, *, count: int, otherwise: Otherwise) -> tuple[Any, Any]:
    """Mapped bags of one table are more bags."""
    size = next(x.shape[d] for x, d in zip(args, dims, strict=True) if d is not None)
    if dims[0] is not None or size * count > np.iinfo(args[2].dtype).max:
        return jax.vmap(partial(_elsewhere, count=count, otherwise=otherwise), dims)(*args), (0,)
    table, *integers = args
    ids, segments, *keep = mapped_in_front(integers, dims[1:])
    first = lax.broadcasted_iota(segments.dtype, segments.shape, 0) * count
    within = (segments >= 0) & (segments < count)
    flat = [jnp.reshape(x, (-1,)) for x in (ids, jnp.where(within, segments + first, -1), *keep)]
    (out,) = bags_p.bind(table, *flat, count=size * count, otherwise=otherwise)
    return [jnp.reshape(out, (size, count, *table.shape[1:]))], (0,)


bags_p = primitive("islices_read_bags", _shapes, _on_host, _elsewhere, whole=True, batched=_batched)
