"""Compiled kernels inside the graphs of tf.function, on CPU: sums of rows, norms, optimizers' steps.

TensorFlow calls back into this process for them (`tf.numpy_function`, without a copy either way; `tf.py_function` where
variables change, which takes their handles, so that TensorFlow orders the call among their reads and writes). A graph
may also come to run where nobody answers: in another process (a SavedModel, a remote worker), in a session of its own.
So each call stands in a `tf.cond` beside the framework's operations, and asks for a mark in this process' memory: a
variable that no other process and no loaded model has under this name. Within XLA, where neither can be compiled, and
where there are accelerators, `kernels_here` gives none, and the framework's operations run alone.

May import: `tensorflow`, `numpy`, the core, this folder.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Sequence
from functools import cache, partial
from types import ModuleType
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import record
from tensorflow.python.ops import control_flow_util
from tensorflow.python.ops.parallel_for import pfor

from islices import kernels, modes
from islices.backend import Array, Slots
from islices.backends.tensorflow import memory
from islices.host import group
from islices.locks import Lock
from islices.memory import empty
from islices.optim.formulas import Formula

__all__ = ["compiled_by_xla", "kernels_here", "norm", "step", "sum_rows"]

Host = np.ndarray[Any, Any]
#: Makes the steps of graphs that run at the same time one after the other: each sees whole rows.
_stepping = Lock()


# ---------------------------------------------------------------------- where kernels run
def compiled_by_xla() -> bool:
    """Whether the graph that is being built is XLA's to compile."""
    graph = tf.compat.v1.get_default_graph()
    return bool(control_flow_util.GraphOrParentsInXlaContext(graph))


def kernels_here() -> ModuleType | None:
    """The kernels that graphs built now are to call, if any."""
    compiled = kernels.active() if modes.on_host() else None
    if compiled is None or compiled_by_xla() or _mark() is None:
        return None
    return None if any(d.device_type != "CPU" for d in tf.config.list_logical_devices()) else compiled


@cache
def _mark() -> str | None:
    """The name of a variable that is initialized in this process alone; None where there is no eager TensorFlow."""
    name = f"islices_{uuid.uuid4().hex}"
    with tf.init_scope(), tf.device("CPU:0"):
        if not tf.executing_eagerly():
            return None
        handle = tf.raw_ops.VarHandleOp(dtype=tf.bool, shape=[], shared_name=name)
        tf.raw_ops.AssignVariableOp(resource=handle, value=tf.constant(True))
    return name


def _if_here(call: Callable[[], Any], otherwise: Callable[[], Any]) -> Any:
    """What call gives where the graph runs in this process, else what otherwise gives."""
    with record.stop_recording():  # the gradient is given by whoever calls, or there is none
        # the scope is what XLA's error names, where a function that was traced before is called within jit_compile
        with tf.device("CPU:0"), tf.name_scope("islices_traced_outside_of_jit_compile"):
            handle = tf.raw_ops.VarHandleOp(dtype=tf.bool, shape=[], shared_name=_mark())
            here = tf.raw_ops.VarIsInitializedOp(resource=handle)

        def by_operations() -> Any:
            with kernels.use_kernels(False):  # nor do these call any
                return otherwise()

        return tf.cond(here, call, by_operations)


def _register_pfor() -> None:
    """Tell tf.vectorized_map that the mark is the same for all members: it would make a loop of it, and of the call."""

    def handle(given: Any) -> Any:
        attributes = {name: given.get_attr(name) for name in ("dtype", "shape", "shared_name", "container")}
        return pfor.wrap(tf.raw_ops.VarHandleOp(**attributes), False)

    def initialized(given: Any) -> Any:
        return pfor.wrap(tf.raw_ops.VarIsInitializedOp(resource=given.unstacked_input(0)), False)

    for name, converter in (("VarHandleOp", handle), ("VarIsInitializedOp", initialized)):
        with contextlib.suppress(KeyError):  # TensorFlow has one of its own
            pfor.RegisterPFor(name)(converter)


_register_pfor()


