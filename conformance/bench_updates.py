"""The bench's tables of row updates: `scatter_add` and a step of optimizers beside each framework's own, and the same
step while the table grows.

The gradient comes in as a lookup leaves it, with duplicates. Every way has a table and a state of its own, takes its
first step from the same start, is compared with the formula in float64, and only then timed. For each framework a
function says what its users write without islices. Each framework runs in a process of its own.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from islices import IndexedSlices, execution, get_backend, optim, scatter_add
from islices.conformance.bench_rounds import figures, markdown, measure, ratio, zipf_ids
from islices.conformance.memory import peak_growth

__all__ = ["FRAMEWORKS", "growth_table", "steps_table"]

#: (rows, elements of a row, ids): work, and a small step, which is overhead
SIZES = ((1_000_000, 64, 65_536), (1_000, 16, 64))
GROWTH_ROWS, GROWTH_DIM, GROWTH_IDS = (10**5, 10**8), 4, 65_536
GROWING = ("sgd", "adagrad", "adam")

RATE, BETA1, BETA2 = 0.01, 0.9, 0.999
OPTIMIZERS: dict[str, Any] = {
    "sgd": optim.sgd(RATE),
    "adagrad": optim.adagrad(RATE, eps=1e-10),
    "adam": optim.adam(RATE, beta1=BETA1, beta2=BETA2, eps=1e-8),
    "rowwise_adagrad": optim.rowwise_adagrad(RATE, eps=1e-8),
}
OPERATIONS = ("scatter_add", *OPTIMIZERS)
#: Arrays of the table's shape that a step reads and writes, and columns of one number a row.
MOVED = {"scatter_add": (1, 0), "sgd": (1, 0), "adagrad": (2, 0), "adam": (3, 0), "rowwise_adagrad": (1, 1)}

Call = Callable[[], Any]


class Framework(NamedTuple):
    """What the bench needs of one framework."""

    zeros: Callable[[tuple[int, ...]], Any]
    """float32 zeros that the system has given the memory of, in an array that updates accept."""
    own: Callable[[str, np.ndarray[Any, Any], np.ndarray[Any, Any], int], dict[str, Callable[[], Call]]]
    """(operation, values, ids, rows) -> label -> a function that makes a table, zeros, and the call that takes a step
    on it and returns it. A label ends in a remark in brackets if the step is another one."""
    compiled: Callable[[Callable[..., Any], Any, Any], Callable[..., Any]] | None = None
    """(step(table, state, values, ids), table, state) -> the step compiled, called in the same way."""


# ---------------------------------------------------------------------- what users write
def _rule(kind: str, root: Callable[[Any], Any], row_mean: Callable[[Any], Any], g: Any, w: Any, *state: Any) -> Any:
    """New rows of the table and the state, as users write it; adam's state ends with the rate and the root of its
    second correction."""
    if kind == "sgd":
        return (w - RATE * g,)
    if kind == "adagrad":
        total = state[0] + g * g
        return w - RATE * (g / (root(total) + 1e-10)), total
    if kind == "rowwise_adagrad":
        total = state[0] + row_mean(g * g)
        return w - RATE * (g / (root(total) + 1e-8)), total
    m, v, rate, correction = state
    m = m + (1 - BETA1) * (g - m)
    v = v + (1 - BETA2) * (g * g - v)
    return w - rate * (m / (root(v) / correction + 1e-8)), m, v


def _shapes(kind: str, rows: int, dim: int) -> list[tuple[int, int]]:
    """Of a state's arrays."""
    return {"adagrad": [(rows, dim)], "adam": [(rows, dim)] * 2, "rowwise_adagrad": [(rows, 1)]}.get(kind, [])


def _corrections(kind: str, t: int) -> list[Any]:
    return [RATE / (1 - BETA1**t), (1 - BETA2**t) ** 0.5] if kind == "adam" else []


