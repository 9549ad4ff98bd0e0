"""Derivatives in JAX with respect to the rows a function looks up.

The function is traced once, as jax.jit would, and evaluated again by `rewriting` under jax.value_and_grad with one more
input for each lookup. So nothing the size of a table is made, and nothing has to be known of how the function is
written. Tables and their rows may be traced by an outer transformation, or watched by an outer differentiation: rows
are then read through its primitive, and second derivatives are right.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, tree_util
from jax.custom_derivatives import SymbolicZero

from islices.backend import (
    Array,
    Gradient,
    GradientOfValue,
    LookedUp,
    ProductUse,
    Source,
    TableUse,
    Transform,
    WholeUse,
)
from islices.backends.jax import memory
from islices.backends.jax.linen import intercepting
from islices.backends.jax.lookups import RECORDER
from islices.backends.jax.memory import Tracer
from islices.backends.jax.primitives import varying
from islices.backends.jax.rewriting import Found, Multiplied, Rewriting, Roles, Slot, evaluate
from islices.memory import zeros
from islices.table import Table

__all__ = [
    "Aux",
    "check_unchecked",
    "custom_gradient",
    "differentiate",
    "flatten_tree",
    "per_sample_gradients",
    "with_gradient",
]


def differentiate(
    fn: Transform, variables: Sequence[Array], sources: Sequence[Source]
) -> tuple[Array, Any, list[Array], list[list[TableUse]]]:
    """See `Backend.differentiate`."""
    weights = [s.weights for s in sources]
    aux = Aux()

    def traced(variables: list[Array], weights: list[Array]) -> tuple[Array, list[Array]]:
        with intercepting():
            loss, rest = fn(list(variables), [Source(w, RECORDER) for w in weights])
        return jnp.reshape(loss, ()) if loss.size == 1 else loss, aux.take_apart(rest)

    try:
        closed = jax.make_jaxpr(traced)(list(variables), weights)
    except (jax.errors.ConcretizationTypeError, jax.errors.TracerArrayConversionError) as error:
        error.add_note("islices.value_and_grad traces fn, as jax.jit does: it cannot look at the values of its arrays")
        raise
    check_unchecked(closed.jaxpr)
    inputs = (*(None for _ in variables), *range(len(sources)))
    relayed = frozenset(k for k, s in enumerate(sources) if s.recorder is not None)
    plan = Rewriting(closed.jaxpr, inputs, Roles(relayed))
    operands = sorted(plan.dense)
    if operands:
        plan = Rewriting(closed.jaxpr, inputs, Roles(relayed, frozenset(operands)))

    def run(
        variables: list[Array], deltas: list[Array], operands_: list[Array]
    ) -> tuple[Array, tuple[Array, list[Any], list[Found]]]:
        given = list(weights)
        for k, x in zip(operands, operands_, strict=True):
            given[k] = x
        (loss, *rest), found = evaluate(plan, closed.consts, [*variables, *given], deltas)
        return loss.sum() if loss.ndim else loss, (loss, rest, found)

    deltas = [_zeros(slot, weights[slot.table]) for slot in plan.slots]
    taking = jax.value_and_grad(run, argnums=(0, 1, 2), has_aux=True)
    (_, (loss, rest, found)), (gradients, upstreams, whole) = taking(
        list(variables), deltas, [weights[k] for k in operands]
    )
    lookups: list[list[TableUse]] = [[] for _ in sources]
    for slot, one, upstream in zip(plan.slots, found, upstreams, strict=True):
        use: TableUse | None = _multiplied(slot, one, upstream) if isinstance(slot.static, Multiplied) else None
        use = use or _looked_up(slot, one, upstream)
        if use is not None:
            lookups[slot.table].append(use)
    for k, gradient in zip(operands, whole, strict=True):
        lookups[k].append(WholeUse(gradient))
    returned = [sources[t] if isinstance(t, int) else None for t in plan.outputs[1:]]
    return loss, aux.put_together(rest, returned), gradients, lookups


def check_unchecked(jaxpr: Any) -> None:
    """Raise ValueError under a shard_map that keeps account of what varies along its axes: JAX would add up the ranks'
    gradients of what does not, while rows are each rank's own."""
    if any(varying(v.aval) for v in (*jaxpr.constvars, *jaxpr.invars)):
        raise ValueError(
            "islices.value_and_grad within jax.shard_map(..., check_vma=True): accepted is check_vma=False, where all "
            "gradients are the rank's own; islices.distributed.all_reduce adds them up"
        )


def _zeros(slot: Slot, weights: Array) -> Array:
    """The input whose gradient a slot's rows get; under a trace no constant, which would be stored in the program."""
    shape, dtype = slot.rows.shape, slot.rows.dtype
    if isinstance(weights, Tracer):
        return lax.full(shape, 0, dtype)
    return memory.put(zeros(shape, dtype), weights)


