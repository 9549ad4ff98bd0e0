"""Lines that mend causes of steps: the optimizer made anew. May import: `islices.compare`, `islices.optim`."""

from __future__ import annotations

from ast import literal_eval
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from islices import optim
from islices.compare.explanation import Finding
from islices.compare.mending.side import Port
from islices.compare.steps.traits import is_rate
from islices.optim.frameworks import SPELLED
from islices.optim.record import RECORDS

__all__ = ["line_of_step"]

#: Causes that are one hyperparameter's: the name of it by islices.
HYPER = {
    "learning_rate": "lr", "step_epsilon": "eps", "initial_accumulator": "initial_accumulator", "momentum": "momentum",
    "beta1": "beta1", "beta2": "beta2", "rho": "rho", "weight_decay": "weight_decay", "nesterov": "nesterov",
    "amsgrad": "amsgrad", "centered": "centered",
}  # fmt: skip
#: What frameworks put in other places of one formula: a number for one of them is none for another.
PLACED = ("step_epsilon", "initial_accumulator")
#: Of running means, which a first step does not show.
BETAS = ("beta1", "beta2", "rho")
#: An array's framework -> whose names its optimizers have, how one is made, and the kind of its weight decay.
MAKERS: Mapping[str, tuple[str, str, str]] = {
    "torch": ("torch", "torch.optim.{name}(parameters, {numbers})", "coupled"),
    "tensorflow": ("keras", "keras.optimizers.{name}({numbers})", "decoupled"),
    "jax": ("optax", "optax.{name}({numbers})", "decoupled"),
    "mxnet": ("mxnet", "mx.optimizer.{name}({numbers})", "coupled"),
}
#: The front of a framework ("" without one) -> an optimizer of islices in its idiom; optax passes updates on, which
#: duplicates that are squared one by one are none.
FRONTS = {
    "": "islices.optim.{name}({numbers})",
    "torch": "islices.backends.torch.optim.{title}(parameters, {numbers})",
    "keras": "islices.backends.keras.Stepped(islices.optim.{name}({numbers}))",
    "jax": "islices.backends.jax.optax.from_optim(islices.optim.{name}({numbers}))",
}
#: What classes are called; of torch's Adam for rows that a gradient names there is one of its own.
CLASSES = {
    "sgd": "SGD", "adam": "Adam", "adagrad": "Adagrad", "rmsprop": "RMSprop", "adamax": "Adamax", "nadam": "Nadam",
}  # fmt: skip


def line_of_step(causes: Sequence[Finding], port: Port) -> str:
    """One line for all causes of a step; "" where there is none."""
    if not causes:
        return ""
    wanted, own = causes[0].details["step"]
    if any(c.name == "learning_rate" and not is_rate(c.details["a"], c.details["b"]) for c in causes):
        return ""  # something else scales the step
    if all(c.name in HYPER for c in causes):
        placed = any(c.name in PLACED for c in causes) and port.framework != port.other
        if placed or not causes[0].details["alike"]:  # numbers stand for a formula that differs besides
            if not port.front:  # which it is the arrays alone do not say
                return ""
        elif line := _in_the_framework(causes, wanted, own, port):
            return line
    if wanted["duplicates"] == "last" or not wanted["corrected"]:  # no optimizer of islices is like that
        return ""
    return _by_islices(wanted, port.front, lazy=any(c.name == "lazy_step" for c in causes))


def _in_the_framework(
    causes: Sequence[Finding], wanted: Mapping[str, Any], own: Mapping[str, Any], port: Port
) -> str | None:
    """The port's own optimizer with the other's numbers, where its framework has it."""
    maker = MAKERS.get(port.framework)
    name = _class(own, wanted, port.framework)
    if maker is None or name is None:
        return None
    semantics, template, kind = maker
    if wanted["decay"] not in ("", kind) and name not in ("AdamW", "adamw"):
        return None
    without = {"weight_decay": 0.0, **({"initial_accumulator": 0.0} if "initial_accumulator" in own else {})}
    numbers = dict(_numbers({**own, **without, **wanted}, causes))
    if port.framework == "jax" and name != "adamw":  # no other one of optax has it
        if wanted["decay"]:
            return None
        numbers.pop("weight_decay", None)
    shown = _spelled(numbers, semantics, wanted)
    return "optimizer = " + template.format(name=name, numbers=shown)


