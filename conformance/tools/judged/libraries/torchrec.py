"""torchrec.optim.RowWiseAdagrad, the class of TorchRec for tables that FBGEMM does not train."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torchrec.optim.rowwise_adagrad import RowWiseAdagrad

from islices.conformance.formulas.judge import Step
from islices.conformance.tools.judged.entry import Judged, lacking

LIBRARY = "torchrec"


def adagrad_step() -> Step:
    """Return a step on dense gradients. Rows without slices have zero gradients, and change only with weight decay."""

    def step(w: Any, g: Any, state: Any, t: int, *, lr: float, eps: float, weight_decay: float) -> Any:
        if t == 1:
            state["p"] = torch.nn.Parameter(torch.from_numpy(w))
            state["optimizer"] = RowWiseAdagrad([state["p"]], lr=lr, eps=eps, weight_decay=weight_decay)
        state["optimizer"].param_groups[0]["lr"] = lr
        dense = np.zeros_like(w)
        np.add.at(dense, g.indices, g.values)
        state["p"].grad = torch.from_numpy(dense)
        state["optimizer"].step()
        return state["p"], {**state, "accumulator": state["optimizer"].state[state["p"]]["sum"]}

    return step


def entries() -> Iterator[Judged]:
    step = lacking(adagrad_step(), "weight_decay")
    yield Judged("torchrec.optim.RowWiseAdagrad", "fbgemm.EXACT_ROWWISE_ADAGRAD", step, "without weight_decay")
