"""MLX's optimizers on the CPU. Those without bias correction have no formula here and are left out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import mlx.core as mx
import mlx.optimizers
import numpy as np

from islices.conformance.formulas.judge import Step
from islices.conformance.tools.judged.entry import Entry, betas, lacking, renamed, taken

LIBRARY = "mlx"
NAMES = {"lr": "learning_rate"}
#: class -> (formula, options of its own, its names of options)
CLASSES: dict[str, tuple[str, dict[str, Any], dict[str, str]]] = {
    "Adam": ("optax.adam", {"bias_correction": True}, {}),
    "AdamW": ("torch.AdamW", {"bias_correction": True}, {}),
    "SGD": ("torch.SGD", {}, {}),
    "RMSprop": ("bitsandbytes.RMSprop", {}, {"rho": "alpha"}),
    "Adagrad": ("bitsandbytes.Adagrad", {}, {}),
    "AdaDelta": ("torch.Adadelta", {}, {}),
    "Lion": ("keras.Lion", {}, {}),
}
STATES = {
    "Adam": {"m": "m", "v": "v"}, "AdamW": {"m": "m", "v": "v"}, "SGD": {"momentum": "v"}, "RMSprop": {"square": "v"},
    "Adagrad": {"accumulator": "v"}, "AdaDelta": {"square": "v", "delta": "u"}, "Lion": {"m": "m"},
}  # fmt: skip


def mlx_step(name: str) -> Step:
    _, chosen, names = CLASSES[name]
    kind = getattr(mlx.optimizers, name)

    def step(w: Any, g: Any, state: Any, t: int, **options: Any) -> Any:
        if t == 1:
            state["optimizer"] = kind(**taken(kind, betas(renamed(options, {**NAMES, **names}))), **chosen)
        state["optimizer"].learning_rate = options["lr"]
        found = np.array(state["optimizer"].apply_gradients({"w": mx.array(g)}, {"w": mx.array(w)})["w"])
        held = state["optimizer"].state["w"]
        return found, {**state, **{own: np.array(held[theirs]) for own, theirs in STATES[name].items()}}

    return step


def clip(w: Any, g: Any, state: Any, t: int, *, max_norm: float) -> Any:
    return np.array(mlx.optimizers.clip_grad_norm({"w": mx.array(g)}, max_norm)[0]["w"])


def entries() -> Iterator[Entry]:
    for name, (formula, chosen, _) in CLASSES.items():
        given = ", ".join(f"{k}={v}" for k, v in chosen.items())
        call = f"mlx.optimizers.{name}{given and f'({given})'}"
        yield Entry(call, formula, mlx_step(name))
        if name == "SGD":
            yield Entry(call, formula, lacking(mlx_step(name), "dampening"), "without dampening")
    yield Entry("mlx.optimizers.clip_grad_norm", "torch.clip_grad_norm_", clip)
