"""Compute row-sparse gradients of functions of plain arrays. The module detects gathers and slices that read rows of a
parameter.

The function is traced once. A `Plan` of the trace is differentiated with respect to the rows that the function reads,
and to all other float parameters. So a sparse gradient needs no array of the parameter's size, and models need no
special layers. May import: `jax`, `numpy`, the core, this folder.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import tree_util

from islices.backend import FLOATS, Backend
from islices.backends.jax.differentiation import Aux, taken, trace
from islices.backends.jax.host_views import Tracer
from islices.backends.jax.plans import Plan
from islices.backends.jax.row_reads import Marked, whole
from islices.core.arguments import show
from islices.core.slices import IndexedSlices
from islices.embedding import marking
from islices.embedding.lookup_gradients import empty_slices


# ---------------------------------------------------------------------- the transformation
def differentiate_rows(
    B: Backend, fn: Callable[..., tuple[Any, Any]], tree: Any, sparse: Any, data: Sequence[Any] | None = None
) -> tuple[Any, Any, Any]:
    """See `Backend.differentiate_rows`."""
    if data is not None:
        return _per_sample(B, fn, tree, sparse, data)
    paths, structure = tree_util.tree_flatten_with_path(tree)
    names = [tree_util.keystr(path) for path, _ in paths]
    leaves = [x for _, x in paths]
    floats = [k for k, x in enumerate(leaves) if isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, np.inexact)]
    storable = [k for k in floats if leaves[k].dtype.name in FLOATS]
    marked = marking.marked(
        sparse, names, leaves, lambda flags: jax.tree.leaves(jax.tree.broadcast(flags, tree)), storable
    )
    aux = Aux()

    def traced(arrays: list[Any]) -> tuple[Any, list[Any]]:
        full = list(leaves)
        for k, x in zip(floats, arrays, strict=True):
            full[k] = x
        given = structure.unflatten(full)  # type: ignore[attr-defined]
        before = [tree_util.tree_leaves(given) for _ in range(2)]
        loss, rest = fn(given)
        _check_unchanged(names, [*before, tree_util.tree_leaves(given)], rest)
        return jnp.reshape(loss, ()), aux.take_apart(rest)

    arrays = [leaves[k] for k in floats]
    closed = trace(traced, arrays)
    plan = _plan(closed.jaxpr, floats, marked)
    if isinstance(sparse, str):
        marked = {k for k in marked if _pays(plan, k, leaves[k], sparse)}
        plan = _plan(closed.jaxpr, floats, marked)
    elif plan.others:
        leaf, use = next(iter(plan.others.items()))
        raise TypeError(
            f"sparse: got the leaf {names[leaf]!r}, which is used by {use.by}{use.line}; accepted are leaves that fn "
            "reads only by rows (w[ids], jnp.take(w, ids, axis=0)). Leave it out, or use sparse="
            '"auto": its gradient is dense then'
        )
    dense = [k for k in floats if k not in marked]

    (loss, *rest), gradients, reads = taken(plan, closed.consts, arrays, [floats.index(k) for k in dense])
    rest = [x if m is None else whole(leaves[m.leaf], m) for m, x in zip(plan.outputs[1:], rest, strict=True)]
    out: dict[int, Any] = dict(zip(dense, gradients, strict=True))
    for k in marked:
        out[k] = _slices(B, leaves[k], [(upstream, ids) for slot, upstream, (ids,) in reads if slot.leaf == k])
    grads = structure.unflatten(map(out.get, range(len(leaves))))  # type: ignore[attr-defined]
    return loss, aux.put_together(rest), grads


def _check_unchanged(names: list[str], states: list[list[Any]], rest: Any) -> None:
    """Raise ValueError if `fn` changed leaves of its argument, as functions of flax.nnx modules may do, but did not
    return the new leaves.

    `states` contains the leaves of the argument three times: read twice before the call, and once after it. Leaves that
    differ between the first two reads are skipped, because some pytrees make new leaves at each read.
    """
    returned = {id(x) for x in tree_util.tree_leaves(rest)}
    leaves = zip(names, *states, strict=False)
    lost = [name for name, x, y, z in leaves if x is y and z is not y and id(z) not in returned]
    if lost:
        raise ValueError(
            f"fn: changed the leaves {show(lost)} of its argument, which would be lost; accepted is "
            "has_aux=True and a fn that returns them: loss, nnx.state(model, nnx.Not(nnx.Param)); then "
            "nnx.update(model, state)"
        )


def _per_sample(
    B: Backend, fn: Callable[..., tuple[Any, Any]], tree: Any, sparse: Any, data: Sequence[Any]
) -> tuple[Any, Any, Any]:
    """Run `differentiate_rows` under vmap, and return (losses, None, gradients). Losses and dense gradients contain one
    entry per sample. The slices of all samples are concatenated."""

    def one(sample: list[Any]) -> tuple[Any, Any]:
        cut = [x[None] for x in sample]
        loss, _, grads = differentiate_rows(B, lambda tree: fn(tree, cut), tree, sparse)
        return loss, grads

    def together(x: Any) -> Any:
        if not isinstance(x, IndexedSlices):
            return x
        values = x.values.reshape(-1, *x.values.shape[2:])
        return IndexedSlices._trusted(B, values, x.indices.reshape(-1), x.dense_shape)

    losses, grads = jax.vmap(one)(list(data))
    return losses, None, tree_util.tree_map(together, grads, is_leaf=lambda x: isinstance(x, IndexedSlices))


def _plan(jaxpr: Any, floats: list[int], marked: set[int]) -> Plan:
    marks = (Marked(k, v.aval.dtype) if k in marked else None for k, v in zip(floats, jaxpr.invars, strict=True))
    return Plan(jaxpr, tuple(marks), (True, *(False for _ in jaxpr.outvars[1:])))


def _pays(plan: Plan, leaf: int, x: Any, sparse: str) -> bool:
    """Return True if `fn` reads a leaf only by rows, and if the number of these rows suits `sparse` (see
    `marking.pays`)."""
    reads = sum(math.prod(slot.found[0].shape) for slot in plan.slots if slot.leaf == leaf)
    return leaf not in plan.others and marking.pays(sparse, reads, x.shape[0])


def _slices(B: Backend, table: Any, parts: list[tuple[Any, Any]]) -> IndexedSlices:
    """Return slices with the gradients of all rows of a table that were read. Slots whose index is not a row are
    removed; in traced code, they become padding."""
    if not parts:
        return empty_slices(B, table)
    rows, row_shape = table.shape[0], table.shape[1:]
    dtype = np.result_type(*(i.dtype for _, i in parts))
    values = jnp.concatenate([g.reshape(-1, *row_shape) for g, _ in parts])
    indices = jnp.concatenate([i.reshape(-1).astype(dtype) for _, i in parts])
    values, indices = B.select(values, indices, indices < rows, rows)
    padded = isinstance(values, Tracer) or isinstance(indices, Tracer)
    return IndexedSlices._trusted(B, values, indices, table.shape, padded=padded)
