"""Run compiled kernels in the graphs of tf.function on CPUs, for bags, sums of rows, norms and optimizer steps.

A graph calls functions of this process with `tf.numpy_function`, which copies nothing in either direction. For
variables, the graph uses `tf.py_function` with the variables' handles, so that TensorFlow orders the call among other
reads and writes of the variables. But a graph may also run in another process (a SavedModel, a remote worker), where
these functions do not exist. A graph may also run in a tf.compat.v1.Session, which does not share the eager variables.
So each call is one branch of a `tf.cond`, and TensorFlow's operations are the other branch. The condition tests whether
a variable is initialized. Only this process has a variable of that name. XLA cannot compile the calls, and
tf.vectorized_map would make one call per member. So under XLA and in tf.vectorized_map, `kernels_here` returns None,
and only TensorFlow's operations run. The same holds if kernels are off or not available, if there are accelerators, or
if eager mode is off.

Calls run in TensorFlow's pool of threads, and must not wait there for a Python lock. A wait for a Python lock may end
in a deadlock. The thread that holds the lock may run the garbage collector, which may destroy an iterator, and the
iterator's destructor waits for the pool. Compilation takes a Python lock, so all kernels must be compiled before the
graph runs. For this purpose, the function that builds a graph first runs each call with small arrays. Simultaneous
steps wait for a mutex of TensorFlow, not for a Python lock.

May import: `tensorflow`, `numpy`, the core, this folder.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from functools import cache, partial
from types import ModuleType
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import record
from tensorflow.python.ops import control_flow_util
from tensorflow.python.ops.resource_variable_ops import variable_accessed

from islices import kernels
from islices.backend import Array, Host, Slots
from islices.backends.tensorflow import tensor_memory as memory
from islices.core import modes
from islices.core.dtypes import as_bits
from islices.core.host import group
from islices.core.host_memory import copied
from islices.embedding.bags import sums_of_views
from islices.norms.norm import norm_of_stored
from islices.optim.formulas import Formula

#: A name scope that XLA's error for a host call shows. This error contains no other text of islices.
_TRACED_OUTSIDE = "islices_traced_outside_of_jit_compile.accepted_is_jit_compile_True_on_this_function_too"
#: The name of a mutex. If several graphs run at the same time, the mutex makes their steps run one after the other, so
#: that each step sees complete rows.
_STEPPING = "islices_stepping"


# ---------------------------------------------------------------------- where kernels run
def compiled_by_xla() -> bool:
    """Return True if the graph that is being built will be compiled by XLA."""
    graph = tf.compat.v1.get_default_graph()
    return bool(control_flow_util.GraphOrParentsInXlaContext(graph))


def kernels_here() -> ModuleType | None:
    """Return the module of compiled kernels if graphs that are built now may call them, else None."""
    compiled = modes.kernels_in_traces()
    if compiled is None or compiled_by_xla() or _is_vectorized() or _mark() is None:
        return None
    return None if any(d.device_type != "CPU" for d in tf.config.list_logical_devices()) else compiled


def _is_vectorized() -> bool:
    """Return True if the body of a tf.vectorized_map is being built. In this body, each member would make a separate
    call. TensorFlow gives the body a name scope that begins with "loop_body"."""
    graph = tf.compat.v1.get_default_graph()
    while graph is not None:
        if any(part.startswith("loop_body") for part in graph.get_name_scope().split("/")):
            return True
        graph = getattr(graph, "outer_graph", None)
    return False


@cache
def _mark() -> str | None:
    """Make a variable that is initialized only in this process, and return its name. Return None if TensorFlow's eager
    mode is off."""
    name = f"islices_{uuid.uuid4().hex}"
    with tf.init_scope(), tf.device("CPU:0"):
        if not tf.executing_eagerly():
            return None
        handle = tf.raw_ops.VarHandleOp(dtype=tf.bool, shape=[], shared_name=name)
        tf.raw_ops.AssignVariableOp(resource=handle, value=tf.constant(True))
    return name


def _if_here(call: Callable[[], Any], otherwise: Callable[[], Any]) -> Any:
    """Return the results of `call` if the graph runs in this process, outside of a tf.compat.v1.Session. Otherwise
    return the results of `otherwise`."""
    with record.stop_recording():  # the caller defines the gradient if there is one
        with tf.device("CPU:0"), tf.name_scope(_TRACED_OUTSIDE):
            handle = tf.raw_ops.VarHandleOp(dtype=tf.bool, shape=[], shared_name=_mark())
            here = tf.raw_ops.VarIsInitializedOp(resource=handle)

        def by_operations() -> Any:
            with kernels.use_kernels(False):  # `otherwise` makes no host calls
                return otherwise()

        return tf.cond(here, call, by_operations)


def _call(
    callback: Callable[..., Any],
    arrays: Sequence[Array],
    dtypes: Any,
    otherwise: Callable[[], Any],
    trial: Sequence[Host] | None = None,
) -> Any:
    """Add a host call to a graph, and return the results. The host call runs `callback`, a pure function of NumPy
    arrays. Where `_if_here` finds that no call is possible, the graph returns the results of `otherwise`.

    TensorFlow may run `callback` in parallel, or not at all if nothing reads the result. To compile its kernels, this
    function first calls `callback` with the arrays in `trial`. By default, these are arrays of one zero.
    """
    callback(*(map(_zero, arrays) if trial is None else trial))
    return _if_here(lambda: tf.numpy_function(callback, arrays, dtypes, stateful=False), otherwise)


def _zero(like: Array) -> Host:
    """Return an array of one zero with the dtype and rank of a tensor, for a trial call."""
    return np.zeros((1,) * like.shape.rank, tf.as_dtype(like.dtype).as_numpy_dtype)


#: The result of `_groups_and_number` for a single slot.
_ONE_GROUP = [np.zeros(1, np.int64), np.zeros(1, np.int64), np.arange(2), np.ones(1, np.int64)]


# ---------------------------------------------------------------------- sums of rows
def sum_rows(
    values: Array,
    indices: Array,
    rows: int | None,
    otherwise: Callable[[Array, Array], tuple[Array, Array]],
) -> tuple[Array, Array] | None:
    """Sum the slots in range by row with a host call, and return (sums, ids) as tensors of the graph. Return None if
    kernels cannot run in this graph, or if the rank is unknown."""
    if kernels_here() is None or values.shape.rank is None:
        return None

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def recorded(values: Array, indices: Array) -> Any:
        sums, ids = _call(
            partial(_sum_rows, rows=rows),
            [values, indices],
            [values.dtype, indices.dtype],
            lambda: list(otherwise(values, indices)),
        )
        sums.set_shape((None, *values.shape[1:]))
        ids.set_shape((None,))

        def gradient(upstream: Any, _: Any) -> tuple[Array, None]:
            return _at_slots(tf.convert_to_tensor(upstream), ids, indices), None

        return (sums, ids), gradient

    return recorded(values, indices)  # type: ignore[no-any-return]


def _at_slots(of_rows: Array, ids: Array, indices: Array) -> Array:
    """Return, for each index, the row of `of_rows` whose id is equal to the index. `ids` must be ascending. An index
    that is not in `ids` gets zeros."""
    ordered, queries = tf.cast(ids, tf.int64), tf.cast(indices, tf.int64)
    place = tf.raw_ops.LowerBound(sorted_inputs=ordered[None], values=queries[None], out_type=tf.int64)[0]
    # append an id that equals no index to the ids, and a row of zeros to the rows
    found = tf.equal(tf.gather(tf.concat([ordered, [tf.int64.min]], 0), place), queries)
    padded = tf.pad(of_rows, [[0, 1], *[[0, 0]] * (of_rows.shape.rank - 1)])
    return tf.gather(padded, tf.where(found, place, tf.size(ordered, tf.int64)))


def _sum_rows(values: Host, indices: Host, *, rows: int | None) -> list[Host]:
    _check_lengths(len(indices), len(values))
    order, found, starts = _groups(indices, rows)
    sums = _compiled().fold(as_bits(values), order, starts)
    return [sums.view(values.dtype), copied(found)]


# ---------------------------------------------------------------------- slots by row
def _grouped(slots: Slots) -> list[Array]:
    """Return the results of `_groups_and_number` as tensors, which a separate host call computes.

    A graph computes the groups of a gradient only once, for the norm and the step together.
    """
    assert slots.indices is not None, "nothing is grouped of dense leaves"
    graph = tf.compat.v1.get_default_graph()
    if not hasattr(graph, "_islices_groups"):
        graph._islices_groups = {}
    known: dict[Any, list[Array]] = graph._islices_groups
    arrays = [x for x in (slots.indices, slots.positions) if x is not None]
    key = slots.rows, *(x.ref() for x in arrays)
    if key not in known:
        dtypes = [tf.int64, slots.indices.dtype, tf.int64, tf.int64]
        groups = partial(_groups_and_number, slots.rows)
        known[key] = _call(groups, arrays, dtypes, lambda: [tf.zeros((0,), t) for t in dtypes])
    return list(known[key])


def _groups_and_number(rows: int | None, indices: Host, *positions: Host) -> tuple[Host, ...]:
    """Group the slots in range by row. Return (order, ids, starts, number), where `number` shows how many values are
    needed.

    If there are no positions, `number` contains the number of indices. If there are positions, `number` contains the
    smallest position in `order`, and the largest position plus one.
    """
    order, ids, starts = _groups(indices, rows, *positions)
    order, number = order.view(np.int64), [len(indices)]
    if positions:
        least, greatest, _ = _compiled().bounds(order) if len(order) else (0, -1, True)
        number = [least, greatest + 1]
    return order, ids, starts.view(np.int64), np.array(number, np.int64)


def _of_values(values: Host, order: Host, ids: Host, starts: Host, number: Host) -> tuple[Host, Host, Host]:
    """Convert groups to the form that kernels accept. Raise ValueError if the groups do not fit the values."""
    n = len(values)
    if len(number) == 1:
        _check_lengths(number[0], n)
    elif number[0] < 0 or number[1] > n:
        raise ValueError(f"positions: got some beyond {n} values; accepted is 0 <= position < {n}")
    return order.view(np.uint64), ids, starts.view(np.uint64)


def _check_lengths(indices: int, values: int) -> None:
    """Raise ValueError if the numbers of indices and values differ. The numbers may be unknown while the graph is
    built, so this function runs when the graph runs."""
    if values != indices:
        raise ValueError(f"indices: got {indices} for {values} values; accepted is one index a value")


# ---------------------------------------------------------------------- bags of rows
def bags(
    table: Array, ids: Array, segments: Array, bags: Array, keep: Array | None, otherwise: Callable[..., Array]
) -> Array | None:
    """See `Backend.traced_bags`."""
    table, given = memory.plain(table), [x for x in (ids, segments, bags, keep) if x is not None]
    variable = not isinstance(table, tf.Tensor)
    if kernels_here() is None or not (memory.is_plain(table) if variable else table.shape[1:].is_fully_defined()):
        return None
    if 0 in tuple(table.shape) or not all(x.shape.rank == 1 for x in (ids, segments, *given[3:])):
        return None
    place = table.handle if variable else table
    if variable:
        variable_accessed(table)  # tapes watch the table from now on, as after an ordinary read
        _bags(*map(_zero, (table, *given)))
        dtype, shape = tf.as_dtype(table.dtype), tuple(table.shape)

        def read(resource: Array, *given: Array) -> Array:
            return memory.accept(_bags(memory.shared(resource, dtype, shape), *map(memory.fetch, given)))

        call = partial(tf.py_function, read, [place, *given], table.dtype)
        found = _if_here(call, lambda: otherwise(table, *given))
    else:
        found = _call(_bags, [table, *given], table.dtype, lambda: otherwise(table, *given))
    found.set_shape((bags.shape[0], *table.shape[1:]))

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def recorded(found: Array, place: Array) -> Any:
        def gradient(upstream: Array) -> tuple[None, Any]:
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(table)
                again = otherwise(table, *given)  # only the gradient of this result is needed
            return None, tape.gradient(again, table, output_gradients=upstream)

        return tf.identity(found), gradient

    return recorded(found, place)


def _bags(table: Host, ids: Host, segments: Host, bags: Host, *keep: Host) -> Host:
    """Return the sum of the rows of each bag. Ids outside of the table add nothing. Raise ValueError if segments are
    invalid. Segments are checked here, because their values may be unknown while the graph is built."""
    if len(ids) != len(segments):
        raise ValueError(f"offsets: got those of {len(segments)} ids; accepted are those of {len(ids)}")
    if _within(segments, len(bags)) is not None:
        raise ValueError(f"offsets: got ids that lie in none of {len(bags)} bags; accepted is that each lies in one")
    named = _within(ids, len(table))
    if named is not None:  # ids outside of the table are ignored
        mask = np.zeros(len(ids), np.int32)
        mask[named] = 1
        keep = (mask * keep[0] if keep else mask,)
    return sums_of_views(_compiled(), [as_bits(table), ids, segments, bags, *keep]).view(table.dtype)


# ---------------------------------------------------------------------- norms
def norm(leaves: Sequence[Slots], ord: int, otherwise: Callable[[Sequence[Slots]], Array]) -> Array | None:
    """See `Backend.traced_norm`."""
    if kernels_here() is None:
        return None
    arrays, trial = list[Array](), list[Host]()
    for leaf in leaves:
        arrays += [leaf.values, *([] if leaf.indices is None else _grouped(leaf))]
        trial += [_zero(leaf.values), *([] if leaf.indices is None else _ONE_GROUP)]
    callback = partial(_norm, sparse=[leaf.indices is not None for leaf in leaves], ord=ord)
    exact = _call(callback, arrays, tf.float64, lambda: otherwise(leaves), trial)
    exact.set_shape((1,))
    return exact


def _norm(*arrays: Host, sparse: Sequence[bool], ord: int) -> Host:
    given, stored = iter(arrays), list[tuple[Host, Host | None, Host | None]]()
    for has_rows in sparse:
        values, order, starts = next(given), None, None
        if has_rows:
            order, _, starts = _of_values(values, *(next(given) for _ in range(4)))
        stored.append((as_bits(values), order, starts))
    return np.array((norm_of_stored(_compiled(), stored, ord),))


# ---------------------------------------------------------------------- steps
def step(
    formula: Formula, slots: Slots, numbers: Array, tables: Sequence[Array], otherwise: Callable[..., Sequence[Array]]
) -> Sequence[Array] | None:
    """See `Backend.traced_step`."""
    if isinstance(tables[0], tf.Tensor) or kernels_here() is None or 0 in (*tables[0].shape, *slots.values.shape[1:]):
        return None
    given = [slots.values, *_grouped(slots), numbers, *([] if slots.factor is None else [slots.factor])]
    take = partial(_step, formula)
    tried = [np.ones(x.shape[0], x.dtype.as_numpy_dtype) for x in (numbers, *given[6:])]
    take([as_bits(_zero(x)) for x in tables], _zero(slots.values), *_ONE_GROUP, *tried)

    kinds = [(tf.as_dtype(x.dtype), tuple(x.shape)) for x in tables]
    resources = [memory.handle(x) for x in tables]

    def in_place(*arrays: Array) -> None:
        views: list[Any] = [memory.view(x) for x in arrays[len(kinds) :]]
        take([memory.exclusive(x, *kind) for x, kind in zip(arrays, kinds, strict=False)], *views)

    def call() -> Array:
        with tf.device("CPU:0"):
            lock = tf.raw_ops.MutexLock(mutex=tf.raw_ops.MutexV2(shared_name=_STEPPING))
            with tf.control_dependencies([lock]):
                stepped = tf.py_function(in_place, [*resources, *given], [])
            with tf.control_dependencies([stepped]):
                released = tf.raw_ops.ConsumeMutexLock(mutex_lock=lock)
        with tf.control_dependencies([released]):
            return tf.constant(True)

    def without_call() -> Array:
        otherwise(slots, numbers, *tables)
        return tf.constant(True)

    _if_here(call, without_call)
    return tables


def _step(formula: Formula, tables: Sequence[Host], values: Host, *given: Host) -> None:
    """Take an optimizer step that changes the arrays in `tables`. `given` contains the results of `_grouped`, the
    numbers of the formula, and the factor of the gradient if there is one."""
    groups, numbers, *factor = _of_values(values, *given[:4]), *given[4:]
    scale = float(factor[0][0]) if factor else None
    compiled = _compiled()
    compiled.run_tasks([compiled.step(formula, as_bits(values), groups, tables[0], tables[1:], numbers, scale)])


# ---------------------------------------------------------------------- what TensorFlow hands over
def _compiled() -> ModuleType:
    from islices.kernels import operations  # numba is available: `kernels_here` returned kernels

    return operations


def _within(indices: Host, rows: int | None) -> Host | None:
    """Return the positions of the indices that are in range, or None if all are in range."""
    if len(indices) == 0:
        return None
    lowest, highest, _ = _compiled().bounds(indices)
    if lowest >= 0 and (rows is None or highest < rows):
        return None
    mask = indices >= 0
    if rows is not None:
        mask &= indices < rows
    return np.flatnonzero(mask)


def _groups(indices: Host, rows: int | None, positions: Host | None = None) -> tuple[Host, Host, Host]:
    """Group the slots in range by row, and return the result in the same form as `islices.kernels.operations.group`. If
    `positions` are given, they replace the numbers of the slots."""
    if positions is not None:
        _check_lengths(len(indices), len(positions))
    within = _within(indices, rows)
    named = indices if within is None else indices[within]
    order, ids, starts = _compiled().group(named) or group(named)
    order = order.view(np.int64) if within is None else within[order.view(np.int64)]
    if positions is not None:
        order = positions[order].astype(np.int64, copy=False)
    return order.view(np.uint64), ids, starts.view(np.uint64)
