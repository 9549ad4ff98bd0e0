"""PyTorch's calls on sparse gradients, for the suite, the audit and the bench.

This module does not import islices, because the calls must be those of a program without islices.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import torch


def weighted_sum(rows: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Return sum(rows * weights). The gradient of this loss with respect to rows is exactly `weights`."""
    return (rows * weights).sum()


def embedding_gradient(
    ids: np.ndarray[Any, Any], upstream: np.ndarray[Any, Any], num_rows: int, padding_idx: int
) -> torch.Tensor:
    """Return the gradient of nn.Embedding(sparse=True, padding_idx=...) for the loss sum(layer(ids) * upstream).

    Parameters
    ----------
    ids : int32 array of any shape
    upstream : float32 array, shape ``(*ids.shape, dim)``
    num_rows, padding_idx : int

    Returns
    -------
    sparse COO tensor, shape (num_rows, dim)
        Uncoalesced, with one slice per occurrence of an id other than padding_idx.
    """
    table = torch.zeros(num_rows, upstream.shape[-1])
    layer: Any = torch.nn.Embedding(num_rows, upstream.shape[-1], padding_idx=padding_idx, sparse=True, _weight=table)
    (layer(torch.from_numpy(np.array(ids))) * torch.from_numpy(np.array(upstream))).sum().backward()
    return layer.weight.grad  # type: ignore[no-any-return]


def invalid_gradients() -> dict[str, tuple[Callable[[], Any], str]]:
    """Return {label: (a call that builds an inconsistent or unsupported sparse tensor, the name of the error that
    islices raises)}. With one of the first four tensors, operations of torch may crash the process or return wrong
    results."""

    def sparse(indices: list[int], *, is_coalesced: bool = False) -> torch.Tensor:
        return torch.sparse_coo_tensor(
            cast("Any", [indices]),
            torch.ones(len(indices), 2),
            (4, 2),
            is_coalesced=is_coalesced,
            check_invariants=False,
        )

    return {
        "index out of range": (lambda: sparse([0, 4]), "IndexError"),
        "negative index": (lambda: sparse([0, -1]), "IndexError"),
        "falsely coalesced, unsorted": (lambda: sparse([2, 1], is_coalesced=True), "ValueError"),
        "falsely coalesced, duplicates": (lambda: sparse([1, 1], is_coalesced=True), "ValueError"),
        "two sparse dimensions": (lambda: torch.eye(4, 2).to_sparse(), "ValueError"),
        "compressed rows": (_compressed_rows, "ValueError"),
    }


def _compressed_rows() -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch warns that its CSR support is in beta
        return torch.eye(4, 2).to_sparse_csr()


def timed_calls(
    operation: str, v: torch.Tensor, indices: torch.Tensor, num_rows: int, max_norm: float
) -> dict[str, Callable[[], Any]]:
    """Return {label: call} for PyTorch's equivalents of one operation of islices.

    `torch.nn.utils.clip_grad_norm_` raises an error for sparse gradients. So the labels of clips name the code that
    users write instead.
    """
    shape = (num_rows, *v.shape[1:])

    def sparse(ids: torch.Tensor, values: torch.Tensor, coalesced: bool = True) -> torch.Tensor:
        return torch.sparse_coo_tensor(ids.long()[None], values, shape, is_coalesced=coalesced, check_invariants=False)

    def gradient() -> torch.Tensor:
        # a new tensor for each call, because coalesce() does nothing for a tensor that is marked as coalesced
        return sparse(indices, v, coalesced=False)

    def unique_index_add() -> torch.Tensor:
        ids, inverse = torch.unique(indices, return_inverse=True)
        sums = v.new_zeros((len(ids), *v.shape[1:])).index_add_(0, inverse, v)
        return sparse(ids, sums)

    def sort_embedding_bag() -> torch.Tensor:
        ordered, order = torch.sort(indices, stable=True)
        first = torch.ones(len(indices), dtype=torch.bool)
        torch.ne(ordered[1:], ordered[:-1], out=first[1:])
        starts = first.nonzero()[:, 0]
        sums = torch.nn.functional.embedding_bag(order, v.reshape(len(v), -1), starts, mode="sum")
        return sparse(ordered[starts], sums.reshape(-1, *v.shape[1:]))

    def clipped(summed: Callable[[], torch.Tensor]) -> torch.Tensor:
        g = summed()
        total = torch.linalg.vector_norm(g._values())
        factor = torch.clamp(max_norm / (total + 1e-6), max=1.0)
        return sparse(g._indices()[0], g._values() * factor)

    variants: dict[str, Callable[[], torch.Tensor]] = {
        "coalesce()": lambda: gradient().coalesce(),
        "unique + index_add_": unique_index_add,
        "sort + embedding_bag": sort_embedding_bag,
    }
    if operation == "coalesce":
        return dict(variants)
    if operation == "to_dense":
        return {
            "to_dense()": lambda: gradient().to_dense(),
            "zeros.index_add_": lambda: v.new_zeros(shape).index_add_(0, indices, v),
        }
    if operation == "norm":
        found: dict[str, Callable[[], Any]] = {"norm() of the sparse tensor": lambda: gradient().norm()}
        return found | {
            f"{k}, vector_norm": lambda variant=variant: torch.linalg.vector_norm(variant()._values())
            for k, variant in variants.items()
        }
    return {f"{k}, vector_norm, * factor": lambda variant=variant: clipped(variant) for k, variant in variants.items()}  # type: ignore[misc]


def trainable(array: np.ndarray) -> Any:
    return torch.nn.Parameter(torch.from_numpy(array.copy()))


def block(x: Any) -> None:
    """Wait until the CUDA queue is empty. On the CPU, torch computes before a call returns."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()
