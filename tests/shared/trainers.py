"""Train with Lightning or Accelerate, and clip gradients with the recipes of docs/trainers.md.

The command is ``python trainers.py lightning norm|value`` or ``python trainers.py accelerate STEPS``. For each step,
except Lightning's last step, the program prints the norm of the clipped gradients.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

from islices.backends.torch import clip_grad_norm_, clip_grad_value_, get_total_norm, optim

MAX_NORM = 0.25


class Network(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.head = torch.nn.Embedding(100, 4, sparse=True), torch.nn.Linear(4, 1)

    def loss(self, batch: Any) -> Any:
        return self.head(self.table(batch[0])).square().mean() * 10


def batches() -> Any:
    ids = torch.arange(32).reshape(8, 4) % 7
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(ids), batch_size=2)


def show(optimizer: torch.optim.Optimizer) -> None:
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    print(f"{get_total_norm([p.grad for p in parameters]):.4f}")


class ClipsSparse:
    def configure_gradient_clipping(self, optimizer, gradient_clip_val=None, gradient_clip_algorithm=None):
        if gradient_clip_val is not None:
            clip = clip_grad_value_ if gradient_clip_algorithm == "value" else clip_grad_norm_
            clip([p for group in optimizer.param_groups for p in group["params"]], gradient_clip_val)


def by_lightning(algorithm: str) -> None:
    import lightning

    class Module(ClipsSparse, lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network = Network()

        def training_step(self, batch: Any, _: int) -> Any:
            return self.network.loss(batch)

        def configure_optimizers(self) -> Any:
            return optim.Adam(self.parameters())

        def on_before_zero_grad(self, optimizer: Any) -> None:
            if any(p.grad is not None for p in self.parameters()):
                show(optimizer)

    off = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    trainer = lightning.Trainer(
        max_epochs=1, accelerator="cpu", gradient_clip_val=MAX_NORM, gradient_clip_algorithm=algorithm, **off
    )
    trainer.fit(Module(), batches())


def by_accelerate(steps: int) -> None:
    import accelerate

    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=steps)
    network = Network()
    model, optimizer, loader = accelerator.prepare(network, optim.Adam(network.parameters()), batches())
    for batch in loader:
        with accelerator.accumulate(model):
            accelerator.backward(network.loss(batch))
            if accelerator.sync_gradients:
                accelerator.unscale_gradients()
                clip_grad_norm_(model.parameters(), MAX_NORM)
                show(optimizer)
            optimizer.step()
            optimizer.zero_grad()


if __name__ == "__main__":
    by_lightning(sys.argv[2]) if sys.argv[1] == "lightning" else by_accelerate(int(sys.argv[2]))
