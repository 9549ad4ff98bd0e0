"""Sums, bags, norms and steps of optimizers in traced code, by compiled kernels on CPU.

May import: `jax`, `numpy`, the core, this folder, `islices.backends.jax.scatters`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from islices.backend import Array, Slots
from islices.backends.jax import scatters
from islices.backends.jax.host_calls import ffi
from islices.backends.jax.host_calls.primitive import Operation, kernels_run, run
from islices.core.host import group
from islices.embedding.bags import sums_of_views
from islices.norms.norm import norm_of_stored
from islices.optim.formulas import Formula

__all__ = ["norm", "read_bags", "step", "sum_rows"]

Host = np.ndarray[Any, Any]
#: Elements below which XLA's operations are as fast: a call hands the program over to a thread that runs Python.
FEW = 1 << 15


def _compiled() -> ModuleType:
    from islices.kernels import operations  # numba is here: `kernels_run`

    return operations


# ---------------------------------------------------------------------- groups
def _within(indices: Host, rows: int) -> Host | None:
    """The positions of the indices that name a row; None for all."""
    lowest, highest, _ = _compiled().bounds(indices)
    return None if lowest >= 0 and highest < rows else np.flatnonzero((indices >= 0) & (indices < rows))


def _groups(indices: Host, rows: int, positions: Host | None = None) -> tuple[Host, Host, Host]:
    within = _within(indices, rows)
    named = indices if within is None else indices[within]
    order, ids, starts = _compiled().group(named) or group(named)
    if within is not None:
        order = within[order.view(np.int64)]
    if positions is not None:
        order = positions[order.view(np.int64)]
    return order.astype(np.uint64, copy=False), ids, starts.view(np.uint64)


def _group(rows: int, values: int, indices: Host, *arrays: Host) -> None:
    *positions, order, starts, ids, count = arrays
    found, named, begins = _groups(indices, rows, *positions)
    order[: len(found)] = np.minimum(found, np.uint64(values - 1)) if positions else found
    starts[: len(begins)], ids[: len(named)], count[0] = begins, named, len(named)


def _slots(x: Slots) -> list[Array]:
    """The groups of slots, which norm and step share: XLA runs equal calls once."""
    assert x.indices is not None
    assert x.rows is not None
    n, m = x.indices.shape[0], x.values.shape[0]
    arrays = [x.indices] if x.positions is None else [x.indices, x.positions]
    results = [((n,), np.uint64), ((n + 1,), np.uint64), ((n,), x.indices.dtype), ((1,), np.int64)]
    return ffi.call(f"group {x.rows} {m}", partial(_group, x.rows, m), arrays, results)


def _stored(order: Host, starts: Host, ids: Host, count: Host) -> tuple[Host, Host, Host]:
    n = int(count[0])
    return order[: int(starts[n])], ids[:n], starts[: n + 1]


def _takes(*leaves: Slots, few: bool = False) -> bool:
    """Whether kernels are to run on slots where the program comes to run on CPU. ValueError where their number is a
    symbol of jax.export."""
    size = 0
    for x in leaves:
        if x.indices is not None and not isinstance(x.indices.shape[0], int):
            raise ValueError(
                f"indices, ids: got a symbolic number of them, {x.indices.shape[0]}; accepted in jax.export is a known "
                "number (spare slots hold the index rows)"
            )
        if x.indices is not None and (x.rows is None or x.rows > np.iinfo(x.indices.dtype).max):
            return False
        size += x.values.size if x.indices is None else x.indices.size * math.prod(x.values.shape[1:])
    return (few or size >= FEW) and kernels_run()


# ---------------------------------------------------------------------- sums
def sum_rows(values: Array, indices: Array, rows: int | None) -> tuple[Array, Array] | None:
    """(sums, ids) of traced indices, as many as there are slots: the sums of the rows ascending, zeros in the spare
    ones, which hold rows; slots out of range are left out. None where no kernel does it."""
    sentinel = scatters.check_sentinel(rows, indices.dtype)
    if not _takes(Slots(values, indices, rows), few=True):  # XLA adds arrays on several devices in another order
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
        given = [values, indices]
        return ffi.call(f"sum {self.rows}", partial(_sum, self.rows), given, [(x.shape, x.dtype) for x in given])

    def elsewhere(self, values: Array, indices: Array) -> Sequence[Array]:
        ids, places = scatters.group(indices, self.rows)
        return scatters.fold(_widened(values), self._named(places, indices), len(ids)).astype(values.dtype), ids

    def linear(self, values: Array, indices: Array) -> Sequence[Array]:  # pyright: ignore[reportIncompatibleMethodOverride]
        ids, places = scatters.group(indices, self.rows)
        wide = _widened(values)
        sums = scatters.add_at(jnp.zeros(wide.shape, wide.dtype), self._named(places, indices), wide)
        return sums.astype(values.dtype), ids

    def _named(self, places: Array, indices: Array) -> Array:
        return scatters.within(places, indices, self.rows, len(places))


def _widened(x: Array) -> Array:
    return x.astype(np.float32) if x.dtype.itemsize == 2 else x


def _sum(rows: int, values: Host, indices: Host, sums: Host, ids: Host) -> None:
    order, named, starts = _groups(indices, rows)
    n = len(named)
    sums[:n], sums[n:] = _compiled().fold(values, order, starts), 0
    ids[:n], ids[n:] = named, rows


# ---------------------------------------------------------------------- bags
def read_bags(
    table: Array, ids: Array, segments_: Array, bags: Array, keep: Array | None, otherwise: Callable[..., Array]
) -> Array | None:
    """See `Backend.traced_bags`."""
    if bags.size == 0 or not _takes(Slots(table, ids, 0)):
        return None
    (out,) = run(_Bags(bags.shape[0], otherwise), table, ids, segments_, keep)
    return out


@dataclass(frozen=True)
class _Bags(Operation):
    count: int
    otherwise: Callable[..., Array]

    def results(self, table: Any, *integers: Any) -> Sequence[Any]:
        return [table.update(shape=(self.count, *table.shape[1:]))]

    def on_host(self, table: Array, *given: Array | None) -> Sequence[Array]:
        arrays = [table, *(x for x in given if x is not None)]
        return ffi.call("bags", _bags, arrays, [((self.count, *table.shape[1:]), table.dtype)])

    def elsewhere(self, table: Array, ids: Array, segments_: Array, keep: Array | None) -> Sequence[Array]:
        return [self.otherwise(table, ids, segments_, jnp.zeros((self.count,), np.int32), keep)]


def _bags(table: Host, ids: Host, segments_: Host, *arrays: Host) -> None:
    *keep, bags = arrays
    named, inside = _within(ids, len(table)), _within(segments_, len(bags))
    if named is not None or inside is not None:  # the others do not count
        mask = np.zeros(len(ids), np.int32)
        mask[np.arange(len(ids)) if named is None else named] = 1
        mask &= (segments_ >= 0) & (segments_ < len(bags))
        keep = [mask * keep[0] if keep else mask]
    bags[...] = sums_of_views(_compiled(), [table, ids, segments_, bags, *keep])


# ---------------------------------------------------------------------- norms
def norm(leaves: Sequence[Slots], ord: int, otherwise: Callable[..., Array]) -> Array | None:
    """See `Backend.traced_norm`; without factors."""
    leaves = [x for x in leaves if x.values.size and (x.indices is None or x.indices.size)]
    if not _takes(*leaves):
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
        sparse, arrays = tuple(x.indices is not None for x in leaves), list[Array]()
        for x in leaves:
            arrays += [x.values] if x.indices is None else [x.values, *_slots(x)]
        return ffi.call(f"norm {self.ord} {sparse}", partial(_norm, self.ord, sparse), arrays, [((1,), np.float64)])

    def elsewhere(self, leaves: Sequence[Slots]) -> Sequence[Array]:
        return [self.otherwise(leaves)]


def _norm(ord: int, sparse: Sequence[bool], *arrays: Host) -> None:
    *given, result = arrays
    rest, leaves = iter(given), list[tuple[Host, Host | None, Host | None]]()
    for has_rows in sparse:
        values, order, starts = next(rest), None, None
        if has_rows:
            order, _, starts = _stored(*(next(rest) for _ in range(4)))
        leaves.append((values, order, starts))
    result[0] = norm_of_stored(_compiled(), leaves, ord)


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
        factor = [] if slots.factor is None else [slots.factor]
        given = [*tables, slots.values, *_slots(slots), numbers, *factor]
        kinds = tables[0].dtype.name, slots.values.dtype.name
        kernel = _compiled().step_kernel(self.formula, *kinds, scaled=bool(factor))
        name, take = f"{self.formula.rule.__name__} {kernel.__qualname__}", partial(_step, self.formula, len(tables))
        return ffi.call(name, take, given, [(x.shape, x.dtype) for x in tables], {k: k for k in range(len(tables))})

    def elsewhere(self, *args: Any) -> Sequence[Array]:
        return tuple(self.otherwise(*args))


def _step(formula: Formula, count: int, *arrays: Host) -> None:
    given, (table, *state) = arrays[count:-count], arrays[-count:]
    values, groups, numbers, factor = given[0], _stored(*given[1:5]), given[5], given[6:]
    scale = float(factor[0][0]) if factor else None
    compiled = _compiled()
    compiled.run_tasks([compiled.step(formula, values, groups, table, state, numbers, scale)])
