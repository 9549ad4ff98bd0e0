"""Primitives that are a compiled host kernel on CPU, and XLA's operations elsewhere: how JAX comes to know them.

What runs is chosen when a program is lowered for its platform, so that one trace serves all of them. XLA's operations
take over where a program is exported, since another process knows none of the kernels by name, under vmap, and, of
primitives that take whole tables, where arrays are spread over several devices, from which XLA would gather them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from islices import kernels
from islices.backend import Array
from islices.backends.jax import precision
from islices.core import modes
from islices.core.locks import load_module

__all__ = ["calls", "host_calls", "kernels_run", "primitive", "shared", "varying"]

#: (*operands, **params) to the results
Operation = Callable[..., Sequence[Array]]


def primitive(
    name: str,
    shapes: Callable[..., Sequence[Any]],
    on_host: Operation,
    elsewhere: Operation,
    *,
    whole: bool = False,
    jvp: Callable[..., Any] | None = None,
    batched: Callable[..., Any] | None = None,
) -> Primitive:
    """A primitive of several results: on_host by `calls` on CPU, else elsewhere.

    All three take the operands and, as keywords, the parameters; shapes takes and gives abstract values. whole: tables
    are among the operands. jvp and batched as JAX takes them; without, they are those of elsewhere.
    """
    new = Primitive(name)
    new.multiple_results = True
    params = [p.name for p in inspect.signature(elsewhere).parameters.values() if p.kind is p.KEYWORD_ONLY]
    new.def_impl(partial(jax.jit, static_argnames=params)(new.bind))
    new.def_abstract_eval(shapes)
    ad.primitive_jvps[new] = jvp or partial(_jvp, new, elsewhere)
    batching.primitive_batchers[new] = batched or partial(_batched, elsewhere)
    mlir.register_lowering(new, partial(_lowered, lambda ctx: elsewhere))
    keeps = _stays_whole if whole else _keeps_calls
    mlir.register_lowering(new, partial(_lowered, lambda ctx: on_host if keeps(ctx) else elsewhere), platform="cpu")
    return new


def _jvp(own: Primitive, elsewhere: Operation, primals: Any, tangents: Any, **params: Any) -> tuple[Any, Any]:
    moving = [k for k, t in enumerate(tangents) if type(t) is not ad.Zero]

    def along(*some: Array) -> Sequence[Array]:
        operands = list(primals)
        for k, x in zip(moving, some, strict=True):
            operands[k] = x
        return elsewhere(*operands, **params)

    with precision.scope():
        _, outs = jax.jvp(along, [primals[k] for k in moving], [tangents[k] for k in moving])
    return own.bind(*primals, **params), list(outs)


def _batched(elsewhere: Operation, args: Any, dims: Any, **params: Any) -> tuple[Any, Any]:
    outs = jax.vmap(partial(elsewhere, **params), dims)(*args)
    return outs, (0,) * len(outs)


def _lowered(chosen: Callable[[Any], Operation], ctx: Any, *operands: Any, **params: Any) -> Any:
    with precision.scope():  # keys and memory of 64 bits, whatever the user's setting is by now
        return mlir.lower_fun(chosen(ctx), multiple_results=True)(ctx, *operands, **params)


def _keeps_calls(ctx: Any) -> bool:
    """Whether the program that is being lowered stays in this process."""
    return not ctx.module_context.lowering_parameters.for_export


def _stays_whole(ctx: Any) -> bool:
    """Whether it stays, and its arrays are not spread over several devices."""
    return _keeps_calls(ctx) and (getattr(ctx.module_context.axis_context, "num_devices", 1) or 1) == 1


def shared(x: Any, *others: Any, **new: Any) -> Any:
    """What is known of a result that is like x but for what is new: within shard_map it differs wherever one of the
    others does."""
    along = frozenset().union(*(getattr(y, "vma", frozenset()) for y in (x, *others)))
    return x.update(weak_type=False, **new, **({"vma": along} if along else {}))


def varying(aval: Any) -> frozenset[str]:
    """The axes of a shard_map that keeps account of them along which an array differs."""
    return frozenset(getattr(aval, "vma", None) or getattr(getattr(aval, "mat", None), "varying", None) or ())


# ---------------------------------------------------------------------- what compiled kernels run
def kernels_run() -> Any:
    """`islices.kernels.operations` if kernels are to run where the program comes to run on CPU, else None: there is no
    numba, or the trace is within ``use_kernels(False)`` or ``execution("framework")``."""
    return kernels.active() if modes.on_host() else None


def host_calls() -> Any:
    """The module that needs numba, imported where kernels run."""
    return load_module("islices.backends.jax.host_calls")


def calls(name: str, operands: Sequence[Array], results: Sequence[tuple[Any, Any]], **how: Any) -> list[Array]:
    """The results, of shapes and dtypes, of a compiled kernel called by XLA."""
    aliases = how.pop("input_output_aliases", None)
    call: Any = jax.ffi.ffi_call(name, [jax.ShapeDtypeStruct(*x) for x in results], input_output_aliases=aliases)
    return list(call(*operands, **{key: np.int64(number) for key, number in how.items()}))
