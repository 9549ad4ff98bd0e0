"""A norm in traced code: one primitive, which on CPU is a compiled host kernel a leaf and one for their total.

The kernels sum the duplicates and square the sums on the way, and keep neither. Everywhere else, under vmap, and where
arrays are spread over several devices, the norm is what the core made of XLA's operations, with the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir

from islices.backend import Array, Slots
from islices.backends.jax import grouping, precision

__all__ = ["norm"]

Otherwise = Callable[[Sequence[Slots]], Array]


class Layout(NamedTuple):
    """Of which arrays a leaf consists."""

    rows: int | None  # of its table, where there are indices


def norm(leaves: Sequence[Slots], ord: int, otherwise: Otherwise) -> Array | None:
    """The norm of all leaves together, float64 of shape (1,), duplicates summed first, traced indices out of range
    naming no row; None where no kernel takes it."""
    leaves = [x for x in leaves if 0 not in x.values.shape]
    if not leaves or not all(map(partial(_taken, ord=ord), leaves)) or grouping.host_calls().total_target() is None:
        return None
    layouts = tuple(Layout(x.rows if x.indices is not None else None) for x in leaves)
    arrays = [lax.stop_gradient(y) for x in leaves for y in (x.values, x.indices) if y is not None]
    (exact,) = norm_p.bind(*arrays, layouts=layouts, ord=ord, otherwise=otherwise)
    return exact  # type: ignore[no-any-return]


def _taken(x: Slots, ord: int) -> bool:
    """Whether a kernel takes a leaf."""
    if x.indices is not None and (x.rows is None or x.rows > np.iinfo(x.indices.dtype).max):
        return False
    if x.indices is not None and not grouping.takes_groups(x.indices, x.rows):
        return False
    return grouping.host_calls().bins_target(x.values.dtype.name, ord, grouped=x.indices is not None) is not None


def _leaves(arrays: Sequence[Array], layouts: Sequence[Layout]) -> list[Slots]:
    rest = iter(arrays)
    return [Slots(next(rest), *(() if x.rows is None else (next(rest), x.rows))) for x in layouts]


norm_p = Primitive("islices_norm")
norm_p.multiple_results = True


def _shapes(*arrays: Any, **params: Any) -> list[Any]:
    return [grouping.shared(*arrays, shape=(1,), dtype=np.dtype(np.float64))]


def _batched(args: Any, dims: Any, *, layouts: Sequence[Layout], ord: int, otherwise: Otherwise) -> tuple[Any, Any]:
    return [jax.vmap(lambda *x: otherwise(_leaves(x, layouts)), dims)(*args)], [0]


def _on_host(*arrays: Array, layouts: Sequence[Layout], ord: int) -> Sequence[Array]:
    bins = [_bins(x, ord) for x in _leaves(arrays, layouts)]
    return grouping.calls(grouping.host_calls().total_target(), bins, [((1,), np.float64)], ord=np.int64(ord))


def _bins(x: Slots, ord: int) -> Array:
    targets, operands = grouping.host_calls(), [x.values]
    if x.indices is not None:
        assert x.rows is not None
        order, starts, _, named = grouping.groups_on_host(x.indices, x.rows)
        operands += [order, starts, named]
    dtype = x.values.dtype.name
    name = targets.bins_target(dtype, ord, grouped=x.indices is not None)
    return grouping.calls(name, operands, [((targets.bins_of(dtype), 4), np.int64)])[0]


def _lowered(ctx: Any, *arrays: Any, layouts: Sequence[Layout], ord: int, otherwise: Otherwise, on_cpu: bool) -> Any:
    if on_cpu and grouping.stays_whole(ctx):
        function: Callable[..., Any] = partial(_on_host, layouts=layouts, ord=ord)
    else:
        function = lambda *x: [otherwise(_leaves(x, layouts))]  # noqa: E731
    with precision.scope():
        return mlir.lower_fun(function, multiple_results=True)(ctx, *arrays)


norm_p.def_impl(partial(jax.jit, static_argnames=("layouts", "ord", "otherwise"))(norm_p.bind))
norm_p.def_abstract_eval(_shapes)
batching.primitive_batchers[norm_p] = _batched
mlir.register_lowering(norm_p, partial(_lowered, on_cpu=False))
mlir.register_lowering(norm_p, partial(_lowered, on_cpu=True), platform="cpu")