def _by_hand(
    kind: str,
    arrays: Sequence[Any],
    summed: Callable[[], tuple[Any, Any]],
    read: Callable[[Any, Any], Any],
    write: Callable[[Any, Any, Any], None],
    root: Callable[[Any], Any],
    row_mean: Callable[[Any], Any],
) -> Call:
    """A step on arrays that change in place: duplicates summed, rows read, changed, written."""
    t = 0

    def call() -> Any:
        nonlocal t
        t += 1
        ids, g = summed()
        new = _rule(kind, root, row_mean, g, *(read(x, ids) for x in arrays), *_corrections(kind, t))
        for x, rows in zip(arrays, new, strict=True):
            write(x, ids, rows)
        return arrays[0]

    return call


def _numpy() -> Framework:
    def zeros(shape: tuple[int, ...]) -> Any:
        return np.full(shape, 0.0, np.float32)

    def own(kind: str, values: Any, ids: Any, rows: int) -> dict[str, Callable[[], Call]]:
        dim = values.shape[1]

        def add_at(factor: float) -> Call:
            table = zeros((rows, dim))

            def call() -> Any:
                np.add.at(table, ids, values if factor == 1 else factor * values)
                return table

            return call

        def summed() -> tuple[Any, Any]:
            distinct, place = np.unique(ids, return_inverse=True)
            sums = np.zeros((len(distinct), dim), values.dtype)
            np.add.at(sums, place.reshape(-1), values)
            return distinct, sums

        def by_hand() -> Call:
            arrays = [zeros(shape) for shape in [(rows, dim), *_shapes(kind, rows, dim)]]
            return _by_hand(kind, arrays, summed, _row, _set_row, np.sqrt, lambda x: x.mean(1, keepdims=True))

        if kind == "scatter_add":
            return {"add.at": lambda: add_at(1.0)}
        ways = {"unique + add.at, formula on rows": by_hand}
        return ways | {"add.at": lambda: add_at(-RATE)} if kind == "sgd" else ways

    return Framework(zeros, own)


def _row(x: Any, ids: Any) -> Any:
    return x[ids]


def _set_row(x: Any, ids: Any, rows: Any) -> None:
    x[ids] = rows


def _torch() -> Framework:
    import torch

    def zeros(shape: tuple[int, ...]) -> Any:
        return torch.empty(shape).zero_()

    def own(kind: str, values: Any, ids: Any, rows: int) -> dict[str, Callable[[], Call]]:
        v, i, dim = torch.from_numpy(values), torch.from_numpy(ids), values.shape[1]

        def gradient() -> Any:  # a new one for each call: a gradient known to be coalesced is not coalesced again
            return torch.sparse_coo_tensor(i[None], v, (rows, dim), is_coalesced=False, check_invariants=False)

        def optimizer(make: Callable[[list[Any]], Any]) -> Callable[[], Call]:
            def ready() -> Call:
                parameter = torch.nn.Parameter(zeros((rows, dim)))
                steps = make([parameter])

                def call() -> Any:
                    parameter.grad = gradient()
                    steps.step()
                    return parameter

                return call

            return ready

        def index_add(factor: float) -> Call:
            table = zeros((rows, dim))
            return lambda: table.index_add_(0, i, v, alpha=factor)

        def coalesced() -> tuple[Any, Any]:
            g = gradient().coalesce()
            return g.indices()[0], g.values()

        def unique() -> tuple[Any, Any]:
            distinct, place = torch.unique(i, return_inverse=True)
            return distinct, v.new_zeros((len(distinct), dim)).index_add_(0, place, v)

        def by_hand(summed: Callable[[], tuple[Any, Any]]) -> Callable[[], Call]:
            def ready() -> Call:
                arrays = [zeros(shape) for shape in [(rows, dim), *_shapes(kind, rows, dim)]]
                row_mean = lambda x: x.mean(1, keepdim=True)  # noqa: E731
                return _by_hand(
                    kind, arrays, summed, lambda x, at: x.index_select(0, at),
                    lambda x, at, new: x.index_copy_(0, at, new), torch.sqrt, row_mean,
                )  # fmt: skip

            return ready

        if kind == "scatter_add":
            return {"index_add_": lambda: index_add(1.0)}
        makers: dict[str, Callable[[Any], Any]] = {
            "sgd": lambda p: torch.optim.SGD(p, RATE),
            "adagrad": lambda p: torch.optim.Adagrad(p, RATE),
            "adam": lambda p: torch.optim.SparseAdam(p, RATE),
        }
        names = {"sgd": "SGD", "adagrad": "Adagrad", "adam": "SparseAdam"}
        ways = {f"optim.{names[kind]}": optimizer(makers[kind])} if kind in makers else {}
        if kind == "sgd":
            return ways | {"index_add_": lambda: index_add(-RATE)}
        return ways | {
            "coalesce(), formula on rows": by_hand(coalesced),
            "unique + index_add_, formula on rows": by_hand(unique),
        }

    return Framework(zeros, own)


