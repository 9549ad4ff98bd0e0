"""row_sparse arrays in MXNet: the type, linear operations, norms and clips, gluon's layers, autograd, rounding, steps."""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "4"  # read as MXNet is imported: on one thread no backward pass can race

import importlib
import importlib.util
from typing import Any

import numpy as np

from islices.backends.mxnet.ndarrays import mx as mx  # MXNet, imported on a NumPy that it does not know
from islices.conformance.memory import peak_growth
from islices.conformance.operations import UnsupportedError
from islices.conformance.own_calls.mxnet import invalid_gradients
from islices.conformance.tools.audit.inputs import (
    DUPLICATES,
    LOPSIDED,
    ROWS,
    UNIQUE,
    WEIGHTS,
    ZEROS,
    Given,
    floats,
    norm_of,
)  # fmt: skip
from islices.conformance.tools.audit.probe import REFUSED, CorruptionError, Probe

nd, optimizers = mx.nd, mx.optimizer
COALESCE, DENSE, NORM, ADD = (
    "islices.coalesce(gradient)",
    "islices.to_dense(gradient)",
    "islices.norm(gradient)",
    "islices.add(a, b)",
)
CLIP, KEEP, NATIVE = (
    "islices.clip_by_global_norm(tree, max_norm)",
    "islices.keep_rows(gradient, rows)",
    "islices.from_native(x)",
)
CONVERT, LOOKUP, GRAD = (
    "islices.convert(gradient, 'mxnet')",
    "islices.lookup(table, ids)",
    "islices.value_and_grad(loss)",
)
SCALE, VALUE, SGD = (
    "islices.scale(gradient, factor)",
    "islices.clip_by_value(gradient, lo, hi)",
    "islices.optim.sgd(lr)",
)
LARGE = (10**9, 64)
TWICE = [[0, 0], [2, 2], [1, 1], [0, 0]]
F64 = floats(200, dtype="float64")
F16 = floats(500, dtype="float16")


def row_sparse(values: Any, ids: Any, dtype: str = "float32", shape: tuple[int, ...] = (ROWS, 2)) -> Any:
    """Build rows and their numbers as they are given: MXNet checks neither."""
    parts = nd.array(np.asarray(values), dtype=dtype), nd.array(np.asarray(ids), dtype="int64")
    return nd.sparse.row_sparse_array(parts, shape=shape, dtype=dtype)


def native(g: Given) -> Any:
    return row_sparse(g.values, g.indices)


def dense(x: Any) -> Any:
    return x.tostype("default").asnumpy()


def array(x: Any, dtype: str | None = None) -> Any:
    return nd.array(x, dtype=dtype or np.asarray(x).dtype)


X, U, FAR, NEGATIVE = native(DUPLICATES), native(UNIQUE), row_sparse([[1, 1]], [2**33]), row_sparse([[1, 1]], [-1])
IDS = array([1, 2, 1], "int64")


def written_data() -> Any:
    x = native(UNIQUE)
    x.data[:] = 7
    return x.data.asnumpy()


def pushed() -> Any:
    store, out = mx.kv.create("local"), nd.sparse.zeros("row_sparse", (ROWS, 2))
    store.init("w", nd.sparse.zeros("row_sparse", (ROWS, 2)))
    store.push("w", X)
    store.row_sparse_pull("w", out, row_ids=nd.arange(ROWS, dtype="int64"))
    return dense(out)


def clipped(values: Any, bound: float, dtype: str = "float32", ids: Any = UNIQUE.indices) -> Any:
    x = row_sparse(values, ids, dtype)
    mx.gluon.utils.clip_global_norm([x], bound)
    return dense(x)


def grown() -> bool:
    """Check if clipping two rows needs memory of the table's size."""
    x = row_sparse(np.ones((2, 8)), [1, 2], shape=(1 << 20, 8))
    return peak_growth(lambda: (mx.gluon.utils.clip_global_norm([x], 2.0), x.wait_to_read()))[1] > 1 << 24


