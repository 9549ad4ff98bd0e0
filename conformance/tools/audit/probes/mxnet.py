"""What MXNet's own functions do with row_sparse arrays, and with NumPy's.

Layers and autograd: mxnet_layers. Optimizers: mxnet_optim. Rounding, and sums in parallel: mxnet_arithmetic.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from islices.backends.mxnet.memory import mx as mx  # MXNet, imported on a NumPy that it does not know
from islices.conformance import oracle
from islices.conformance.memory import peak_growth
from islices.conformance.operations import UnsupportedError
from islices.conformance.own_calls.mxnet import invalid_gradients
from islices.conformance.tools.audit.inputs import ROWS, Given, gradients
from islices.conformance.tools.audit.probe import Ask, CorruptionError, probe
from islices.conformance.tools.audit.probes.arithmetic import raised

__all__ = ["asked", "dense_of", "native", "row_sparse"]

nd = mx.nd


def row_sparse(values: Any, ids: Any, dtype: str = "float32", shape: tuple[int, ...] = (ROWS, 2)) -> Any:
    """Rows and their numbers as they are given: MXNet looks at neither."""
    parts = nd.array(np.asarray(values), dtype=dtype), nd.array(np.asarray(ids), dtype="int64")
    return nd.sparse.row_sparse_array(parts, shape=shape, dtype=dtype)


def native(g: Given) -> Any:
    return row_sparse(g.values, g.indices) if len(g.indices) else nd.sparse.zeros("row_sparse", (ROWS, 2))


def dense_of(x: Any) -> np.ndarray:
    return x.tostype("default").asnumpy()  # type: ignore[no-any-return]


def asked(given: str, call: Callable[..., Any], expected: Any) -> Ask:
    """A question whose error is MXNet's own sentence, without the C++ traceback around it."""

    def answer() -> Any:
        try:
            return call()
        except mx.MXNetError as error:
            said = str(error).rpartition("MXNetError: ")[2].strip().splitlines()
            raise mx.MXNetError(said[0] if said else "") from None

    return Ask(given, answer, expected)


# ---------------------------------------------------------------------- the type
@probe(
    "mxnet", "mx.nd.sparse.row_sparse_array((data, indices), shape)", "1",
    claim="it takes rows out of order, twice and out of range", instead="islices.from_native(x)",
)  # fmt: skip
def unchecked() -> Iterator[Ask]:
    for label, (build, error) in invalid_gradients().items():
        yield asked(label, lambda build=build: raised(build), error)


@probe(
    "mxnet", "RowSparseNDArray.check_format()", "2", claim="asked for, it finds all of them", trap="",
    instead="islices.from_native(x)",
)  # fmt: skip
def check_format() -> Iterator[Ask]:
    for label, (build, _) in invalid_gradients().items():
        yield asked(label, lambda build=build: raised(lambda: build().check_format()), "MXNetError")


@probe(
    "mxnet", "x.tostype('default'), x.asnumpy()", "5", claim="of rows stored twice the last one is left",
    instead="islices.to_dense(gradient)",
)  # fmt: skip
def densify() -> Iterator[Ask]:
    for g in gradients():
        yield asked(g.name, lambda g=g: dense_of(native(g)), oracle.to_dense(g.slices))


@probe(
    "mxnet", "x.tostype('default') with an index far out of range", "2", trap="corrupts", isolated=True,
    claim="it writes where the table does not lie, and the process ends", instead="islices.to_dense(gradient)",
)  # fmt: skip
def densify_far() -> Iterator[Ask]:
    x = row_sparse([[1, 1]], [2**33])
    yield asked("index 2**33 of 4 rows", lambda: raised(lambda: dense_of(x)), "IndexError")


@probe(
    "mxnet", "x.tostype('default') with index -1", "2", trap="corrupts", isolated=True,
    claim="it writes before the table, and the process ends", instead="islices.to_dense(gradient)",
)  # fmt: skip
def densify_negative() -> Iterator[Ask]:
    x = row_sparse([[1, 1]], [-1])
    yield asked("index -1", lambda: raised(lambda: dense_of(x)), "IndexError")