def _tensorflow() -> Framework:
    import keras
    import tensorflow as tf

    def zeros(shape: tuple[int, ...]) -> Any:
        return tf.Variable(tf.zeros(shape), trainable=False)

    def own(kind: str, values: Any, ids: Any, rows: int) -> dict[str, Callable[[], Call]]:
        v, i, dim = tf.constant(values), tf.constant(ids), values.shape[1]
        shape = tf.constant((rows, dim), tf.int64)

        def optimizer(make: Callable[[], Any], compiled: bool) -> Callable[[], Call]:
            def ready() -> Call:
                variable, steps = keras.Variable(tf.zeros((rows, dim))), make()
                steps.build([variable])

                def step(v: Any, i: Any) -> None:
                    steps.apply([tf.IndexedSlices(v, i, shape)], [variable])

                step = tf.function(step) if compiled else step

                def call() -> Any:
                    step(v, i)
                    return variable.value

                return call

            return ready

        def scatter(factor: float) -> Call:
            table = zeros((rows, dim))

            def call() -> Any:
                table.scatter_add(tf.IndexedSlices(v if factor == 1 else factor * v, i))
                return table

            return call

        def by_hand(compiled: bool) -> Callable[[], Call]:
            def ready() -> Call:
                arrays = [zeros(shape) for shape in [(rows, dim), *_shapes(kind, rows, dim)]]
                t = 0

                def step(v: Any, i: Any, *corrections: Any) -> None:
                    distinct, place = tf.unique(i)
                    g = tf.math.unsorted_segment_sum(v, place, tf.size(distinct))
                    new = _rule(
                        kind, tf.sqrt, lambda x: tf.reduce_mean(x, 1, keepdims=True), g,
                        *(tf.gather(x, distinct) for x in arrays), *corrections,
                    )  # fmt: skip
                    for x, part in zip(arrays, new, strict=True):
                        x.scatter_update(tf.IndexedSlices(part, distinct))

                run = tf.function(step, autograph=False) if compiled else step

                def call() -> Any:
                    nonlocal t
                    t += 1
                    run(v, i, *(tf.constant(x, tf.float32) for x in _corrections(kind, t)))
                    return arrays[0]

                return call

            return ready

        if kind == "scatter_add":
            return {"Variable.scatter_add": lambda: scatter(1.0)}
        optimizers = keras.optimizers
        keras_ways = {
            "sgd": ("keras SGD", lambda: optimizers.SGD(RATE)),
            "adagrad": ("keras Adagrad (duplicates not summed)", lambda: optimizers.Adagrad(
                RATE, initial_accumulator_value=0.0, epsilon=1e-10)),
            "adam": ("keras Adam (duplicates not summed, all rows move)", lambda: optimizers.Adam(RATE)),
        }  # fmt: skip
        ways: dict[str, Callable[[], Call]] = {}
        if kind in keras_ways:
            label, make = keras_ways[kind]
            ways = {label: optimizer(make, False), f"tf.function of {label}": optimizer(make, True)}
        if kind == "sgd":
            return ways | {"Variable.scatter_add": lambda: scatter(-RATE)}
        label = "unique + unsorted_segment_sum, formula on rows"
        return ways | {label: by_hand(False), f"tf.function of {label}": by_hand(True)}

    def compiled(step: Callable[..., Any], table: Any, state: Any) -> Callable[..., Any]:
        @tf.function(autograph=False)
        def run(v: Any, i: Any) -> None:
            step(table, state, v, i)  # a Variable that is returned would be copied

        def call(table: Any, state: Any, v: Any, i: Any) -> Any:
            run(v, i)
            return table, state

        return call

    return Framework(zeros, own, compiled)