def locked() -> bool:
    x = np.ones(3, np.float32)
    nd.from_numpy(x)
    return x.flags.writeable


def written_read_only() -> Any:
    x = np.ones(3, np.float32)
    x.flags.writeable = False
    nd.from_numpy(x)[:] = 5
    nd.waitall()
    if x[0] != 1:
        raise CorruptionError(f"the read-only array holds {x[0]:g}, 1 before")
    return x


def bfloat16() -> Any:
    if importlib.util.find_spec("ml_dtypes") is None:
        raise UnsupportedError("ml_dtypes is not installed")
    importlib.import_module("ml_dtypes")
    return nd.cast(array([1, 2], "float32").astype("bfloat16"), "float32").asnumpy()


# ---------------------------------------------------------------------- lookups
def trained(ids: Any, sparse: bool = True, dtype: str = "float32", request: str = "write", rows: int = ROWS) -> Any:
    """Return the gradient of the sum of what a layer reads."""
    layer = mx.gluon.nn.Embedding(rows, 2, sparse_grad=sparse, dtype=dtype)
    layer.initialize(mx.init.One())
    layer.weight.grad_req = request
    with mx.autograd.record():
        total = layer(ids).sum()
    total.backward()
    return dense(layer.weight.grad())


def late(*steps: Any) -> str:
    """Return the number of the step that raises; each step gets the result of the one before."""
    x = None
    for k, step in enumerate(steps, 1):
        try:
            x = step(x)
        except (mx.MXNetError, IndexError):
            return f"an error from step {k}"
    return "no error"


def late_gradient() -> str:
    layer = mx.gluon.nn.Embedding(ROWS, 2, sparse_grad=True)
    layer.initialize()
    with mx.autograd.record():
        return late(lambda _: layer(array([ROWS], "int64")), lambda x: x.asnumpy() is not None and x,
                    lambda x: x.backward(), lambda _: layer.weight.grad().wait_to_read())  # fmt: skip


def nothing_read() -> Any:
    with mx.util.np_shape(True):
        none = nd.zeros((0,), dtype="int64")
    return trained(none)


def far_row() -> Any:
    table = nd.zeros((2**24 + 2, 1))
    table[2**24 + 1] = 1
    return nd.Embedding(nd.array([2**24 + 1]), table, input_dim=2**24 + 2, output_dim=1).asnumpy()


def table_grad(dtype: str = "float32", **options: Any) -> Any:
    table = nd.ones((ROWS, 2), dtype=dtype)
    table.attach_grad(**options)
    return table


def backward(lookup: Any, values: Any, ids: Any) -> Any:
    table = table_grad(str(values.dtype))
    with mx.autograd.record():
        read = lookup(table, array(ids))
    read.backward(array(values))
    return table.grad.asnumpy()


def unused() -> Any:
    used, other = table_grad(), table_grad()
    with mx.autograd.record():
        loss = nd.take(used, IDS).sum()
    return mx.autograd.grad(loss, [used, other])[1].asnumpy()