@probe(
    "mxnet", "mx.nd.norm(x), mx.nd.multi_sum_sq(x)", "7", claim="rows stored twice count twice",
    instead="islices.norm(gradient)",
)  # fmt: skip
def norm() -> Iterator[Ask]:
    for g in gradients():
        expected = oracle.norm(g.slices).data
        yield asked(g.name, lambda g=g: nd.norm(native(g)).asnumpy(), expected)
    (g,) = gradients("duplicates")
    squares: Callable[..., Any] = lambda: nd.multi_sum_sq(native(g), num_arrays=1).asnumpy()  # noqa: E731
    yield asked(f"{g.name}, multi_sum_sq", squares, [oracle.norm(g.slices).data[0] ** 2])


LINEAR: dict[str, tuple[Callable[[Any], Any], float]] = {
    "x + x": (lambda x: x + x, 2), "x - x": (lambda x: x - x, 0), "add_n": (lambda x: nd.add_n(x, x, x), 3),
    "x * 2": (lambda x: x * 2, 2), "x / 2": (lambda x: x / 2, 0.5), "-x": (lambda x: -x, -1),
}  # fmt: skip


@probe(
    "mxnet", "x + y, x - y, add_n, x * c, x / c, -x of unique rows", "6", claim="they mean what the specification says",
    trap="", instead="islices.add(a, b)",
)  # fmt: skip
def linear() -> Iterator[Ask]:
    for g in gradients("sorted, unique", "one", "none"):
        for name, (way, factor) in LINEAR.items():
            yield asked(f"{g.name}: {name}", lambda g=g, way=way: dense_of(way(native(g))), g.dense * factor)


@probe(
    "mxnet", "x + y, add_n with rows stored twice", "6", claim="rows are matched as if each stood once: sums are lost",
    instead="islices.add(a, b)",
)  # fmt: skip
def linear_duplicates() -> Iterator[Ask]:
    for g in gradients("duplicates", "cancelling duplicates"):
        for name in ("x + x", "add_n"):
            way, factor = LINEAR[name]
            yield asked(f"{g.name}: {name}", lambda g=g, way=way: dense_of(way(native(g))), g.dense * factor)


@probe(
    "mxnet", "+, -, * and / by a Python number, square, sqrt, abs, sign, clip, cast, add_n", "6",
    claim="row_sparse stays row_sparse", trap="", instead="islices.scale(gradient, factor)",
)  # fmt: skip
def stays_sparse() -> Iterator[Ask]:
    (g,) = gradients("sorted, unique")
    ways = {name: way for name, (way, _) in LINEAR.items()}
    ways |= {name: getattr(nd, name) for name in ("square", "sqrt", "abs", "sign")}
    ways |= {"clip": lambda x: nd.clip(x, -1, 1), "astype": lambda x: x.astype("float64")}
    for name, way in ways.items():
        yield asked(name, lambda way=way: way(native(g)).stype, "row_sparse")


@probe(
    "mxnet", "concat, times an array of one, ** 2, mx.nd.maximum(x, 0)", "6", claim="the result is dense",
    instead="islices.concat([a, b])",
)  # fmt: skip
def goes_dense() -> Iterator[Ask]:
    (g,) = gradients("sorted, unique")
    ways = {"concat": lambda x: nd.concat(x, x, dim=0), "x * array of shape (1,)": lambda x: x * nd.ones((1,)),
            "x ** 2": lambda x: x**2, "maximum(x, 0)": lambda x: nd.maximum(x, 0)}  # fmt: skip
    for name, way in ways.items():
        yield asked(name, lambda way=way: way(native(g)).stype, "row_sparse")


@probe(
    "mxnet", "x + 1, x + dense", "6", claim="the result is dense, as it has to be", trap="",
    instead="islices.add(a, b)",
)  # fmt: skip
def plus_dense() -> Iterator[Ask]:
    (g,) = gradients("sorted, unique")
    yield asked("x + 1", lambda: (native(g) + 1).stype, "default")
    yield asked("x + dense", lambda: (native(g) + nd.ones((ROWS, 2))).stype, "default")


@probe(
    "mxnet", "x.data[:] = values", "1", claim="x.data is a copy: what is written there is lost",
    instead="islices.from_native(x).replace(values=values)",
)  # fmt: skip
def data_is_a_copy() -> Iterator[Ask]:
    def call() -> np.ndarray:
        x = row_sparse([[3, 0]], [1])
        x.data[:] = 7
        return x.data.asnumpy()  # type: ignore[no-any-return]

    yield asked("7 written over [3, 0]", call, [[7, 7]])


