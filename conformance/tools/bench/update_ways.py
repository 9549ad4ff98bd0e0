"""What users of each framework write for row updates and optimizer steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import getitem, setitem
from typing import Any, NamedTuple

import numpy as np

from islices import get_backend
from islices.conformance.own_calls.mxnet import timed_calls
from islices.conformance.tools.bench.fbgemm_ways import fbgemm_ways
from islices.conformance.tools.bench.limit import BETA1, BETA2, MU, RATE, RHO, moved
from islices.conformance.tools.bench.rounds import Call

__all__ = ["FRAMEWORKS", "Framework", "corrections", "rule", "shapes"]


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
def rule(kind: str, root: Callable[[Any], Any], row_mean: Callable[[Any], Any], g: Any, w: Any, *state: Any) -> Any:
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
    if kind == "momentum":
        speed = MU * state[0] + g
        return w - RATE * speed, speed
    if kind == "rmsprop":
        mean = RHO * state[0] + (1 - RHO) * (g * g)
        return w - RATE * (g / (root(mean) + 1e-8)), mean
    if kind == "ftrl":  # beta 1, no penalties
        z, n = state
        total = n + g * g
        z = z + g - (root(total) - root(n)) / RATE * w
        return -z / ((1 + root(total)) / RATE), z, total
    m, v, rate, correction = state
    m = m + (1 - BETA1) * (g - m)
    v = v + (1 - BETA2) * (g * g - v)
    return w - rate * (m / (root(v) / correction + 1e-8)), m, v


def shapes(kind: str, rows: int, dim: int) -> list[tuple[int, int]]:
    """Return the shapes of the table and of each state array, in that order."""
    wide, narrow = moved(kind)
    return [(rows, dim)] * wide + [(rows, 1)] * narrow


def corrections(kind: str, t: int) -> list[Any]:
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
        new = rule(kind, root, row_mean, g, *(read(x, ids) for x in arrays), *corrections(kind, t))
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
            arrays = [zeros(shape) for shape in shapes(kind, rows, dim)]
            return _by_hand(kind, arrays, summed, getitem, setitem, np.sqrt, lambda x: x.mean(1, keepdims=True))

        if kind == "scatter_add":
            return {"add.at": lambda: add_at(1.0)}
        ways = {"unique + add.at, formula on rows": by_hand}
        return ways | {"add.at": lambda: add_at(-RATE)} if kind == "sgd" else ways

    return Framework(zeros, own)


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
                arrays = [zeros(shape) for shape in shapes(kind, rows, dim)]
                row_mean = lambda x: x.mean(1, keepdim=True)  # noqa: E731
                return _by_hand(
                    kind, arrays, summed, lambda x, at: x.index_select(0, at),
                    lambda x, at, new: x.index_copy_(0, at, new), torch.sqrt, row_mean,
                )  # fmt: skip

            return ready

        if kind == "scatter_add":
            return {"index_add_": lambda: index_add(1.0)}
        kinds = {"sgd": torch.optim.SGD, "adagrad": torch.optim.Adagrad, "adam": torch.optim.SparseAdam}
        ways = {f"optim.{kinds[kind].__name__}": optimizer(lambda p: kinds[kind](p, RATE))} if kind in kinds else {}
        ways |= fbgemm_ways(kind, RATE, values, ids, rows)
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
                arrays = [zeros(shape) for shape in shapes(kind, rows, dim)]
                t = 0

                def step(v: Any, i: Any, *corrections: Any) -> None:
                    distinct, place = tf.unique(i)
                    g = tf.math.unsorted_segment_sum(v, place, tf.size(distinct))
                    new = rule(
                        kind, tf.sqrt, lambda x: tf.reduce_mean(x, 1, keepdims=True), g,
                        *(tf.gather(x, distinct) for x in arrays), *corrections,
                    )  # fmt: skip
                    for x, part in zip(arrays, new, strict=True):
                        x.scatter_update(tf.IndexedSlices(part, distinct))

                run = tf.function(step, autograph=False) if compiled else step

                def call() -> Any:
                    nonlocal t
                    t += 1
                    run(v, i, *(tf.constant(x, tf.float32) for x in corrections(kind, t)))
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
            "momentum": ("keras SGD with momentum (duplicates not summed, all rows move)", lambda: optimizers.SGD(
                RATE, momentum=MU)),
            "rmsprop": ("keras RMSprop (duplicates not summed, all rows move)", lambda: optimizers.RMSprop(
                RATE, rho=RHO, epsilon=1e-8)),
            "ftrl": ("keras Ftrl (duplicates not summed, all rows move)", lambda: optimizers.Ftrl(RATE, beta=1.0)),
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
        @tf.function(autograph=False)  # type: ignore[untyped-decorator]
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
            new = rule(
                kind, jnp.sqrt, lambda x: x.mean(1, keepdims=True), g, *(x[distinct] for x in arrays), *corrections
            )
            return [x.at[distinct].set(part, mode="drop") for x, part in zip(arrays, new, strict=True)]

        def inside(arrays: list[Any], v: Any, i: Any, corrections: list[Any]) -> list[Any]:
            distinct, place = jnp.unique(i, size=len(i), fill_value=rows, return_inverse=True)
            return changed(arrays, distinct, place, v, corrections)

        def by_hand(on_host: bool) -> Callable[[], Call]:
            def ready() -> Call:
                arrays = [zeros(shape) for shape in shapes(kind, rows, dim)]
                run, t = jax.jit(changed if on_host else inside, donate_argnums=0), 0

                def call() -> Any:
                    nonlocal arrays, t
                    t += 1
                    now = corrections(kind, t)
                    if on_host:  # room for a power of two, so that few shapes compile
                        distinct, place = np.unique(host, return_inverse=True)
                        room = np.full(1 << (len(distinct) - 1).bit_length(), rows, np.int32)
                        room[: len(distinct)] = distinct
                        arrays = run(arrays, room, place.astype(np.int32).reshape(-1), v, now)
                    else:
                        arrays = run(arrays, v, i, now)
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
    get_backend("mxnet")  # MXNet imports beside a NumPy of today by way of its backend
    import mxnet as mx

    nd = mx.nd

    def own(kind: str, values: Any, ids: Any, rows: int) -> dict[str, Callable[[], Call]]:
        dim = values.shape[1]
        # row_sparse arrays hold no duplicates, so they are summed first
        first = "np.argsort + dot(csr, values)"
        summed = timed_calls("coalesce", nd.array(values), nd.array(ids, dtype="int64"), rows, 0.0)[first]

        def optimizer(make: Callable[[], Any], gradient: Call) -> Callable[[], Call]:
            def ready() -> Call:
                weight, steps = nd.zeros((rows, dim)), make()
                state = steps.create_state(0, weight)

                def call() -> Any:
                    steps.update(0, weight, gradient(), state)
                    return weight

                return call

            return ready

        def add() -> Call:
            table = nd.zeros((rows, dim))
            return lambda: nd.elemwise_add(table, summed(), out=table)

        if kind == "scatter_add":
            return {f"{first}, elemwise_add(out=)": add}
        name, make = {
            "sgd": ("SGD", lambda: mx.optimizer.SGD(learning_rate=RATE)),
            "adam": ("Adam", lambda: mx.optimizer.Adam(learning_rate=RATE)),
            "momentum": ("SGD with momentum", lambda: mx.optimizer.SGD(learning_rate=RATE, momentum=MU)),
            "rmsprop": ("RMSProp (eps inside the root)", lambda: mx.optimizer.RMSProp(
                learning_rate=RATE, gamma1=RHO, epsilon=1e-8)),
            "ftrl": ("Ftrl", lambda: mx.optimizer.Ftrl(learning_rate=RATE, lamda1=0.0, beta=1.0)),
            "adagrad": ("AdaGrad", lambda: mx.optimizer.AdaGrad(learning_rate=RATE, eps=1e-10)),
            "rowwise_adagrad": (
                "contrib.GroupAdaGrad", lambda: mx.optimizer.contrib.GroupAdaGrad(learning_rate=RATE, eps=1e-8)
            ),
        }[kind]  # fmt: skip
        before = summed()
        return {
            f"{first}, {name}": optimizer(make, summed),
            f"{name} (of a gradient coalesced before)": optimizer(make, lambda: before),
        }

    return Framework(nd.zeros, own)


#: By framework; each imports its framework when it is called.
FRAMEWORKS: dict[str, Callable[[], Framework]] = {
    "numpy": _numpy, "torch": _torch, "tensorflow": _tensorflow, "jax": _jax, "mxnet": _mxnet,
}  # fmt: skip
