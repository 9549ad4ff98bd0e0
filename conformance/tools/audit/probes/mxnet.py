"""Probes of MXNet, mostly of row_sparse arrays. The probes cover the type, conversions, linear operations, norms,
clips, lookups, autograd, rounding and steps."""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "4"  # MXNet reads this at its import; on one thread, no backward pass can race

from typing import Any

import numpy as np

from islices.backends.mxnet.ndarrays import mx as mx  # MXNet, whose import fails with NumPy 2 without this module
from islices.conformance.own_calls.mxnet import invalid_gradients
from islices.conformance.tools.audit.probe import REFUSED, CorruptionError, Probe
from islices.conformance.tools.audit.probe_inputs import (
    DUPLICATES,
    ROWS,
    UNIQUE,
    WEIGHTS,
    ZEROS,
    GivenGradient,
    floats,
)  # fmt: skip

nd, optimizers = mx.nd, mx.optimizer
COALESCE, DENSE, NORM, ADD = (
    "islices.coalesce(gradient)",
    "islices.to_dense(gradient)",
    "islices.norm(gradient)",
    "islices.add(a, b)",
)
CLIP, NATIVE = "islices.clip_by_global_norm(tree, max_norm)", "islices.from_native(x)"
CONVERT, LOOKUP, GRAD = (
    "islices.convert(gradient, 'mxnet')",
    "islices.lookup(table, ids)",
    "islices.value_and_grad(loss)",
)
SGD = "islices.optim.sgd(lr)"


def row_sparse(values: Any, ids: Any) -> Any:
    """Return a row_sparse array of the given rows and row numbers. MXNet does not check the row numbers."""
    parts = nd.array(np.asarray(values), dtype="float32"), nd.array(np.asarray(ids), dtype="int64")
    return nd.sparse.row_sparse_array(parts, shape=(ROWS, 2), dtype="float32")


def native(g: GivenGradient) -> Any:
    return row_sparse(g.values, g.indices)


def dense(x: Any) -> Any:
    return x.tostype("default").asnumpy()


def array(x: Any, dtype: str | None = None) -> Any:
    return nd.array(x, dtype=dtype or np.asarray(x).dtype)


X, NEGATIVE = native(DUPLICATES), row_sparse([[1, 1]], [-1])
IDS = array([1, 2, 1], "int64")


def clipped(values: Any, bound: float, ids: Any = UNIQUE.indices) -> Any:
    x = row_sparse(values, ids)
    mx.gluon.utils.clip_global_norm([x], bound)
    return dense(x)


def written_read_only() -> Any:
    x = np.ones(3, np.float32)
    x.flags.writeable = False
    nd.from_numpy(x)[:] = 5
    nd.waitall()
    if x[0] != 1:
        raise CorruptionError(f"the read-only array holds {x[0]:g}, 1 before")
    return x


# ---------------------------------------------------------------------- lookups
def trained(ids: Any) -> Any:
    """Look up `ids` in an embedding layer, and differentiate the sum of the rows. Return the table's gradient as a
    dense array."""
    layer = mx.gluon.nn.Embedding(ROWS, 2)
    layer.initialize(mx.init.One())
    with mx.autograd.record():
        total = layer(ids).sum()
    total.backward()
    return dense(layer.weight.grad())


def far_row() -> Any:
    table = nd.zeros((2**24 + 2, 1))
    table[2**24 + 1] = 1
    return nd.Embedding(nd.array([2**24 + 1]), table, input_dim=2**24 + 2, output_dim=1).asnumpy()


def backward(lookup: Any, values: Any, ids: Any) -> Any:
    table = nd.ones((ROWS, 2), dtype=str(values.dtype))
    table.attach_grad()
    with mx.autograd.record():
        read = lookup(table, array(ids))
    read.backward(array(values))
    return table.grad.asnumpy()


def raced() -> str:
    values, ids = floats(40_000).reshape(20_000, 2), np.arange(20_000) % 3
    results = {
        backward(lambda table, i: nd.gather_nd(table, i.reshape((1, -1))), values, ids).tobytes() for _ in range(51)
    }
    return "other bits" if len(results) > 1 else "the same bits"


# ---------------------------------------------------------------------- steps
def stepped(optimizer: Any, grad: Any, table: Any = WEIGHTS) -> Any:
    table = nd.array(table)
    optimizer.update(0, table, grad, optimizer.create_state(0, table))
    return table.asnumpy()


def before_table() -> Any:
    memory = nd.ones((2 * ROWS, 2))
    optimizers.SGD(learning_rate=0.5).update(0, memory[ROWS:], NEGATIVE, None)
    if not (memory.asnumpy()[:ROWS] == 1).all():
        raise CorruptionError(
            f"the row before the table holds {memory.asnumpy()[ROWS - 1].tolist()}, [1.0, 1.0] before"
        )
    return memory