# ---------------------------------------------------------------------- sums of rows
def sum_rows(
    values: Array,
    indices: Array,
    rows: int | None,
    otherwise: Callable[[Array, Array], tuple[Array, Array]],
) -> tuple[Array, Array] | None:
    """(sums, ids) of slices in a graph, those out of range left out; None where no kernel is called."""
    if kernels_here() is None or values.shape.rank is None:
        return None
    callback = partial(_sum_rows, rows=rows)

    def compute(values: Array, indices: Array) -> tuple[Array, Array]:
        def call() -> list[Array]:
            return tf.numpy_function(callback, [values, indices], [values.dtype, indices.dtype])  # type: ignore[no-any-return]

        sums, ids = _if_here(call, lambda: list(otherwise(values, indices)))
        sums.set_shape((None, *values.shape[1:]))
        ids.set_shape((None,))
        return sums, ids

    if not values.dtype.is_floating:
        return compute(values, indices)

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def recorded(values: Array, indices: Array) -> Any:
        sums, ids = compute(values, indices)

        def gradient(upstream: Any, _: Any) -> tuple[Array, None]:
            return _at_slots(tf.convert_to_tensor(upstream), ids, indices), None

        return (sums, ids), gradient

    sums, ids = recorded(values, indices)
    return sums, ids


def _at_slots(of_rows: Array, ids: Array, indices: Array) -> Array:
    """For each index what belongs to its row, of the ascending ids; zeros where it is none of them."""
    ordered, queries = tf.cast(ids, tf.int64), tf.cast(indices, tf.int64)
    place = tf.raw_ops.LowerBound(sorted_inputs=ordered[None], values=queries[None], out_type=tf.int64)[0]
    nowhere = tf.size(ordered, tf.int64)
    # behind the ids stands one that no index is
    found = tf.equal(tf.gather(tf.concat([ordered, [tf.int64.min]], 0), place), queries)
    padded = tf.concat([of_rows, tf.zeros_like(of_rows[:1]) if of_rows.shape[0] else _row_of_zeros(of_rows)], 0)
    return tf.gather(padded, tf.where(found, place, nowhere))


def _row_of_zeros(x: Array) -> Array:
    return tf.zeros(tf.concat([[1], tf.shape(x)[1:]], 0), x.dtype)


def _sum_rows(values: Host, indices: Host, *, rows: int | None) -> list[Host]:
    order, found, starts = _groups(values, indices, rows)
    ids = empty(found.shape, found.dtype)
    ids[...] = found
    sums = _compiled().fold(_bits(values), order, starts)
    return [sums.view(values.dtype), ids]


# ---------------------------------------------------------------------- norms
def norm(leaves: Sequence[Slots], ord: int, otherwise: Callable[[Sequence[Slots]], Array]) -> Array | None:
    """See `Backend.traced_norm`; without factors."""
    if kernels_here() is None:
        return None
    arrays: list[Array] = []
    layout: list[tuple[bool, bool, int | None]] = []
    for leaf in leaves:
        arrays += [x for x in leaf[:2] if x is not None]
        arrays += [] if leaf.positions is None else [leaf.positions]
        layout.append((leaf.indices is not None, leaf.positions is not None, leaf.rows))
    callback = partial(_norm, layout=layout, ord=ord)
    exact = _if_here(lambda: tf.numpy_function(callback, arrays, tf.float64), lambda: otherwise(leaves))
    exact.set_shape((1,))
    return exact


def _norm(*arrays: Host, layout: Sequence[tuple[bool, bool, int | None]], ord: int) -> Host:
    given, stored = iter(arrays), list[tuple[Host, Host | None, Host | None]]()
    for sparse, placed, rows in layout:
        values, order, starts = next(given), None, None
        if sparse:
            indices = next(given)
            order, _, starts = _groups(values, indices, rows, next(given) if placed else None)
        stored.append((_bits(values), order, starts))
    return np.array((_compiled().norm(stored, ord),))


