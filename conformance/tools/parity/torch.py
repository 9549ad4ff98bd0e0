"""The models in PyTorch: the losses in its own functions, and training without islices."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch.nn import functional

__all__ = ["OwnTraining", "skipgram", "translation"]


def skipgram(centre: torch.Tensor, context: torch.Tensor, sign: torch.Tensor) -> torch.Tensor:
    score = (centre[:, None] * context).sum(-1)
    return functional.softplus(-sign * score).sum() / len(centre)


def translation(
    bag: torch.Tensor, bridge: torch.Tensor, target: torch.Tensor, negative: torch.Tensor, share: torch.Tensor
) -> torch.Tensor:
    hidden = torch.tanh(bag @ bridge)
    own, other = (hidden[:, None] * target).sum(-1, keepdim=True), hidden @ negative.T
    logits = torch.cat([own, other[:, None].expand(-1, own.shape[1], -1)], -1)
    return -(share * functional.log_softmax(logits, -1)[..., 0]).sum()


class OwnTraining:
    """nn.Embedding(sparse=True), clipping by hand, torch.optim.

    `clip_grad_norm_` raises on sparse gradients, so users coalesce and scale them. SparseAdam takes no dense gradient,
    so a dense parameter has an Adam beside it.
    """

    def __init__(self, model: Any, start: Mapping[str, Any], optimizer: str, lr: float, max_norm: float) -> None:
        self.model, self.max_norm = model, max_norm
        self.of_rows = {"skipgram": skipgram, "translation": translation}[model.name]
        given = {name: torch.from_numpy(x.copy()) for name, x in start.items()}
        self.layers = {
            name: torch.nn.Embedding.from_pretrained(given[name], freeze=False, padding_idx=0, sparse=True)
            for name in model.tables
        }
        self.dense = {name: torch.nn.Parameter(given[name]) for name in model.dense}
        sparse, others = [layer.weight for layer in self.layers.values()], list(self.dense.values())
        adam: list[torch.optim.Optimizer] = [torch.optim.SparseAdam(sparse, lr=lr)]
        adam += [torch.optim.Adam(others, lr=lr) for _ in others[:1]]
        made: dict[str, Callable[[], list[torch.optim.Optimizer]]] = {
            "sgd": lambda: [torch.optim.SGD(sparse + others, lr=lr)],
            "adagrad": lambda: [torch.optim.Adagrad(sparse + others, lr=lr)],
            "adam": lambda: adam,
        }
        self.optimizers = made[optimizer]()

    def step(self, batch: Mapping[str, Any]) -> float:
        tensors = {name: torch.from_numpy(x) for name, x in batch.items()}
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        loss = self.model.loss(self.of_rows, _lookup, self.layers | self.dense, tensors)
        loss.backward()
        self._clip()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Sparse invariant checks")  # of torch's own optimizers
            for optimizer in self.optimizers:
                optimizer.step()
        return float(loss.detach())

    def _clip(self) -> None:
        for layer in self.layers.values():
            layer.weight.grad = layer.weight.grad.coalesce()  # pyright: ignore[reportOptionalMemberAccess]
        values = [layer.weight.grad.values() for layer in self.layers.values()]  # pyright: ignore[reportOptionalMemberAccess]
        values += [p.grad for p in self.dense.values()]
        norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(v) for v in values]))
        factor = torch.clamp(self.max_norm / (norm + 1e-6), max=1.0)
        for v in values:
            v.mul_(factor)  # pyright: ignore[reportOptionalMemberAccess]

    def tables(self) -> dict[str, Any]:
        found = {name: layer.weight for name, layer in self.layers.items()} | self.dense
        return {name: np.array(x.detach()) for name, x in found.items()}


def _lookup(layer: torch.nn.Embedding, ids: torch.Tensor, mean: bool = False) -> torch.Tensor:
    if not mean:
        return layer(ids)  # type: ignore[no-any-return]
    return functional.embedding_bag(ids, layer.weight, mode="mean", sparse=True, padding_idx=layer.padding_idx)
