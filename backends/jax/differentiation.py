"""Compute row-sparse gradients of functions that look up rows or bags of tables.

The function is traced once, as in jax.jit. Then the module `plans` evaluates the trace under jax.value_and_grad, with
an additional input of zeros for each lookup. The gradient of this input is the gradient of the rows or bags that the
lookup returns. So lookups allocate no array of the table's size. The function may use a table only in lookups and as
`table.weights`. The module `tables` lists the additional inputs for `table.weights`. Outer transformations that trace
or differentiate the tables see each read of rows. So second derivatives are correct.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax, tree_util
from jax.custom_derivatives import SymbolicZero

from islices.backend import Array, Differentiated, Gradient, GradientOfValue, SampleLoss, Source, TableUse, Transform
from islices.backends.jax import host_views
from islices.backends.jax.host_calls.primitive import varying
from islices.backends.jax.host_views import Tracer
from islices.backends.jax.markers import RECORDER
from islices.backends.jax.plans import Plan, evaluate
from islices.backends.jax.row_reads import Slot
from islices.backends.jax.tables import TableWeights, use_of
from islices.core.host_memory import zeros


def differentiate(fn: Transform, variables: Sequence[Array], sources: Sequence[Source]) -> Differentiated:
    """See `Backend.differentiate`."""
    weights = [s.weights for s in sources]
    aux = Aux()

    def traced(variables: list[Array], weights: list[Array]) -> tuple[Array, list[Array]]:
        loss, rest = fn(list(variables), [Source(w, RECORDER) for w in weights])
        return jnp.reshape(loss, ()) if loss.size == 1 else loss, aux.take_apart(rest)

    closed = trace(traced, list(variables), weights)
    plan = Plan(closed.jaxpr, (*(None for _ in variables), *map(TableWeights, range(len(sources)))))
    if plan.others:
        other = next(iter(plan.others.values()))
        raise TypeError(
            f"table: used other than through lookup, by {other.by}{other.line}; accepted within the differentiated "
            "function is lookup(table, ids), with the rows passed on, and table.weights as an array. For a dense "
            "gradient pass the array itself"
        )
    (loss, *rest), gradients, reads = taken(plan, closed.consts, [*variables, *weights], range(len(variables)))
    uses: list[list[TableUse]] = [[] for _ in sources]
    for slot, upstream, found in reads:
        use = use_of(slot, found, upstream, weights[slot.leaf].dtype)
        if use is not None:
            uses[slot.leaf].append(use)
    rest = [weights[m.leaf] if isinstance(m, TableWeights) else x for m, x in zip(plan.outputs[1:], rest, strict=True)]
    return loss, aux.put_together(rest), gradients, uses


def trace(fn: Callable[..., Any], *args: Any) -> Any:
    """Trace the function that will be differentiated, and return the closed jaxpr.

    Raise ValueError if an argument or a constant varies along an axis of a shard_map with ``check_vma=True``.
    """
    try:
        closed = jax.make_jaxpr(fn)(*args)
    except (jax.errors.ConcretizationTypeError, jax.errors.TracerArrayConversionError) as error:
        error.add_note("islices.value_and_grad traces fn, as jax.jit does: it cannot look at the values of its arrays")
        raise
    # If a shard_map checks varying axes and an array is the same on all ranks, JAX adds up the gradients of all ranks.
    # But each rank has different rows.
    avals = [v.aval for v in (*closed.jaxpr.constvars, *closed.jaxpr.invars)]
    if any(map(varying, avals)):
        raise ValueError(
            "islices.value_and_grad within jax.shard_map(..., check_vma=True): accepted is check_vma=False, where all "
            "gradients are the rank's own; islices.distributed.all_reduce adds them up"
        )
    return closed


def taken(
    plan: Plan, consts: Sequence[Any], args: Sequence[Any], dense: Sequence[int]
) -> tuple[list[Any], list[Array], list[tuple[Slot, Array, Any]]]:
    """Evaluate a plan and differentiate it. Return (outputs, gradients of the arguments at the positions `dense`, a
    list of (slot, gradient of the slot, found values)).

    All gradients are gradients of the first output, or of its sum if it has several elements.
    """

    def run(variables: list[Array], deltas: list[Array]) -> tuple[Array, Any]:
        given = list(args)
        for k, x in zip(dense, variables, strict=True):
            given[k] = x
        outs, found = evaluate(plan, consts, given, deltas)
        return outs[0].sum() if outs[0].ndim else outs[0], (outs, found)

    deltas = [_zeros(slot, args) for slot in plan.slots]
    taking = jax.value_and_grad(run, argnums=(0, 1), has_aux=True)
    (_, (outs, found)), (gradients, upstreams) = taking([args[k] for k in dense], deltas)
    return outs, gradients, list(zip(plan.slots, upstreams, found, strict=True))


def _zeros(slot: Slot, args: Sequence[Any]) -> Array:
    """Return the input of zeros for a slot. The gradient of this input is the gradient of the slot's values. In traced
    code, an operation makes the zeros, so that the program does not contain them as a constant."""
    if any(isinstance(x, Tracer) for x in args):
        return lax.full(slot.shape, 0, slot.dtype)
    return host_views.put(zeros(slot.shape, slot.dtype), args[0])


class Aux:
    """The auxiliary output of a traced function. JAX returns the traced arrays of the output, and this object stores
    all other values."""

    def take_apart(self, tree: Any) -> list[Array]:
        """Return the traced arrays of a tree, and store its structure and all other leaves. If this object stored
        traced arrays, JAX would report a leak."""
        leaves, self.structure = tree_util.tree_flatten(tree)
        self.leaves = [None if isinstance(x, Tracer) else x for x in leaves]
        return [x for x in leaves if isinstance(x, Tracer)]

    def put_together(self, arrays: Sequence[Array]) -> Any:
        """Return the tree with `arrays` in place of the traced arrays."""
        values = iter(arrays)
        return tree_util.tree_unflatten(self.structure, [next(values) if x is None else x for x in self.leaves])


# ---------------------------------------------------------------------- other derivatives
def custom_gradient(forward: Callable[..., Array], backward: Gradient) -> Callable[..., Array]:
    """See `Backend.custom_gradient`."""
    function = jax.custom_vjp(forward)
    function.defvjp(lambda *arrays: (forward(*arrays), arrays), backward)
    return function


def with_gradient(value: Array, arrays: Sequence[Array], backward: GradientOfValue) -> Array:
    """See `Backend.with_gradient`. In forward mode, the transpose of `backward` computes the tangents."""
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

        # pull is linear in upstream, so its transpose is the same at every point
        _, push = jax.vjp(pull, lax.full_like(known, 0))
        (tangent,) = push(list(moving.values()))
        return attached(*primals), tangent

    return attached(value, *arrays)


def per_sample_gradients(fn: SampleLoss, variables: Sequence[Array], data: Sequence[Array]) -> list[Array]:
    """See `Backend.per_sample_gradients`."""

    def loss(variables: list[Array], sample: list[Array]) -> Array:
        return jnp.reshape(fn(list(variables), [x[None] for x in sample]), ())

    return jax.vmap(jax.grad(loss), in_axes=(None, 0))(list(variables), list(data))  # type: ignore[no-any-return]


def flatten_tree(x: Any, is_leaf: Callable[[Any], bool]) -> tuple[list[Any], Callable[[list[Any]], Any]] | None:
    """See `Backend.flatten_tree`."""
    leaves, structure = tree_util.tree_flatten(x, is_leaf=is_leaf)
    if tree_util.treedef_is_leaf(structure) and len(leaves) == 1:
        return None
    return leaves, structure.unflatten  # type: ignore[attr-defined]
