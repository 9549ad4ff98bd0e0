"""Clip the gradients of a translation model by their global norm.

The model has two embeddings, and each batch contains words more than once. torch's clip_grad_norm_ raises an error for
sparse gradients, and a norm of the stored values would count each occurrence of a word separately. This program
computes the norm after it has summed each word's gradients.
"""

import torch

import islices
from islices.backends.torch import clip_grad_norm_


class Translator(torch.nn.Module):
    def __init__(self, source_words: int, target_words: int, width: int) -> None:
        super().__init__()
        self.source = torch.nn.Embedding(source_words, width, padding_idx=0, sparse=True)
        self.target = torch.nn.Embedding(target_words, width, padding_idx=0, sparse=True)
        self.encode = torch.nn.GRU(width, width, batch_first=True)
        self.decode = torch.nn.GRU(width, width, batch_first=True)
        self.words = torch.nn.Linear(width, target_words)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        _, state = self.encode(self.source(source))
        out, _ = self.decode(self.target(target[:, :-1]), state)
        return torch.nn.functional.cross_entropy(self.words(out).flatten(0, 1), target[:, 1:].flatten(), ignore_index=0)


def main() -> dict[str, float]:
    torch.manual_seed(0)
    model = Translator(5000, 4000, 16)
    source, target = torch.randint(0, 40, (32, 12)), torch.randint(0, 40, (32, 10))  # few words, which often repeat
    model(source, target).backward()
    embeddings = [p for p in model.parameters() if p.grad is not None and p.grad.is_sparse]
    before = {
        "global norm": float(islices.global_norm([p.grad for p in model.parameters()])),
        "stored values": float(torch.cat([p.grad._values().flatten() for p in embeddings]).norm()),
        "duplicates summed": float(islices.global_norm([p.grad for p in embeddings])),
    }
    clip_grad_norm_(model.parameters(), max_norm=0.1)
    after = float(islices.global_norm([p.grad for p in model.parameters()]))
    for name, value in before.items():
        print(f"before: {name:>18} {value:.4f}")
    print(f"after:  {'global norm':>18} {after:.4f}")
    assert all(p.grad.is_sparse for p in embeddings)  # the gradients stay sparse
    return before | {"clipped": after}


if __name__ == "__main__":
    main()
