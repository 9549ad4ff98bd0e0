"""A step in traced code by one compiled kernel, where the framework can call one from a compiled program.

The same bits as `islices.optim.row_steps`, which is what runs everywhere else. SPEC clauses 16 and 17.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from islices.backend import Array, Slots
from islices.core.scatter import as_given
from islices.core.slices import IndexedSlices
from islices.core.slots import slots_of
from islices.optim.row_steps import Request, count_step, without_frozen, write_pieces


def traced_step(request: Request) -> tuple[Any, dict[str, Array]] | None:
    """The table and the state after the step on the rows the gradient names; None where no kernel can be called."""
    B, s, arrays = request.at.B, request.grad, request.at.arrays
    if "master" in arrays or not isinstance(s, IndexedSlices):
        return None
    if request.frozen is not None:
        s = without_frozen(s, request.frozen)
    shape, numbers = s.dense_shape, request.numbers
    with B.scope():
        indices = s.indices
        if request.apply is not None:  # a row that is nowhere is not written
            nowhere = B.asarray(np.full(1, shape[0], B.dtype(indices)), indices)
            indices = B.where(B.equal(request.apply, 1), indices, nowhere)

    def otherwise(slots: Slots, numbers: Array, *tables: Array) -> Sequence[Array]:
        state = dict(zip(["step", *names], [arrays["step"], *tables[1:]], strict=True))
        slices = IndexedSlices._deferred(B, slots, shape)
        at = request.at._replace(table=None, weights=tables[0], arrays=state, held=None)
        rows = Request(request.formula, at, slices, known=numbers).some_rows()
        return write_pieces(B, tables, rows, donate=True)

    names = request.names[1:]
    slots = slots_of(s)._replace(indices=indices)
    with B.scope():
        tables = B.traced_step(request.formula, slots, numbers, request.tables, otherwise)
        if tables is None:
            return None
    state = {"step": count_step(request), **dict(zip(names, tables[1:], strict=True))}
    return as_given(request.at.table, request.at.weights, tables[0]), state
