"""Split and build Paddle's SelectedRows without letting Paddle compute on them.

Paddle does not check a SelectedRows: rows out of range crash the process in Paddle's lazy Adam. Functions such as
`square` work on the stored rows and do not sum duplicates. The C++ object that ``get_selected_rows`` returns does not
keep the tensor alive, so the user of the object must keep the tensor as well. Paddle has no public function that builds
a SelectedRows. So `build` computes the gradient of an embedding with a table of one row, and replaces the height and
the values of this gradient. May import: Paddle, NumPy and `islices.backend`.
"""

from __future__ import annotations

import numpy as np
import paddle

from islices.backend import NativeParts
from islices_paddle.memory import share

__all__ = ["build", "is_special", "take_apart", "to_dense"]


def is_special(x: paddle.Tensor) -> bool:
    """Return True if a tensor is not dense. `take_apart` checks that the tensor is a SelectedRows."""
    return not x.is_dense()


def take_apart(x: paddle.Tensor) -> NativeParts:
    if not x.is_selected_rows():
        raise ValueError(
            "x: got a paddle.sparse tensor; accepted is SelectedRows, the gradient of an embedding with sparse=True "
            "(a small tensor passes as from_dense(x.to_dense()))"
        )
    if 0 not in x.shape and not x._is_initialized():
        raise ValueError("x: got a SelectedRows without memory; accepted is one that holds values")
    parts = x.get_selected_rows()
    rows = np.array(parts.rows(), np.int64)
    values = x._get_tensor_from_selected_rows()  # the same memory, detached from x's graph
    return NativeParts(values, share(rows, values.place), (parts.height(), *values.shape[1:]))


def build(values: paddle.Tensor, rows: paddle.Tensor, height: int) -> paddle.Tensor:
    """Return a SelectedRows with the given int64 rows. The SelectedRows shares the memory of contiguous
    values."""
    values = values.detach().contiguous()
    n = len(rows)
    one = paddle.zeros([1, 1], device=values.place)
    upstream = paddle.zeros([n, 1], device=values.place)
    out = paddle._C_ops.embedding_grad(rows, one, upstream, -1, True)
    parts = out.get_selected_rows()
    parts.set_height(height)
    parts.get_tensor()._share_data_with(values.get_tensor())
    return out


def to_dense(x: paddle.Tensor) -> paddle.Tensor:
    """Return a SelectedRows as a dense tensor, with duplicates summed. `differentiate` needs dense gradients of
    arguments."""
    values, rows, shape, *_ = take_apart(x)
    return paddle.index_add(paddle.zeros(list(shape), values.dtype, device=values.place), rows, 0, values)
