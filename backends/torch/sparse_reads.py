"""Compute row-sparse gradients of functions of plain tensors.

torch computes row-sparse gradients only for embedding and embedding_bag with sparse=True. The mode `RowReads` passes
sparse=True to these functions if they read a marked tensor, unless their options exclude sparse gradients. The mode
also replaces index_select along axis 0, and indexing with integers or a slice along this axis, by a function with a
sparse gradient. All other uses have dense gradients, and the sum of sparse and dense gradients is dense. May import:
`numpy`, `torch`, the core, this folder.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from islices.backend import Array, Backend, Source
from islices.backends.torch import autograd
from islices.core import trees
from islices.core.conversion import from_native
from islices.embedding import marking
from islices.embedding.lookup_gradients import empty_slices


def differentiate_rows(
    backend: Backend, fn: Callable[[Any], tuple[Array, Any]], tree: Any, sparse: Any, data: Any = None
) -> tuple[Array, Any, Any]:
    """See `Backend.differentiate_rows`."""
    if data is not None:
        raise backend.lacks(
            "differentiate_rows", "accepted with per_sample=True is an islices.Table, which fn reads by lookup"
        )
    if autograd.nested.get():
        raise NotImplementedError(
            "sparse: got it within value_and_grad, to which these gradients are constants; accepted for second "
            "derivatives is an islices.Table among the arguments"
        )
    leaves, names, floats, marked = marking.marked_leaves(backend, tree, sparse)
    tables: dict[int, Tensor] = {}  # number of a leaf -> the tensor that fn gets in its place
    ids: set[int] = set()
    others: dict[int, str] = {}
    reads = RowReads(lambda x: id(x) in ids, others)

    def called(faces: Sequence[Tensor], _: Sequence[Source]) -> tuple[Array, Any]:
        full = list(leaves)
        for k, face in zip(floats, faces, strict=True):
            full[k] = face
        tables.update((k, full[k]) for k in marked)
        ids.update(map(id, tables.values()))
        with reads:
            return fn(trees.rebuild(tree, iter(full)))

    loss, aux, gradients, _ = autograd.differentiate(backend, called, [leaves[k] for k in floats], [], keep_sparse=True)
    grads: list[Any] = [None] * len(leaves)
    for k, gradient in zip(floats, gradients, strict=True):
        x, by_rows = leaves[k], gradient is None or gradient.layout is torch.sparse_coo
        dense = k not in marked
        if not dense and isinstance(sparse, str):
            dense = not by_rows or not marking.pays(sparse, reads.counts.get(id(tables[k]), 0), x.shape[0])
        if dense:
            grads[k] = autograd.as_dense(gradient, x)
        elif by_rows:
            grads[k] = empty_slices(backend, x) if gradient is None else from_native(gradient)
        else:
            use = others.get(id(tables[k]), "another operation")
            raise TypeError(
                f"sparse: got the leaf {names[k]!r}, which is used by {use}; accepted are leaves that fn reads only by "
                "rows (w[ids], torch.nn.functional.embedding, index_select). Leave it out, or use "
                'sparse="auto": its gradient is dense then'
            )
    return loss, aux, trees.rebuild(tree, iter(grads))


class RowReads(TorchFunctionMode):
    """A torch function mode in which reads of rows have a sparse gradient. The function `is_table` selects the tensors
    for which this applies.

    If a table was cast to another dtype on the same device, a read of the copy reads and casts rows of the table.
    `others` maps the id() of a table to a description of its first recorded use that is not a read of rows.
    """

    def __init__(self, is_table: Callable[[Any], bool], others: dict[int, str] | None = None) -> None:
        super().__init__()
        self.is_table, self.others = is_table, others
        self.counts: dict[int, int] = {}  # id() of a table -> the number of rows that were read

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = next((x for x in (*args, *kwargs.values()) if self._table(x) is not None), None)
        if given is None:
            return func(*args, **kwargs)
        table = self._table(given)
        read = READS.get(func)
        if read is not None:
            swapped = [table if x is given else x for x in args]
            found = read(*swapped, **{name: table if x is given else x for name, x in kwargs.items()})
            if found is not None:
                rows, count = found
                self.counts[id(table)] = self.counts.get(id(table), 0) + count
                return rows if given is table else rows.to(given.dtype)
        out = func(*args, **kwargs)
        if func in CASTS and given is table and out is not given and out.device == given.device:
            out._islices_cast_from = table
        others = self.others
        if others is not None and isinstance(out, Tensor) and out.requires_grad and id(table) not in others:
            others[id(table)] = f"{getattr(func, '__name__', func)}{_line()}"
        return out

    def _table(self, x: Any) -> Any:
        """Return `x` if it is a table, or the original table if `x` is a cast copy of it. Return None for any other
        object."""
        return x if self.is_table(x) else getattr(x, "_islices_cast_from", None)


CASTS = {getattr(Tensor, name) for name in ("to", "type", "half", "bfloat16", "float", "double")}


def _line() -> str:
    """Return " at file:line" for the innermost code that is neither in torch nor in this folder."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OWN):
        frame = frame.f_back
    return f" at {frame.f_code.co_filename}:{frame.f_lineno}"