@probe(
    "mxnet", "mx.nd.sparse.retain(x, rows)", "13", claim="rows that are not stored come as stored zeros",
    instead="islices.keep_rows(gradient, rows)",
)  # fmt: skip
def retain() -> Iterator[Ask]:
    (g,) = gradients("sorted, unique")
    rows = nd.array([0, 2], dtype="int64")
    kept: Callable[..., Any] = lambda: nd.sparse.retain(native(g), rows).indices.asnumpy()  # noqa: E731
    yield asked("rows 0 and 2 of a gradient of rows 1 and 2", kept, [2])


@probe(
    "mxnet", "x.retain(rows)", "13", claim="the method is broken", trap="raises",
    instead="islices.keep_rows(gradient, rows)",
)  # fmt: skip
def retain_method() -> Iterator[Ask]:
    (g,) = gradients("sorted, unique")
    rows = nd.array([0, 2], dtype="int64")
    yield asked("rows 0 and 2", lambda: native(g).retain(rows).indices.asnumpy(), [2])


@probe(
    "mxnet", "x.as_np_ndarray(), mx.np.square(x)", "1", claim="the NumPy interface has no row_sparse", trap="raises",
    instead="islices.from_native(x)", issue="apache/mxnet#20391",
)  # fmt: skip
def numpy_interface() -> Iterator[Ask]:
    (g,) = gradients("sorted, unique")
    yield asked("as_np_ndarray", lambda: native(g).as_np_ndarray().asnumpy(), g.dense)
    yield asked("mx.np.square", lambda: mx.np.square(native(g)).asnumpy(), g.dense**2)


@probe(
    "mxnet", "x * 2, norm of a table of 2**31 elements or more", "1", trap="raises",
    claim="tables end there, however few rows are stored",
    instead="islices.IndexedSlices(values, indices, dense_shape)",
)  # fmt: skip
def large_tables() -> Iterator[Ask]:
    shape = (10**9, 64)
    build: Callable[..., Any] = lambda: row_sparse(np.ones((1, 64)), [7], shape=shape)  # noqa: E731
    yield asked("1e9 x 64, norm", lambda: nd.norm(build()).asnumpy(), [8])
    yield asked("1e9 x 64, x * 2", lambda: (build() * 2).data.asnumpy(), np.full((1, 64), 2))


@probe(
    "mxnet", "mx.kv.create('local').push(name, x)", "6", claim="of rows stored twice the last one is pushed",
    instead="islices.coalesce(gradient)",
)  # fmt: skip
def push() -> Iterator[Ask]:
    for g in gradients("sorted, unique", "duplicates"):

        def call(g: Given = g) -> np.ndarray:
            store, out = mx.kv.create("local"), nd.sparse.zeros("row_sparse", (ROWS, 2))
            store.init("w", nd.sparse.zeros("row_sparse", (ROWS, 2)))
            store.push("w", native(g))
            store.row_sparse_pull("w", out, row_ids=nd.arange(ROWS, dtype="int64"))
            return dense_of(out)

        yield asked(g.name, call, oracle.to_dense(g.slices))


# ---------------------------------------------------------------------- clipping
def clipped(x: Any, max_norm: float) -> Any:
    mx.gluon.utils.clip_global_norm([x], max_norm)
    return x


@probe(
    "mxnet", "gluon.utils.clip_global_norm", "10",
    claim="of rows stored twice the last one is left, in the norm as well",
    instead="islices.clip_by_global_norm(tree, max_norm)",
)  # fmt: skip
def clip() -> Iterator[Ask]:
    for g in gradients():
        for bound in (2.5, 100.0):
            expected = oracle.to_dense(oracle.clip_by_norm(g.slices, bound))
            yield asked(f"{g.name} to {bound:g}", lambda g=g, b=bound: dense_of(clipped(native(g), b)), expected)


@probe(
    "mxnet", "gluon.utils.clip_global_norm", "5", claim="it makes a dense array of the table's size on its way",
    instead="islices.clip_by_global_norm(tree, max_norm)",
)  # fmt: skip
def clip_goes_dense() -> Iterator[Ask]:
    rows = 1 << 20

    def call() -> bool:
        x = row_sparse(np.ones((2, 8)), [1, rows - 1], shape=(rows, 8))
        return peak_growth(lambda: clipped(x, 2.0).wait_to_read())[1] > rows * 8 * 4 // 2

    yield asked("2 rows of 1M x 8: does memory grow with the table?", call, False)


