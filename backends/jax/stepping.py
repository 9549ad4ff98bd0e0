"""A step of an optimizer in traced code: one primitive, which is one compiled host kernel on CPU.

The kernel sums the duplicates, reads the rows, changes and writes them in the tables' own memory, which XLA copies
first unless they are donated. Everywhere else, under vmap, and where arrays are spread over several devices, whose
tables XLA would have to gather, the step is what the core made of XLA's operations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir

from islices.backend import Array, Slots
from islices.backends.jax import grouping, precision
from islices.optim.formulas import Formula

__all__ = ["step"]

#: (slots, numbers, *tables) to the tables after the step
Otherwise = Callable[..., Sequence[Array]]


def step(
    formula: Formula, slots: Slots, numbers: Array, tables: Sequence[Array], otherwise: Otherwise
) -> list[Array] | None:
    """The tables (the weights, then the state's) after a step on the rows that traced indices name, out of range none;
    None where no kernel takes it."""
    values, indices = slots.values, slots.indices
    assert indices is not None, "of a table"
    table, rows = tables[0], tables[0].shape[0]
    if 0 in values.shape or 0 in table.shape or rows > np.iinfo(indices.dtype).max:
        return None
    if not grouping.takes_groups(indices, rows):
        return None
    names = (table.dtype.name, values.dtype.name, indices.dtype.name)
    name = grouping.host_calls().step_target(formula, *names)
    if name is None:
        return None
    operands = [lax.stop_gradient(x) for x in (values, indices, numbers, *tables)]
    return step_p.bind(*operands, name=name, otherwise=partial(_from_arrays, otherwise))  # type: ignore[no-any-return]


def _from_arrays(otherwise: Otherwise, values: Array, indices: Array, *rest: Array) -> Sequence[Array]:
    return otherwise(Slots(values, indices), *rest)


step_p = Primitive("islices_step")
step_p.multiple_results = True


def _shapes(values: Any, indices: Any, numbers: Any, *tables: Any, **params: Any) -> list[Any]:
    return [grouping.shared(x, values, indices, numbers, *tables) for x in tables]


def _batched(args: Any, dims: Any, *, name: str, otherwise: Otherwise) -> tuple[Any, Any]:
    outs = jax.vmap(lambda *x: tuple(otherwise(*x)), dims)(*args)
    return outs, (0,) * len(outs)


def _on_host(values: Array, indices: Array, numbers: Array, *tables: Array, name: str) -> Sequence[Array]:
    order, starts, ids, named = grouping.groups_on_host(indices, tables[0].shape[0])
    operands = (values, order, starts, named, ids, numbers, *tables)
    aliases = {6 + k: k for k in range(len(tables))}
    return grouping.calls(name, operands, [(x.shape, x.dtype) for x in tables], input_output_aliases=aliases)


def _lowered(ctx: Any, *operands: Any, name: str, otherwise: Otherwise, on_cpu: bool) -> Any:
    function = partial(_on_host, name=name) if on_cpu and grouping.stays_whole(ctx) else otherwise
    with precision.scope():
        return mlir.lower_fun(lambda *x: tuple(function(*x)), multiple_results=True)(ctx, *operands)


step_p.def_impl(partial(jax.jit, static_argnames=("name", "otherwise"))(step_p.bind))
step_p.def_abstract_eval(_shapes)
batching.primitive_batchers[step_p] = _batched
mlir.register_lowering(step_p, partial(_lowered, on_cpu=False))
mlir.register_lowering(step_p, partial(_lowered, on_cpu=True), platform="cpu")
