"""Row-sparse gradients of functions of plain tensors: reads of rows get torch's sparse gradient.

torch has a sparse gradient for embedding(sparse=True) only. `_RowReads` is a mode in which each read of whole rows of
a marked tensor becomes that call. torch differentiates other uses densely, and adds both. May import: `numpy`,
`torch`, the core, this folder.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from islices import marking, trees
from islices.backend import Array, Backend, Source
from islices.backends.torch import recording
from islices.conversion import from_native
from islices.embedding import empty_slices

__all__ = ["differentiate_rows"]


def differentiate_rows(
    backend: Backend, fn: Callable[[Any], tuple[Array, Any]], tree: Any, sparse: Any
) -> tuple[Array, Any, Any]:
    """See `Backend.differentiate_rows`."""
    if recording.is_nested():
        raise NotImplementedError(
            "sparse: got it within value_and_grad, to which these gradients are constants; accepted for second "
            "derivatives is an islices.Table among the arguments"
        )
    leaves, names = trees.flatten(tree), marking.path_names(tree)
    floats = [k for k, x in enumerate(leaves) if backend.is_array(x) and backend.dtype(x) in backend.float_dtypes]
    marked = marking.marked(sparse, names, leaves, lambda flags: marking.prefix_flags(flags, tree), floats)
    reads = _RowReads()

    def called(faces: Sequence[torch.Tensor], _: Sequence[Source]) -> tuple[Array, Any]:
        full = list(leaves)
        for k, face in zip(floats, faces, strict=True):
            full[k] = face
            if k in marked:
                reads.tables[id(face)] = k
        with reads:
            return fn(trees.rebuild(tree, iter(full)))

    loss, aux, gradients, _ = recording.differentiate(
        backend, called, [leaves[k] for k in floats], [], keep_sparse=True
    )
    grads: list[Any] = [None] * len(leaves)
    for k, gradient in zip(floats, gradients, strict=True):
        x = leaves[k]
        by_rows = gradient is None or gradient.layout is torch.sparse_coo
        if k not in marked or (sparse == marking.AUTO and not (by_rows and 0 < reads.counts.get(k, 0) < x.shape[0])):
            grads[k] = recording.as_dense(gradient, x)
        elif by_rows:
            grads[k] = empty_slices(backend, x) if gradient is None else from_native(gradient)
        else:
            raise TypeError(
                f"sparse: got the leaf {names[k]!r}, which is used by {reads.others.get(k, 'another operation')}; "
                "accepted are leaves that fn reads only by rows (w[ids], torch.nn.functional.embedding, "
                'index_select). Leave it out, or use sparse="auto": its gradient is dense then'
            )
    return loss, aux, trees.rebuild(tree, iter(grads))


class _RowReads(TorchFunctionMode):
    """A mode in which reads of rows of some tensors get torch's sparse gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.tables: dict[int, int] = {}  # by id: the number of the leaf
        self.counts: dict[int, int] = {}  # by leaf: how many rows were read
        self.others: dict[int, str] = {}  # by leaf: the first other use of its numbers

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        found = [self.tables[id(x)] for x in (*args, *kwargs.values()) if id(x) in self.tables]
        if not found:
            return func(*args, **kwargs)
        read = READS.get(func)
        rows = None if read is None else read(*args, **kwargs)
        if rows is not None:
            self.counts[found[0]] = self.counts.get(found[0], 0) + rows[1]
            return rows[0]
        out = func(*args, **kwargs)
        if isinstance(out, torch.Tensor) and out.requires_grad:
            for k in found:
                if k not in self.others:
                    self.others[k] = f"{getattr(func, '__name__', func)}{_line()}"
        return out


def _line() -> str:
    """Return " at file:line" of the user's code that runs now."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OWN):
        frame = frame.f_back
    return f" at {frame.f_code.co_filename}:{frame.f_lineno}"


_OWN = tuple(os.path.dirname(os.path.abspath(path)) + os.sep for path in (torch.__file__, __file__))


# ---------------------------------------------------------------------- reads: (rows, how many), or None for other uses
def _embedding(
    input: torch.Tensor,
    weight: torch.Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Any:
    rows = functional.embedding(input, weight, padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse=True)
    return rows, input.numel()


def _embedding_bag(input: torch.Tensor, weight: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    names = ("offsets", "max_norm", "norm_type", "scale_grad_by_freq", "mode", "sparse", "per_sample_weights")
    given = dict(zip(names, args, strict=False)) | kwargs
    if given.get("mode") == "max" or given.get("scale_grad_by_freq"):  # torch has these without sparse gradients
        return None
    return functional.embedding_bag(input, weight, **given | {"sparse": True}), input.numel()


def _index_select(table: torch.Tensor, dim: int, index: torch.Tensor) -> Any:
    return None if dim not in (0, -table.ndim) else (_Rows.apply(table, index), index.numel())  # type: ignore[no-untyped-call]


def _getitem(table: torch.Tensor, key: Any) -> Any:
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
    elif isinstance(key, torch.Tensor) and key.dtype in (torch.int32, torch.int64):
        ids = key.to(table.device)
    else:
        return None
    return _Rows.apply(table, torch.where(ids < 0, ids + count, ids)), ids.numel()  # type: ignore[no-untyped-call]


class _Rows(torch.autograd.Function):
    """Rows of a table of any number of dimensions; the gradient is a sparse tensor."""

    @staticmethod
    def forward(ctx: Any, table: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(ids)
        ctx.shape = table.shape
        return table[ids]

    @staticmethod
    def backward(ctx: Any, upstream: torch.Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        (ids,), shape = ctx.saved_tensors, ctx.shape
        values = upstream.reshape(ids.numel(), *shape[1:])
        return torch.sparse_coo_tensor(ids.reshape(1, -1), values, shape, check_invariants=False), None


READS: dict[Any, Callable[..., Any]] = {
    functional.embedding: _embedding,
    functional.embedding_bag: _embedding_bag,
    torch.index_select: _index_select,
    torch.Tensor.index_select: _index_select,
    torch.Tensor.__getitem__: _getitem,
}