@probe(
    "mxnet", "gluon.utils.clip_global_norm", "10",
    claim="a NaN fills every row of the table; an infinity becomes NaN and leaves zeros beside it",
    instead="islices.clip_by_global_norm(tree, max_norm)",
)  # fmt: skip
def clip_nonfinite() -> Iterator[Ask]:
    expected = np.zeros((ROWS, 2))
    expected[1:3] = np.nan
    for value in (np.nan, np.inf):
        call: Callable[..., Any] = lambda v=value: dense_of(clipped(row_sparse([[v, 0], [0, 4]], [1, 2]), 2.0))  # noqa: E731
        yield asked(f"{value} in row 1, 4 in row 2", call, expected)


@probe(
    "mxnet", "gluon.utils.clip_global_norm", "7", claim="the squares of float32 1e20 overflow, and zeros are left",
    instead="islices.clip_by_global_norm(tree, max_norm)",
)  # fmt: skip
def clip_overflow() -> Iterator[Ask]:
    call: Callable[..., Any] = lambda: np.linalg.norm(dense_of(clipped(row_sparse([[1e20, 0]], [1]), 2.0)))  # noqa: E731
    yield asked("1e20 to 2: the norm afterwards", call, 2)


@probe(
    "mxnet", "gluon.utils.clip_global_norm of float16 and float64", "10", claim="it fails", trap="raises",
    instead="islices.clip_by_global_norm(tree, max_norm)",
)  # fmt: skip
def clip_dtypes() -> Iterator[Ask]:
    for dtype in ("float16", "float64"):
        call: Callable[..., Any] = lambda d=dtype: dense_of(clipped(row_sparse([[3, 0], [0, 4]], [1, 2], d), 2.5))  # noqa: E731
        yield asked(dtype, call, [[0, 0], [1.5, 0], [0, 2], [0, 0]])


# ---------------------------------------------------------------------- arrays
@probe(
    "mxnet", "mx.nd.array(numpy array)", "1", claim="float64 and int64 become float32: 2**24 + 1 is another number",
    instead="islices.convert(gradient, 'mxnet')", issue="apache/mxnet#14231",
)  # fmt: skip
def array_narrows() -> Iterator[Ask]:
    for dtype in ("float64", "int64"):
        yield asked(dtype, lambda d=dtype: np.dtype(nd.array(np.ones(2, d)).dtype).name, dtype)
    yield asked("[2**24 + 1]", lambda: nd.array(np.array([2**24 + 1])).asnumpy(), [2**24 + 1])


@probe(
    "mxnet", "mx.nd.from_numpy(array)", "1", claim="the caller's own array becomes read-only",
    instead="islices.convert(gradient, 'mxnet')",
)  # fmt: skip
def from_numpy_locks() -> Iterator[Ask]:
    def call() -> bool:
        x = np.ones(3, np.float32)
        nd.from_numpy(x)
        return x.flags.writeable

    yield asked("may the caller still write?", call, True)


@probe(
    "mxnet", "mx.nd.from_numpy(read-only array)", "1", trap="corrupts",
    claim="a read-only array is shared, and MXNet writes to it", instead="islices.convert(gradient, 'mxnet')",
)  # fmt: skip
def from_numpy_writes() -> Iterator[Ask]:
    def call() -> np.ndarray:
        x = np.ones(3, np.float32)
        x.flags.writeable = False
        nd.from_numpy(x)[:] = 5
        nd.waitall()
        if x[0] != 1:
            raise CorruptionError(f"the read-only array holds {x[0]:g}, 1 before")
        return x

    yield asked("5 written to what came of it", call, [1, 1, 1])


@probe(
    "mxnet", "x.astype('bfloat16'), mx.nd.cast(x, 'bfloat16')", "1", trap="raises",
    claim="once ml_dtypes is loaded, as by JAX or TensorFlow, only cast still knows bfloat16",
    instead="islices.convert(gradient, 'mxnet')",
)  # fmt: skip
def bfloat16() -> Iterator[Ask]:
    ways = {"astype": lambda x: x.astype("bfloat16"), "cast": lambda x: nd.cast(x, "bfloat16")}
    for name, way in ways.items():

        def call(way: Callable[[Any], Any] = way) -> np.ndarray:
            if importlib.util.find_spec("ml_dtypes") is None:
                raise UnsupportedError("ml_dtypes is not installed")
            importlib.import_module("ml_dtypes")
            return nd.cast(way(nd.array([1, 2])), "float32").asnumpy()  # type: ignore[no-any-return]

        yield asked(name, call, [1, 2])
