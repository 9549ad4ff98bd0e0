"""Reads of rows of a marked parameter: the rules of the operations that read rows or hand the parameter on.

May import: `jax`, `numpy`, this folder.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from islices.backends.jax import segments
from islices.backends.jax.lookups import attach
from islices.backends.jax.primitives import varying

__all__ = ["FLOATS", "RULES", "Marked", "Marks", "Rule", "Slot", "Step", "Use", "bind", "constant", "whole"]

#: What may be stored by rows.
FLOATS = ("float16", "bfloat16", "float32", "float64")


class Marked(NamedTuple):
    """A variable that holds a marked leaf: its rows are cast once they are read; axes in front repeat it.

    Its value is the leaf, or (leaf, mask): the elements whose gradient is kept.
    """

    leaf: int
    dtype: Any
    casts: tuple[Any, ...] = ()
    copies: tuple[int, ...] = ()
    stopped: bool = False  # by stop_gradient
    masked: bool = False


#: What each variable holds: a `Marked` leaf, or what `tables` has of a Table; None for anything else.
Marks = tuple[Any, ...]


@dataclass(frozen=True)
class Slot:
    """One read of a leaf: the delta whose gradient is that of what is read, and what else the read finds."""

    leaf: int
    shape: tuple[int, ...]  # of the delta: (*loops, n, *row_shape)
    dtype: Any
    #: what is found: ids, and what goes with them; () of an array whose gradient is dense
    found: tuple[jax.ShapeDtypeStruct, ...]
    rows: int = -1  # the id of no row; -1 where no ids are found
    varying: frozenset[str] = frozenset()  # the axes of a shard_map along which the read differs
    static: Any = None  # of a Table: what the core needs to know of a lookup, or the use of its weights
    axes: tuple[str, ...] = ()  # the transformations that put axes in front of ids: "vmap", "scan"
    rounds: int | None = None  # the loops around a branch, which may not run; None outside of a branch

    @property
    def reads(self) -> int:
        """Return how many rows are read."""
        return math.prod(self.found[0].shape)

    def repeated(self, length: int) -> Slot:
        """The slot of a loop's body as the loop sees it; a dense gradient is that of all rounds."""
        if not self.found:
            return self
        found = tuple(jax.ShapeDtypeStruct((length, *x.shape), x.dtype) for x in self.found)
        rounds = None if self.rounds is None else self.rounds + 1
        return replace(self, shape=(length, *self.shape), found=found, axes=("scan", *self.axes), rounds=rounds)

    def in_branch(self) -> Slot:
        """The slot of a branch as its condition sees it."""
        return self if self.rounds is not None else replace(self, rounds=0)

    def not_run(self) -> tuple[Any, ...]:
        """Return what a branch that is not taken finds."""
        numbers = (0 if k or self.rows < 0 else self.rows for k in range(len(self.found)))
        return tuple(lax.full(x.shape, number, x.dtype) for number, x in zip(numbers, self.found, strict=True))


@dataclass(frozen=True)
class Step:
    """The steps of an equation that reads a marked leaf: ``run(values, deltas)`` returns (outputs, what slots found).

    outputs says which results are marked leaves again; others has the leaves with other uses in nested jaxprs.
    """

    run: Callable[..., Any]
    outputs: Marks
    slots: list[Slot] = field(default_factory=list)
    others: dict[int, Use] = field(default_factory=dict)


class Use(NamedTuple):
    """A use of a leaf other than by rows."""

    by: str  # the primitive, and what is known of it
    line: str = ""  # " at file:line" of the user, where it is known


#: (equation, marks of its operands) -> how it runs, or None where it is another use.
Rule = Callable[[Any, Marks], Step | None]


def bind(eqn: Any, values: Sequence[Any]) -> Sequence[Any]:
    """The results of an equation as it is."""
    bound = eqn.primitive.get_bind_params(eqn.params)
    subfuns, params = bound if isinstance(bound, tuple) else ((), bound)  # a dict alone in later versions
    outs = eqn.primitive.bind(*subfuns, *values, **params)
    return outs if eqn.primitive.multiple_results else [outs]


