"""MXNet's calls on sparse gradients, for the suite and the audit.

This module does not import islices, because the calls must be those of a program without islices. Importing MXNet fails
with current versions of NumPy. So the caller must first load MXNet through `islices.backends.mxnet`; the functions then
import MXNet.

The row_sparse type of MXNet requires unique rows in ascending order, but MXNet does not check this. So users must sum
duplicates and sort the rows before they build such an array.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Host = np.ndarray[Any, Any]


def weighted_sum(rows: Any, weights: Any) -> Any:
    """Return sum(rows * weights). The gradient of this loss with respect to rows is exactly `weights`."""
    import mxnet as mx

    if rows.size == 0:  # MXNet cannot sum an empty array
        return mx.nd.zeros((1,), rows.context, rows.dtype)
    return (rows * weights).sum()


def embedding_gradient(ids: Host, upstream: Host, num_rows: int, padding_idx: int) -> Any:
    """Return the gradient of gluon.nn.Embedding(sparse_grad=True) for the loss sum(layer(ids) * upstream).

    Parameters
    ----------
    ids : int32 array of any shape
    upstream : float32 array, shape ``(*ids.shape, dim)``
    num_rows : int
    padding_idx : int
        Ignored, because the layer has no padding row. The caller drops the padding row (`islices.drop_padding`).

    Returns
    -------
    RowSparseNDArray, shape (num_rows, dim)
        Duplicates are summed.
    """
    import mxnet as mx

    with mx.util.np_shape(True):  # the shape of an empty batch contains 0
        layer = mx.gluon.nn.Embedding(num_rows, upstream.shape[-1], sparse_grad=True)
        layer.initialize(mx.init.Zero())
        tokens, weights = _array(ids), _array(upstream)
        with mx.autograd.record():
            loss = (layer(tokens) * weights).sum()
        loss.backward()
        gradient = layer.weight.grad()
        gradient.wait_to_read()
    return gradient


def invalid_gradients() -> dict[str, tuple[Callable[[], Any], str]]:
    """Return {label: (a call that builds an inconsistent RowSparseNDArray, the name of the error that islices raises)}.
    Converting one of the first two to a dense array crashes the process."""
    import mxnet as mx

    def row_sparse(indices: list[int]) -> Any:
        rows, ids = np.ones((len(indices), 2), np.float32), np.array(indices, np.int64)
        return mx.nd.sparse.row_sparse_array((_array(rows), _array(ids)), shape=(4, 2))

    return {
        "index out of range": (lambda: row_sparse([0, 4]), "IndexError"),
        "negative index": (lambda: row_sparse([-1, 0]), "IndexError"),
        "unsorted rows": (lambda: row_sparse([2, 1]), "ValueError"),
        "a row twice": (lambda: row_sparse([1, 1]), "ValueError"),
    }


def _array(x: Host) -> Any:
    import mxnet as mx

    return mx.nd.from_numpy(np.array(x, order="C"), zero_copy=True)


def trainable(array: np.ndarray) -> Any:
    import mxnet as mx

    return mx.nd.array(array, dtype=array.dtype)


def block(x: Any) -> None:
    """Wait until MXNet has computed all pending arrays, including x."""
    import mxnet as mx

    mx.nd.waitall()
