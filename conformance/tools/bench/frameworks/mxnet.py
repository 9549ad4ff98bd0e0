"""MXNet: its lazy updates on its own sparse gradients, and on sums by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from islices import Table, get_backend, lookup, value_and_grad

get_backend("mxnet")  # MXNet imports beside a NumPy of today by way of its backend
import mxnet as mx  # noqa: E402

from islices.conformance.own_calls.mxnet import timed_calls  # noqa: E402
from islices.conformance.tools.bench.formulas import BETA1, BETA2, EPS, RATE  # noqa: E402
from islices.conformance.tools.bench.rounds import Call  # noqa: E402
from islices.conformance.tools.bench.step import LOSS_SCALE, MAX_NORM, Problem  # noqa: E402
from islices.conformance.tools.bench.ways import Ready, Way  # noqa: E402

__all__ = ["gradient", "ones", "small", "steps", "table", "total", "updates", "zeros"]

nd = mx.nd
zeros, ones, table, total = nd.zeros, nd.ones, nd.array, nd.sum


def updates(kind: str, values: Any, ids: Any, rows: int) -> dict[str, Ready]:
    # row_sparse arrays hold no duplicates, so they are summed first
    first = "np.argsort + dot(csr, values)"
    summed = timed_calls("coalesce", nd.array(values), nd.array(ids, dtype="int64"), rows, 0.0)[first]
    optimizers: dict[str, tuple[str, Callable[[], Any]]] = {
        "sgd": ("SGD", lambda: mx.optimizer.SGD(learning_rate=RATE)),
        "adagrad": ("AdaGrad", lambda: mx.optimizer.AdaGrad(learning_rate=RATE, eps=EPS)),
        "rowwise_adagrad": (
            "contrib.GroupAdaGrad",
            lambda: mx.optimizer.contrib.GroupAdaGrad(learning_rate=RATE, eps=EPS),
        ),
        "adam": ("Adam", lambda: mx.optimizer.Adam(learning_rate=RATE)),
    }
    name, make = optimizers[kind]

    def ready(gradient: Call) -> Way:
        weight, optimizer = nd.zeros((rows, values.shape[1])), make()
        state = optimizer.create_state(0, weight)
        return Way(lambda: optimizer.update(0, weight, gradient(), state), lambda: [weight])

    before = summed()
    return {
        f"{first}, {name}": lambda: ready(summed),
        f"{name} (of a gradient coalesced before)": lambda: ready(lambda: before),
    }


def small(values: Any, ids: Any, rows: int, max_norm: float) -> dict[str, dict[str, Call]]:
    v, distinct = nd.array(values), np.unique(ids)
    gradient = nd.sparse.row_sparse_array(
        (nd.array(values[: len(distinct)]), nd.array(distinct, dtype="int64")), shape=(rows, values.shape[1])
    )
    table = nd.zeros(gradient.shape)
    return {
        "clip_by_global_norm": {
            "gluon.utils.clip_global_norm (of dense values)": lambda: mx.gluon.utils.clip_global_norm([v], max_norm)
        },
        "sgd step": {
            "sgd_update, lazy (of a coalesced gradient)": lambda: nd.sgd_update(
                table, gradient, lr=RATE, lazy_update=True, out=table
            )
        },
    }


# ---------------------------------------------------------------------- whole steps
def _loss(bags: Any, target: Any) -> Any:
    return nd.square(bags - target).sum() * (0.5 * LOSS_SCALE)


def steps(problem: Problem) -> dict[str, Ready]:
    def ready(gradient: Callable[[Any, Any, Any], tuple[Any, Any]]) -> Way:
        """Return MXNet's lazy Adam on gradient(table, ids, target) -> (loss, row_sparse gradient)."""
        table = nd.array(problem.start()[0])
        adam = mx.optimizer.Adam(learning_rate=RATE, beta1=BETA1, beta2=BETA2, epsilon=EPS, lazy_update=True)
        state, feed = adam.create_state(0, table), problem.feed(lambda x: x, nd.array)

        def call() -> Any:
            (ids,), target = next(feed)
            loss, g = gradient(table, ids, target)
            if problem.case.clip:
                g = g * min(MAX_NORM / (float(g.norm().asnumpy()[0]) + 1e-8), 1.0)
            adam.update(0, table, g, state)
            return loss

        return Way(call, lambda: [table])

    return {
        "np.argsort, dot(csr, upstream), lazy Adam": lambda: ready(_by_csr),
        "Embedding(sparse_grad=True), lazy Adam": lambda: ready(_own_gradient),
    }


def _own_gradient(table: Any, ids: Any, target: Any) -> tuple[Any, Any]:
    table.attach_grad(stype="row_sparse")
    with mx.autograd.record():
        rows = nd.Embedding(nd.array(ids, dtype="int64"), table, *table.shape, sparse_grad=True)
        loss = _loss(rows.sum(axis=1), target)
    loss.backward()
    return loss, table.grad


def _by_csr(table: Any, ids: Any, target: Any) -> tuple[Any, Any]:
    """The rows' sums straight from the gradient of the bags: a sparse matrix of ones, a row a distinct id, times it."""
    bags = nd.take(table, nd.array(ids, dtype="int64")).sum(axis=1)
    bags.attach_grad()
    with mx.autograd.record():
        loss = _loss(bags, target)
    loss.backward()
    flat = ids.reshape(-1)
    order = np.argsort(flat, kind="stable")
    distinct, starts = np.unique(flat[order], return_index=True)
    ones, bag_of = nd.ones((len(flat),)), nd.array(order // ids.shape[1], dtype="int64")
    ends = nd.array(np.append(starts, len(flat)), dtype="int64")
    matrix = nd.sparse.csr_matrix((ones, bag_of, ends), shape=(len(distinct), len(ids)))
    rows = nd.array(distinct, dtype="int64")
    return loss, nd.sparse.row_sparse_array((nd.sparse.dot(matrix, bags.grad), rows), shape=table.shape)


# ---------------------------------------------------------------------- gradients
def gradient(table: Any, ids: Any, upstream: Any) -> dict[str, Call]:
    i, u, wrapped = nd.array(ids, dtype="int64"), nd.array(upstream), Table(table)
    step = value_and_grad(lambda table: (lookup(table, i) * u).sum())

    def ours() -> Any:
        value, g = step(wrapped)
        return value, g.values, g.indices

    def own() -> Any:
        parameter = table.detach()  # shares the memory
        parameter.attach_grad(stype="row_sparse")  # the buffer is part of the work
        with mx.autograd.record():
            loss = (nd.Embedding(i, parameter, *table.shape, sparse_grad=True) * u).sum()
        loss.backward()
        return loss, parameter.grad.data, parameter.grad.indices

    return {"islices": ours, "Embedding(sparse_grad=True), backward": own}
