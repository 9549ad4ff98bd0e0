"""Write the line of code that makes the second side use the same optimizer as the first side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from islices import optim
from islices.optim.record import RECORDS, SPELLED
from islices.porting.compare.explanation import Finding

#: framework of the recording ("" if unknown) -> the code that makes an islices optimizer for this framework
FRONTS = {
    "": "islices.optim.{name}({numbers})",
    "torch": "islices.backends.torch.optim.{title}(parameters, {numbers})",
    "keras": "islices.backends.keras.Stepped(islices.optim.{name}({numbers}))",
    "jax": "islices.backends.jax.optax.from_optim(islices.optim.{name}({numbers}))",
}


def step_line(causes: Sequence[Finding], front: str, *, alike: bool) -> str:
    """Return one line of code that fixes all causes of a step, or "" if islices does not have the optimizer. `front` is
    the framework of the second side's recording. `alike` is True if both sides have the same framework."""
    wanted, own = causes[0].details["step"]
    words = ("optimizer", "semantics", "rows", "duplicates", "decay", "up")
    if alike and all(wanted[word] == own[word] for word in words):
        changed = {k: v for k, v in wanted.items() if v != own.get(k)}
        return f"give the optimizer {_shown(changed)}"
    name, decay, raw = wanted["optimizer"], wanted["decay"], wanted["duplicates"] == "raw"
    if decay == "decoupled" and name == "adam" and wanted["semantics"] != "keras":
        name = "adamw"
    given = _arguments(RECORDS[name].presets, wanted)
    try:
        optimizer = getattr(optim, name)(**given)
    except (TypeError, ValueError):  # islices does not have the optimizer
        return ""
    if wanted["rows"] == "touched":
        del given["rows"]  # "touched" is the default; if it is passed, the optimizer raises for dense gradients
    if front == "jax" and (raw or decay or not optimizer._formula.additive):
        front = ""  # optax can only add an update to the table, so it cannot express other rules
    if front == "torch":
        given = _for_torch(given, wanted)
    line = FRONTS.get(front, FRONTS[""]).format(name=name, title=RECORDS[name].title, numbers=_shown(given))
    lazy = wanted["rows"] == "touched" and any(c.name == "lazy_step" for c in causes)
    return f"optimizer = {line}" + (", on sparse gradients" if front and (raw or lazy) else "")


def _arguments(presets: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments with which `islices.optim` makes the wanted optimizer. Numbers that are the defaults of the
    semantics are left out, except the learning rate."""
    defaults = presets[wanted["semantics"]].defaults
    given = {k: wanted[k] for k in defaults if k in wanted and (k == "lr" or wanted[k] != defaults[k])}
    given = {"lr": wanted["lr"], **given, "semantics": wanted["semantics"], "rows": wanted["rows"]}
    if wanted["duplicates"] == "raw":
        given["duplicates"] = "raw"
    if wanted["up"]:
        given["maximize"] = True
    return given


def _for_torch(given: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments under torch's names. The arguments beta1 and beta2 become one argument `betas`."""
    spelled = {SPELLED["torch"].get(k, k): v for k, v in given.items() if k not in ("beta1", "beta2")}
    return {**spelled, "betas": (wanted["beta1"], wanted["beta2"])} if {"beta1", "beta2"} & set(given) else spelled


def _shown(given: Mapping[str, Any]) -> str:
    return ", ".join(f"{k}={v:.6g}" if type(v) is float else f"{k}={v!r}" for k, v in given.items())