def _cast(x: Any, mark: Marked) -> Any:
    for dtype in mark.casts:
        x = lax.convert_element_type(x, dtype)
        if dtype.itemsize == 2:  # XLA may skip a rounding to 16 bits that is widened again right after
            x = lax.optimization_barrier(x)
    return x


def whole(x: Any, mark: Marked | None) -> Any:
    """The value of a variable as the program has it."""
    if mark is None:
        return x
    x = _cast(x[0] if mark.masked else x, mark)
    return lax.broadcast(x, mark.copies) if mark.copies else x


def constant(eqn: Any, marks: Marks) -> Step:
    """The step of an equation that no gradient passes."""

    def run(values: Any, deltas: Any) -> tuple[Any, list[Any]]:
        return bind(eqn, [whole(x, m) for x, m in zip(values, marks, strict=True)]), []

    return Step(run, (None,) * len(eqn.outvars))


# ---------------------------------------------------------------------- rules: reads of rows
def _gather(eqn: Any, marks: Marks) -> Step | None:
    mark, numbers, starts = marks[0], eqn.params["dimension_numbers"], eqn.invars[1].aval
    mode = eqn.params["mode"].name
    if mark is None or mode not in _MODES or (mode == "FILL_OR_DROP" and not _fills(eqn.params["fill_value"], mark)):
        return None
    copies, sizes = len(mark.copies), eqn.params["slice_sizes"]
    shape = eqn.invars[0].aval.shape[copies:]
    mapped = numbers.operand_batching_dims  # by vmap
    axes = tuple(k - copies for k in numbers.start_index_map)
    if shape[0] == 0 or sizes[copies] != 1 or tuple(sizes[copies + 1 :]) != shape[1:] or 0 not in axes:
        return None
    repeated = [k for k in range(copies) if k not in mapped]  # whole, and each the same
    if min(axes) < 0 or any(k >= copies for k in mapped):
        return None
    if any(sizes[k] != mark.copies[k] or k in numbers.collapsed_slice_dims for k in repeated):
        return None
    again = numbers.offset_dims[: len(repeated)]  # the axes of the result that repeat what is read
    kept = [k for k in range(len(eqn.outvars[0].aval.shape)) if k not in again]
    offsets = tuple(kept.index(k) for k in numbers.offset_dims if k not in again)
    params = {
        **eqn.params,
        "dimension_numbers": lax.GatherDimensionNumbers(
            offset_dims=offsets,
            collapsed_slice_dims=tuple(k - copies for k in numbers.collapsed_slice_dims),
            start_index_map=axes,
        ),
        "slice_sizes": tuple(sizes[copies:]),
    }
    batch, dtype = starts.shape[:-1], _index_dtype(starts.dtype)

    def ids(start: Any) -> Any:
        start = start.reshape(-1, start.shape[-1])
        row = _signed(start[:, axes.index(0)], dtype)
        if mode == "CLIP":
            return jnp.clip(row, 0, shape[0] - 1)
        inside = (row >= 0) & (row < shape[0])
        if mode == "FILL_OR_DROP":  # a start of another axis fits only at its beginning
            for k, axis in enumerate(axes):
                inside &= start[:, k] == 0 if axis else inside
        return jnp.where(inside, row, shape[0])

    def read(table: Any, start: Any) -> Any:
        return eqn.primitive.bind(table, start, **params)

    def spread(delta: Any) -> Any:
        out = [eqn.outvars[0].aval.shape[k] for k in kept]
        delta = delta.reshape(*batch, *(out[k] for k in offsets))
        return jnp.moveaxis(delta, range(len(batch), delta.ndim), offsets)

    return _reading(eqn, mark, math.prod(batch), dtype, read, ids, spread, kept)


_MODES = ("CLIP", "FILL_OR_DROP", "PROMISE_IN_BOUNDS")


def _fills(value: Any, mark: Marked) -> bool:
    """True if reading before the casts fills absent rows with the same number as reading behind them."""
    if value is None or not mark.casts:  # NaN
        return True
    value = np.asarray(value)
    return bool(value == 0 or np.isnan(value))