def second_order() -> Any:
    table = table_grad()
    with mx.autograd.record():
        rows = nd.take(table, array([1, 1], "int64"))
        gradient = mx.autograd.grad((rows * rows).sum(), table, create_graph=True)[0]  # 4 * table in row 1
        loss = (gradient * gradient).sum()
    loss.backward()
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
    Probe("x.tostype('default') with an index far out of range", "2", "it writes where the table does not lie, and the process ends", DENSE,
          "index 2**33 of 4 rows", lambda: dense(FAR), REFUSED, "corrupts", "", True),
    Probe("x.tostype('default') with index -1", "2", "it writes before the table, and the process ends", DENSE,
          "index -1", lambda: dense(NEGATIVE), REFUSED, "corrupts", "", True),
    Probe("mx.nd.norm(x), mx.nd.multi_sum_sq(x)", "7", "rows stored twice count twice", NORM, "duplicates", lambda: nd.norm(X).asnumpy(), [10]),
    Probe("x + y, add_n with rows stored twice", "6", "rows are matched as if each stood once: sums are lost", ADD,
          "duplicates: x + x", lambda: dense(X + X), DUPLICATES.dense * 2),
    Probe("concat, times an array of one, ** 2, mx.nd.maximum(x, 0)", "6", "the result is dense", "islices.concat([a, b])",
          "concat", lambda: nd.concat(U, U, dim=0).stype, "row_sparse"),
    Probe("x.data[:] = values", "1", "x.data is a copy: what is written there is lost", "islices.from_native(x).replace(values=values)",
          "7 written over the rows", written_data, [[7, 7]] * 2),
    Probe("mx.nd.sparse.retain(x, rows)", "13", "rows that are not stored come as stored zeros", KEEP, "rows 0 and 2 of a gradient of rows 1 and 2",
          lambda: nd.sparse.retain(U, array([0, 2], "int64")).indices.asnumpy(), [2]),
    Probe("x.retain(rows)", "13", "the method is broken", KEEP, "rows 0 and 2",
          lambda: U.retain(array([0, 2], "int64")).indices.asnumpy(), [2], "raises"),
    Probe("x.as_np_ndarray(), mx.np.square(x)", "1", "the NumPy interface has no row_sparse", NATIVE,
          "mx.np.square", lambda: mx.np.square(U).asnumpy(), UNIQUE.dense**2, "raises", "apache/mxnet#20391"),
    Probe("x * 2, norm of a table of 2**31 elements or more", "1", "tables end there, however few rows are stored",
          "islices.IndexedSlices(values, indices, dense_shape)", "1e9 x 64, norm",
          lambda: nd.norm(row_sparse(np.ones((1, 64)), [7], shape=LARGE)).asnumpy(), [8], "raises"),
    Probe("mx.kv.create('local').push(name, x)", "6", "of rows stored twice the last one is pushed", COALESCE, "duplicates", pushed, DUPLICATES.dense),
    Probe("mx.nd.array(numpy array)", "1", "float64 and int64 become float32: 2**24 + 1 is another number", CONVERT,
          "[2**24 + 1]", lambda: nd.array(np.array([2**24 + 1])).asnumpy(), [2**24 + 1], issue="apache/mxnet#14231"),
    Probe("mx.nd.from_numpy(array)", "1", "the caller's array becomes read-only", CONVERT, "may the caller still write?", locked, True),
    Probe("mx.nd.from_numpy(read-only array)", "1", "a read-only array is shared, and MXNet writes to it", CONVERT,
          "5 written to the result", written_read_only, [1, 1, 1], "corrupts"),
    Probe("x.astype('bfloat16'), mx.nd.cast(x, 'bfloat16')", "1", "once ml_dtypes is loaded, as by JAX or TensorFlow, only cast still knows bfloat16",
          CONVERT, "astype", bfloat16, [1, 2], "raises"),
    # ------------------------------------------------------------------ clips
    Probe("gluon.utils.clip_global_norm", "10", "of rows stored twice the last one is left, in the norm as well", CLIP,
          "duplicates to 5", lambda: clipped(DUPLICATES.values, 5.0, ids=DUPLICATES.indices), DUPLICATES.dense / 2),
    Probe("gluon.utils.clip_global_norm", "5", "it makes a dense array of the table's size on its way", CLIP,
          "2 rows of 1M x 8: does memory grow with the table?", grown, False),
    Probe("gluon.utils.clip_global_norm", "10", "a NaN fills every row of the table; an infinity becomes NaN and leaves zeros beside it", CLIP,
          "nan in row 1, 4 in row 2", lambda: clipped([[np.nan, 0], [0, 4]], 2.0), [[0, 0], [np.nan] * 2, [np.nan] * 2, [0, 0]]),
    Probe("gluon.utils.clip_global_norm", "7", "the squares of float32 1e20 overflow, and zeros are left", CLIP,
          "1e20 to 2: the norm afterwards", lambda: np.linalg.norm(clipped([[1e20, 0], [0, 0]], 2.0)), 2),
    Probe("gluon.utils.clip_global_norm of float16 and float64", "10", "it fails", CLIP,
          "float64", lambda: clipped(UNIQUE.values, 2.5, "float64"), UNIQUE.dense / 2, "raises"),
    # ------------------------------------------------------------------ lookups and autograd
    Probe("gluon.nn.Embedding(dtype='float16', sparse_grad=True)", "12", "its backward pass has no 16-bit types", GRAD,
          "float16", lambda: trained(IDS, dtype="float16"), TWICE, "raises"),
    Probe("gluon.nn.Embedding with an id out of range", "2", "it reads, and trains, the nearest row", LOOKUP,
          f"id {ROWS}: its gradient", lambda: trained(array([ROWS], "int64"), sparse=False), ZEROS),
    Probe("gluon.nn.Embedding(sparse_grad=True) with an id out of range", "2",
          "the error comes when the gradient is waited for: the loss is read, and backward returns, without one", LOOKUP,
          "the lookup, reading the rows, backward(), reading the gradient", late_gradient, "an error from step 1", issue="dmlc/gluon-nlp#938"),
    Probe("mx.nd.take, mx.nd.Embedding, table[ids]", "2", "ids out of range are clamped or wrapped in silence", LOOKUP,
          f"take, id {ROWS}", lambda: nd.take(nd.array(WEIGHTS), array([ROWS], "int64")).asnumpy(), REFUSED),
    Probe("mx.nd.take(mode='raise')", "2", "the error comes when the rows are read, not from the call", LOOKUP, "the call, reading the rows",
          lambda: late(lambda _: nd.take(nd.array(WEIGHTS), array([ROWS], "int64"), mode="raise"), lambda x: x.asnumpy()), "an error from step 1"),
    Probe("gluon.nn.Embedding of no ids", "12", "it fails unless mx.util.np_shape is on", LOOKUP, "without np_shape", nothing_read, ZEROS, "raises"),
    Probe("weight.grad_req = 'add', Embedding(sparse_grad=True)", "6", "sparse gradients of several batches cannot be accumulated", ADD,
          "one batch", lambda: trained(IDS, request="add"), TWICE, "raises"),
    Probe("gluon.nn.Embedding with ids of mx.nd.array", "2", "mx.nd.array makes them float32, and rows beyond 2**24 are read from a neighbour",
          LOOKUP, "2**24 + 1", far_row, [[1]], issue="apache/mxnet#14231"),
    Probe("gluon.nn.Embedding with ids of float16", "2", "ids beyond 2048 are rounded to even ones", LOOKUP,
          "2049: its gradient", lambda: trained(array([2049], "float16"), rows=2052)[2049], [1, 1]),
    Probe("table.attach_grad(stype=...)", "1", "with stype the gradient of a float64 table is float32", GRAD,
          "float64, stype=default", lambda: np.dtype(table_grad("float64", stype="default").grad.dtype).name, "float64"),
    Probe("mx.autograd.grad with respect to a table that was not looked up", "12", "it refuses instead of giving none", GRAD,
          "two tables, one looked up", unused, ZEROS, "raises"),
    Probe("mx.autograd.grad(create_graph=True) through a lookup", "12", "second derivatives are not there", GRAD,
          "take", second_order, [[0, 0], [32, 32], [0, 0], [0, 0]], "raises"),
    # ------------------------------------------------------------------ rounding
    Probe("backward of mx.nd.gather_nd, table[ids], with several threads", "3",
          "its threads race: the same gradient comes out with other bits in every run", GRAD, "gather_nd, 20,000 rows, 51 times", raced, "the same bits"),
    Probe("backward of mx.nd.take, add_n of float16", "3", "every addition is rounded to 16 bits: ones stop counting at 2048", COALESCE,
          "4096 ones, take", lambda: backward(nd.take, np.ones((4096, 2), np.float16), np.zeros(4096, int))[0], [4096] * 2),
    Probe("mx.nd.scatter_nd(values, ids, shape)", "3", "of an id that occurs several times one value is left", COALESCE,
          "[3, 8, 3] at 1, 2, 1", lambda: nd.scatter_nd(nd.array([3, 8, 3]), IDS.reshape((1, 3)), (4,)).asnumpy(), [0, 6, 8, 0]),
    Probe("mx.nd.norm", "7", "it accumulates in the values' type: several of the last digits are lost", NORM,
          "1 and 4096 times 2**-27 in float64, less 1", lambda: nd.norm(array(LOPSIDED)).asnumpy() - 1, [norm_of(LOPSIDED) - 1]),
    Probe("float16 array * Python float", "6", "the factor becomes float16 first, 1 in 3 products is another", SCALE, "500 random numbers times 0.1",
          lambda: (array(F16) * 0.1).asnumpy(), (F16.astype("f8") * 0.1).astype("f2")),
    Probe("float64 array * Python float", "6", "factors go through text: 1 in 10 loses its last bit", SCALE, "1 times 200 random numbers, relative errors",
          lambda: np.array([(nd.ones((1,), dtype="float64") * float(c)).asscalar() for c in F64]) / F64 - 1, np.zeros(200)),
    Probe("mx.nd.sign", "9", "the sign of NaN is 0", VALUE, "NaN", lambda: nd.sign(nd.array([np.nan])).asnumpy(), [np.nan]),
    Probe("mx.nd.maximum, mx.nd.minimum", "9", "of 0 and -0 the answer is the second: for this the specification counts them as equal", VALUE,
          "maximum(0, -0)", lambda: str(nd.maximum(nd.array([0.0]), nd.array([-0.0])).asscalar()), "0.0"),
    # ------------------------------------------------------------------ steps; formulas stand in docs/judged.md
    Probe("mx.optimizer.SGD(momentum), Adam, AdaGrad, GroupAdaGrad, Ftrl, NAG, RMSProp, ...", "16",
          "a row stored twice is stepped twice, or with its last slice alone; never with the sum", COALESCE, "AdaGrad, duplicates",
          lambda: stepped(optimizers.AdaGrad(learning_rate=0.5), X),
          stepped(optimizers.AdaGrad(learning_rate=0.5), row_sparse([[6, 0], [0, 8]], [1, 2]))),
    Probe("mx.optimizer.SGD with index 2**33", "2", "the place in memory is cut to 32 bits: row 0 is trained", SGD,
          "index 2**33 of 4 rows", lambda: stepped(optimizers.SGD(learning_rate=0.5), FAR), WEIGHTS),
    Probe("mx.optimizer.SGD with index -1", "2", "it writes to the memory before the table", SGD, "index -1 of 4 rows", before_table, REFUSED, "corrupts"),
    Probe("mx.optimizer.SGD(clip_gradient)", "9", "slices are clipped one by one, before rows are summed", VALUE, "duplicates",
          lambda: stepped(optimizers.SGD(learning_rate=1.0, clip_gradient=4.0), X), WEIGHTS - DUPLICATES.dense.clip(-4, 4)),
    Probe("mx.optimizer.AdaGrad(wd)", "16", "it refuses weight decay of row_sparse gradients", "islices.optim.adagrad(lr, weight_decay=...)",
          "rows that are not touched", lambda: stepped(optimizers.AdaGrad(wd=0.25), U)[::3], WEIGHTS[::3], "raises"),
    Probe("mx.optimizer.Ftrl of a dense table", "16", "rows that the gradient does not name become zero", "islices.optim.ftrl(lr)",
          "rows 0 and 3", lambda: stepped(optimizers.Ftrl(), U)[::3], WEIGHTS[::3]),
    Probe("mx.optimizer.Adamax", "16", "rows that no gradient has named become NaN: 0 / 0", "islices.optim.adam(lr)",
          "rows 0 and 3", lambda: stepped(optimizers.Adamax(), U)[::3], WEIGHTS[::3]),
]
