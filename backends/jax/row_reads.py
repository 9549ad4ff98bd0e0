"""Define the rules of the operations that read rows of a marked parameter or pass the parameter on.

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
    """A variable that holds a marked leaf. The leaf's rows are cast after they are read."""

    leaf: int
    dtype: Any
    casts: tuple[Any, ...] = ()


#: The outputs of an equation, and the found values of its slots.
Outcome = tuple[Sequence[Any], list[Any]]
#: The mark of each variable: a `Marked` leaf, a mark of `tables` for a Table, or None.
Marks = tuple[Any, ...]


@dataclass(frozen=True)
class Slot:
    """One read of a leaf. Its delta gets the gradient of the read values; it may also have other found values."""

    leaf: int
    shape: tuple[int, ...]  # shape of the delta: (*loops, n, *row_shape)
    dtype: Any
    #: avals of the found values: ids and their extras; () for an array with a dense gradient
    found: tuple[Any, ...]
    rows: int = -1  # the id of no row; -1 without ids
    varying: frozenset[str] = frozenset()  # the axes of a shard_map along which the read differs
    static: Any = None  # for a Table: the core's facts about a lookup, or the use of its weights
    axes: tuple[str, ...] = ()  # the transformations that add axes before those of ids: "vmap", "scan"
    rounds: int | None = None  # the number of loops around a branch, which may not run; None outside of a branch

    @property
    def reads(self) -> int:
        """Return the number of rows that are read."""
        return math.prod(self.found[0].shape)

    def repeated(self, length: int) -> Slot:
        """Return the slot of a loop's body as the loop sees it. A dense gradient is the sum over all rounds."""
        if not self.found:
            return self
        found = tuple(jax.ShapeDtypeStruct((length, *x.shape), x.dtype) for x in self.found)
        rounds = None if self.rounds is None else self.rounds + 1
        return replace(self, shape=(length, *self.shape), found=found, axes=("scan", *self.axes), rounds=rounds)

    def in_branch(self) -> Slot:
        """Return the slot of a branch as the condition sees it."""
        return self if self.rounds is not None else replace(self, rounds=0)

    def not_run(self) -> tuple[Any, ...]:
        """Return the found values of a branch that is not taken."""
        numbers = (0 if k or self.rows < 0 else self.rows for k in range(len(self.found)))
        return tuple(lax.full(x.shape, number, x.dtype) for number, x in zip(numbers, self.found, strict=True))


@dataclass(frozen=True)
class Evaluation:
    """The step of an equation that reads a marked leaf. ``run(values, deltas)`` returns outputs and found values.

    outputs has the mark of each result that is a marked leaf again. others has the leaves with other uses in nested
    jaxprs.
    """

    run: Callable[..., Any]
    outputs: Marks
    slots: list[Slot] = field(default_factory=list)
    others: dict[int, Use] = field(default_factory=dict)


class Use(NamedTuple):
    """A use of a leaf other than by rows."""

    by: str  # the primitive, with known details
    line: str = ""  # " at file:line" of the user, if it is known


#: (equation, marks of its operands) -> its step, or None if it is another use.
Rule = Callable[[Any, Marks], Evaluation | None]


def bind(eqn: Any, values: Sequence[Any]) -> Sequence[Any]:
    """Return the results of an equation without changes."""
    bound = eqn.primitive.get_bind_params(eqn.params)
    subfuns, params = bound if isinstance(bound, tuple) else ((), bound)  # a plain dict in later versions
    outs = eqn.primitive.bind(*subfuns, *values, **params)
    return outs if eqn.primitive.multiple_results else [outs]


def whole(x: Any, mark: Marked | None) -> Any:
    """Return a leaf, or some of its rows, with its casts."""
    for dtype in () if mark is None else mark.casts:
        x = lax.convert_element_type(x, dtype)
        if dtype.itemsize == 2:  # XLA may skip a rounding to 16 bits that is widened again right after
            x = lax.optimization_barrier(x)
    return x


def passed(eqn: Any, outputs: Marks) -> Evaluation:
    """Return the step of an equation that runs as it is, with the marks of its results."""
    return Evaluation(lambda values, deltas: (bind(eqn, values), []), outputs)


def constant(eqn: Any, marks: Marks) -> Evaluation:
    """Return the step of an equation that passes no gradient."""

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
        if mode == "FILL_OR_DROP":  # a start on another axis fits only at the beginning of the axis
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
    """Return True if absent rows get the same number before the casts and after them."""
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
    """Return the step of one slot of count rows; spread reshapes a delta (count, *row_shape) to the read values."""
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
    """Return the array with the mesh of another array's type. With explicit sharding the meshes differ within
    auto_axes."""
    mesh = jax.typeof(like).sharding.mesh
    if mesh.empty or jax.typeof(x).sharding.mesh == mesh:
        return x
    return jax.sharding.reshard(x, NamedSharding(mesh, PartitionSpec(*(None,) * x.ndim)))


def _index_dtype(dtype: Any, rows: int = 0) -> Any:
    """Return int32 or int64: the type of stored row numbers that can represent a read's starts."""
    wide = np.dtype(dtype).itemsize == 8 or rows > np.iinfo(np.int32).max
    return np.dtype("int64" if wide else "int32")


def _signed(x: Any, dtype: Any) -> Any:
    """Return starts in a signed type. Starts that it cannot represent become its largest number."""
    if jnp.issubdtype(x.dtype, np.unsignedinteger) and x.dtype.itemsize >= dtype.itemsize:
        x = jnp.minimum(x, np.asarray(np.iinfo(dtype).max, x.dtype))
    return x.astype(dtype)


# ---------------------------------------------------------------------- rules: a leaf handed on
def _same(eqn: Any, marks: Marks) -> Evaluation | None:
    """Return a step that passes the leaf on and leaves out the operation, which changes no number."""
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
    """Return a step that places the leaf elsewhere or changes its type."""
    return None if None in marks else passed(eqn, marks)


#: Rules by primitive.
RULES: dict[str, Rule] = {
    # a Table made from the leaf, and differentiated within
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
