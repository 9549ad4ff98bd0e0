"""Whole steps on MXNet: its lazy Adam on its own sparse gradient, and on sums by hand."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle
from typing import Any

import numpy as np

from islices import get_backend

get_backend("mxnet")  # MXNet imports beside a NumPy of today by way of its backend
import mxnet as mx  # noqa: E402

from islices.conformance.tools.bench.limit import BETA1, BETA2, RATE  # noqa: E402
from islices.conformance.tools.bench.steps.model import LOSS_SCALE, MAX_NORM, Problem, Ready, Way  # noqa: E402
from islices.conformance.tools.bench.steps.ours import Framework  # noqa: E402

__all__ = ["FRAMEWORK"]

nd = mx.nd


def _table(start: Any) -> Any:
    return nd.array(start)


def _loss(bags: Any, target: Any) -> Any:
    return nd.square(bags - target).sum() * (0.5 * LOSS_SCALE)


def _stepped(problem: Problem, gradient: Callable[[Any, Any], tuple[Any, Any]]) -> Way:
    """(table, batch) -> (loss, row_sparse gradient), and MXNet's lazy Adam on it."""
    table = _table(problem.start()[0])
    adam = mx.optimizer.Adam(learning_rate=RATE, beta1=BETA1, beta2=BETA2, epsilon=1e-8, lazy_update=True)
    state = adam.create_state(0, table)
    feed = cycle([(b.ids[0], nd.array(b.ids[0], dtype="int64"), nd.array(b.target)) for b in problem.batches])

    def call() -> Any:
        loss, g = gradient(table, next(feed))
        if problem.case.clip:
            g = g * min(MAX_NORM / (float(g.norm().asnumpy()[0]) + 1e-8), 1.0)
        adam.update(0, table, g, state)
        return loss

    return Way(call, lambda: [table])


def _own_gradient(table: Any, batch: Any) -> tuple[Any, Any]:
    _, ids, target = batch
    table.attach_grad(stype="row_sparse")
    with mx.autograd.record():
        loss = _loss(nd.Embedding(ids, table, *table.shape, sparse_grad=True).sum(axis=1), target)
    loss.backward()
    return loss, table.grad


def _by_csr(table: Any, batch: Any) -> tuple[Any, Any]:
    """The rows' sums straight from the gradient of the bags: a sparse matrix of ones, a row a distinct id, times it."""
    host, ids, target = batch
    bags = nd.take(table, ids).sum(axis=1)
    bags.attach_grad()
    with mx.autograd.record():
        loss = _loss(bags, target)
    loss.backward()
    flat = host.reshape(-1)
    order = np.argsort(flat, kind="stable")
    distinct, starts = np.unique(flat[order], return_index=True)
    ones, bag_of = nd.ones((len(flat),)), nd.array(order // host.shape[1], dtype="int64")
    ends = nd.array(np.append(starts, len(flat)), dtype="int64")
    matrix = nd.sparse.csr_matrix((ones, bag_of, ends), shape=(len(distinct), len(host)))
    rows = nd.array(distinct, dtype="int64")
    return loss, nd.sparse.row_sparse_array((nd.sparse.dot(matrix, bags.grad), rows), shape=table.shape)


def _own(problem: Problem) -> dict[str, Ready]:
    return {
        "np.argsort, dot(csr, upstream), lazy Adam": lambda: _stepped(problem, _by_csr),
        "Embedding(sparse_grad=True), lazy Adam": lambda: _stepped(problem, _own_gradient),
    }


FRAMEWORK = Framework(_table, nd.sum, _own)
