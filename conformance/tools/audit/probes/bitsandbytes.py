"""bitsandbytes' optimizers on the CPU with row-sparse gradients; their formulas stand in docs/judged.md."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import torch

from islices.conformance.tools.audit.inputs import UNIQUE, ZEROS
from islices.conformance.tools.audit.probe import Probe
from islices.conformance.tools.audit.probes.torch import native

bnb: Any = importlib.import_module("bitsandbytes")  # this module has its name


def sparse_step() -> Any:
    table = torch.nn.Parameter(torch.ones(ZEROS.shape))
    table.grad = native(UNIQUE)
    bnb.optim.Adam([table], lr=0.5).step()
    return table.detach()[::3]


def lazy() -> Any:
    """Return what a step with row 2 does to row 1, which a step before has given moments."""
    table, rows = torch.nn.Parameter(torch.ones(ZEROS.shape)), []
    manager = bnb.optim.GlobalOptimManager.get_instance()
    manager.register_parameters([table])
    manager.override_config(table, "skip_zeros", True)
    optimizer = bnb.optim.Adam([table], lr=0.5)
    for row in (1, 2):
        table.grad = torch.zeros(ZEROS.shape)
        table.grad[row] = 4
        optimizer.step()
        rows.append(table.detach().numpy()[1].copy())
    return rows[1] - rows[0]


# fmt: off
PROBES = [
    Probe("bitsandbytes.optim.Adam, AdamW, SGD, RMSprop, Adagrad, Lion: sparse gradients", "16",
          "all raise an error about a memory format, although bitsandbytes.nn.Embedding takes sparse=True",
          "islices.optim.adam(lr), adamw, sgd, rmsprop, adagrad, lion", "Adam, rows 0 and 3", sparse_step, [[1, 1]] * 2, "raises"),
    Probe("GlobalOptimManager.override_config(table, 'skip_zeros', True)", "16",
          "it is accepted and changes nothing on the CPU: rows whose gradient is zero move by the momentum they have",
          "islices.optim.adam(lr, rows='touched')", "a step with row 1, then one with row 2: row 1 moves by", lazy, np.zeros(2)),
]
