"""Compute sums, bags, norms and optimizer steps in traced code, with compiled kernels on CPUs.

May import: `jax`, `numpy`, the core, this folder, `islices.backends.jax.host_views`, `islices.backends.jax.precision`,
`islices.backends.jax.scatters`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from islices.backend import Array, Slots
from islices.backends.jax import scatters
from islices.backends.jax.host_calls.primitive import Operation, kernels_run, parts, run
from islices.backends.jax.host_views import Tracer
from islices.backends.jax.precision import apart
from islices.optim.formulas import Formula

#: With at least `SHARED` elements, a second thread is worthwhile. Then there is at most one part per `LEAST` elements.
SHARED, LEAST = 1 << 19, 1 << 16


def _call(
    name: str,
    operands: Sequence[Array],
    results: Sequence[tuple[Any, Any]],
    elements: int = 0,
    aliases: dict[int, int] | None = None,
    **numbers: int,
) -> list[Array]:
    """Call the compiled handler `name`. `elements`, the number of elements to compute, limits the number of parts of
    the work, and so the number of threads.

    `aliases` maps the number of an operand to the number of the result that reuses its memory.
    """
    call: Any = jax.ffi.ffi_call(name, [jax.ShapeDtypeStruct(*x) for x in results], input_output_aliases=aliases)
    numbers["parts"] = elements // LEAST if elements >= SHARED else 1  # "parts" is the first attribute by name
    return list(call(*operands, **{k: np.int64(number) for k, number in numbers.items()}))


# ---------------------------------------------------------------------- groups
def _groups(indices: Array, rows: int, values: int, positions: Array | None = None) -> list[Array]:
    """Return [order, starts, named, ids] for the slots, as the operation of `parts.groups` computes them. `values` is
    the number of values. A norm and a step share the groups, because XLA runs equal calls only once."""
    n, given = indices.shape[0], [indices] if positions is None else [indices, positions]
    results = [((n,), np.uint64), ((n + 1,), np.uint64), ((1,), np.int64), ((n,), np.int64), ((n,), np.int64)]
    name = parts().groups(*(x.dtype.name for x in given))
    return _call(name, given, results, rows=rows, values=values)[:4]


def _operands(x: Slots) -> tuple[list[Array], int]:
    """Return (operands, number of elements) for a leaf. The operands are the values and, if the leaf has indices, the
    groups."""
    if x.indices is None:
        return [x.values], x.values.size
    assert x.rows is not None
    groups = _groups(x.indices, x.rows, x.values.shape[0], x.positions)
    return [x.values, *groups], x.indices.size * math.prod(x.values.shape[1:])


def _takes(*leaves: Slots) -> bool:
    """Return True if the program that is being traced may call compiled kernels for these slots on CPUs.

    Raise ValueError if the number of slots is a symbolic dimension of jax.export.
    """
    for x in leaves:
        if x.indices is None:
            continue
        if not isinstance(x.indices.shape[0], int):
            raise ValueError(
                f"indices, ids: got a symbolic number of them, {x.indices.shape[0]}; accepted in jax.export is a known "
                "number (spare slots hold the index rows)"
            )
        if 0 in (x.indices.size, x.values.size) or x.rows is None or x.rows > np.iinfo(x.indices.dtype).max:
            return False
        if x.rows.bit_length() + x.indices.size.bit_length() > 64:  # `kernels.grouping` packs row and position
            return False
    return kernels_run()


# ---------------------------------------------------------------------- sums
def sum_rows(values: Array, indices: Array, rows: int | None) -> tuple[Array, Array] | None:
    """Sum the values of each row in traced code, and return (sums, ids), which are as long as `indices`. Return None if
    no kernel may run, or if the indices are not traced.

    The ids are ascending. Unused entries at the end contain zeros and the id `rows`. Slots whose index is out of range
    do not count.
    """
    if not isinstance(indices, Tracer):
        return None
    sentinel = scatters.check_sentinel(rows, indices.dtype)
    if not _takes(Slots(values, indices, sentinel)):
        return None
    sums, ids = run(_Sums(sentinel), values, indices)
    return sums, ids


@dataclass(frozen=True)
class _Sums(Operation):
    rows: int
    whole = False

    def results(self, values: Any, indices: Any) -> Sequence[Any]:
        return values, indices

    def on_host(self, values: Array, indices: Array) -> Sequence[Array]:
        given, name = [values, *_groups(indices, self.rows, 0)], parts().sums(values.dtype.name, indices.dtype.name)
        return _call(name, given, [(x.shape, x.dtype) for x in (values, indices)], values.size)

    def elsewhere(self, values: Array, indices: Array) -> Sequence[Array]:
        sums, ids = self.linear(values, indices)
        return apart(sums), ids

    def linear(self, values: Array, indices: Array) -> Sequence[Array]:  # pyright: ignore[reportIncompatibleMethodOverride]
        ids, places = scatters.group(indices, self.rows)
        named = scatters.within(places, indices, self.rows, len(places))
        wide = values.astype(np.float32) if values.dtype.itemsize == 2 else values
        return scatters.add_at(jnp.zeros_like(wide), named, wide).astype(values.dtype), ids


# ---------------------------------------------------------------------- bags
def read_bags(
    table: Array, ids: Array, segments_: Array, bags: Array, keep: Array | None, otherwise: Callable[..., Array]
) -> Array | None:
    """See `Backend.traced_bags`."""
    if bags.size == 0 or not _takes(Slots(table, ids, bags.shape[0])):
        return None
    (out,) = run(_Bags(bags.shape[0], otherwise), table, ids, segments_, keep)
    return out


@dataclass(frozen=True)
class _Bags(Operation):
    count: int
    otherwise: Callable[..., Array]

    def results(self, table: Any, *integers: Any) -> Sequence[Any]:
        return [table.update(shape=(self.count, *table.shape[1:]))]

    def on_host(self, table: Array, ids: Array, segments_: Array, keep: Array | None) -> Sequence[Array]:
        rows, count = table.shape[0], self.count
        bags = scatters.within(segments_.astype(np.int64), ids.astype(np.int64), rows, count)
        bags = bags if keep is None else jnp.where(keep != 0, bags, count)
        shape, given = (count, *table.shape[1:]), [table, *_groups(bags, count, rows, ids)]
        return _call(parts().sums(table.dtype.name), given, [(shape, table.dtype)], ids.size * math.prod(shape[1:]))

    def elsewhere(self, table: Array, ids: Array, segments_: Array, keep: Array | None) -> Sequence[Array]:
        return [self.otherwise(table, ids, segments_, jnp.zeros((self.count,), np.int32), keep)]


# ---------------------------------------------------------------------- norms
def norm(leaves: Sequence[Slots], ord: int, otherwise: Callable[..., Array]) -> Array | None:
    """See `Backend.traced_norm`."""
    leaves = [x for x in leaves if x.values.size and (x.indices is None or x.indices.size)]
    if not leaves or not _takes(*leaves):
        return None
    (exact,) = run(_Norm(ord, otherwise), lax.stop_gradient(leaves))
    return exact


@dataclass(frozen=True)
class _Norm(Operation):
    ord: int
    otherwise: Callable[..., Array]

    def results(self, leaves: Sequence[Slots]) -> Sequence[Any]:
        return [leaves[0].values.update(shape=(1,), dtype=np.dtype(np.float64))]

    def on_host(self, leaves: Sequence[Slots]) -> Sequence[Array]:
        operands = [_operands(x) for x in leaves]

        def total(*, exact: bool) -> Array:
            bins = []
            for given, elements in operands:
                dtype = given[0].dtype.name
                shape = parts().bins_shape(dtype, exact=exact)
                name = parts().bins(dtype, self.ord, rows=len(given) > 1, exact=exact)
                bins += _call(name, [jnp.zeros(shape, np.int64), *given], [(shape, np.int64)], elements, {0: 0})
            return _call(parts().total(self.ord, exact=exact), bins, [((1,), np.float64)])[0]

        # kernels return -1 if their bins do not determine the result
        norm = total(exact=False)
        return [lax.cond(jnp.any(norm < 0), lambda: total(exact=True), lambda: norm)]

    def elsewhere(self, leaves: Sequence[Slots]) -> Sequence[Array]:
        return [self.otherwise(leaves)]


# ---------------------------------------------------------------------- steps
def step(
    formula: Formula, slots: Slots, numbers: Array, tables: Sequence[Array], otherwise: Callable[..., Sequence[Array]]
) -> Sequence[Array] | None:
    """See `Backend.traced_step`."""
    if not _takes(slots) or tables[0].size == 0:
        return None
    return run(_Step(formula, otherwise), *lax.stop_gradient((slots, numbers, *tables)))


@dataclass(frozen=True)
class _Step(Operation):
    formula: Formula
    otherwise: Callable[..., Sequence[Array]]

    def results(self, slots: Slots, numbers: Any, *tables: Any) -> Sequence[Any]:
        return tables

    def on_host(self, slots: Slots, numbers: Array, *tables: Array) -> Sequence[Array]:
        operands, elements = _operands(slots)
        factor = [] if slots.factor is None else [slots.factor]
        given = [*operands, lax.concatenate([numbers, *factor], 0), *tables]
        name = parts().step(self.formula, tables[0].dtype.name, slots.values.dtype.name, scaled=bool(factor))
        aliases = {6 + k: k for k in range(len(tables))}
        return _call(name, given, [(x.shape, x.dtype) for x in tables], elements, aliases)

    def elsewhere(self, *args: Any) -> Sequence[Array]:
        return tuple(self.otherwise(*args))
