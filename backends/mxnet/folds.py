"""Sums of runs of rows, each added left to right: what MXNet offers no operation for."""

from __future__ import annotations

from typing import Any

import numpy as np

from islices.backends.mxnet.ndarrays import mx, share, zeros

__all__ = ["fold_floats", "fold_integers"]

nd = mx.nd
#: Slots folded by one product: rows times slots stays below MXNet's limit, the gathered rows stay near the caches.
WINDOW = 1 << 15


def fold_floats(values: Any, order: np.ndarray[Any, Any], starts: np.ndarray[Any, Any]) -> Any:
    """out[r] = values[order[starts[r]]] + ... + values[order[starts[r + 1] - 1]], for float32 or float64.

    A row of a CSR matrix times a dense one adds its terms in the order stored, in one thread: with ones as the
    matrix' entries that is the left fold, and it is differentiable. Each product takes a window of whole runs, since
    MXNet limits the shape of the matrix, and gathers its rows first.
    """
    n, count, context, dtype = len(order), len(starts) - 1, values.context, values.dtype
    rows = values.reshape((n, values.size // n))
    positions = share(order, context)
    longest = max(WINDOW, int(np.diff(starts).max()))
    ones = nd.ones((longest,), context, dtype)
    slots = share(np.arange(longest), context)
    sums, first = [], 0
    while first < count:
        begin = int(starts[first])
        last = max(first + 1, int(np.searchsorted(starts, begin + WINDOW, side="right")) - 1)
        end = int(starts[last])
        width = end - begin
        bounds = share(starts[first : last + 1] - begin, context)
        runs = nd.sparse.csr_matrix((ones[:width], slots[:width], bounds), (last - first, width), context, dtype)
        sums.append(nd.sparse.dot(runs, nd.take(rows, positions[begin:end])))
        first = last
    joined = sums[0] if len(sums) == 1 else nd.concat(*sums, dim=0)
    return joined.reshape((count, *values.shape[1:]))


def fold_integers(values: Any, order: np.ndarray[Any, Any], starts: np.ndarray[Any, Any], dtype: str) -> Any:
    """The same for integers, which that product does not take: the gradient of a lookup of rows out."""
    count = len(starts) - 1
    place = np.empty(len(order), np.int64)
    place[order] = np.repeat(np.arange(count), np.diff(starts))
    table = zeros((count, *values.shape[1:]), dtype, values.context)
    table.attach_grad()
    with mx.autograd.record(train_mode=False):
        looked_up = nd.take(table, share(place, values.context))
    looked_up.backward(values)
    return table.grad
