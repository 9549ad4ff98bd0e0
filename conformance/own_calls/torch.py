"""PyTorch's calls on sparse gradients, for the conformance suite's real gradients, the audit and the bench.

This module does not import islices: it has the calls of a PyTorch user.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import torch


def weighted_sum(rows: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """sum(rows * weights): a loss whose gradient at rows is weights, to the bit."""
    return (rows * weights).sum()


def embedding_gradient(
    ids: np.ndarray[Any, Any], upstream: np.ndarray[Any, Any], num_rows: int, padding_idx: int
) -> torch.Tensor:
    """Return the gradient of nn.Embedding(sparse=True, padding_idx=...) under the loss sum(layer(ids) * upstream).

    Parameters
    ----------
    ids : int32 array of any shape
    upstream : float32 array, shape (*ids.shape, dim)
    num_rows, padding_idx : int

    Returns
    -------
    sparse COO tensor, shape (num_rows, dim)
        Uncoalesced, one slice per occurrence, without those of padding_idx, which the layer drops.
    """
    table = torch.zeros(num_rows, upstream.shape[-1])
    layer: Any = torch.nn.Embedding(num_rows, upstream.shape[-1], padding_idx=padding_idx, sparse=True, _weight=table)
    (layer(torch.from_numpy(np.array(ids))) * torch.from_numpy(np.array(upstream))).sum().backward()
    return layer.weight.grad  # type: ignore[no-any-return]


def invalid_gradients() -> dict[str, tuple[Callable[[], Any], str]]:
    """Sparse tensors that torch builds although they contradict themselves: label -> (call that builds it, the name
    of the error islices answers with). Computing on the first three, torch may end the process or return wrong sums."""

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
        warnings.simplefilter("ignore", UserWarning)  # torch says that its CSR support is in beta
        return torch.eye(4, 2).to_sparse_csr()


def trainable(array: np.ndarray) -> Any:
    return torch.nn.Parameter(torch.from_numpy(array.copy()))


def block(x: Any) -> None:
    """Wait until x is computed: at once on the CPU, the end of the queue on CUDA."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()
