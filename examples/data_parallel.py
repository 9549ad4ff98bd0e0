"""Train an embedding model on several ranks, with one batch per rank and one all-reduce per step.

    torchrun --nproc-per-node 4 examples/data_parallel.py   # or one process: python examples/data_parallel.py

A rank sends the gradients of only those table rows that some rank's batch uses, with duplicates summed. After every
step, all ranks have tables with the same bits.
"""

from __future__ import annotations

import hashlib
import os

import torch
import torch.distributed as dist

from islices.backends.torch import clip_grad_norm_, optim
from islices.distributed import all_reduce, get_group

WORDS, STEPS = 50_000, 20


class Bags(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.EmbeddingBag(WORDS, 32, sparse=True)
        self.head = torch.nn.Linear(32, 2)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.head(self.embedding(words))


def main() -> None:
    if not dist.is_initialized():
        alone = {"store": dist.HashStore(), "rank": 0, "world_size": 1}
        dist.init_process_group("gloo", **({} if "WORLD_SIZE" in os.environ else alone))
    group = get_group("torch")
    torch.manual_seed(0)  # the same initial weights on every rank
    model = Bags()
    optimizer = optim.Adam(model.parameters(), lr=0.01)
    chance = torch.arange(1.0, WORDS + 1) ** -1.1  # word frequencies like those of a language
    draw = torch.Generator().manual_seed(group.rank)  # different batches on every rank
    for _ in range(STEPS):
        words = torch.multinomial(chance, 64 * 50, replacement=True, generator=draw).reshape(64, 50)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(words), words[:, 0] % 2).backward()
        for parameter, grad in zip(
            model.parameters(), all_reduce([p.grad for p in model.parameters()], "mean", group), strict=True
        ):
            parameter.grad = grad
        clip_grad_norm_(model.parameters(), 1.0)  # after the all-reduce, so that all ranks clip equally
        optimizer.step()
    weights = model.embedding.weight.detach().numpy().tobytes()
    digest = hashlib.sha256(weights).hexdigest()[:16]
    print(f"rank {group.rank} of {group.size}: table {digest}, received {group.traffic.received:,} bytes")


if __name__ == "__main__":
    main()
