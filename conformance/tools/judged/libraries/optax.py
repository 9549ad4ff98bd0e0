"""The optimizers of optax, and its clip by the global norm. The `update` of each optimizer is judged in eager mode and
compiled by jax.jit; the clip is judged only in eager mode."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from islices.conformance.formulas.judge import Step
from islices.conformance.tools.judged.entry import Judged, clip_of, formulas, renamed

LIBRARY = "optax"
NAMES = {
    "lr": "learning_rate", "beta1": "b1", "beta2": "b2", "rho": "decay",
    "initial_accumulator": "initial_accumulator_value",
}  # fmt: skip
VARIANTS: dict[str, Callable[[Any], Any]] = {"eager": lambda function: function, "jax.jit": jax.jit}


def optax_step(name: str, compiled: Callable[[Any], Any] = VARIANTS["eager"]) -> Step:
    def step(w: Any, g: Any, state: Any, t: int, **options: Any) -> Any:
        h = renamed(options, NAMES)
        if "momentum" in h and not h["momentum"]:
            h["momentum"] = None
        made = getattr(optax, name)(**h)

        def take(g: Any, held: Any, w: Any) -> Any:
            updates, held = made.update(g, held, w)
            return optax.apply_updates(w, updates), held

        w = jnp.asarray(w)
        held = state.get("held", None)
        w, state["held"] = compiled(take)(jnp.asarray(g), made.init(w) if held is None else held, w)
        return np.asarray(w)

    return step


def clip(g: Any, max_norm: float) -> Any:
    made = optax.clip_by_global_norm(max_norm)
    return made.update(g, made.init(g))[0]


def entries() -> Iterator[Judged]:
    for formula, name in formulas("optax"):
        for variant, compiled in VARIANTS.items():
            yield Judged(f"optax.{name}", formula, optax_step(name, compiled), variant)
    yield Judged("optax.clip_by_global_norm", "optax.clip_by_global_norm", clip_of(clip), "eager")