def _spelled(numbers: Mapping[str, str], semantics: str, wanted: Mapping[str, Any]) -> str:
    """Arguments by the names of a framework, whose betas may be one."""
    spelled = {SPELLED.get(semantics, {}).get(k, k): v for k, v in numbers.items()}
    if any("[" in k for k in spelled):
        spelled = {k: v for k, v in spelled.items() if "[" not in k}
        spelled["betas"] = f"({wanted['beta1']:.6g}, {wanted['beta2']:.6g})"
    return ", ".join(f"{k}={v}" for k, v in spelled.items())


def _class(own: Mapping[str, Any], wanted: Mapping[str, Any], framework: str) -> str | None:
    name: str = own["optimizer"]
    if name not in CLASSES:
        return None
    if framework == "torch" and name == "adam" and own["rows"] == "touched":
        if own["epsilon_place"] == "to the root before its bias is corrected":
            return "SparseAdam"
        if own["rows_told"]:  # torch has no such formula for some rows
            return None
    if name == "adam" and wanted["decay"] == "decoupled" and framework in ("torch", "jax"):
        name = "adamw"
    known = {**CLASSES, "adamw": "AdamW"}[name]
    if framework == "jax":
        return name
    return {"torch": {"Nadam": "NAdam"}}.get(framework, {}).get(known, known)


def _numbers(hyper: Mapping[str, Any], causes: Sequence[Finding]) -> Iterator[tuple[str, str]]:
    """Hyperparameters as they are written: those that decide the step, and those that were named."""
    named = {HYPER[c.name] for c in causes if c.name in HYPER}
    for name in ("lr", "momentum", "rho", "beta1", "beta2", "eps", "initial_accumulator", "weight_decay", "nesterov",
                 "amsgrad", "centered"):  # fmt: skip
        value = hyper.get(name)
        if value is None or (name not in named and name != "initial_accumulator" and (name in BETAS or not value)):
            continue
        yield name, f"{value}" if isinstance(value, bool) else f"{float(value):.6g}"


def _by_islices(wanted: Mapping[str, Any], front: str, *, lazy: bool) -> str:
    """islices' optimizer, which steps as the other side does; "" where the front does not have it. lazy: some rows are
    to be stepped, which gradients have to name."""
    name, decay = wanted["optimizer"], wanted["decay"]
    if front == "jax" and not RECORDS[name].additive:
        return ""
    if decay == "decoupled" and name == "adam" and wanted["semantics"] != "keras" and front != "jax":
        name = "adamw"
    given = dict(_numbers(wanted, ()))
    if not decay or front == "jax":
        given.pop("weight_decay", None)
    given |= {k: f"{wanted[k]!r}" for k in ("semantics", "rows")}
    if wanted["duplicates"] == "raw":
        given["duplicates"] = "'raw'"
    if wanted["up"]:
        given["maximize"] = "True"
    if not _exists(name, given):
        return ""
    if wanted["rows"] == "touched":
        del given["rows"]  # the default; if it is given, dense gradients of the model raise
    raw = wanted["duplicates"] == "raw"
    line = FRONTS.get("" if front == "jax" and raw else front, FRONTS[""])
    numbers = _spelled(given, front if front == "torch" else "", wanted)
    line = line.format(name=name, title=RECORDS[name].title, numbers=numbers)
    if decay and front == "jax":
        line = _chained(line, wanted)
    by_rows = raw or (lazy and wanted["rows"] == "touched")
    return f"optimizer = {line}" + (", on sparse gradients" if front and by_rows else "")


def _exists(name: str, given: Mapping[str, str]) -> bool:
    """Whether islices has such an optimizer."""
    try:
        getattr(optim, name)(**{key: literal_eval(x) for key, x in given.items()})
    except (TypeError, ValueError):
        return False
    return True


def _chained(line: str, wanted: Mapping[str, Any]) -> str:
    """An update of optax with weight decay: into the gradient, or off the table, which an update is added to."""
    decay, rate = float(wanted["weight_decay"]), float(wanted["lr"])
    if wanted["decay"] == "coupled":
        return f"optax.chain(optax.add_decayed_weights({decay:.6g}), {line})"
    return f"optax.chain({line}, optax.add_decayed_weights({-rate * decay:.6g}))"
