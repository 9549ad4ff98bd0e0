"""torch.compile forms Adam's bias correction in float32; the eager step forms it in float64."""

import torch

for compiled in (False, True):
    w = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.Adam([w], lr=1.0, eps=0.0)
    w.grad = torch.ones(1)
    (torch.compile(optimizer.step) if compiled else optimizer.step)()
    print("compiled:", compiled, f"a step of 1 is off by {abs(w.item() + 1):.1e}")
