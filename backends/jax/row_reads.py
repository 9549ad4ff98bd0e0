"""Define the rules of operations that read rows of a marked parameter, or pass the whole parameter on.

May import: `jax`, `numpy`, `islices.backend`, this folder, `islices.backends.jax.host_calls`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from islices.backend import FLOATS
from islices.backends.jax import scatters
from islices.backends.jax.host_calls.primitive import varying
from islices.backends.jax.markers import attach


class Marked(NamedTuple):
    """The mark of a variable that contains a marked leaf. If the leaf has been cast, `casts` are applied to rows after
    they are read."""

    leaf: int
    dtype: Any
    casts: tuple[Any, ...] = ()


#: (the outputs of an equation, the values that its slots found, such as row numbers)
Outcome = tuple[Sequence[Any], list[Any]]
#: The marks of variables. Each is a `Marked`, a mark of the module `tables` if the leaf is a Table, or None.
Marks = tuple[Any, ...]


@dataclass(frozen=True)
class Slot:
    """A read of a leaf's rows, or a use of a Table's weights as an array. Each slot has a delta, an additional input.
    The gradient of the delta is the gradient of the rows that are read, of a product with the weights, or of the
    weights. `found` describes further values, such as row numbers."""

    leaf: int
    shape: tuple[int, ...]  # the shape of the delta; for a read of n rows of a plain array, (*loops, n, *row_shape)
    dtype: Any
    #: the abstract values of what the read found: ids and their extras, the other operand of a product, or () for a
    #: dense gradient
    found: tuple[Any, ...]
    rows: int = -1  # the number of rows, or -1 if the slot has no ids; the id `rows` stands for no row
    varying: frozenset[str] = frozenset()  # the axes of a shard_map along which the read differs
    static: Any = None  # only for a Table: the record of the lookup, or of the use of the weights
    axes: tuple[str, ...] = ()  # the transformations ("vmap", "scan") that add axes before the axes of ids
    rounds: int | None = None  # the number of loops around the branch that contains the read; None without a branch

    def repeated(self, length: int) -> Slot:
        """Return the slot of a loop that has `length` rounds, and whose body contains this slot. The loop sums a dense
        gradient over its rounds, so a dense slot stays the same."""
        if not self.found:
            return self
        found = tuple(jax.ShapeDtypeStruct((length, *x.shape), x.dtype) for x in self.found)
        rounds = None if self.rounds is None else self.rounds + 1
        return replace(self, shape=(length, *self.shape), found=found, axes=("scan", *self.axes), rounds=rounds)

    def not_run(self) -> tuple[Any, ...]:
        """Return the found values for a branch that does not run: ids that are not rows, and zeros."""
        no_row = max(self.rows, 0)
        return tuple(lax.full(x.shape, 0 if k else no_row, x.dtype) for k, x in enumerate(self.found))


@dataclass(frozen=True)
class Evaluation:
    """The evaluation of an equation with a marked leaf among its operands. ``run(values, deltas)`` returns the outputs
    and the found values.

    `outputs` contains, for each result, a mark if the result is still a marked leaf, else None. `others` maps a leaf to
    its use in a nested jaxpr, if that use is not a read of rows.
    """

    run: Callable[..., Any]
    outputs: Marks
    slots: list[Slot] = field(default_factory=list)
    others: dict[int, Use] = field(default_factory=dict)


class Use(NamedTuple):
    """A use of a leaf that is not a read of rows."""

    by: str  # the name of the primitive, with details if they are known
    line: str = ""  # " at file:line" in the user's code, if it is known


#: A function that gets an equation and the marks of its operands, and returns the evaluation. If the rule does not
#: apply to the equation, the function returns None.
Rule = Callable[[Any, Marks], Evaluation | None]


def bind(eqn: Any, values: Sequence[Any]) -> Sequence[Any]:
    """Run an equation unchanged, and return its results."""
    bound = eqn.primitive.get_bind_params(eqn.params)
    subfuns, params = bound if isinstance(bound, tuple) else ((), bound)  # a plain dict in later versions
    outs = eqn.primitive.bind(*subfuns, *values, **params)
    return outs if eqn.primitive.multiple_results else [outs]


def whole(x: Any, mark: Marked | None) -> Any:
    """Apply the casts of a mark to `x`, which is a leaf or some of its rows."""
    for dtype in mark.casts if isinstance(mark, Marked) else ():
        x = lax.convert_element_type(x, dtype)
        if dtype.itemsize == 2:  # XLA may skip a rounding to 16 bits if the result is immediately widened
            x = lax.optimization_barrier(x)
    return x


def passed(eqn: Any, outputs: Marks) -> Evaluation:
    """Return the evaluation of an equation that runs unchanged. `outputs` contains the marks of its results."""
    return Evaluation(lambda values, deltas: (bind(eqn, values), []), outputs)


def constant(eqn: Any, marks: Marks) -> Evaluation:
    """Return the evaluation of an equation through which marked leaves get no gradient."""

    def run(values: Any, deltas: Any) -> Outcome:
        return bind(eqn, [whole(x, m) for x, m in zip(values, marks, strict=True)]), []

    return Evaluation(run, (None,) * len(eqn.outvars))


# ---------------------------------------------------------------------- rules: reads of rows
def _gather(eqn: Any, marks: Marks) -> Evaluation | None:
    mark, numbers, starts = marks[0], eqn.params["dimension_numbers"], eqn.invars[1].aval
    mode, sizes, shape = eqn.params["mode"].name, eqn.params["slice_sizes"], eqn.invars[0].aval.shape
    if mark is None or mode not in _MODES or (mode == "FILL_OR_DROP" and not _fills(eqn.params["fill_value"], mark)):
        return None
    axes, offsets = numbers.start_index_map, numbers.offset_dims
    if shape[0] == 0 or tuple(sizes) != (1, *shape[1:]) or 0 not in axes or numbers.operand_batching_dims:
        return None
    batch, dtype = starts.shape[:-1], _index_dtype(starts.dtype)

    def ids(start: Any) -> Any:
        start = start.reshape(-1, start.shape[-1])
        row = _signed(start[:, axes.index(0)], dtype)
        if mode == "CLIP":
            return jnp.clip(row, 0, shape[0] - 1)
        inside = (row >= 0) & (row < shape[0])
        if mode == "FILL_OR_DROP":  # on other axes, only the start 0 is in range
            for k, axis in enumerate(axes):
                inside &= start[:, k] == 0 if axis else inside
        return jnp.where(inside, row, shape[0])

    def spread(delta: Any) -> Any:
        out = eqn.outvars[0].aval.shape
        delta = delta.reshape(*batch, *(out[k] for k in offsets))
        return jnp.moveaxis(delta, range(len(batch), delta.ndim), offsets)

    return _reading(eqn, mark, math.prod(batch), dtype, ids, spread)


_MODES = ("CLIP", "FILL_OR_DROP", "PROMISE_IN_BOUNDS")


def _fills(value: Any, mark: Marked) -> bool:
    """Return True if the mark has no casts, or if missing rows are filled with NaN or 0, which casts do not change."""
    if value is None or not mark.casts:  # NaN
        return True
    value = np.asarray(value)
    return bool(value == 0 or np.isnan(value))


def _dynamic_slice(eqn: Any, marks: Marks) -> Evaluation | None:
    mark, shape, (count, *row) = marks[0], eqn.invars[0].aval.shape, eqn.params["slice_sizes"]
    if mark is None or tuple(row) != shape[1:]:
        return None
    dtype = _index_dtype(eqn.invars[1].aval.dtype)

    def ids(*starts: Any) -> Any:
        return jnp.clip(_signed(starts[0], dtype), 0, shape[0] - count) + lax.iota(dtype, count)

    return _reading(eqn, mark, count, dtype, ids)


def _slice(eqn: Any, marks: Marks) -> Evaluation | None:
    mark, shape = marks[0], eqn.invars[0].aval.shape
    starts, limits, strides = (eqn.params[k] for k in ("start_indices", "limit_indices", "strides"))
    strides = strides or (1,) * len(shape)
    every = list(zip(starts, limits, strides, strict=True))[1:]
    if mark is None or every != [(0, n, 1) for n in shape[1:]]:
        return None
    count, dtype = eqn.outvars[0].aval.shape[0], _index_dtype(np.dtype("int32"), shape[0])

    def ids() -> Any:
        return lax.iota(dtype, count) * np.asarray(strides[0], dtype) + np.asarray(starts[0], dtype)

    return _reading(eqn, mark, count, dtype, ids)


def _reading(
    eqn: Any,
    mark: Marked,
    count: int,
    dtype: Any,
    ids: Callable[..., Any],
    spread: Callable[[Any], Any] = lambda delta: delta,
) -> Evaluation:
    """Return the evaluation of an equation that reads `count` rows. The evaluation has one slot.

    The function `ids` computes the row numbers from the other operands of the equation. The function `spread` reshapes
    a delta of shape ``(count, *row_shape)`` to the shape of the result.
    """
    shape = eqn.invars[0].aval.shape
    scatters.check_sentinel(shape[0], dtype)
    found = jax.ShapeDtypeStruct((count,), dtype)
    slot = Slot(mark.leaf, (count, *shape[1:]), mark.dtype, (found,), shape[0], varying(eqn.outvars[0].aval))

    def run(values: Any, deltas: Any) -> Outcome:
        (rows,), delta = bind(eqn, values), deltas[0]
        rows = whole(attach(rows, spread(_on_mesh(delta, rows))), mark)
        return [rows], [(_on_mesh(ids(*values[1:]), delta),)]

    return Evaluation(run, (None,), [slot])


def _on_mesh(x: Any, like: Any) -> Any:
    """Put `x` on the mesh of `like`. With explicit sharding, these meshes may differ within auto_axes."""
    mesh = jax.typeof(like).sharding.mesh
    if mesh.empty or jax.typeof(x).sharding.mesh == mesh:
        return x
    return jax.sharding.reshard(x, NamedSharding(mesh, PartitionSpec(*(None,) * x.ndim)))


def _index_dtype(dtype: Any, rows: int = 0) -> Any:
    """Return the dtype for the row numbers of a read. The dtype is int64 if the start indices are 64-bit or int32
    cannot represent `rows`, else int32."""
    wide = np.dtype(dtype).itemsize == 8 or rows > np.iinfo(np.int32).max
    return np.dtype("int64" if wide else "int32")


def _signed(x: Any, dtype: Any) -> Any:
    """Convert start indices to the signed type `dtype`. If this type cannot represent an index, the result is the
    largest number of the type."""
    if jnp.issubdtype(x.dtype, np.unsignedinteger) and x.dtype.itemsize >= dtype.itemsize:
        x = jnp.minimum(x, np.asarray(np.iinfo(dtype).max, x.dtype))
    return x.astype(dtype)


# ---------------------------------------------------------------------- rules: a leaf handed on
def _same(eqn: Any, marks: Marks) -> Evaluation | None:
    """Return an evaluation that leaves out the operation and returns the leaf. The operation changes no number, or is a
    cast that `marks` records."""
    return Evaluation(lambda values, deltas: (list(values), []), marks)


def _barrier(eqn: Any, marks: Marks) -> Evaluation | None:
    def run(values: Any, deltas: Any) -> Outcome:
        others = iter(bind(eqn, [x for x, m in zip(values, marks, strict=True) if m is None]))
        return [next(others) if m is None else x for x, m in zip(values, marks, strict=True)], []

    return Evaluation(run, marks)


def _convert(eqn: Any, marks: Marks) -> Evaluation | None:
    (mark,), dtype = marks, np.dtype(eqn.params["new_dtype"])
    if mark is None or dtype.name not in FLOATS:
        return None
    return _same(eqn, (mark._replace(casts=(*mark.casts, dtype)),))


def _placed(eqn: Any, marks: Marks) -> Evaluation | None:
    """Return the evaluation of an operation that copies leaves to other devices, or changes their sharding or the mesh
    axes along which they vary. Return None if an operand is not a leaf."""
    return None if None in marks else passed(eqn, marks)


#: name of a primitive -> its rule
RULES: dict[str, Rule] = {
    # an inner call differentiates with respect to a Table that was made from the leaf
    "islices_hidden": _same,
    "islices_operand": _same,
    "islices_lookup": constant,
    "gather": _gather,
    "dynamic_slice": _dynamic_slice,
    "slice": _slice,
    "convert_element_type": _convert,
    "copy": _same,
    "name": _same,
    "optimization_barrier": _barrier,
    "stop_gradient": constant,
    "device_put": _placed,
    "pcast": _placed,
    "pvary": _placed,
    "reshard": _placed,
    "sharding_constraint": _placed,
}
