"""One primitive for what a compiled kernel does on CPU, and XLA's operations elsewhere.

What runs is chosen when a program is lowered for its platform, so that one trace serves all of them. XLA's operations
run where a program is exported, since another process knows none of the calls, under vmap, and, of operations on whole
tables, where arrays are spread over several devices, from which XLA would gather them.
May import: `jax`, the core, this folder, `islices.backends.jax.precision`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from islices.backend import Array, Slots
from islices.backends.jax import precision
from islices.core import modes
from islices.core.locks import load_module

__all__ = ["Operation", "kernels_run", "parts", "run", "varying"]


class Operation:
    """Static facts of an operation on arrays and `Slots`, in a frozen dataclass: equal ones are one to JAX."""

    whole = True  # whole tables are among the operands

    #: abstract values of the results from those of the operands
    results: Callable[..., Sequence[Any]]
    #: the results by compiled handlers
    on_host: Callable[..., Sequence[Array]]
    #: the results by XLA's operations
    elsewhere: Callable[..., Sequence[Array]]

    def linear(self, *args: Any) -> Sequence[Array]:
        """Return the results by operations that JAX differentiates."""
        return self.elsewhere(*args)


def kernels_run() -> bool:
    """Whether kernels are to run where the program comes to run on CPU: numba is there, XLA takes the calls, and the
    trace is not within ``use_kernels(False)`` or ``execution("framework")``."""
    return modes.kernels_in_traces() is not None and parts().available()


def parts() -> Any:
    """Return the module of the compiled handlers, which needs numba: it is imported where kernels run."""
    return load_module("islices.backends.jax.host_calls.parts")


def run(operation: Operation, *args: Any) -> list[Array]:
    """Return the results of an operation in traced code."""
    leaves, tree = jax.tree.flatten(args)
    return operation_p.bind(*leaves, operation=operation, tree=tree)  # type: ignore[no-any-return]


jax.tree_util.register_pytree_node(
    Slots,
    lambda s: (tuple(s._replace(rows=None)), s.rows),
    lambda rows, arrays: Slots(*arrays)._replace(rows=rows),
)
operation_p = Primitive("islices_operation")
operation_p.multiple_results = True
operation_p.def_impl(partial(jax.jit, static_argnames=("operation", "tree"))(operation_p.bind))


@operation_p.def_abstract_eval  # type: ignore[untyped-decorator]
def _results(*avals: Any, operation: Operation, tree: Any) -> list[Any]:
    # within shard_map a result differs wherever an operand does
    along = frozenset().union(*(getattr(x, "vma", frozenset()) for x in avals))
    new = {"weak_type": False, **({"vma": along} if along else {})}
    return [x.update(**new) for x in operation.results(*tree.unflatten(avals))]


def varying(aval: Any) -> frozenset[str]:
    """The axes of a shard_map that keeps account of them along which an array differs."""
    return frozenset(getattr(aval, "vma", None) or getattr(getattr(aval, "mat", None), "varying", None) or ())


def _jvp(primals: Any, tangents: Any, *, operation: Operation, tree: Any) -> tuple[Any, Any]:
    moving = [k for k, t in enumerate(tangents) if type(t) is not ad.Zero]

    def along(*some: Array) -> Sequence[Array]:
        operands = list(primals)
        for k, x in zip(moving, some, strict=True):
            operands[k] = x
        return operation.linear(*tree.unflatten(operands))

    with precision.scope():
        _, outs = jax.jvp(along, [primals[k] for k in moving], [tangents[k] for k in moving])
    return operation_p.bind(*primals, operation=operation, tree=tree), list(outs)


def _batched(args: Any, dims: Any, *, operation: Operation, tree: Any) -> tuple[Any, Any]:
    with precision.scope():
        outs = jax.vmap(lambda *leaves: operation.elsewhere(*tree.unflatten(leaves)), dims)(*args)
    return outs, (0,) * len(outs)


def _lowered(cpu: bool, ctx: Any, *operands: Any, operation: Operation, tree: Any) -> Any:
    context = ctx.module_context
    spread = operation.whole and (getattr(context.axis_context, "num_devices", 1) or 1) > 1
    here = cpu and not context.lowering_parameters.for_export and not spread
    chosen = operation.on_host if here else operation.elsewhere
    with precision.scope():  # keys and memory of 64 bits, whatever the user's setting is by now
        lowered = mlir.lower_fun(lambda *leaves: chosen(*tree.unflatten(leaves)), multiple_results=True)
        return lowered(ctx, *operands)


ad.primitive_jvps[operation_p] = _jvp
batching.primitive_batchers[operation_p] = _batched
mlir.register_lowering(operation_p, partial(_lowered, False))
mlir.register_lowering(operation_p, partial(_lowered, True), platform="cpu")
