"""bnb.optim.Adam(weight_decay=...) decays like AdamW (its maintainers know this) and ignores amsgrad=True."""

import bitsandbytes
import torch

for options in ({"weight_decay": 0.5}, {"amsgrad": True}):
    for kind in (bitsandbytes.optim.Adam, torch.optim.Adam, torch.optim.AdamW):
        w = torch.nn.Parameter(torch.ones(1))
        optimizer = kind([w], lr=0.1, betas=(0.9, 0.5), **{"weight_decay": 0.0, **options})
        for g in (10.0, 0.1, 0.1):
            w.grad = torch.full((1,), g)
            optimizer.step()
        print(options, kind.__module__.partition(".")[0], kind.__name__, w.item())
