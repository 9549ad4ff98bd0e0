"""The part "small": calls on 64 x 16, which are overhead, in microseconds.

islices validates what it is given. "outside" is handed a gradient, "inside" also builds it in each call, "native" is
handed and returns the framework's own sparse object. Beside them the framework's one call that does the same, where it
has one; NumPy has none.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

import islices
from islices import IndexedSlices, get_backend, optim
from islices.conformance.tools.bench.cases import draw_ids
from islices.conformance.tools.bench.limit import RATE
from islices.conformance.tools.bench.rounds import Call, blocking, measure, summary
from islices.conformance.tools.bench.update_ways import FRAMEWORKS

__all__ = ["OPERATIONS", "SLICES", "WAYS", "run"]

SLICES, DIM, ROWS = 64, 16, 1_000
OPERATIONS = ("coalesce", "clip_by_global_norm", "sgd step")
WAYS = ("inside", "outside", "native")
#: Calls timed together, and the least number of rounds: short calls vary most.
INNER, ROUNDS = 20, 30
MAX_NORM = 1.0


def run(job: dict[str, Any], emit: Callable[..., None]) -> None:
    """Measure the three operations."""
    name = job["backend"]
    B = get_backend(name)
    values = np.random.default_rng(1).standard_normal((SLICES, DIM), np.float32)
    ids = draw_ids("zipf", SLICES, ROWS).astype(np.int32 if name == "jax" else np.int64)
    owns = OWN[name](values, ids) if name in OWN else {}
    for operation in OPERATIONS:
        ours, own = _ours(B, operation, values, ids), owns.get(operation, {})
        ways = ours | own
        if name in ("jax", "mxnet"):  # the others return when they are done
            ways = blocking(ways, importlib.import_module(f"islices.conformance.own_calls.{name}").block)
        times = measure(ways, max(ROUNDS, job["repeat"]), seconds=job["seconds"], inner=INNER)
        emit(operation=operation, size={"slices": SLICES, "dim": DIM}, **summary(times, list(ours), list(own)))


def _ours(B: Any, operation: str, values: Any, ids: Any) -> dict[str, Call]:
    v, i, shape = B.asarray(values), B.asarray(ids), (ROWS, DIM)
    slices = IndexedSlices(v, i, shape)
    ways: dict[str, Call] = {
        "inside": _call(B, operation, lambda: IndexedSlices(v, i, shape)),
        "outside": _call(B, operation, lambda: slices),
    }
    if B.native_name and not B.native_needs_coalesced:
        native = islices.to_native(slices)
        ways["native"] = _call(B, operation, lambda: native)
    return ways


def _call(B: Any, operation: str, gradient: Call) -> Call:
    if operation == "coalesce":
        return lambda: islices.coalesce(gradient())
    if operation == "clip_by_global_norm":
        return lambda: islices.clip_by_global_norm([gradient()], MAX_NORM)
    optimizer, table = optim.sgd(RATE), FRAMEWORKS[B.name]().zeros((ROWS, DIM))
    held = [table, optimizer.init(table)]

    def step() -> Any:
        held[:] = optimizer.step(held[0], gradient(), held[1], donate=True)
        return held[0]

    return step


# ---------------------------------------------------------------------- each framework's own
def _torch(values: Any, ids: Any) -> dict[str, dict[str, Call]]:
    import torch

    v, i = torch.from_numpy(values), torch.from_numpy(ids)
    gradient = torch.sparse_coo_tensor(i[None], v, (ROWS, DIM), check_invariants=False)
    dense = torch.nn.Parameter(torch.zeros_like(v))
    dense.grad = v.clone()
    table = torch.nn.Parameter(torch.zeros(ROWS, DIM))
    table.grad = gradient
    steps = torch.optim.SGD([table], RATE)

    def by_hand() -> Any:
        return v * torch.clamp(MAX_NORM / (torch.linalg.vector_norm(v) + 1e-6), max=1.0)

    return {
        "coalesce": {"coalesce()": gradient.coalesce},
        "clip_by_global_norm": {
            "nn.utils.clip_grad_norm_ (of dense values)": lambda: torch.nn.utils.clip_grad_norm_([dense], MAX_NORM),
            "vector_norm, clamp, * (of dense values)": by_hand,
        },
        "sgd step": {"optim.SGD.step": steps.step},
    }


def _tensorflow(values: Any, ids: Any) -> dict[str, dict[str, Call]]:
    import keras
    import tensorflow as tf

    v, i, shape = tf.constant(values), tf.constant(ids), tf.constant((ROWS, DIM), tf.int64)
    gradient, scaled = tf.IndexedSlices(v, i, shape), tf.IndexedSlices(RATE * v, i, shape)
    table, variable = tf.Variable(tf.zeros((ROWS, DIM))), keras.Variable(tf.zeros((ROWS, DIM)))
    steps = keras.optimizers.SGD(RATE)
    steps.build([variable])

    def unique() -> Any:
        distinct, place = tf.unique(i)
        return tf.math.unsorted_segment_sum(v, place, tf.size(distinct)), distinct

    return {
        "coalesce": {"unique + unsorted_segment_sum (rows unsorted)": unique},
        "clip_by_global_norm": {
            "clip_by_global_norm (duplicates not summed)": lambda: tf.clip_by_global_norm([gradient], MAX_NORM)
        },
        "sgd step": {
            "Variable.scatter_sub (of scaled values)": lambda: table.scatter_sub(scaled),
            "keras SGD.apply": lambda: steps.apply([gradient], [variable]),
        },
    }


def _jax(values: Any, ids: Any) -> dict[str, dict[str, Call]]:
    import jax
    import jax.numpy as jnp

    from islices.conformance.own_calls.jax import timed_calls

    v, i = jnp.asarray(values), jnp.asarray(ids)
    step = jax.jit(lambda table, v, i: table.at[i].add(-RATE * v), donate_argnums=0)
    held = [jnp.zeros((ROWS, DIM), jnp.float32)]

    def stepped() -> Any:
        held[0] = step(held[0], v, i)
        return held[0]

    def compiled(operation: str) -> dict[str, Call]:
        ways = timed_calls(operation, v, i, ROWS, MAX_NORM)
        return {label: way for label, way in ways.items() if label.startswith("jit")}

    return {
        "coalesce": compiled("coalesce"),
        "clip_by_global_norm": compiled("clip_by_global_norm"),
        "sgd step": {"jit donated .at[].add": stepped},
    }


def _mxnet(values: Any, ids: Any) -> dict[str, dict[str, Call]]:
    import mxnet as mx

    nd = mx.nd
    v = nd.array(values)
    distinct = np.unique(ids)
    rows = nd.array(values[: len(distinct)])
    gradient = nd.sparse.row_sparse_array((rows, nd.array(distinct, dtype="int64")), shape=(ROWS, DIM))
    table = nd.zeros((ROWS, DIM))
    return {
        "clip_by_global_norm": {
            "gluon.utils.clip_global_norm (of dense values)": lambda: mx.gluon.utils.clip_global_norm([v], MAX_NORM)
        },
        "sgd step": {
            "sgd_update, lazy (of a coalesced gradient)": lambda: nd.sgd_update(
                table, gradient, lr=RATE, lazy_update=True, out=table
            )
        },
    }


#: By framework, the calls of each operation; each imports its framework when it is called.
OWN: dict[str, Callable[[Any, Any], dict[str, dict[str, Call]]]] = {
    "torch": _torch, "tensorflow": _tensorflow, "jax": _jax, "mxnet": _mxnet,
}  # fmt: skip