def _dynamic_slice(eqn: Any, marks: Marks) -> Step | None:
    mark, sizes = marks[0], eqn.params["slice_sizes"]
    if mark is None:
        return None
    copies = len(mark.copies)
    shape = eqn.invars[0].aval.shape[copies:]
    if sizes[:copies] != mark.copies or tuple(sizes[copies + 1 :]) != shape[1:]:
        return None
    count, dtype = sizes[copies], _index_dtype(eqn.invars[1 + copies].aval.dtype)

    def ids(*starts: Any) -> Any:
        return jnp.clip(_signed(starts[copies], dtype), 0, shape[0] - count) + lax.iota(dtype, count)

    def read(table: Any, *starts: Any) -> Any:
        return eqn.primitive.bind(table, *starts[copies:], **{**eqn.params, "slice_sizes": tuple(sizes[copies:])})

    return _reading(eqn, mark, count, dtype, read, ids, lambda delta: delta)


def _slice(eqn: Any, marks: Marks) -> Step | None:
    mark = marks[0]
    if mark is None:
        return None
    copies = len(mark.copies)
    given = eqn.invars[0].aval.shape
    starts, limits, strides = (eqn.params[k] for k in ("start_indices", "limit_indices", "strides"))
    strides = strides or (1,) * len(given)
    if any(k != copies and (starts[k], limits[k], strides[k]) != (0, n, 1) for k, n in enumerate(given)):
        return None
    params = {
        "start_indices": starts[copies:],
        "limit_indices": limits[copies:],
        "strides": eqn.params["strides"] and strides[copies:],
    }
    count, dtype = eqn.outvars[0].aval.shape[copies], _index_dtype(np.dtype("int32"), given[copies])

    def ids() -> Any:
        return lax.iota(dtype, count) * np.asarray(strides[copies], dtype) + np.asarray(starts[copies], dtype)

    def read(table: Any) -> Any:
        return eqn.primitive.bind(table, **params)

    return _reading(eqn, mark, count, dtype, read, ids, lambda delta: delta)


def _reading(
    eqn: Any,
    mark: Marked,
    count: int,
    dtype: Any,
    read: Callable[..., Any],
    ids: Callable[..., Any],
    spread: Callable[[Any], Any],
    kept: Sequence[int] | None = None,
) -> Step:
    """The step of one slot of count rows. spread gives a delta (count, *row_shape) the shape of what is read; kept are
    the axes of the result that this has: by default those behind the mark's copies."""
    if mark.stopped:
        return constant(eqn, (mark, *(None for _ in eqn.invars[1:])))
    out, shape = eqn.outvars[0].aval, eqn.invars[0].aval.shape[len(mark.copies) :]
    segments.check_sentinel(shape[0], dtype)
    found = jax.ShapeDtypeStruct((count,), dtype)
    slot = Slot(mark.leaf, (count, *shape[1:]), mark.dtype, (found,), shape[0], varying(out))
    kept = range(len(mark.copies), len(out.shape)) if kept is None else kept

    def run(values: Any, deltas: Any) -> tuple[Any, list[Any]]:
        leaf, *starts = values
        leaf, mask = leaf if mark.masked else (leaf, None)
        rows, delta = read(leaf, *starts), deltas[0]
        rows = _cast(attach(rows, spread(_on_mesh(delta, rows))), mark)
        if len(kept) < len(out.shape):
            rows = lax.broadcast_in_dim(rows, out.shape, kept)
        if mask is not None:
            rows = jnp.where(eqn.primitive.bind(mask, *starts, **eqn.params) != 0, rows, lax.stop_gradient(rows))
        return [rows], [(_on_mesh(ids(*starts), delta),)]

    return Step(run, (None,), [slot])


def _on_mesh(x: Any, like: Any) -> Any:
    """The array with the mesh that another has in its type: they differ in explicit sharding, within auto_axes."""
    mesh = jax.typeof(like).sharding.mesh
    if mesh.empty or jax.typeof(x).sharding.mesh == mesh:
        return x
    return jax.sharding.reshard(x, NamedSharding(mesh, PartitionSpec(*(None,) * x.ndim)))


def _index_dtype(dtype: Any, rows: int = 0) -> Any:
    """int32 or int64: the type of stored row numbers that holds a read's starts."""
    wide = np.dtype(dtype).itemsize == 8 or rows > np.iinfo(np.int32).max
    return np.dtype("int64" if wide else "int32")


