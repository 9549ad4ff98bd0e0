"""tinygrad.nn.optim, on the CPU backend or, without a compiler, the one that interprets in Python."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import Any

from islices.conformance.formulas.judge import Step
from islices.conformance.tools.judged.entry import Entry, renamed, taken

if shutil.which("clang") is None:
    os.environ.setdefault("DEV", "PYTHON")  # read when it is imported
from tinygrad import Context, Tensor
from tinygrad.nn import optim

LIBRARY = "tinygrad"
NAMES = {"beta1": "b1", "beta2": "b2"}
CLASSES = {"SGD": "torch.SGD", "Adam": "optax.adam", "AdamW": "optax.adamw"}


def tinygrad_step(name: str) -> Step:
    kind = getattr(optim, name)

    def step(w: Any, g: Any, state: Any, t: int, **options: Any) -> Any:
        if t == 1:
            state["p"] = Tensor(w.copy()).realize()
            state["optimizer"] = kind([state["p"]], **taken(kind, renamed(options, NAMES)))
        state["optimizer"].lr.assign(Tensor([options["lr"]])).realize()
        state["p"].grad = Tensor(g.copy())
        with Context(TRAINING=1):
            state["optimizer"].step()
        return state["p"].numpy()

    return step


def entries() -> Iterator[Entry]:
    for name, formula in CLASSES.items():
        yield Entry(f"tinygrad.nn.optim.{name}", formula, tinygrad_step(name))
