"""thinc.api.Optimizer, which trains spaCy's models."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from thinc.api import Optimizer
from thinc.schedules import constant

from islices.conformance.formulas.judge import Step
from islices.conformance.tools.judged.entry import Entry, renamed, taken

LIBRARY = "thinc"
NAMES = {"lr": "learn_rate", "weight_decay": "L2"}


def thinc_step(**chosen: Any) -> Step:
    def step(w: Any, g: Any, state: Any, t: int, **options: Any) -> Any:
        if t == 1:
            given = {"beta1": 0.0, "beta2": 0.0, "L2": 0.0, **taken(Optimizer, renamed(options, NAMES))}
            state["optimizer"] = Optimizer(**given, grad_clip=0.0, use_averages=False, **chosen)
        state["optimizer"].learn_rate = constant(options["lr"])
        found, _ = state["optimizer"]((0, "w"), w, g)
        state["optimizer"].step_schedules()
        return found

    return step


def entries() -> Iterator[Entry]:
    yield Entry("thinc.api.Optimizer(beta1=0, beta2=0)", "optax.sgd", thinc_step())
    adam = thinc_step(L2_is_weight_decay=True)
    yield Entry("thinc.api.Optimizer()", "keras.AdamW", adam)
    yield Entry("thinc.api.Optimizer(L2=0)", "tensorflow.Adam", adam)
    radam = thinc_step(use_radam=True, L2_is_weight_decay=False)
    yield Entry("thinc.api.Optimizer(use_radam=True)", "torch.RAdam", radam)