# fmt: off
PROBES = [
    # ------------------------------------------------------------------ the type and its operations
    Probe("mx.nd.sparse.row_sparse_array((data, indices), shape)", "1", "it takes rows out of order, twice and out of range", NATIVE,
          "a row twice", invalid_gradients()["a row twice"][0], REFUSED),
    Probe("x.tostype('default'), x.asnumpy()", "5", "of rows stored twice the last one is left", DENSE,
          "duplicates", lambda: dense(X), DUPLICATES.dense),
    Probe("x.tostype('default') with index -1", "2", "it writes before the table, and the process ends", DENSE,
          "index -1", lambda: dense(NEGATIVE), REFUSED, "corrupts", "", True),
    Probe("mx.nd.norm(x), mx.nd.multi_sum_sq(x)", "7", "rows stored twice count twice", NORM, "duplicates", lambda: nd.norm(X).asnumpy(), [10]),
    Probe("x + y, add_n with rows stored twice", "6", "rows are matched as if each stood once: sums are lost", ADD,
          "duplicates: x + x", lambda: dense(X + X), DUPLICATES.dense * 2),
    Probe("mx.nd.array(numpy array)", "1", "float64 and int64 become float32: 2**24 + 1 is another number", CONVERT,
          "[2**24 + 1]", lambda: nd.array(np.array([2**24 + 1])).asnumpy(), [2**24 + 1], issue="apache/mxnet#14231"),
    Probe("mx.nd.from_numpy(read-only array)", "1", "a read-only array is shared, and MXNet writes to it", CONVERT,
          "5 written to the result", written_read_only, [1, 1, 1], "corrupts"),
    # ------------------------------------------------------------------ clips
    Probe("gluon.utils.clip_global_norm", "10", "of rows stored twice the last one is left, in the norm as well", CLIP,
          "duplicates to 5", lambda: clipped(DUPLICATES.values, 5.0, ids=DUPLICATES.indices), DUPLICATES.dense / 2),
    Probe("gluon.utils.clip_global_norm", "10", "a NaN fills every row of the table; an infinity becomes NaN and leaves zeros beside it", CLIP,
          "nan in row 1, 4 in row 2", lambda: clipped([[np.nan, 0], [0, 4]], 2.0), [[0, 0], [np.nan] * 2, [np.nan] * 2, [0, 0]]),
    Probe("gluon.utils.clip_global_norm", "7", "the squares of float32 1e20 overflow, and zeros are left", CLIP,
          "1e20 to 2: the norm afterwards", lambda: np.linalg.norm(clipped([[1e20, 0], [0, 0]], 2.0)), 2),
    # ------------------------------------------------------------------ lookups and autograd
    Probe("gluon.nn.Embedding with an id out of range", "2", "it reads, and trains, the nearest row", LOOKUP,
          f"id {ROWS}: its gradient", lambda: trained(array([ROWS], "int64")), ZEROS),
    Probe("mx.nd.take, mx.nd.Embedding, table[ids]", "2", "ids out of range are clamped or wrapped in silence", LOOKUP,
          f"take, id {ROWS}", lambda: nd.take(nd.array(WEIGHTS), array([ROWS], "int64")).asnumpy(), REFUSED),
    Probe("gluon.nn.Embedding with ids of mx.nd.array", "2", "mx.nd.array makes them float32, and rows beyond 2**24 are read from a neighbour",
          LOOKUP, "2**24 + 1", far_row, [[1]], issue="apache/mxnet#14231"),
    # ------------------------------------------------------------------ rounding
    Probe("backward of mx.nd.gather_nd, table[ids], with several threads", "3",
          "its threads race: the same gradient comes out with other bits in every run", GRAD, "gather_nd, 20,000 rows, 51 times", raced, "the same bits"),
    Probe("backward of mx.nd.take, add_n of float16", "3", "every addition is rounded to 16 bits: ones stop counting at 2048", COALESCE,
          "4096 ones, take", lambda: backward(nd.take, np.ones((4096, 2), np.float16), np.zeros(4096, int))[0], [4096] * 2),
    Probe("mx.nd.scatter_nd(values, ids, shape)", "3", "of an id that occurs several times one value is left", COALESCE,
          "[3, 8, 3] at 1, 2, 1", lambda: nd.scatter_nd(nd.array([3, 8, 3]), IDS.reshape((1, 3)), (4,)).asnumpy(), [0, 6, 8, 0]),
    # ------------------------------------------------------------------ steps
    Probe("mx.optimizer.SGD(momentum), Adam, AdaGrad, GroupAdaGrad, Ftrl, NAG, RMSProp, ...", "16",
          "a row stored twice is stepped twice, or with its last slice alone; never with the sum", COALESCE, "AdaGrad, duplicates",
          lambda: stepped(optimizers.AdaGrad(learning_rate=0.5), X),
          stepped(optimizers.AdaGrad(learning_rate=0.5), row_sparse([[6, 0], [0, 8]], [1, 2]))),
    Probe("mx.optimizer.SGD with index -1", "2", "it writes to the memory before the table", SGD, "index -1 of 4 rows", before_table, REFUSED, "corrupts"),
]
