"""Train a torch model with parameter groups and a schedule, and continue from a checkpoint with the bits of an
uninterrupted training."""

import io
from typing import Any

import torch

from islices.backends.torch import clip_grad_norm_, optim

WORDS = torch.randint(0, 1000, (400, 20), generator=torch.Generator().manual_seed(1))
LABELS = WORDS[:, 0] % 2


def start() -> dict[str, Any]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.EmbeddingBag(1000, 16, sparse=True), torch.nn.Linear(16, 2))
    table = {"params": model[0].parameters(), "lr": 0.05, "weight_decay": 0, "frozen": [0]}  # row 0 never changes
    optimizer = optim.AdamW([table, {"params": model[1].parameters()}], lr=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=6)
    return {"model": model, "optimizer": optimizer, "schedule": schedule}


def train(run: dict[str, Any], epochs: int) -> None:
    for _ in range(epochs):
        for words, labels in zip(WORDS.split(50), LABELS.split(50), strict=True):
            run["optimizer"].zero_grad()
            torch.nn.functional.cross_entropy(run["model"](words), labels).backward()
            clip_grad_norm_(run["model"].parameters(), 1.0)
            run["optimizer"].step()
        run["schedule"].step()


def main() -> bool:
    run, checkpoint = start(), io.BytesIO()  # a program saves to a file, such as "checkpoint.pt"
    train(run, 3)
    torch.save({name: part.state_dict() for name, part in run.items()}, checkpoint)
    train(run, 3)

    resumed = start()
    checkpoint.seek(0)
    for name, state in torch.load(checkpoint, weights_only=True).items():
        resumed[name].load_state_dict(state)
    train(resumed, 3)
    same = all(map(torch.equal, resumed["model"].parameters(), run["model"].parameters()))
    print("The continued training has", "the same" if same else "other", "bits.")
    return same


if __name__ == "__main__":
    main()