def _jax() -> Framework:
    import jax
    import jax.numpy as jnp

    def zeros(shape: tuple[int, ...]) -> Any:
        return jnp.zeros(shape, jnp.float32)

    def own(kind: str, values: Any, ids: Any, rows: int) -> dict[str, Callable[[], Call]]:
        v, i, dim = jnp.asarray(values), jnp.asarray(ids, jnp.int32), values.shape[1]
        host = np.asarray(i)

        def add(factor: float) -> Call:
            def step(table: Any, v: Any, i: Any) -> Any:
                return table.at[i].add(v if factor == 1 else factor * v)

            run, table = jax.jit(step, donate_argnums=0), zeros((rows, dim))

            def call() -> Any:
                nonlocal table
                table = run(table, v, i)
                return table

            return call

        def changed(arrays: list[Any], distinct: Any, place: Any, v: Any, corrections: list[Any]) -> list[Any]:
            g = jax.ops.segment_sum(v, place, len(distinct))
            new = _rule(
                kind, jnp.sqrt, lambda x: x.mean(1, keepdims=True), g, *(x[distinct] for x in arrays), *corrections
            )
            return [x.at[distinct].set(part, mode="drop") for x, part in zip(arrays, new, strict=True)]

        def inside(arrays: list[Any], v: Any, i: Any, corrections: list[Any]) -> list[Any]:
            distinct, place = jnp.unique(i, size=len(i), fill_value=rows, return_inverse=True)
            return changed(arrays, distinct, place, v, corrections)

        def by_hand(on_host: bool) -> Callable[[], Call]:
            def ready() -> Call:
                arrays = [zeros(shape) for shape in [(rows, dim), *_shapes(kind, rows, dim)]]
                run, t = jax.jit(changed if on_host else inside, donate_argnums=0), 0

                def call() -> Any:
                    nonlocal arrays, t
                    t += 1
                    corrections = _corrections(kind, t)
                    if on_host:  # room for a power of two, so that few shapes compile
                        distinct, place = np.unique(host, return_inverse=True)
                        room = np.full(1 << (len(distinct) - 1).bit_length(), rows, np.int32)
                        room[: len(distinct)] = distinct
                        arrays = run(arrays, room, place.astype(np.int32).reshape(-1), v, corrections)
                    else:
                        arrays = run(arrays, v, i, corrections)
                    return arrays[0]

                return call

            return ready

        if kind == "scatter_add":
            return {"jit donated .at[].add": lambda: add(1.0)}
        if kind == "sgd":
            return {"jit donated .at[].add": lambda: add(-RATE)}
        return {
            "jit donated unique(size) + segment_sum, formula on rows": by_hand(False),
            "np.unique + jit donated segment_sum, formula on rows": by_hand(True),
        }

    def compiled(step: Callable[..., Any], table: Any, state: Any) -> Callable[..., Any]:
        return jax.jit(step, donate_argnums=(0, 1))

    return Framework(zeros, own, compiled)


def _mxnet() -> Framework:
    backend = get_backend("mxnet")  # MXNet imports beside a NumPy of today by way of its backend
    import mxnet as mx

    nd = mx.nd

    def zeros(shape: tuple[int, ...]) -> Any:
        return nd.zeros(shape)

    def own(kind: str, values: Any, ids: Any, rows: int) -> dict[str, Callable[[], Call]]:
        v, i, dim = nd.array(values), nd.array(ids, dtype="int64"), values.shape[1]

        def summed() -> Any:  # row_sparse arrays hold no duplicates, so islices sums them first
            return backend.to_native(*_coalesced(v, i, (rows, dim)), (rows, dim), coalesced=True, padded=False)

        def optimizer(make: Callable[[], Any]) -> Callable[[], Call]:
            def ready() -> Call:
                weight, steps = zeros((rows, dim)), make()
                state = steps.create_state(0, weight)

                def call() -> Any:
                    steps.update(0, weight, summed(), state)
                    return weight

                return call

            return ready

        def add() -> Call:
            table = zeros((rows, dim))
            return lambda: nd.elemwise_add(table, summed(), out=table)

        first = "islices.coalesce, "
        if kind == "scatter_add":
            return {f"{first}elemwise_add(out=)": add}
        name, make = {
            "sgd": ("SGD", lambda: mx.optimizer.SGD(learning_rate=RATE)),
            "adam": ("Adam", lambda: mx.optimizer.Adam(learning_rate=RATE)),
            "adagrad": ("AdaGrad", lambda: mx.optimizer.AdaGrad(learning_rate=RATE, eps=1e-10)),
            "rowwise_adagrad": (
                "contrib.GroupAdaGrad", lambda: mx.optimizer.contrib.GroupAdaGrad(learning_rate=RATE, eps=1e-8)
            ),
        }[kind]  # fmt: skip
        return {f"{first}{name}": optimizer(make)}

    return Framework(zeros, own)


