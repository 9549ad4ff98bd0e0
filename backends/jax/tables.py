"""Define the rules of operations that read a Table, or use its weights as an array.

Each lookup is a slot, and its gradient is the gradient of the rows or bags. If the code uses the weights as an array
(`islices_operand`), each matrix product with them is also a slot. The gradient of this product and the other operand
are the factors of the weights' gradient. Every other use, such as a product with batch axes, is a slot with a dense
gradient of the weights. Transposes and casts are not uses. May import: `jax`, `numpy`, the core, this folder.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from islices.backend import Array, LookedUp, ProductUse, TableUse, WholeUse
from islices.backends.jax.host_views import Tracer, put
from islices.backends.jax.markers import attach, lookup_p
from islices.backends.jax.row_reads import Evaluation, Marks, Outcome, Rule, Slot, bind, constant, passed


@dataclass(frozen=True)
class TableWeights:
    """The mark of a Table's weights in which rows are looked up."""

    leaf: int


@dataclass(frozen=True)
class Operand:
    """The mark of a Table's weights that are used as an array. The shape of the array is (rows, width) or, if
    `transposed` is True, (width, rows)."""

    leaf: int
    transposed: bool = False


class _Product(NamedTuple):
    """The layout of a product with the weights. The gradient of the weights is computed from factors in this layout."""

    leading: bool  # True if the weights are the first operand, so that their axis is the first of the result
    by_rows: bool  # True if the product sums over the rows, as with one-hot ids, so that the factors change roles


# ---------------------------------------------------------------------- rules of a table
def _lookup(eqn: Any, marks: Marks) -> Evaluation | None:
    first, mark, *others = marks
    if mark is None or any(m is not None for m in (first, *others)):
        return None
    rows, weights, *integers = (v.aval for v in eqn.invars)
    slot = Slot(mark.leaf, rows.shape, rows.dtype, tuple(integers), weights.shape[0], **eqn.params)

    def run(values: Any, deltas: Any) -> Outcome:
        rows, weights, *found = values
        for k, (x, v) in enumerate(zip(found, integers, strict=True)):
            if not isinstance(x, jax.Array):  # a literal in a jaxpr may be a Python number
                found[k] = put(np.asarray(x, v.dtype), None)
        rows = lookup_p.bind(rows, weights, *found, **eqn.params)  # for an outer differentiation
        return [attach(rows, deltas[0])], [tuple(found)]

    return Evaluation(run, (None,), [slot])


# ---------------------------------------------------------------------- rules of its weights as an array
def _transpose(eqn: Any, marks: Marks) -> Evaluation | None:
    if len(eqn.params["permutation"]) != 2:
        return None
    mark = Operand(marks[0].leaf, marks[0].transposed != (tuple(eqn.params["permutation"]) == (1, 0)))
    return passed(eqn, (mark,))


def _convert(eqn: Any, marks: Marks) -> Evaluation | None:
    return passed(eqn, marks) if jnp.issubdtype(eqn.params["new_dtype"], np.floating) else None


def _product(eqn: Any, marks: Marks) -> Evaluation | None:
    (contracted, batched) = eqn.params["dimension_numbers"]
    place = 0 if marks[0] is not None else 1
    mark, other = marks[place], eqn.invars[1 - place].aval
    if marks[1 - place] is not None or any(batched) or len(contracted[0]) != 1:
        return None
    if len(eqn.invars[place].aval.shape) != 2 or len(other.shape) < 2:
        return None
    axis, out = contracted[1 - place][0], eqn.outvars[0].aval
    how = _Product(place == 0, (contracted[place][0] == 0) != mark.transposed)
    lead = tuple(n for k, n in enumerate(other.shape) if k != axis)
    inputs = jax.ShapeDtypeStruct((*lead, other.shape[axis]), other.dtype)
    axes = ("vmap",) if "vmap" in str(eqn.source_info.name_stack) else ()

    def run(values: Any, deltas: Any) -> Outcome:
        (product,) = bind(eqn, values)
        return [attach(product, deltas[0])], [(jnp.moveaxis(values[1 - place], axis, -1),)]

    return Evaluation(run, (None,), [Slot(mark.leaf, out.shape, out.dtype, (inputs,), static=how, axes=axes)])


def whole(eqn: Any, marks: Marks) -> Evaluation:
    """Return the evaluation of an equation that uses the weights as an array and has no other rule. Each operand that
    is a table's weights becomes a slot with a dense gradient."""
    places = [k for k, m in enumerate(marks) if m is not None]
    arrays = [eqn.invars[k].aval for k in places]
    slots = [Slot(marks[k].leaf, x.shape, x.dtype, (), static=marks[k]) for k, x in zip(places, arrays, strict=True)]

    def run(values: Any, deltas: Any) -> Outcome:
        values = list(values)
        for k, delta in zip(places, deltas, strict=True):
            values[k] = attach(values[k], delta)
        return bind(eqn, values), [()] * len(places)

    return Evaluation(run, (None,) * len(eqn.outvars), slots)


RULES: dict[str, Rule] = {
    "islices_lookup": _lookup,
    # the slot of `islices_lookup` has the gradient of the rows, so the weights from which they are read need no mark
    "islices_hidden": constant,
    "islices_operand": lambda eqn, marks: passed(eqn, (Operand(marks[0].leaf),)),
    "stop_gradient": constant,
}
OPERAND_RULES: dict[str, Rule] = {
    "transpose": _transpose,
    "convert_element_type": _convert,
    "dot_general": _product,
    "stop_gradient": constant,
}


# ---------------------------------------------------------------------- what a slot found, for the core
def use_of(slot: Slot, found: tuple[Array, ...], upstream: Array, dtype: Any) -> TableUse | None:
    """Describe how a slot uses its table. `dtype` is the dtype of the weights. Return None if the slot is in a branch
    that is known not to have run."""
    if isinstance(slot.static, Operand):
        return WholeUse((upstream.T if slot.static.transposed else upstream).astype(dtype))
    if isinstance(slot.static, _Product):
        if slot.static.leading:
            upstream = jnp.moveaxis(upstream, slot.axes.count("scan"), -1)
        factors = (found[0], upstream) if slot.static.by_rows else (upstream, found[0])
        return ProductUse("", inputs=factors[1], upstream=factors[0], axes=slot.axes)
    if slot.rounds is not None and not isinstance(found[0], Tracer):
        ids = np.asarray(found[0])
        ran = (ids != slot.rows).any(tuple(range(slot.rounds, ids.ndim)))
        if not ran.any():
            return None
        if not ran.all():
            kept = np.flatnonzero(ran)
            upstream, *found = (x.reshape(-1, *x.shape[ran.ndim :])[kept] for x in (upstream, *found))  # type: ignore[assignment]
    ids, *extras = found
    return LookedUp(upstream, ids, tuple(extras), slot.static, slot.axes)
