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

__all__ = ["compiled_by_xla", "norm", "step", "sum_rows"]

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
    """See `Backend.traced_norm`."""
    if kernels_here() is None:
        return None
    arrays = [x for leaf in leaves for x in (leaf.values, leaf.indices) if x is not None]
    layout = tuple((leaf.indices is not None, leaf.rows) for leaf in leaves)
    callback = partial(_norm, layout=layout, ord=ord)
    exact = _if_here(lambda: tf.numpy_function(callback, arrays, tf.float64), lambda: otherwise(leaves))
    exact.set_shape((1,))
    return exact


def _norm(*arrays: Host, layout: Sequence[tuple[bool, int | None]], ord: int) -> Host:
    compiled, given, stored = _compiled(), iter(arrays), []
    for sparse, rows in layout:
        values, indices = next(given), next(given) if sparse else None
        if indices is not None:
            _check_lengths(values, indices)
            within = _within(indices, rows)
            if within is not None:
                values, indices = values[within], indices[within]
        stored.append((_bits(values), indices))
    found = compiled.norm(stored, ord)
    if found is None:  # indices beyond what kernels group
        summed = []
        for values, indices in stored:
            summed.append(
                (values if indices is None else modes.HOST.sum_rows(values, indices, None, loose=False)[0], None)
            )
        found = compiled.norm(summed, ord)
    return np.array((found,))


# ---------------------------------------------------------------------- steps
def step(
    formula: Formula, slots: Slots, numbers: Array, tables: Sequence[Array], otherwise: Callable[..., Sequence[Array]]
) -> Sequence[Array] | None:
    """See `Backend.traced_step`."""
    values, indices = slots.values, slots.indices
    if kernels_here() is None or 0 in tuple(tables[0].shape) or 0 in tuple(values.shape)[1:]:
        return None
    given = [values, indices, numbers]
    if isinstance(tables[0], tf.Tensor):
        dtypes = [x.dtype for x in tables]
        copies = partial(_step_copies, formula)
        changed = _if_here(
            lambda: tf.numpy_function(copies, [*given, *tables], dtypes),
            lambda: list(otherwise(slots, numbers, *tables)),
        )
        for new, old in zip(changed, tables, strict=True):
            new.set_shape(old.shape)
        return changed  # type: ignore[no-any-return]
    kinds = [(tf.as_dtype(x.dtype), tuple(x.shape)) for x in tables]
    in_place = partial(_step_in_place, formula, kinds)
    resources = [memory.handle(x) for x in tables]

    def call() -> Array:
        with tf.control_dependencies([tf.py_function(in_place, [*given, *resources], [])]):
            return tf.constant(True)

    def by_operations() -> Array:
        otherwise(slots, numbers, *tables)
        return tf.constant(True)

    _if_here(call, by_operations)
    return tables


def _step_copies(formula: Formula, values: Host, indices: Host, numbers: Host, *tables: Host) -> list[Host]:
    groups = _groups(values, indices, len(tables[0]))
    changed = []
    for x in tables:
        new = empty(x.shape, _bits(x).dtype)
        new[...] = _bits(x)
        changed.append(new)
    _compiled().step(formula, _bits(values), groups, changed[0], changed[1:], numbers)
    return [new.view(x.dtype) for new, x in zip(changed, tables, strict=True)]


def _step_in_place(
    formula: Formula,
    kinds: Sequence[tuple[Any, tuple[int, ...]]],
    values: Array,
    indices: Array,
    numbers: Array,
    *tables: Array,
) -> None:
    given, named, known = map(memory.view, (values, indices, numbers))
    assert given is not None, "on CPU"
    assert named is not None, "on CPU"
    assert known is not None, "on CPU"
    groups = _groups(given, named, kinds[0][1][0])
    with _stepping:
        views = [memory.exclusive(x, *kind) for x, kind in zip(tables, kinds, strict=True)]
        _compiled().step(formula, given, groups, views[0], views[1:], known)


# ---------------------------------------------------------------------- what TensorFlow hands over
def _compiled() -> ModuleType:
    from islices.kernels import operations  # numba is here: `kernels_here` had them

    return operations


def _bits(x: Host) -> Host:
    """An array as kernels take it: bfloat16 as uint16."""
    return x.view(np.uint16) if x.dtype.name == "bfloat16" else x


def _check_lengths(values: Host, indices: Host) -> None:
    if len(values) != len(indices):  # shapes that were not known when the graph was built
        raise ValueError(
            f"values and indices: got {len(values)} values and {len(indices)} indices; accepted is one index a value"
        )


def _within(indices: Host, rows: int | None) -> Host | None:
    """The positions of the indices that name a row; None for all."""
    if len(indices) == 0:
        return None
    lowest, highest = _compiled().bounds(indices)
    if lowest >= 0 and (rows is None or highest < rows):
        return None
    mask = indices >= 0
    if rows is not None:
        mask &= indices < rows
    return np.flatnonzero(mask)


def _groups(values: Host, indices: Host, rows: int | None) -> tuple[Host, Host, Host]:
    """The groups of the slots that name a row, as `islices.kernels.operations.group` has them."""
    _check_lengths(values, indices)
    within = _within(indices, rows)
    named = indices if within is None else indices[within]
    order, ids, starts = _compiled().group(named) or group(named)
    if within is not None:
        order = within[order.view(np.int64)]
    return order.view(np.uint64), ids, starts.view(np.uint64)