def _coalesced(v: Any, i: Any, shape: tuple[int, int]) -> tuple[Any, Any]:
    from islices import coalesce

    s = coalesce(IndexedSlices(v, i, shape))
    return s.values, s.indices


#: By framework; each imports its framework when it is called.
FRAMEWORKS: dict[str, Callable[[], Framework]] = {
    "numpy": _numpy, "torch": _torch, "tensorflow": _tensorflow, "jax": _jax, "mxnet": _mxnet,
}  # fmt: skip


# ---------------------------------------------------------------------- islices
def _step(kind: str, rows: int, dim: int) -> Callable[..., Any]:
    def step(table: Any, state: Any, v: Any, i: Any) -> Any:
        gradient = IndexedSlices(v, i, (rows, dim))
        if kind == "scatter_add":
            return scatter_add(table, gradient, donate=True), state
        return OPTIMIZERS[kind].step(table, gradient, state, donate=True)

    return step


def _ours(
    framework: Framework, kind: str, shape: tuple[int, int], v: Any, i: Any, mode: str, block: Callable[[Any], None]
) -> Call:
    """A call that takes islices' step on a table of its own and returns it; mode "compiled" stands for the
    framework's compiler."""
    table = framework.zeros(shape)
    state = {} if kind == "scatter_add" else OPTIMIZERS[kind].init(table)
    if get_backend(table).name in ("numpy", "torch"):  # whose zeros are not given memory before they are written
        for x in state.values():
            x[...] = 0
    block([table, *state.values()])
    step = _step(kind, *shape)
    if mode == "compiled":
        assert framework.compiled is not None
        step = framework.compiled(step, table, state)
    held = [table, state]

    def call() -> Any:
        with execution("native" if mode == "native" else "host"):
            held[:] = step(*held, v, i)
        return held[0]

    return call


# ---------------------------------------------------------------------- measuring
def steps(name: str, repeat: int) -> None:
    """Measure every operation at every size and write a JSON line for each."""
    framework, block = FRAMEWORKS[name](), importlib.import_module(f"islices.conformance.native.{name}").block
    B = get_backend(name)
    modes = ["host", *([] if B.host_only else ["native"]), *([] if framework.compiled is None else ["compiled"])]
    for rows, dim, count in SIZES:
        values = np.random.default_rng(1).standard_normal((count, dim), np.float32)
        ids = zipf_ids(count, rows).astype(np.int32 if name == "jax" else np.int64)
        v, i = B.asarray(values), B.asarray(ids)
        for kind in OPERATIONS:
            expected = _expected(kind, values, ids)
            ways = {mode: _ours(framework, kind, (rows, dim), v, i, mode, block) for mode in modes}
            own = {label: ready() for label, ready in framework.own(kind, values, ids, rows).items()}
            ways = _blocking(ways | own, block)
            for label, way in ways.items():
                found = B.to_numpy(B.read_rows(way(), B.asarray(np.unique(ids))))
                if not _does_less(label):
                    _check(f"{name} {kind}, {label}", found, expected)
            ways["floor"] = _floor(kind, len(np.unique(ids)), dim, count)
            # short calls vary most, and cost little
            times = measure(ways, repeat if count > 1000 else 20 * repeat)
            labels = sorted(own, key=lambda label: median(times[label]))
            same = [label for label in labels if not _does_less(label)]
            ratios = {label: {mode: ratio(times[mode], times[label]) for mode in modes} for label in labels}
            # the fastest, and if that is another step (its label says so), the fastest that is the same
            fastest, size = list(dict.fromkeys(labels[:1] + same[:1])), (rows, dim, count, len(np.unique(ids)))
            _emit(name, table="steps", operation=kind, size=size, times=times, own=fastest, ratios=ratios)
            del ways, own


