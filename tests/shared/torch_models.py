"""A torch model with sparse and dense gradients, tensors of numbers that need no rounding, and a comparison of
models."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

ROWS, DIM = 40, 4


class Bags(torch.nn.Module):
    """A model with a sparse table for bags (with padding and weights), a dense head, a parameter without dimensions,
    and an unused parameter."""

    def __init__(self, dtype: torch.dtype = torch.float32, *, sparse: bool = True) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.table = torch.nn.EmbeddingBag(ROWS, DIM, mode="sum", sparse=sparse, padding_idx=0, dtype=dtype)
        self.head = torch.nn.Linear(DIM, 2, dtype=dtype)
        self.scale = torch.nn.Parameter(torch.ones((), dtype=dtype))
        self.unused = torch.nn.Parameter(torch.ones(3, dtype=dtype))
        with torch.no_grad():
            for p in self.parameters():
                p.copy_(torch.randn(p.shape, generator=generator))

    def loss(self, seed: int, *, duplicates: bool = True) -> torch.Tensor:
        rng = np.random.default_rng(seed)
        ids = rng.integers(0, ROWS // 2, 16) if duplicates else rng.permutation(ROWS)[:16]
        weights = torch.from_numpy(rng.standard_normal(16)).to(self.scale.dtype)
        offsets = torch.tensor([0, 4, 4, 8])
        bags = self.table(torch.from_numpy(ids), offsets, per_sample_weights=weights)
        return (self.scale * self.head(bags)).square().mean()


def train(model: Bags, optimizer: Any, first: int, last: int) -> None:
    for step in range(first, last):
        optimizer.zero_grad()
        model.loss(step).backward()
        optimizer.step()


def whole(*shape: int, seed: int = 0) -> torch.Tensor:
    """Return multiples of 12, whose means over up to four members are exact."""
    return torch.randint(-4, 5, shape, generator=torch.Generator().manual_seed(seed)) * 12.0


def same_parameters(a: torch.nn.Module, b: torch.nn.Module) -> bool:
    return all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))
