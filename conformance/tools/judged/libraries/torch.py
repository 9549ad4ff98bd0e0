"""torch.optim (for-loop, foreach, fused and compiled implementations), torch's clip by the global norm, and the
renormalization of weight rows by an embedding's max_norm."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch

from islices.conformance.formulas.judge import Step
from islices.conformance.tools.judged.entry import Judged, betas, formulas, renamed, taken

LIBRARY = "torch"
#: a formula's name of an option -> torch's name
NAMES = {"rho": "alpha", "initial_accumulator": "initial_accumulator_value"}
MOMENTS = {"m": "exp_avg", "v": "exp_avg_sq"}
AMSGRAD = {**MOMENTS, "v_max": "max_exp_avg_sq"}
STATES = {
    "Adam": AMSGRAD,
    "AdamW": AMSGRAD,
    "SparseAdam": MOMENTS,
    "SGD": {"momentum": "momentum_buffer"},
    "Adagrad": {"accumulator": "sum"},
    "RMSprop": {"square": "square_avg", "mean": "grad_avg", "momentum": "momentum_buffer"},
    "Adadelta": {"square": "square_avg", "delta": "acc_delta"},
    "NAdam": MOMENTS,
    "RAdam": MOMENTS,
    "Adamax": {"m": "exp_avg", "u": "exp_inf"},
}
VARIANTS: dict[str, dict[str, Any]] = {
    "single": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True},
}  # fmt: skip
FUSED = ("Adam", "AdamW", "SGD", "Adagrad")
COMPILED = (*FUSED, "RMSprop")


def gradient(g: Any, shape: tuple[int, ...]) -> torch.Tensor:
    if isinstance(g, np.ndarray):
        return torch.from_numpy(g)
    return torch.sparse_coo_tensor(torch.from_numpy(g.indices)[None], torch.from_numpy(g.values), shape)


def recompiled(function: Any) -> Any:
    """Reset the compiler, and return the compiled function. Without the reset, torch compiles a function at most eight
    times, and then runs it in eager mode."""
    torch.compiler.reset()
    return torch.compile(function)


def stepping(kind: Any, states: dict[str, str], names: dict[str, str], compiled: bool = False, **chosen: Any) -> Step:
    """Return the step of a class that has the interface of torch.optim.Optimizer. `states` and `names` map the
    formula's states and options to the names of the class."""

    def step(w: Any, g: Any, state: Any, t: int, **options: Any) -> Any:
        if t == 1:
            given = taken(kind, betas(renamed(options, names)))
            state["p"] = torch.nn.Parameter(torch.from_numpy(w))
            # a tensor, because torch would compile again for each new number
            state["rate"] = torch.tensor(options["lr"]) if compiled else None
            state["optimizer"] = kind([state["p"]], **{**given, "lr": state["rate"]} if compiled else given, **chosen)
            state["take"] = recompiled(state["optimizer"].step) if compiled else state["optimizer"].step
        p, optimizer = state["p"], state["optimizer"]
        if compiled:
            state["rate"].fill_(options["lr"])
        else:
            optimizer.param_groups[0]["lr"] = options["lr"]
        p.grad = gradient(g, w.shape)
        state["take"]()
        held = optimizer.state[p]
        return p, {**state, **{own: held[theirs] for own, theirs in states.items() if theirs in held}}

    return step


def torch_step(name: str, **chosen: Any) -> Step:
    names = {**NAMES, **({"rho": "rho"} if name == "Adadelta" else {})}
    return stepping(getattr(torch.optim, name), STATES[name], names, **chosen)


# ---------------------------------------------------------------------- clips
def clip(w: Any, g: Any, state: Any, t: int, *, max_norm: float, **chosen: Any) -> Any:
    p = torch.nn.Parameter(torch.from_numpy(w))
    p.grad = torch.from_numpy(g)
    torch.nn.utils.clip_grad_norm_([p], max_norm, **chosen)
    return p.grad


def renorm(w: Any, g: Any, state: Any, t: int, *, max_norm: float) -> Any:
    table = torch.from_numpy(w)
    torch.nn.functional.embedding(torch.from_numpy(g.indices), table, max_norm=max_norm)
    return table


def entries() -> Iterator[Judged]:
    for formula, name in formulas("torch"):
        call = f"torch.optim.{name}"
        if formula.endswith(" sparse") or name == "SparseAdam":
            yield Judged(
                f"{call}, sparse gradients" if name != "SparseAdam" else call, formula, torch_step(name), "single"
            )
            continue
        for variant, chosen in VARIANTS.items():
            if variant != "fused" or name in FUSED:
                yield Judged(call, formula, torch_step(name, **chosen), variant)
        if name in COMPILED:
            yield Judged(call, formula, torch_step(name, compiled=True, foreach=False), "torch.compile")
    yield Judged("torch.nn.utils.clip_grad_norm_", "torch.clip_grad_norm_", partial(clip, foreach=False), "single")
    yield Judged("torch.nn.utils.clip_grad_norm_", "torch.clip_grad_norm_", partial(clip, foreach=True), "foreach")
    yield Judged("torch.nn.functional.embedding(max_norm=...)", "torch.embedding_renorm_", renorm, "single")
