"""Three bugs that users reported to other projects. For each bug, NumPy computes a step of the wrong formula and a step
of the intended formula.

bitsandbytes-foundation/bitsandbytes#2010: the CPU and Triton kernels of AdamW apply the decay after the update.
flagos-ai/FlagGems#4988: Adam uses the decoupled weight decay of AdamW. pytorch/FBGEMM#5908: the reference
implementation in a test applies the decay twice, once to the gradient and once to the weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from islices.conformance.tools.judged.entry import Judged

LIBRARY = "numpy"
F = np.float32


def adam(wrong: bool, coupled: bool) -> Any:
    """Return a step of Adam with coupled or decoupled decay.

    If `wrong` is True and `coupled` is True, the decay is decoupled instead. If only `wrong` is True, the decoupled
    decay follows the update instead of preceding the update.
    """

    def step(
        w: Any, g: Any, state: Any, t: int, *, lr: float, beta1: float, beta2: float, eps: float, weight_decay: float
    ) -> Any:
        shrink = F(1 - lr * weight_decay)
        if coupled and not wrong:
            g = g + F(weight_decay) * w
        elif coupled == wrong:
            w = w * shrink
        state["m"] = F(beta1) * state["m"] + F(1 - beta1) * g
        state["v"] = F(beta2) * state["v"] + F(1 - beta2) * g * g
        w = w - F(lr) * (state["m"] / F(1 - beta1**t)) / (np.sqrt(state["v"] / F(1 - beta2**t)) + F(eps))
        return w * shrink if wrong and not coupled else w

    return step


def rowwise(wrong: bool) -> Any:
    """Return a step of row-wise Adagrad with L2. If `wrong` is True, the decay is applied twice, as in the reference
    implementation of FBGEMM's test."""

    def step(w: Any, g: Any, state: Any, t: int, *, lr: float, eps: float, weight_decay: float) -> Any:
        rows, places = np.unique(g.indices, return_inverse=True)
        raw = np.zeros((len(rows), w.shape[1]), F)
        np.add.at(raw, places, g.values)
        joined = raw + F(weight_decay) * w[rows]
        state["accumulator"][rows] += np.mean(joined * joined, axis=1, keepdims=True)
        factor = F(lr) / (np.sqrt(state["accumulator"][rows]) + F(eps))
        w[rows] = (1 - factor * F(weight_decay)) * w[rows] - factor * (joined if wrong else raw)
        return w

    return step


def entries() -> Iterator[Judged]:
    for variant, wrong in (("with the bug", True), ("as meant", False)):
        yield Judged("bitsandbytes#2010, AdamW", "bitsandbytes.AdamW", adam(wrong, coupled=False), variant)
        yield Judged("FlagGems#4988, Adam", "torch.Adam", adam(wrong, coupled=True), variant)
        yield Judged("FBGEMM#5908, row-wise Adagrad", "fbgemm.EXACT_ROWWISE_ADAGRAD", rowwise(wrong), variant)