def _signed(x: Any, dtype: Any) -> Any:
    """Starts in a signed type; those that it cannot hold become its largest number."""
    if jnp.issubdtype(x.dtype, np.unsignedinteger) and x.dtype.itemsize >= dtype.itemsize:
        x = jnp.minimum(x, np.asarray(np.iinfo(dtype).max, x.dtype))
    return x.astype(dtype)


# ---------------------------------------------------------------------- rules: a leaf handed on
def _same(eqn: Any, marks: Marks) -> Step | None:
    """The leaf itself: an operation that changes no number, and is left out."""
    return Step(lambda values, deltas: (list(values), []), marks)


def _barrier(eqn: Any, marks: Marks) -> Step | None:
    def run(values: Any, deltas: Any) -> tuple[Any, list[Any]]:
        others = iter(bind(eqn, [x for x, m in zip(values, marks, strict=True) if m is None]))
        return [next(others) if m is None else x for x, m in zip(values, marks, strict=True)], []

    return Step(run, marks)


def _convert(eqn: Any, marks: Marks) -> Step | None:
    (mark,), dtype = marks, np.dtype(eqn.params["new_dtype"])
    if mark is None or dtype.name not in FLOATS:
        return None
    return _same(eqn, (mark._replace(casts=(*mark.casts, dtype)),))


def _broadcast(eqn: Any, marks: Marks) -> Step | None:
    """More axes in front, as vmap makes them of a predicate that it maps."""
    mark, shape, dims = marks[0], eqn.params["shape"], eqn.params["broadcast_dimensions"]
    if mark is None or tuple(shape[k] for k in dims) != eqn.invars[0].aval.shape:
        return None
    row = len(dims) - len(mark.copies)
    if tuple(dims[len(mark.copies) :]) != tuple(range(len(shape) - row, len(shape))):
        return None

    def run(values: Any, deltas: Any) -> tuple[Any, list[Any]]:
        return [bind(eqn, [values[0][1]])[0] if mark.masked else None], []

    return Step(run, (mark._replace(copies=tuple(shape[: len(shape) - row])),))


def _stop(eqn: Any, marks: Marks) -> Step | None:
    (mark,) = marks
    return None if mark is None else Step(_first, (mark._replace(stopped=True, masked=False),))


def _first(values: Any, deltas: Any) -> tuple[Any, list[Any]]:
    """None where the value is the leaf again."""
    return [None], []


def _select(eqn: Any, marks: Marks) -> Step | None:
    """A leaf whose gradient is stopped where one is chosen, as vmap makes it of cond."""
    which, *cases = marks
    bare = [m and m._replace(stopped=False, masked=False) for m in cases]
    if which is not None or bare[0] is None or any(m != bare[0] for m in bare):
        return None
    if all(m.stopped for m in cases):
        return Step(_first, (cases[0],))

    def run(values: Any, deltas: Any) -> tuple[Any, list[Any]]:
        full = partial(lax.full, eqn.outvars[0].aval.shape, dtype=bare[0].dtype)
        masks = [x[1] if m.masked else full(not m.stopped) for x, m in zip(values[1:], cases, strict=True)]
        return [lax.select_n(values[0], *masks)], []

    return Step(run, (bare[0]._replace(masked=True),))


def _placed(eqn: Any, marks: Marks) -> Step | None:
    """The leaf, placed or typed otherwise."""
    if any(m is None or m.copies or m.masked for m in marks):
        return None
    return Step(lambda values, deltas: (bind(eqn, values), []), marks)


#: Rules by primitive.
RULES: dict[str, Rule] = {
    # of a Table made of the leaf, and differentiated within
    "islices_hidden": _same,
    "islices_operand": _same,
    "islices_lookup": constant,
    "gather": _gather,
    "dynamic_slice": _dynamic_slice,
    "slice": _slice,
    "convert_element_type": _convert,
    "copy": _same,
    "copy_p": _same,
    "name": _same,
    "optimization_barrier": _barrier,
    "select_n": _select,
    "stop_gradient": _stop,
    "broadcast_in_dim": _broadcast,
    "device_put": _placed,
    "pcast": _placed,
    "pvary": _placed,
    "reshard": _placed,
    "sharding_constraint": _placed,
}
