"""A step of an optimizer in traced code: one primitive (`primitives`), which is one compiled host kernel on CPU.

The kernel sums the duplicates, reads the rows, changes and writes them in the tables' own memory, which XLA copies
first unless they are donated. Elsewhere the step is what the core made of XLA's operations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from jax import lax

from islices.backend import Array, Slots
from islices.backends.jax import grouping
from islices.backends.jax.primitives import calls, host_calls, primitive, shared
from islices.optim.formulas import Formula

__all__ = ["Layout", "step"]

#: (slots, numbers, *tables) to the tables after the step
Otherwise = Callable[..., Sequence[Array]]


class Layout(NamedTuple):
    """Which arrays a gradient consists of, and the rows of its table."""

    rows: int
    moved: bool  # there are positions
    scaled: bool  # there is a factor

    @classmethod
    def of(cls, x: Slots) -> tuple[Layout, list[Array]]:
        """The layout and the arrays."""
        assert x.rows is not None, "of a table"
        arrays = [x.values, x.indices, x.positions, x.factor]
        return cls(x.rows, x.positions is not None, x.factor is not None), [y for y in arrays if y is not None]

    def take(self, arrays: Iterator[Array]) -> Slots:
        """The gradient of the next of the arrays."""
        values, indices = next(arrays), next(arrays)
        positions = next(arrays) if self.moved else None
        return Slots(values, indices, self.rows, positions, next(arrays) if self.scaled else None)


def step(
    formula: Formula, slots: Slots, numbers: Array, tables: Sequence[Array], otherwise: Otherwise
) -> list[Array] | None:
    """The tables (the weights, then the state's) after a step on the rows that traced indices name, out of range none;
    None where no kernel takes it."""
    values, indices = slots.values, slots.indices
    assert indices is not None, "of a table"
    table, rows = tables[0], tables[0].shape[0]
    if 0 in values.shape or 0 in table.shape or 0 in indices.shape or rows > np.iinfo(indices.dtype).max:
        return None
    if not grouping.takes_groups(indices, rows, slots.positions):
        return None
    names = (table.dtype.name, values.dtype.name, indices.dtype.name)
    name = host_calls().step_target(formula, *names, scaled=slots.factor is not None)
    if name is None:
        return None
    layout, arrays = Layout.of(slots)
    operands = [lax.stop_gradient(x) for x in (numbers, *tables, *arrays)]
    return step_p.bind(*operands, name=name, layout=layout, otherwise=otherwise)  # type: ignore[no-any-return]


def _parts(operands: Sequence[Array], layout: Layout) -> tuple[Slots, Array, list[Array]]:
    """(slots, numbers, tables) of the primitive's operands."""
    count = 2 + layout.moved + layout.scaled
    return layout.take(iter(operands[-count:])), operands[0], list(operands[1:-count])


def _shapes(*operands: Any, layout: Layout, **params: Any) -> list[Any]:
    _, _, tables = _parts(operands, layout)
    return [shared(x, *operands) for x in tables]


def _elsewhere(*operands: Array, name: str, layout: Layout, otherwise: Otherwise) -> Sequence[Array]:
    slots, numbers, tables = _parts(operands, layout)
    return tuple(otherwise(slots, numbers, *tables))


def _on_host(*operands: Array, name: str, layout: Layout, otherwise: Otherwise) -> Sequence[Array]:
    x, numbers, tables = _parts(operands, layout)
    assert x.indices is not None
    order, starts, ids, named = grouping.groups_on_host(x.indices, layout.rows, x.positions, x.values.shape[0])
    if x.factor is not None:
        numbers = lax.concatenate([numbers, x.factor], 0)
    given = (x.values, order, starts, named, ids, numbers, *tables)
    aliases = {6 + k: k for k in range(len(tables))}
    return calls(name, given, [(y.shape, y.dtype) for y in tables], input_output_aliases=aliases)


step_p = primitive("islices_step", _shapes, _on_host, _elsewhere, whole=True)