# ---------------------------------------------------------------------- steps
def step(
    formula: Formula, slots: Slots, numbers: Array, tables: Sequence[Array], otherwise: Callable[..., Sequence[Array]]
) -> Sequence[Array] | None:
    """See `Backend.traced_step`."""
    if kernels_here() is None or 0 in tuple(tables[0].shape) or 0 in tuple(slots.values.shape)[1:]:
        return None
    optional = [slots.positions, slots.factor]
    given = [slots.values, slots.indices, numbers, *(x for x in optional if x is not None)]
    take = partial(_step, formula, [x is not None for x in optional])

    def by_operations() -> Sequence[Array]:
        return otherwise(slots, numbers, *tables)

    if isinstance(tables[0], tf.Tensor):
        copies, dtypes = partial(_step_copies, take, len(tables)), [x.dtype for x in tables]
        changed = _if_here(lambda: tf.numpy_function(copies, [*tables, *given], dtypes), lambda: list(by_operations()))
        for new, old in zip(changed, tables, strict=True):
            new.set_shape(old.shape)
        return changed  # type: ignore[no-any-return]
    kinds = [(tf.as_dtype(x.dtype), tuple(x.shape)) for x in tables]
    in_place, resources = partial(_step_in_place, take, kinds), [memory.handle(x) for x in tables]

    def call() -> Array:
        with tf.control_dependencies([tf.py_function(in_place, [*resources, *given], [])]):
            return tf.constant(True)

    def without_call() -> Array:
        by_operations()
        return tf.constant(True)

    _if_here(call, without_call)
    return tables


def _step_copies(take: Callable[..., None], count: int, *arrays: Host) -> list[Host]:
    tables, changed = arrays[:count], list[Host]()
    for x in tables:
        new = empty(x.shape, _bits(x).dtype)
        new[...] = _bits(x)
        changed.append(new)
    take(changed, *arrays[count:])
    return [new.view(x.dtype) for new, x in zip(changed, tables, strict=True)]


def _step_in_place(take: Callable[..., None], kinds: Sequence[tuple[Any, tuple[int, ...]]], *arrays: Array) -> None:
    given = [memory.view(x) for x in arrays[len(kinds) :]]
    with _stepping:
        take([memory.exclusive(x, *kind) for x, kind in zip(arrays, kinds, strict=False)], *given)


def _step(
    formula: Formula,
    optional: Sequence[bool],
    tables: Sequence[Host],
    values: Host,
    indices: Host,
    numbers: Host,
    *rest: Host,
) -> None:
    """A step on tables that may be written into; rest has the positions and the factor that optional says there are."""
    given = iter(rest)
    positions, factor = (next(given) if there else None for there in optional)
    groups = _groups(values, indices, len(tables[0]), positions)
    scale = None if factor is None else float(factor[0])
    compiled = _compiled()
    compiled.run_tasks([compiled.step(formula, _bits(values), groups, tables[0], tables[1:], numbers, scale)])


# ---------------------------------------------------------------------- what TensorFlow hands over
def _compiled() -> ModuleType:
    from islices.kernels import operations  # numba is here: `kernels_here` had them

    return operations


def _bits(x: Host) -> Host:
    """An array as kernels take it: bfloat16 as uint16."""
    return x.view(np.uint16) if x.dtype.name == "bfloat16" else x


def _within(indices: Host, rows: int | None) -> Host | None:
    """The positions of the indices that name a row; None for all."""
    if len(indices) == 0:
        return None
    lowest, highest, _ = _compiled().bounds(indices)
    if lowest >= 0 and (rows is None or highest < rows):
        return None
    mask = indices >= 0
    if rows is not None:
        mask &= indices < rows
    return np.flatnonzero(mask)


def _groups(values: Host, indices: Host, rows: int | None, positions: Host | None = None) -> tuple[Host, Host, Host]:
    """The groups of the slots that name a row, as `islices.kernels.operations.group` has them, where their values lie.

    ValueError for what does not go together: shapes that were not known when the graph was built.
    """
    stored = values if positions is None else positions
    if len(stored) != len(indices):
        raise ValueError(f"indices: got {len(indices)} for {len(stored)} values; accepted is one index a value")
    if positions is not None and _within(positions, len(values)) is not None:
        raise ValueError(f"positions: got some beyond {len(values)} values; accepted is 0 <= position < {len(values)}")
    within = _within(indices, rows)
    named = indices if within is None else indices[within]
    order, ids, starts = _compiled().group(named) or group(named)
    order = order.view(np.int64) if within is None else within[order.view(np.int64)]
    if positions is not None:
        order = positions[order].astype(np.int64, copy=False)
    return order.view(np.uint64), ids, starts.view(np.uint64)