def _multiplied(slot: Slot, found: Found, upstream: Array) -> ProductUse | None:
    """The factors of a product with the weights; zeros where it did not run."""
    if found is None:
        return None
    ((inputs,), _), how = found, slot.static
    if how.leading:
        upstream = jnp.moveaxis(upstream, slot.axes.count("scan"), -1)
    factors = (inputs, upstream) if how.by_rows else (upstream, inputs)
    return ProductUse("", inputs=factors[1], upstream=factors[0], axes=slot.axes)


def _looked_up(slot: Slot, found: Found, upstream: Array) -> LookedUp | None:
    """What a slot found; without the rounds of a loop, or the branch, that did not run, where that is known."""
    if found is None or isinstance(slot.static, Multiplied):
        return None
    integers, ran = found
    if ran is not None and not isinstance(ran, Tracer):
        ran = np.asarray(ran)
        if not ran.any():
            return None
        if not ran.all():
            kept = np.nonzero(ran.reshape(-1))[0]
            arrays = (x.reshape(-1, *x.shape[ran.ndim :])[kept] for x in (upstream, *integers))
            upstream, *integers = arrays  # type: ignore[assignment]
    ids, *extras = integers
    return LookedUp(upstream, ids, tuple(extras), slot.static, slot.axes)


class Aux:
    """What a traced function returns beside its loss: arrays go through JAX, anything else stays aside."""

    def take_apart(self, tree: Any) -> list[Array]:
        """The traced arrays of it, of which nothing is kept: JAX calls that a leak."""
        leaves, self.structure = tree_util.tree_flatten(tree, is_leaf=lambda x: isinstance(x, Table))
        arrays = [x._source.weights if isinstance(x, Table) else x for x in leaves]
        self.traced = [isinstance(x, Tracer) for x in arrays]
        self.leaves = [_without_weights(x) if t else x for x, t in zip(leaves, self.traced, strict=True)]
        return [x for x, t in zip(arrays, self.traced, strict=True) if t]

    def put_together(self, arrays: list[Array], sources: list[Source | None]) -> Any:
        """The tree with the arrays' values; sources stand where the array is a differentiated table's."""
        values = iter(zip(arrays, sources, strict=True))
        restored = (_restored(x, *next(values)) if t else x for x, t in zip(self.leaves, self.traced, strict=True))
        return tree_util.tree_unflatten(self.structure, list(restored))


def _without_weights(x: Any) -> Table | None:
    if not isinstance(x, Table):
        return None
    return Table._trusted(x.backend, Source(None, x._source.recorder), x.padding_idx, x.scale_by_freq)


def _restored(x: Table | None, value: Array, source: Source | None) -> Any:
    if x is None:
        return value if source is None else source.weights
    return Table._trusted(x.backend, source or Source(value, x._source.recorder), x.padding_idx, x.scale_by_freq)


# ---------------------------------------------------------------------- other derivatives
def custom_gradient(forward: Callable[..., Array], backward: Gradient) -> Callable[..., Array]:
    """See `Backend.custom_gradient`."""
    function = jax.custom_vjp(forward)
    function.defvjp(lambda *arrays: (forward(*arrays), arrays), backward)
    return function


def with_gradient(value: Array, arrays: Sequence[Array], backward: GradientOfValue) -> Array:
    """See `Backend.with_gradient`: in forward mode too, where a tangent passes through the transposed gradient."""
    if not any(isinstance(x, Tracer) for x in arrays):
        return value

    @jax.custom_jvp
    def attached(value: Array, *arrays: Array) -> Array:
        return value

    @partial(attached.defjvp, symbolic_zeros=True)
    def rule(primals: Sequence[Array], tangents: Sequence[Any]) -> tuple[Array, Any]:
        known, *given = primals
        moving = {k: t for k, t in enumerate(tangents[1:]) if not isinstance(t, SymbolicZero)}

        def pull(upstream: Array) -> list[Array]:
            gradients = backward(known, tuple(given), upstream)
            return [gradients[k] for k in moving]

        # linear in upstream: its transpose is the same wherever it is taken
        _, push = jax.vjp(pull, lax.full_like(known, 0))
        (tangent,) = push(list(moving.values()))
        return attached(*primals), tangent

    return attached(value, *arrays)


def per_sample_gradients(
    fn: Callable[[list[Array], list[Array]], Array], variables: Sequence[Array], data: Sequence[Array]
) -> list[Array]:
    """See `Backend.per_sample_gradients`."""

    def loss(variables: list[Array], sample: list[Array]) -> Array:
        with intercepting():
            return jnp.reshape(fn(list(variables), [x[None] for x in sample]), ())

    return jax.vmap(jax.grad(loss), in_axes=(None, 0))(list(variables), list(data))  # type: ignore[no-any-return]


def flatten_tree(x: Any, is_leaf: Callable[[Any], bool]) -> tuple[list[Any], Callable[[list[Any]], Any]] | None:
    """See `Backend.flatten_tree`."""
    leaves, structure = tree_util.tree_flatten(x, is_leaf=is_leaf)
    if tree_util.treedef_is_leaf(structure) and len(leaves) == 1:
        return None
    return leaves, structure.unflatten  # type: ignore[attr-defined]
