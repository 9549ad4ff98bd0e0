"""Define the primitive of operations that run as a compiled kernel on CPUs, and as XLA's operations on other platforms.

The choice is made when JAX lowers a program for a platform, so a program needs to be traced only once. On CPUs, XLA's
operations also run under vmap, in exported programs, and for tables on several devices. An exported program may run in
a process without the kernels. For a kernel, XLA would first gather a table that is on several devices. May import:
`jax`, the core, this folder, `islices.backends.jax.precision`.
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


class Operation:
    """An operation on arrays and `Slots`, with its static parameters. JAX compares the parameters of equations by
    value, so subclasses are frozen dataclasses."""

    whole = True  # True if whole tables are among the operands

    #: a function that gets the abstract values of the operands, and returns those of the results
    results: Callable[..., Sequence[Any]]
    #: a function that computes the results with compiled handlers
    on_host: Callable[..., Sequence[Array]]
    #: a function that computes the results with XLA's operations
    elsewhere: Callable[..., Sequence[Array]]

    def linear(self, *args: Any) -> Sequence[Array]:
        """Compute the results with operations that JAX can differentiate."""
        return self.elsewhere(*args)


def kernels_run() -> bool:
    """Return True if the program that is being traced may call compiled kernels on CPUs.

    Kernels require numba, and an XLA that accepts the handlers. The program must also be traced outside of
    ``use_kernels(False)`` and ``execution("framework")``.
    """
    return modes.kernels_in_traces() is not None and parts().available()


def parts() -> Any:
    """Import the module `parts`, and return it. The module needs numba, so it is imported only if kernels are on."""
    return load_module("islices.backends.jax.host_calls.parts")


def run(operation: Operation, *args: Any) -> list[Array]:
    """Add an operation to the program that is being traced, and return its results."""
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
    # within shard_map, a result varies along the axes of its operands
    along = frozenset().union(*(getattr(x, "vma", frozenset()) for x in avals))
    new = {"weak_type": False, **({"vma": along} if along else {})}
    return [x.update(**new) for x in operation.results(*tree.unflatten(avals))]


def varying(aval: Any) -> frozenset[str]:
    """Return the axes of a shard_map along which an array varies. `aval` is the array's abstract value. Outside of a
    shard_map with ``check_vma=True``, return an empty set."""
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
    with precision.scope():  # 64-bit types, whatever the user's setting is now
        lowered = mlir.lower_fun(lambda *leaves: chosen(*tree.unflatten(leaves)), multiple_results=True)
        return lowered(ctx, *operands)


ad.primitive_jvps[operation_p] = _jvp
batching.primitive_batchers[operation_p] = _batched
mlir.register_lowering(operation_p, partial(_lowered, False))
mlir.register_lowering(operation_p, partial(_lowered, True), platform="cpu")