def growth(name: str, repeat: int) -> None:
    """Measure the steps on a small and a very large table, round by round, and write a JSON line for each."""
    framework, block = FRAMEWORKS[name](), importlib.import_module(f"islices.conformance.native.{name}").block
    B, (small, large) = get_backend(name), GROWTH_ROWS
    values = np.random.default_rng(1).standard_normal((GROWTH_IDS, GROWTH_DIM), np.float32)
    drawn = zipf_ids(GROWTH_IDS, small).astype(np.int32 if name == "jax" else np.int64)
    v = B.asarray(values)
    for kind in GROWING:
        expected = _expected(kind, values, drawn)
        for mode in ("host", *([] if framework.compiled is None else ["compiled"])):
            ways: dict[str, Call] = {}
            peaks: dict[int, float] = {}
            for rows in GROWTH_ROWS:  # the small one first: it loads the code, so that the peak is the step's own
                ids = drawn * (rows // small)  # the same rows' frequencies, spread over the table
                way = _ours(framework, kind, (rows, GROWTH_DIM), v, B.asarray(ids), mode, block)
                ways |= _blocking({str(rows): way}, block)
                table, grown = peak_growth(ways[str(rows)])
                peaks[rows] = max(grown, 0) / 2**20  # the kernel counts roughly
                found = B.to_numpy(B.read_rows(table, B.asarray(np.unique(ids))))
                _check(f"{name} {kind}, {rows} rows, {mode}", found, expected)
                del table, way
            times = measure(ways, repeat)
            ratios = {str(large): ratio(times[str(large)], times[str(small)])}
            _emit(name, table="growth", operation=kind, mode=mode, times=times, peaks=peaks, ratios=ratios)
            del ways
        if B.host_only:  # what of this is the memory's: the same rows read and written, and nothing computed
            bare = {str(rows): _rows_alone(kind, rows, drawn * (rows // small)) for rows in GROWTH_ROWS}
            times = measure(bare, repeat)
            ratios = {str(large): ratio(times[str(large)], times[str(small)])}
            _emit(name, table="growth", operation=kind, mode="x[ids] = x[ids] alone", times=times, ratios=ratios)
            del bare


def _rows_alone(kind: str, rows: int, ids: np.ndarray[Any, Any]) -> Call:
    arrays = [np.full((rows, GROWTH_DIM), 0.0, np.float32) for _ in range(MOVED[kind][0])]
    distinct = np.unique(ids)

    def call() -> None:
        for x in arrays:
            x[distinct] = x[distinct]

    return call


def _does_less(label: str) -> bool:
    return " (" in label


def _blocking(ways: dict[str, Call], block: Callable[[Any], None]) -> dict[str, Call]:
    def wait(way: Call) -> Call:
        def call() -> Any:
            result = way()
            block(result)
            return result

        return call

    return {label: wait(way) for label, way in ways.items()}


def _expected(kind: str, values: Any, ids: Any) -> np.ndarray[Any, Any]:
    """The rows that change, after one step from zeros, in float64."""
    distinct, place = np.unique(ids, return_inverse=True)
    g = np.zeros((len(distinct), values.shape[1]))
    np.add.at(g, place.reshape(-1), values)
    if kind == "scatter_add":
        return g
    state = [np.zeros(shape) for shape in _shapes(kind, *g.shape)]
    new = _rule(kind, np.sqrt, lambda x: x.mean(1, keepdims=True), g, np.zeros_like(g), *state, *_corrections(kind, 1))
    found: np.ndarray[Any, Any] = new[0]
    return found


def _check(what: str, got: Any, expected: Any) -> None:
    # where a sum all but vanishes, what eps does to it depends on where eps stands: one in a thousand may be off
    error = float(np.quantile(np.abs(got - expected), 0.999)) / float(np.max(np.abs(expected)))
    if not error <= 1e-3:
        raise RuntimeError(f"{what}: off by {error:.2g} of the largest, expected at most 0.001")


def _floor(kind: str, distinct: int, dim: int, count: int) -> Call:
    """A copy that moves as many bytes as a step must: the gradient read, the rows of table and state read and
    written."""
    wide, narrow = MOVED[kind]
    source = np.ones(distinct * (wide * dim + narrow) + count * dim // 2, np.float32)
    target = np.empty_like(source)
    return lambda: np.copyto(target, source)


def _emit(name: str, *, times: dict[str, list[float]], **more: Any) -> None:
    record = {
        "backend": name,
        "version": get_backend(name).version(),
        "milliseconds": {label: median(t) for label, t in times.items()},
        "quartiles": {label: [float(q) for q in np.percentile(t, (25, 75))] for label, t in times.items()},
    }
    print(json.dumps(record | more), flush=True)


# ---------------------------------------------------------------------- the tables
def steps_table(records: list[dict[str, Any]]) -> list[str]:
    """Every operation beside each framework's own, as Markdown: a table for each size."""
    heads = ("backend", "operation", "host ms", "native ms", "compiled ms", "floor ms", "fastest own call", "own ms",
             "host / own", "native / own", "compiled / own")  # fmt: skip
    modes, lines = ("host", "native", "compiled"), []
    records = [r for r in records if r["table"] == "steps"]
    for size in dict.fromkeys(tuple(r["size"]) for r in records):
        cells = []
        for record in (r for r in records if tuple(r["size"]) == size):
            times = record["milliseconds"]
            head = [f"{record['backend']} {record['version']}", record["operation"]]
            head += [figures(times.get(label)) for label in (*modes, "floor")]
            for own in record["own"]:
                ratios = record["ratios"][own]
                ends = [f"{ratios[mode]:.2f}" if mode in ratios else "-" for mode in modes]
                cells.append([*head, own, figures(times[own]), *ends])
                head = [""] * len(head)  # a second line for the same measurement
        rows, dim, count, distinct = size
        title = f"updates: {rows:,} x {dim} float32, {count:,} Zipf(1.1) ids ({distinct:,} distinct), not coalesced"
        lines += ["", title, "", *markdown(heads, cells, {2, 3, 4, 5, 7, 8, 9, 10})]
    return lines


def growth_table(records: list[dict[str, Any]]) -> list[str]:
    """The step on a small and a large table, as Markdown."""
    small, large = map(str, GROWTH_ROWS)
    heads = ["backend", "optimizer", "way"]
    heads += [f"{rows:,} rows {unit}" for rows in GROWTH_ROWS for unit in ("ms", "peak MiB")] + ["large / small"]
    cells, distinct = [], len(np.unique(zipf_ids(GROWTH_IDS, GROWTH_ROWS[0])))
    for record in (r for r in records if r["table"] == "growth"):
        times, peaks = record["milliseconds"], record.get("peaks", {})
        numbers = [figures(x) for rows in (small, large) for x in (times[rows], peaks.get(rows))]
        head = [f"{record['backend']} {record['version']}", record["operation"], record["mode"]]
        cells.append([*head, *numbers, f"{record['ratios'][large]:.2f}"])
    title = (
        f"updates while the table grows: {GROWTH_IDS:,} Zipf(1.1) ids ({distinct:,} distinct), rows x {GROWTH_DIM} "
        "float32; peak: growth of resident memory in the first call on that table"
    )
    return ["", title, "", *markdown(heads, cells, {3, 4, 5, 6, 7})] if cells else []


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="One process of the bench; see islices.conformance.bench.")
    parser.add_argument("--worker", choices=FRAMEWORKS, required=True)
    parser.add_argument("--growth", action="store_true", help="a small and a large table; else beside own calls")
    parser.add_argument("--repeat", type=int, default=7)
    given = parser.parse_args()
    (growth if given.growth else steps)(given.worker, given.repeat)
    os._exit(0)  # not by way of the interpreter's end, where MXNet's threads sometimes abort the process
