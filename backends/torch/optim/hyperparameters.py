"""A group of parameters as torch.optim writes it, and the optimizers of islices.optim that it asks for.

Names are torch's in a group (betas, alpha, initial_accumulator_value) and islices' in islices.optim (beta1, beta2, rho,
initial_accumulator).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from islices.arguments import check_flag, is_real, show
from islices.linear import as_float
from islices.optim import Optimizer
from islices.optim.factory import current_name, make
from islices.optim.presets import PRESETS
from islices.presets import lookup_formula
from islices.registry import describe

__all__ = ["OPTIONS", "Rate", "asked_of", "check_decoupled", "check_group", "complete", "made_from"]

Group = Mapping[str, Any]

#: What a group says beside hyperparameters.
OPTIONS = ("rows", "semantics", "maximize", "frozen", "master")
#: What torch has besides, and islices as False alone: why.
REFUSED = {
    "capturable": "islices counts steps on the host, which no CUDA graph captures",
    "differentiable": "islices records no gradient through a step",
}
#: torch's name -> islices'
NAMES = {"alpha": "rho", "initial_accumulator_value": "initial_accumulator"}
BETAS = ("beta1", "beta2")
#: islices' name -> what stands in a group
WRITTEN = {"beta1": "betas[0]", "beta2": "betas[1]", **{ours: theirs for theirs, ours in NAMES.items()}}


class Rate:
    """The learning rate of a group as it stands, for an optimizer that asks for it at each step."""

    __slots__ = ("rule", "value")

    def __init__(self, lr: Any, rule: str) -> None:
        self.rule = rule
        self.set(lr)

    def __call__(self, step: Any) -> float:
        return self.value

    def __repr__(self) -> str:
        return str(self.value)

    def set(self, lr: Any) -> None:
        """TypeError or ValueError for what is none."""
        number = _plain(lr, "lr")
        if isinstance(number, bool) or not is_real(number):
            hint = " (schedules are those of torch.optim.lr_scheduler)" if callable(lr) else ""
            raise TypeError(f"lr: got {describe(lr)}; accepted is a number, or a Tensor of one{hint}")
        if not 0 <= as_float(number) < math.inf:
            raise ValueError(f"lr: got {show(number)}; accepted is a finite number >= 0")
        if self.rule == "ftrl" and not number:  # a schedule that warms up from 0 would leave a table of NaN
            raise ValueError("lr: got 0; accepted by Ftrl, which divides by it, is a number above 0")
        self.value = as_float(number)


def _plain(x: Any, name: str) -> Any:
    """The number in a Tensor of one; what is no Tensor as it is."""
    if not isinstance(x, torch.Tensor):
        return x
    if x.numel() != 1:
        raise TypeError(f"{name}: got {describe(x)}; accepted is a number, or a Tensor of one")
    return x.item()


def complete(rule: str, group: Group, names: Sequence[str], defaults: Group) -> dict[str, Any]:
    """The group with all options and hyperparameters: its own, else those of defaults that its semantics has, else
    those of its semantics; None where it has none."""
    whole = {**{name: defaults[name] for name in OPTIONS if name in defaults}, **group}
    whole["semantics"] = current_name(whole["semantics"])
    known = dict(lookup_formula(PRESETS[rule], whole["semantics"], rule).defaults)
    if whole["semantics"] == "islices" and "torch" in PRESETS[rule]:
        known |= PRESETS[rule]["torch"].defaults
    if "betas" in names:
        known["betas"] = tuple(known[beta] for beta in BETAS)
    for name in names:
        ours = NAMES.get(name, name)
        if whole.get(name) is None:
            set_before = ours in known and defaults.get(name) is not None
            whole[name] = defaults[name] if set_before else known.get(ours)
    return whole


def check_group(rule: str, group: Group, names: Sequence[str]) -> None:
    """Raise TypeError or ValueError for what does not fit, in the names that the group has."""
    for name, reason in REFUSED.items():
        if group.get(name):
            raise ValueError(f"{name}: got {show(group[name])}; accepted is False: {reason}")
    check_decoupled(rule, group.get("decoupled_weight_decay", False))
    check_flag(group["master"], "master")
    if group["lr"] is None:
        raise TypeError(f"lr: got none; {rule} with semantics={group['semantics']!r} has no default")
    made_from(rule, group, names, Rate(group["lr"], rule))


def check_decoupled(rule: str, asked: bool) -> None:
    """ValueError if another rule than AdamW's is asked for its weight decay."""
    if asked and rule != "adamw":
        raise ValueError("decoupled_weight_decay: got True; accepted by Adam is False, AdamW has it")


def asked_of(group: Group, names: Sequence[str]) -> tuple[Any, ...]:
    """What `made_from` looks at, to compare, but for arrays: lr and frozen."""
    given = [x for name, x in _in_islices(group, names).items() if name != "lr"]
    return (*given, group["rows"], group["semantics"], group["maximize"])


def made_from(rule: str, group: Group, names: Sequence[str], rate: Rate) -> tuple[Optimizer, Optimizer]:
    """(what steps sparse gradients, what steps dense ones): the same, unless the semantics has a dense formula."""
    given = {**_in_islices(group, names), "lr": rate}
    options = {name: group[name] for name in ("semantics", "maximize", "frozen")}
    try:
        sparse = make(rule, given, rows=group["rows"], duplicates="sum", **options)
        if sparse.rows == "all" or "all" not in sparse._formula.rows:
            return sparse, sparse
        return sparse, make(rule, given, rows="all", duplicates="sum", **options)
    except (TypeError, ValueError, IndexError) as error:
        name, colon, rest = str(error).partition(":")
        raise type(error)(f"{WRITTEN.get(name, name)}{colon}{rest}") from None


def _in_islices(group: Group, names: Sequence[str]) -> dict[str, Any]:
    """The hyperparameters by islices' names, none of them a Tensor."""
    given: dict[str, Any] = {}
    for name in names:
        if name == "amsgrad":
            given[name] = group[name] or None  # what is off, the semantics need not have
        elif name != "betas":
            given[NAMES.get(name, name)] = _plain(group[name], name)
        elif isinstance(group[name], (tuple, list)) and len(group[name]) == len(BETAS):
            given |= {ours: _plain(x, WRITTEN[ours]) for ours, x in zip(BETAS, group[name], strict=True)}
        else:
            raise TypeError(f"betas: got {show(group[name])}; accepted are two numbers")
    return given
