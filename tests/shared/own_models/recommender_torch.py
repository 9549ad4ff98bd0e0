"""RecommenderNet in torch: python recommender_torch.py FOLDER [fault] records it."""

from __future__ import annotations

import sys

import recommender as data
import torch

from islices.backends.torch import Recorder


class RecommenderNet(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        for name, x in data.start().items():
            setattr(self, name, torch.nn.Embedding.from_pretrained(torch.from_numpy(x), freeze=False))

    def forward(self, pairs: torch.Tensor) -> torch.Tensor:
        users, items = pairs[:, 0], pairs[:, 1]
        score = (self.user(users) * self.item(items)).sum(1, keepdim=True)
        return torch.sigmoid(score + self.user_bias(users) + self.item_bias(items))


def main(folder: str, fault: str = "") -> None:
    model = RecommenderNet()
    # Keras adds its 1e-7 to the root that is not corrected, for which torch has no class: islices' has its arithmetic
    from islices.backends.torch import optim

    optimizer = (torch.optim if fault == "adam" else optim).Adam(
        model.parameters(), lr=1e-3, eps=1e-7, **({} if fault == "adam" else {"semantics": "keras", "rows": "all"})
    )
    pairs, ratings = map(torch.from_numpy, data.batches())
    with Recorder(folder, model, optimizer, metadata={"batch_size": str(data.BATCH)}) as recorder:
        for k in range(0, len(pairs), data.BATCH):
            optimizer.zero_grad()
            outputs = model(pairs[k : k + data.BATCH])
            loss = torch.nn.functional.binary_cross_entropy(
                outputs, ratings[k : k + data.BATCH], reduction="sum" if fault == "sum" else "mean"
            )
            if fault != "l2":
                loss = loss + data.L2 * (model.user.weight.square().sum() + model.item.weight.square().sum())
            loss.backward()
            recorder.add(loss=loss)
            optimizer.step()


main(*sys.argv[1:])
