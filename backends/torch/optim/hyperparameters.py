"""Make optimizers of islices.optim from the values of a parameter group of torch.optim.

A group contains hyperparameters under torch's names, such as betas, alpha and initial_accumulator_value. For these,
islices.optim uses the names beta1, beta2, rho and initial_accumulator. The record of each optimizer lists the names in
torch and in islices.optim.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from islices.core.arguments import check_flag, is_real, show
from islices.core.registry import describe
from islices.norms.clip_formulas import lookup_formula
from islices.optim import Optimizer
from islices.optim.factory import make
from islices.optim.hyperparameters import Schedule, check_range
from islices.optim.record import RECORDS

Group = Mapping[str, Any]

#: The options of a group that are not hyperparameters.
OPTIONS = ("rows", "semantics", "maximize", "frozen", "master", "duplicates")
#: option of torch that must be False -> the reason
REFUSED = {
    "capturable": "islices counts steps on the host, which no CUDA graph captures",
    "differentiable": "islices records no gradient through a step",
}
BETAS = ("beta1", "beta2")


@contextlib.contextmanager
def located(place: str) -> Iterator[None]:
    """Put `place`, which describes where an invalid value is, in front of the messages of errors."""
    try:
        yield
    except (TypeError, ValueError, IndexError) as error:
        raise type(error)(f"{place}: {error}") from None


def torch_names(rule: str) -> tuple[str, ...]:
    """Return the names of an optimizer's hyperparameters in torch, in torch's order."""
    return tuple(dict.fromkeys(name.partition("[")[0] for name in RECORDS[rule].spelled("torch").values()))


class Rate(Schedule):
    """A schedule that returns the current learning rate of a group. An optimizer calls the schedule at each step."""

    __slots__ = ("rule", "value")

    def __init__(self, lr: Any, rule: str) -> None:
        self.rule = rule
        self.set(lr)

    def __call__(self, step: Any) -> float:
        return self.value

    def __repr__(self) -> str:
        return str(self.value)

    def set(self, lr: Any) -> None:
        """Set the learning rate. Raise TypeError or ValueError if `lr` is invalid."""
        number = _plain(lr, "lr")
        if not is_real(number):
            hint = " (schedules are those of torch.optim.lr_scheduler)" if callable(lr) else ""
            raise TypeError(f"lr: got {describe(lr)}; accepted is a number, or a Tensor of one{hint}")
        self.value = check_range("lr", number, RECORDS[self.rule].limits)


def _plain(x: Any, name: str) -> Any:
    """Convert a Tensor with one element to a number. Return all other objects unchanged, but raise TypeError for a
    Tensor with several elements or none."""
    if not isinstance(x, torch.Tensor):
        return x
    if x.numel() != 1:
        raise TypeError(f"{name}: got {describe(x)}; accepted is a number, or a Tensor of one")
    return x.item()


def defaults_of(rule: str, semantics: str) -> dict[str, Any]:
    """Return a dict that maps torch's names of the hyperparameters to their defaults. The semantics "islices" uses
    torch's defaults if torch has the optimizer."""
    record = RECORDS[rule]
    known = dict(lookup_formula(record.presets, semantics, rule).defaults)
    if semantics == "islices" and "torch" in record.presets:
        known |= record.presets["torch"].defaults
    defaults = {theirs: known[ours] for ours, theirs in record.spelled("torch").items() if ours in known}
    return {**defaults, "betas": tuple(known[beta] for beta in BETAS)} if BETAS[0] in known else defaults


def complete(rule: str, group: Group, defaults: Group) -> dict[str, Any]:
    """Return a copy of the group in which no option and no hyperparameter is missing.

    A hyperparameter that is missing or None gets its value in `defaults`, if the group's semantics has the
    hyperparameter and this value is not None. If one of these conditions fails, the hyperparameter gets the default of
    the semantics, or None.
    """
    whole = {**{name: defaults[name] for name in OPTIONS if name in defaults}, **group}
    known = defaults_of(rule, whole["semantics"])
    for name in torch_names(rule):
        if whole.get(name) is None:
            set_before = name in known and defaults.get(name) is not None
            whole[name] = defaults[name] if set_before else known.get(name)
    return whole


def check_group(rule: str, group: Group) -> None:
    """Raise TypeError, ValueError or IndexError if a group is invalid. Messages contain torch's names."""
    for name, reason in REFUSED.items():
        if group.get(name):
            raise ValueError(f"{name}: got {show(group[name])}; accepted is False: {reason}")
    if group.get("max_norm") is not None:
        raise ValueError(
            f"max_norm: got {show(group['max_norm'])} in a group; accepted by the optimizer, which clips all together"
        )
    check_decoupled(rule, group.get("decoupled_weight_decay"))
    check_flag(group["master"], "master")
    if group["lr"] is None:
        raise TypeError(f"lr: got none; {rule} with semantics={group['semantics']!r} has no default")
    made_from(rule, group)


def check_decoupled(rule: str, requested: bool | None, hint: str = "") -> None:
    """Raise ValueError unless decoupled_weight_decay is None, or the value that the class accepts: True for AdamW,
    either for NAdam, False for other classes. If a related class accepts the other value, the message contains the name
    of that class and then `hint`."""
    record = RECORDS[rule]
    accepted = bool(record.decoupled)
    if requested is None or bool(requested) == accepted or "decoupled_weight_decay" in record.arguments:
        return
    family = {rule, record.variant_of} - {""}
    others = [x.title for x in RECORDS.values() if bool(x.decoupled) != accepted and family & {x.name, x.variant_of}]
    where = f"{' or '.join(others)}{hint}" if others else f"{record.title} is {accepted}"
    raise ValueError(f"decoupled_weight_decay: got {requested}; accepted by optim.{where}")


def known_values(rule: str, group: Group) -> dict[str, Any]:
    """Return all values of a group that `made_from` uses, except the learning rate."""
    return {name: group[name] for name in (*torch_names(rule), *OPTIONS) if name != "lr"}


def made_from(rule: str, group: Group, rate: Rate | None = None) -> tuple[Optimizer, Optimizer]:
    """Return (the optimizer for sparse gradients, the optimizer for dense gradients). The two optimizers are the same
    object if sparse gradients update all rows, or if the semantics has no formula for all rows."""
    given = {**in_islices(rule, group), "lr": rate or Rate(group["lr"], rule)}
    options = {name: group[name] for name in ("semantics", "maximize", "frozen", "duplicates")}
    try:
        sparse = make(rule, **given, rows=group["rows"], **options)
        if sparse.rows == "all" or "all" not in sparse._formula.rows:
            return sparse, sparse
        return sparse, make(rule, **given, rows="all", **options)
    except (TypeError, ValueError, IndexError) as error:
        name, colon, rest = str(error).partition(":")
        raise type(error)(f"{RECORDS[rule].spelled('torch').get(name, name)}{colon}{rest}") from None


def in_islices(rule: str, group: Group) -> dict[str, Any]:
    """Return a dict that maps names in islices.optim to hyperparameters. Numbers replace Tensors, and None replaces
    False."""
    given: dict[str, Any] = {}
    for ours, theirs in RECORDS[rule].spelled("torch").items():
        if ours not in BETAS:
            x = group[theirs]
            if x is False:
                x = None  # an option that is off is not passed, because the semantics may not have it
        elif isinstance(betas := group["betas"], (tuple, list)) and len(betas) == len(BETAS):
            x = betas[BETAS.index(ours)]
        else:
            raise TypeError(f"betas: got {show(betas)}; accepted are two numbers")
        given[ours] = _plain(x, theirs) if isinstance(x, torch.Tensor) else x
    return given
