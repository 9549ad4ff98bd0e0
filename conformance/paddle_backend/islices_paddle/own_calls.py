"""Paddle's calls on sparse gradients, for the conformance suite.

This module does not import islices, because the calls must be those of a program without islices.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import paddle

__all__ = ["block", "embedding_gradient", "invalid_gradients", "trainable", "weighted_sum"]

Host = np.ndarray[Any, Any]


def weighted_sum(rows: paddle.Tensor, weights: paddle.Tensor) -> paddle.Tensor:
    """Return sum(rows * weights). The gradient of this loss with respect to rows is exactly `weights`."""
    if rows.dtype in (paddle.float16, paddle.bfloat16):  # for 16 bits, Paddle has no products on the CPU
        rows, weights = rows.astype("float32"), weights.astype("float32")
    return (rows * weights).sum()


def embedding_gradient(ids: Host, upstream: Host, num_rows: int, padding_idx: int) -> paddle.Tensor:
    """Return the gradient of nn.Embedding(sparse=True, padding_idx=...) for the loss sum(layer(ids) * upstream).

    Parameters
    ----------
    ids : int32 array of any shape
    upstream : float32 array, shape ``(*ids.shape, dim)``
    num_rows, padding_idx : int

    Returns
    -------
    SelectedRows of height num_rows
        Uncoalesced, with one slice per occurrence. The slices of padding_idx are included, so the caller drops the
        padding row.
    """
    layer = paddle.nn.Embedding(num_rows, upstream.shape[-1], padding_idx=padding_idx, sparse=True)
    (layer(paddle.to_tensor(ids)) * paddle.to_tensor(upstream)).sum().backward()
    return layer.weight.grad


def invalid_gradients() -> dict[str, tuple[Callable[[], Any], str]]:
    """Return {label: (a call that builds inconsistent SelectedRows or an unsupported tensor, the name of the error that
    islices raises)}. Paddle does not check SelectedRows; the first two crash the process in Paddle's lazy Adam."""

    def selected_rows(rows: list[int]) -> paddle.Tensor:
        gradient = embedding_gradient(np.array([0, 1], np.int32), np.ones((2, 2), np.float32), 4, 3)
        gradient.get_selected_rows().set_rows(rows)
        return gradient

    return {
        "index out of range": (lambda: selected_rows([0, 4]), "IndexError"),
        "negative index": (lambda: selected_rows([0, -1]), "IndexError"),
        "fewer rows than values": (lambda: selected_rows([0]), "ValueError"),
        "two sparse dimensions": (lambda: paddle.eye(4, 2).to_sparse_coo(2), "ValueError"),
        "compressed rows": (lambda: paddle.eye(4, 2).to_sparse_csr(), "ValueError"),
    }


def trainable(array: Host) -> paddle.Tensor:
    return paddle.to_tensor(array)


def block(x: Any) -> None:
    """Do nothing, because Paddle on the CPU computes before a call returns."""
