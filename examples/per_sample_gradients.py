"""Compute per-sample embedding gradients of an unchanged model, from one ordinary backward pass.

DP-SGD clips each sample's gradient to a maximum norm, sums the gradients, and adds noise. This program clips and sums
the embedding's gradients, but adds no noise. The table of 200,000 rows is frozen for torch, so that torch allocates no
gradient as large as the table.
"""

import torch

import islices


class SomebodyElsesModel(torch.nn.Module):
    """A classifier of bags of words, written for ordinary training."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(200_000, 32, padding_idx=0)
        self.head = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.Tanh(), torch.nn.Linear(32, 2))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.embed(ids).mean(1))


def main() -> tuple[torch.Tensor, torch.Tensor, islices.IndexedSlices]:
    torch.manual_seed(0)
    model = SomebodyElsesModel()
    model.embed.weight.requires_grad_(False)
    ids, labels = torch.randint(0, 200_000, (64, 20)), torch.randint(0, 2, (64,))
    with islices.capture(model) as captured:
        # reduction="sum": the loss is a sum over samples
        torch.nn.functional.cross_entropy(model(ids), labels, reduction="sum").backward()
    samples = captured.per_sample()["embed"]
    limit = float(samples.norms().median())
    clipped = samples.clip(limit)
    gradient = clipped.sum()
    over = int((samples.norms() > limit).sum())
    print(samples)
    print(
        f"{over} of 64 samples were over the norm of {limit:.4f}; now the largest is {float(clipped.norms().max()):.4f}"
    )
    print(f"the clipped sum: {gradient}")
    return samples.norms(), clipped.norms(), gradient


if __name__ == "__main__":
    main()
