"""Grouping rows in traced code, and summing them: two primitives (`primitives`).

To JAX's transformations `sum_rows` is a linear map of the values. XLA's formulation alone is used where there is no
numba, and within ``use_kernels(False)`` or ``execution("framework")`` at the time of tracing.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import ad

from islices.backend import Array
from islices.backends.jax import precision, segments
from islices.backends.jax.primitives import calls, host_calls, kernels_run, primitive, shared

__all__ = ["group", "groups_on_host", "sum_rows", "takes_groups"]


def group(indices: Array, rows: int | None) -> tuple[Array, Array]:
    """(ids, places) of traced indices: the distinct ones ascending, as many as there are slots, the spare ones at the
    end holding rows; and for each slot its place in ids. What is out of range counts as one more row, `rows`."""
    sentinel = segments.check_sentinel(rows, indices.dtype)
    if indices.shape[0] == 0:
        return indices, jnp.zeros((0,), np.int32)
    compiled = takes_groups(indices, sentinel) and host_calls().places_target() is not None
    ids, places = group_p.bind(indices, rows=sentinel, compiled=compiled)
    return ids, places


def sum_rows(values: Array, indices: Array, rows: int | None) -> tuple[Array, Array] | None:
    """(sums, ids) of traced indices, as many as there are slots: the sums of the rows that `group` names, zeros in the
    spare ones; slots out of range are left out. None where no kernel does it all at once."""
    sentinel = segments.check_sentinel(rows, indices.dtype)
    if 0 in values.shape or not takes_groups(indices, sentinel):
        return None
    if host_calls().sum_target(values.dtype.name) is None:
        return None
    sums, ids = sum_rows_p.bind(values, indices, rows=sentinel)
    return sums, ids


def takes_groups(indices: Array, rows: int, positions: Array | None = None) -> bool:
    """Whether kernels are to group these indices where the program comes to run on CPU. ValueError where their number
    is a symbol of jax.export: nothing groups them."""
    if not isinstance(indices.shape[-1], int):
        raise ValueError(
            f"indices: got a symbolic number of slots, {indices.shape[-1]}; accepted in jax.export is a known number "
            "(spare slots hold the index rows)"
        )
    compiled = kernels_run()
    if compiled is None or not compiled.is_packed(indices, rows):
        return False
    place = None if positions is None else positions.dtype.name
    return host_calls().groups_target(indices.dtype.name, place) is not None


# ---------------------------------------------------------------------- what XLA runs
# The leading axes of indices, and of the values, are mapped ones.
def _over_mapped(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def mapped(*arrays: Array, **params: Any) -> Any:
        call: Callable[..., Any] = partial(function, **params)
        for _ in range(arrays[-1].ndim - 1):
            call = jax.vmap(call)
        return call(*arrays)

    return mapped


@_over_mapped
def _group_xla(indices: Array, *, rows: int, compiled: bool) -> tuple[Array, Array]:
    return segments.unique_padded(_within(indices, indices, rows), rows)


@_over_mapped
def _sum_rows_xla(values: Array, indices: Array, *, rows: int) -> tuple[Array, Array]:
    ids, places = segments.unique_padded(_within(indices, indices, rows), rows)
    return segments.fold(_widened(values), _within(places, indices, rows), len(ids)).astype(values.dtype), ids


@_over_mapped
def _linear_sums(values: Array, places: Array, indices: Array, *, rows: int) -> Array:
    """The sums, as operations that JAX can differentiate and transpose."""
    wide = _widened(values)
    return segments.add_at(jnp.zeros(wide.shape, wide.dtype), _within(places, indices, rows), wide).astype(values.dtype)


def _within(x: Array, indices: Array, rows: int) -> Array:
    """x (n,), but at slots that name no row what is out of its range: rows for indices, n for places."""
    zero, end = precision.constant(0, indices.dtype), precision.constant(rows, indices.dtype)
    nowhere = end if x is indices else np.int32(len(x))
    return jnp.where((indices >= zero) & (indices < end), x, nowhere)


def _widened(x: Array) -> Array:
    return x.astype(np.float32) if x.dtype.itemsize == 2 else x


# ---------------------------------------------------------------------- what compiled kernels run
def groups_on_host(
    indices: Array, rows: int, positions: Array | None = None, values: int = 0
) -> tuple[Array, Array, Array, Array]:
    """(order, starts, ids, named) of each mapped call's indices: where the values of slots lie (positions among so many
    values; None: in their own places), sorted by index and stably; where each row's run starts in order, with the last
    one's end appended; the rows' numbers, the spare ones at the end holding rows; how many rows have slots."""
    *lead, n = indices.shape
    results = [((*lead, n), np.uint64), ((*lead, n + 1), np.uint64), (indices.shape, indices.dtype)]
    results += [((*lead, 1), np.int64), ((n,), indices.dtype)]
    if positions is None:
        name, operands, how = host_calls().groups_target(indices.dtype.name), [indices], {}
    else:
        name = host_calls().groups_target(indices.dtype.name, positions.dtype.name)
        operands, how = [indices, positions], {"values": values}
    order, starts, ids, named, _ = calls(name, operands, results, rows=rows, **how)
    return order, starts, ids, named


def _group_host(indices: Array, *, rows: int, compiled: bool) -> tuple[Array, Array]:
    if not compiled:
        return _group_xla(indices, rows=rows, compiled=compiled)  # type: ignore[no-any-return]
    order, starts, ids, named = groups_on_host(indices, rows)
    return ids, calls(host_calls().places_target(), (order, starts, named), [(indices.shape, np.int32)])[0]


def _sum_rows_host(values: Array, indices: Array, *, rows: int) -> tuple[Array, Array]:
    order, starts, ids, named = groups_on_host(indices, rows)
    target = host_calls().sum_target(values.dtype.name)
    return calls(target, (values, order, starts, named), [(values.shape, values.dtype)])[0], ids


# ---------------------------------------------------------------------- the primitives
def _group_shapes(indices: Any, *, rows: int, compiled: bool) -> tuple[Any, Any]:
    return shared(indices), shared(indices, dtype=np.dtype(np.int32))


def _sum_rows_shapes(values: Any, indices: Any, *, rows: int) -> tuple[Any, Any]:
    return shared(values, indices), shared(indices)


def _group_jvp(primals: Any, tangents: Any, **params: Any) -> tuple[Any, Any]:
    outs = group_p.bind(*primals, **params)
    return outs, [ad.Zero(x.aval.to_tangent_aval()) for x in outs]


def _sum_rows_jvp(primals: Any, tangents: Any, *, rows: int) -> tuple[Any, Any]:
    outs = sum_rows_p.bind(*primals, rows=rows)
    tangents_out = [ad.Zero(x.aval.to_tangent_aval()) for x in outs]
    if type(tangents[0]) is not ad.Zero:
        _, places = group_p.bind(primals[1], rows=rows, compiled=True)
        tangents_out[0] = _linear_sums(tangents[0], places, primals[1], rows=rows)
    return outs, tangents_out


def _group_batched(args: Any, dims: Any, **params: Any) -> tuple[Any, Any]:
    return group_p.bind(jnp.moveaxis(args[0], dims[0], 0), **params), (0, 0)


def _sum_rows_batched(args: Any, dims: Any, **params: Any) -> tuple[Any, Any]:
    (values, indices), (of_values, of_indices) = args, dims
    if of_indices is None:  # the mapped axis is one more of the rows'
        return sum_rows_p.bind(jnp.moveaxis(values, of_values, indices.ndim), indices, **params), (indices.ndim, None)
    indices = jnp.moveaxis(indices, of_indices, 0)
    shape = (len(indices), *values.shape)
    values = jnp.broadcast_to(values, shape) if of_values is None else jnp.moveaxis(values, of_values, 0)
    return sum_rows_p.bind(values, indices, **params), (0, 0)


group_p = primitive("islices_group", _group_shapes, _group_host, _group_xla, jvp=_group_jvp, batched=_group_batched)
sum_rows_p = primitive(
    "islices_sum_rows", _sum_rows_shapes, _sum_rows_host, _sum_rows_xla, jvp=_sum_rows_jvp, batched=_sum_rows_batched
)