_OWN = tuple(os.path.dirname(os.path.abspath(path)) + os.sep for path in (torch.__file__, __file__))


# ---------------------------------------------------------------------- reads: (rows, how many), or None for other uses
def _functional(func: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a lookup function of torch.nn.functional. The wrapper calls the function with sparse=True, and returns
    (result, number of ids).

    If torch has no sparse gradient for the options, the wrapper returns None.
    """
    signature = inspect.signature(func)

    def read(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs).arguments
        if given.get("mode") == "max" or given.get("scale_grad_by_freq"):  # torch has no sparse gradients for these
            return None
        given["sparse"] = True
        return func(**given), given["input"].numel()

    return read


def _index_select(table: Tensor, dim: int, index: Tensor) -> Any:
    return None if dim not in (0, -table.ndim) else (_Rows.apply(table, index), index.numel())  # type: ignore[no-untyped-call]


def _getitem(table: Tensor, key: Any) -> Any:
    if isinstance(key, tuple) and key and all(isinstance(k, slice) and k == slice(None) for k in key[1:]):
        key = key[0]
    count = table.shape[0]
    if isinstance(key, (list, np.ndarray)):
        key = torch.as_tensor(key)
    if isinstance(key, slice):
        start, stop, stride = key.indices(count)
        ids = torch.arange(start, max(start, stop), stride, device=table.device)
    elif isinstance(key, int) and not isinstance(key, bool) and -count <= key < count:
        ids = torch.tensor(key, device=table.device)
    elif isinstance(key, Tensor) and key.dtype in (torch.int32, torch.int64):
        ids = key.to(table.device)
    else:
        return None
    return _Rows.apply(table, torch.where(ids < 0, ids + count, ids)), ids.numel()  # type: ignore[no-untyped-call]


class _Rows(torch.autograd.Function):
    """An autograd function that reads rows of a table, and returns a sparse tensor as the gradient. Rows may have any
    shape."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, ids: Tensor) -> Tensor:
        ctx.save_for_backward(ids)
        ctx.shape = table.shape
        return table[ids]

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        (ids,), shape = ctx.saved_tensors, ctx.shape
        values = upstream.reshape(ids.numel(), *shape[1:])
        return torch.sparse_coo_tensor(ids.reshape(1, -1), values, shape, check_invariants=False), None


READS: dict[Any, Callable[..., Any]] = {
    functional.embedding: _functional(functional.embedding),
    functional.embedding_bag: _functional(functional.embedding_bag),
    torch.index_select: _index_select,
    Tensor.index_select: _index_select,
    Tensor.__getitem__: _getitem,
}
