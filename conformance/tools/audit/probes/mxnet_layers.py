"""What gluon.nn.Embedding and MXNet's autograd do with lookups: ids out of range, types, second use of a gradient."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from islices.conformance import oracle
from islices.conformance.own_calls.mxnet import embedding_gradient
from islices.conformance.tools.audit.inputs import ROWS, gradients
from islices.conformance.tools.audit.probe import Ask, probe
from islices.conformance.tools.audit.probes.arithmetic import raised
from islices.conformance.tools.audit.probes.mxnet import asked, dense_of, mx

nd = mx.nd


def layer(sparse: bool = True, rows: int = ROWS, dtype: str = "float32", **options: Any) -> Any:
    out = mx.gluon.nn.Embedding(rows, 2, sparse_grad=sparse, dtype=dtype, **options)
    out.initialize(mx.init.One())
    return out


def ones_gradient(of: Any, ids: Any) -> Any:
    """The gradient of the sum of what a layer reads, computed."""
    with mx.autograd.record():
        total = of(ids).sum()
    total.backward()
    gradient = of.weight.grad()
    gradient.wait_to_read()
    return gradient


def int64(ids: Any) -> Any:
    return nd.array(np.array(ids), dtype="int64")


# ---------------------------------------------------------------------- gluon.nn.Embedding
@probe(
    "mxnet", "gluon.nn.Embedding(sparse_grad=True)", "12", claim="its gradient holds each row once, summed", trap="",
    instead="islices.value_and_grad(loss)",
)  # fmt: skip
def embedding() -> Iterator[Ask]:
    for g in gradients():
        got: Callable[..., Any] = lambda g=g: dense_of(embedding_gradient(g.indices, g.values, ROWS, -1))  # noqa: E731
        yield asked(g.name, got, oracle.to_dense(g.slices))
    yield asked("its type", lambda: ones_gradient(layer(), int64([1, 2, 1])).stype, "row_sparse")


@probe(
    "mxnet", "gluon.nn.Embedding(dtype='float16', sparse_grad=True)", "12",
    claim="its backward pass has no 16-bit types", trap="raises", instead="islices.value_and_grad(loss)",
)  # fmt: skip
def embedding_half() -> Iterator[Ask]:
    call: Callable[..., Any] = lambda: dense_of(ones_gradient(layer(dtype="float16"), int64([1, 2, 1])))  # noqa: E731
    yield asked("float16", call, [[0, 0], [2, 2], [1, 1], [0, 0]])


@probe(
    "mxnet", "gluon.nn.Embedding with an id out of range", "2", claim="it reads, and trains, the nearest row",
    instead="islices.lookup(table, ids)",
)  # fmt: skip
def embedding_clamps() -> Iterator[Ask]:
    for index in (-1, ROWS):
        trained: Callable[..., Any] = lambda i=index: dense_of(ones_gradient(layer(sparse=False), int64([i])))  # noqa: E731
        yield asked(f"id {index}: its gradient", trained, np.zeros((ROWS, 2)))


@probe(
    "mxnet", "gluon.nn.Embedding(sparse_grad=True) with an id out of range", "2",
    claim="the error comes when the gradient is waited for: the loss is read, and backward returns, without one",
    instead="islices.lookup(table, ids)", issue="dmlc/gluon-nlp#938",
)  # fmt: skip
def embedding_raises_late() -> Iterator[Ask]:
    def call(index: int) -> str:
        of, step = layer(), "the lookup"
        try:
            with mx.autograd.record():
                rows = of(int64([index]))
            step = "reading the rows"
            rows.asnumpy()
            step = "backward()"
            rows.backward()
            step = "reading the gradient"
            of.weight.grad().wait_to_read()
        except (mx.MXNetError, IndexError):
            return f"an error from {step}"
        return "no error"

    for index in (-1, ROWS):
        yield asked(f"id {index}", lambda i=index: call(i), "an error from the lookup")


@probe(
    "mxnet", "mx.nd.take, mx.nd.Embedding, table[ids]", "2", claim="ids out of range are clamped or wrapped in silence",
    instead="islices.lookup(table, ids)",
)  # fmt: skip
def functions_clamp() -> Iterator[Ask]:
    table = nd.ones((ROWS, 2))
    ways = {
        "take": lambda i: nd.take(table, int64([i])),
        "Embedding": lambda i: nd.Embedding(int64([i]), table, input_dim=ROWS, output_dim=2),
        "table[ids]": lambda i: table[int64([i])],
    }
    for name, way in ways.items():
        for index in (-1, ROWS):
            got: Callable[..., Any] = lambda i=index, way=way: raised(lambda: way(i).asnumpy())  # noqa: E731
            yield asked(f"{name}, id {index}", got, "IndexError")


@probe(
    "mxnet", "mx.nd.take(mode='raise')", "2", claim="the error comes when the rows are read, not from the call",
    instead="islices.lookup(table, ids)",
)  # fmt: skip
def take_raises_late() -> Iterator[Ask]:
    def call() -> str:
        step = "the call"
        try:
            rows = nd.take(nd.ones((ROWS, 2)), int64([ROWS]), mode="raise")
            step = "reading the rows"
            rows.asnumpy()
        except (mx.MXNetError, IndexError):
            return f"an error from {step}"
        return "no error"

    yield asked(f"id {ROWS}", call, "an error from the call")


@probe(
    "mxnet", "gluon.nn.Embedding of no ids", "12", claim="it fails unless mx.util.np_shape is on", trap="raises",
    instead="islices.lookup(table, ids)",
)  # fmt: skip
def embedding_of_nothing() -> Iterator[Ask]:
    def call(shapes: bool) -> np.ndarray:
        with mx.util.np_shape(True):
            none = nd.zeros((0,), dtype="int64")
        with mx.util.np_shape(shapes):
            return dense_of(ones_gradient(layer(), none))

    yield asked("without np_shape", lambda: call(False), np.zeros((ROWS, 2)))
    yield asked("with np_shape", lambda: call(True), np.zeros((ROWS, 2)))


@probe(
    "mxnet", "weight.grad_req = 'add', Embedding(sparse_grad=True)", "6", trap="raises",
    claim="sparse gradients of several batches cannot be accumulated", instead="islices.add(a, b)",
)  # fmt: skip
def embedding_accumulates() -> Iterator[Ask]:
    def call() -> np.ndarray:
        of = layer()
        of.weight.grad_req = "add"
        return dense_of(ones_gradient(of, int64([1, 2, 1])))

    yield asked("one batch", call, [[0, 0], [2, 2], [1, 1], [0, 0]])


@probe(
    "mxnet", "gluon.nn.Embedding with ids of mx.nd.array", "2",
    claim="mx.nd.array makes them float32, and rows beyond 2**24 are read from a neighbour",
    instead="islices.lookup(table, ids)", issue="apache/mxnet#14231",
)  # fmt: skip
def rounded_ids() -> Iterator[Ask]:
    rows = 2**24 + 2

    def read(ids: Any) -> np.ndarray:
        table = nd.zeros((rows, 1))
        table[rows - 1] = 1  # row 2**24 + 1
        return nd.Embedding(ids, table, input_dim=rows, output_dim=1).asnumpy()  # type: ignore[no-any-return]

    yield asked("2**24 + 1 in mx.nd.array", lambda: read(nd.array([rows - 1])), [[1]])
    yield asked("2**24 + 1 in int64", lambda: read(int64([rows - 1])), [[1]])


@probe(
    "mxnet", "gluon.nn.Embedding with ids of float16", "2", claim="ids beyond 2048 are rounded to even ones",
    instead="islices.lookup(table, ids)",
)  # fmt: skip
def rounded_half_ids() -> Iterator[Ask]:
    of = layer(rows=2052)
    expected = np.zeros((2052, 2))
    expected[2049] = 1
    yield asked("2049", lambda: dense_of(ones_gradient(of, nd.array([2049], dtype="float16"))), expected)


# ---------------------------------------------------------------------- autograd
@probe(
    "mxnet", "table.attach_grad(stype=...)", "1", claim="with stype the gradient of a float64 table is float32",
    instead="islices.value_and_grad(loss)",
)  # fmt: skip
def attach_grad_narrows() -> Iterator[Ask]:
    for stype in (None, "default", "row_sparse"):

        def call(stype: str | None = stype) -> str:
            table = nd.zeros((ROWS, 2), dtype="float64")
            table.attach_grad(stype=stype)
            return np.dtype(table.grad.dtype).name  # type: ignore[no-any-return]

        yield asked(f"float64, stype={stype}", call, "float64")


@probe(
    "mxnet", "rows.attach_grad() under autograd.pause, inside record", "12",
    claim="the gradient of looked-up rows can be taken so", trap="", instead="islices.value_and_grad(loss)",
)  # fmt: skip
def captured() -> Iterator[Ask]:
    def call() -> np.ndarray:
        table = nd.ones((ROWS, 2))
        with mx.autograd.record():
            with mx.autograd.pause():
                rows = nd.take(table, int64([1, 2, 1]))
                rows.attach_grad()
            loss = (rows * upstream).sum()
        loss.backward()
        return rows.grad.asnumpy()  # type: ignore[no-any-return]

    upstream = nd.array([[1, 2], [3, 4], [5, 6]])
    yield asked("rows 1, 2, 1", call, upstream.asnumpy())


@probe(
    "mxnet", "mx.autograd.grad with respect to a table that was not looked up", "12", trap="raises",
    claim="it refuses instead of giving none", instead="islices.value_and_grad(loss)",
)  # fmt: skip
def unused() -> Iterator[Ask]:
    def call() -> np.ndarray:
        used, other = nd.ones((ROWS, 2)), nd.ones((ROWS, 2))
        for table in (used, other):
            table.attach_grad()
        with mx.autograd.record():
            loss = (nd.take(used, int64([1])) * 2).sum()
        return mx.autograd.grad(loss, [used, other])[1].asnumpy()  # type: ignore[no-any-return]

    yield asked("two tables, one looked up", call, np.zeros((ROWS, 2)))


@probe(
    "mxnet", "mx.autograd.grad(create_graph=True) through a lookup", "12", trap="raises",
    claim="second derivatives are not there", instead="islices.value_and_grad(loss)",
)  # fmt: skip
def second_order() -> Iterator[Ask]:
    ways: dict[str, Callable[[Any], Any]] = {
        "take": lambda table: nd.take(table, int64([1, 1])),
        "Embedding": lambda table: nd.Embedding(int64([1, 1]), table, input_dim=ROWS, output_dim=2),
    }
    for name, way in ways.items():

        def call(way: Callable[[Any], Any] = way) -> np.ndarray:
            table = nd.ones((ROWS, 2))
            table.attach_grad()
            with mx.autograd.record():
                rows = way(table)
                gradient = mx.autograd.grad((rows * rows).sum(), table, create_graph=True)[0]  # 4 * table in row 1
                loss = (gradient * gradient).sum()
            loss.backward()
            return table.grad.asnumpy()  # type: ignore[no-any-return]

        yield asked(name, call, [[0, 0], [32, 32], [0, 0], [0, 0]])
