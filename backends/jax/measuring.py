"""A norm in traced code: one primitive (`primitives`), which on CPU is a compiled host kernel a leaf and one for their
total.

The kernels sum the duplicates and square the sums on the way, and keep neither. Elsewhere the norm is what the core
made of XLA's operations, with the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from islices.backend import Array, Slots
from islices.backends.jax import grouping
from islices.backends.jax.primitives import calls, host_calls, primitive, shared
from islices.backends.jax.stepping import Layout

__all__ = ["norm"]

Otherwise = Callable[[Sequence[Slots]], Array]
#: Of each leaf; None of a dense array
Layouts = tuple[Layout | None, ...]


def norm(leaves: Sequence[Slots], ord: int, otherwise: Otherwise) -> Array | None:
    """The norm of all leaves together, float64 of shape (1,), duplicates summed first, traced indices out of range
    naming no row; None where no kernel takes it."""
    leaves = [x for x in leaves if 0 not in x.values.shape and (x.indices is None or 0 not in x.indices.shape)]
    if not leaves or not all(_taken(x, ord) for x in leaves) or host_calls().total_target() is None:
        return None
    layouts, arrays = [], []
    for x in leaves:
        layout, own = (None, [x.values]) if x.indices is None else Layout.of(x)
        layouts.append(layout)
        arrays += [lax.stop_gradient(y) for y in own]
    (exact,) = norm_p.bind(*arrays, layouts=tuple(layouts), ord=ord, otherwise=otherwise)
    return exact


def _taken(x: Slots, ord: int) -> bool:
    """Whether a kernel takes a leaf."""
    if x.indices is not None:
        if x.rows is None or x.rows > np.iinfo(x.indices.dtype).max:
            return False
        if not grouping.takes_groups(x.indices, x.rows, x.positions):
            return False
    return host_calls().bins_target(x.values.dtype.name, ord, grouped=x.indices is not None) is not None


def _leaves(arrays: Sequence[Array], layouts: Layouts) -> list[Slots]:
    rest = iter(arrays)
    return [Slots(next(rest)) if x is None else x.take(rest) for x in layouts]


def _shapes(*arrays: Any, **params: Any) -> list[Any]:
    return [shared(*arrays, shape=(1,), dtype=np.dtype(np.float64))]


def _elsewhere(*arrays: Array, layouts: Layouts, ord: int, otherwise: Otherwise) -> list[Array]:
    return [otherwise(_leaves(arrays, layouts))]


def _on_host(*arrays: Array, layouts: Layouts, ord: int, otherwise: Otherwise) -> list[Array]:
    leaves = [(x, _operands(x)) for x in _leaves(arrays, layouts)]

    def total(*, exact: bool) -> Array:
        sums = [_bins(x, operands, ord, exact=exact) for x, operands in leaves]
        return calls(host_calls().total_target(exact=exact), sums, [((1,), np.float64)], ord=ord)[0]

    # the kernels answer -1 where the bits that they keep leave the result undecided
    exact = total(exact=False)
    # not a loop, out of which XLA would move what does not depend on its state
    return [lax.cond(jnp.any(exact < 0), lambda: total(exact=True), lambda: exact)]


def _operands(x: Slots) -> list[Array]:
    """A leaf's values, and the groups of its rows where it has indices."""
    if x.indices is None:
        return [x.values]
    assert x.rows is not None
    order, starts, _, named = grouping.groups_on_host(x.indices, x.rows, x.positions, x.values.shape[0])
    return [x.values, order, starts, named]


def _bins(x: Slots, operands: Sequence[Array], ord: int, *, exact: bool) -> Array:
    targets, dtype = host_calls(), x.values.dtype.name
    name = targets.bins_target(dtype, ord, grouped=x.indices is not None, exact=exact)
    return calls(name, operands, [((targets.bins_of(dtype, exact=exact), 4), np.int64)])[0]


norm_p = primitive("islices_norm", _shapes, _on_host, _elsewhere, whole=True)
