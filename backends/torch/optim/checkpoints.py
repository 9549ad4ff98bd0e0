"""Convert the states of parameters between the form for steps and the form for checkpoints, and check state_dicts.

If torch.optim has the optimizer, the arrays in checkpoints have the same names as in torch.optim. So programs that read
torch's states can also read these checkpoints. If the arrays also have the same meaning, torch's class and the class of
this package can load each other's states.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from islices.backends.torch.adapter import backend
from islices.backends.torch.optim.hyperparameters import (
    check_decoupled,
    complete,
    in_islices,
    located,
    made_from,
    torch_names,
)
from islices.core.arguments import show, whole_number
from islices.core.linear import wide_dtype
from islices.core.registry import describe
from islices.core.rows import to_dense
from islices.optim import Optimizer
from islices.optim.formulas import State
from islices.optim.numbers import LAST_STEP
from islices.optim.record import RECORDS, terms_of

if TYPE_CHECKING:
    from islices.backends.torch.optim.base import RowOptimizer


#: The options in torch's groups that groups of this package do not have. But groups of NAdam have
#: decoupled_weight_decay.
OF_TORCH = ("capturable", "decoupled_weight_decay", "differentiable", "foreach", "fused")


# ---------------------------------------------------------------------- at a step
def opened(
    optimizer: Optimizer, table: Tensor, held: Mapping[str, Tensor], *, master: bool
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return (a parameter's state in the form of islices.optim, the arrays of this state that are new). At the first
    step, all arrays are new."""
    names, state, stored = ["step"], {}, RECORDS[optimizer.name].stored
    for spec in optimizer._formula.state:
        names.append(spec.name)
    if "master" in held or (master and table.dtype in (torch.float16, torch.bfloat16)):
        names.append("master")
    for name in names:
        if (there := stored.get(name, name)) in held:
            state[name] = held[there]
    if table.ndim == 1 and any(x.ndim == 0 for x in state.values()):  # then the parameter is 0-d
        state = {name: x.reshape(1) for name, x in state.items()}
    if len(state) == len(names):
        return state, {}
    new = {name: x for name, x in optimizer.init(table, master="master" in names).items() if name not in state}
    return {**state, **new}, new


def as_stored(rule: str, state: Mapping[str, Tensor], p: Tensor) -> dict[str, Tensor]:
    """Rename the arrays of a state to torch's names. If the parameter is 0-d, also make all arrays except "step"
    0-d."""
    flat = p.ndim == 0
    return {
        RECORDS[rule].stored.get(name, name): x.reshape(()) if flat and name != "step" else x
        for name, x in state.items()
    }


# ---------------------------------------------------------------------- to a state_dict, and from one
def saved(rule: str, state_dict: dict[str, Any]) -> dict[str, Any]:
    """Return a state_dict in the form of torch's classes. The state_dict also contains arrays that islices does not
    store but can compute.

    Step counts become floats, because torch's classes do not accept integers with foreach=True.
    """
    state: dict[Any, Any] = {
        key: {**held, "step": held["step"].detach().to("cpu", torch.float64, copy=True).reshape(())}
        if isinstance(held, Mapping) and "step" in held
        else held  # an entry that the user added
        for key, held in state_dict["state"].items()
    }
    groups = state_dict["param_groups"]
    if rule in ("adam", "adamw"):  # as in torch's groups, since the arrays of both are the same
        groups = [{**group, "decoupled_weight_decay": rule == "adamw"} for group in groups]
    for name, function in RECORDS[rule].recomputed.items():
        for group in groups:
            hyper = in_islices(rule, group)
            for held in (state[key] for key in group["params"] if key in state):
                held[name] = torch.tensor(function(hyper, int(held["step"])), dtype=torch.float32)
    return {**state_dict, "state": state, "param_groups": groups}


def checked(
    optimizer: RowOptimizer, state_dict: dict[str, Any], held: dict[Tensor, Any], of_torch: set[int]
) -> dict[str, Any]:
    """Check a state_dict, complete its groups, and return it without the parameters' states.

    Store copies of the parameters' states in `held`. To `of_torch`, add the numbers of the groups whose states torch's
    class saved. If the numbers of parameters in the groups do not match, return the state_dict unchanged, because torch
    then raises an error.

    Raise TypeError, ValueError or IndexError for an invalid state_dict.
    """
    for name, kind in (("state", Mapping), ("param_groups", (list, tuple))):
        if not isinstance(state_dict.get(name), kind):
            came = describe(state_dict[name]) if name in state_dict else "none"
            raise TypeError(f"state_dict[{name!r}]: got {came}; accepted is what state_dict() returned")
    groups, given = optimizer.param_groups, state_dict["param_groups"]
    for number, old in enumerate(given):
        if not isinstance(old, Mapping) or not isinstance(old.get("params"), (list, tuple)):
            raise TypeError(
                f"state_dict: param_groups[{number}]: got {describe(old)}; accepted is a dict with 'params', a list"
            )
    if [len(group["params"]) for group in given] != [len(group["params"]) for group in groups]:
        return state_dict  # torch raises an error for it
    state, loaded = dict(state_dict["state"]), []
    for number, (group, old) in enumerate(zip(groups, given, strict=True)):
        place = f"state_dict: param_groups[{number}]"
        with located(place):
            whole = _whole_group(optimizer, old, group)
            sparse, _ = made_from(optimizer.rule, whole)
            if "semantics" not in old:
                _refuse_other_terms(optimizer.rule, whole["semantics"], [state.get(key, {}) for key in old["params"]])
            if "semantics" not in old and any(key in state for key in old["params"]):
                of_torch.add(number)
        loaded.append(whole)
        for position, (key, p) in enumerate(zip(old["params"], group["params"], strict=True)):
            if key in state:
                with located(f"{place}['params'][{position}]"):
                    held[p] = _checked_state(optimizer, sparse, state.pop(key), p)
        with located(place):
            _refuse_other_options(optimizer, old)
    return {**state_dict, "state": state, "param_groups": loaded}


def _whole_group(optimizer: RowOptimizer, old: Mapping[str, Any], group: Mapping[str, Any]) -> dict[str, Any]:
    """Complete a saved group: options that torch's class does not have get the optimizer's values."""
    check_decoupled(optimizer.rule, old.get("decoupled_weight_decay"), ", where its state belongs")
    own = torch_names(optimizer.rule)
    kept = {name: x for name, x in old.items() if name not in OF_TORCH or name in own}
    if "semantics" not in old:  # an option that is off stays off, even if the semantics does not have it
        kept = {name: x or None if group.get(name, x) is None else x for name, x in kept.items()}
    return complete(optimizer.rule, kept, group)


def _refuse_other_options(optimizer: RowOptimizer, old: Mapping[str, Any]) -> None:
    """Raise ValueError if a group has options of another optimizer."""
    own = torch_names(optimizer.rule)
    names = {name for rule in RECORDS for name in torch_names(rule)}.difference(own, OF_TORCH)
    others = [name for name in old if name in names]
    if others:
        raise ValueError(
            f"got {', '.join(map(repr, others))}; accepted by {type(optimizer).__name__} are "
            f"{', '.join(map(repr, own))}"
        )


def _refuse_other_terms(rule: str, semantics: str, states: list[Mapping[str, Any]]) -> None:
    """Raise ValueError if a state of torch's class contains an array that has a different meaning in the semantics."""
    record = RECORDS[rule]
    for name in record.presets[semantics].terms:
        stored, terms = record.stored.get(name, name), terms_of(name, record)
        if any(held.get(stored) is not None for held in states):
            alike = [repr(s) for s in terms if terms[s] == terms["torch"]]
            raise ValueError(
                f"got torch's {stored} for semantics={semantics!r}, which keeps it in other terms; "
                f"accepted is {' or '.join(alike)}"
            )


def _checked_state(optimizer: RowOptimizer, made: Optimizer, held: Any, p: Tensor) -> dict[str, Tensor]:
    """Check the state of a parameter, and return a copy with torch's names. The next step initializes all arrays of an
    empty state, and missing arrays of `Record.added`.

    Raise TypeError or ValueError for an invalid state.
    """
    if not isinstance(held, Mapping):
        raise TypeError(f"got a state that is {describe(held)}; accepted is a dict of Tensors")
    held = {name: x for name, x in held.items() if x is not None}
    own = {spec.name: spec for spec in made._formula.state}
    record = RECORDS[optimizer.rule]
    added, named = record.added, record.stored
    accepted = {named.get(name, name) for name in ("step", *own, *added, *record.recomputed, "master")}
    counted = ("step",) if optimizer.rule != "sgd" else ()  # torch's SGD does not count steps
    needed = {named.get(name, name) for name in (*counted, *own) if name not in added}
    if held and not needed <= set(held) <= accepted:
        names = ", ".join(map(repr, ["step", *(named.get(name, name) for name in own)]))
        raise ValueError(
            f"got a state of {', '.join(map(show, held))}; {type(optimizer).__name__} with "
            f"semantics={made.semantics!r} has {names}"
        )
    state = {}
    for name in ("step", *own, *added, "master"):
        stored = named.get(name, name)
        if name == "step" and held:  # a state without a step count comes from at least one step
            state[stored] = step_count(held.get(stored, 1)).to(p.device)
        elif stored in held:
            state[stored] = held_array(held[stored], p, own.get(name, State(name)), stored)
    return state


def step_count(step: Any) -> Tensor:
    """Convert a step count to the form in which islices stores it, an int32 tensor of shape (1,). Raise ValueError
    unless the count is a whole number in the accepted range."""
    number = step.item() if isinstance(step, Tensor) and step.numel() == 1 else step
    number = int(number) if isinstance(number, float) and number.is_integer() else number  # torch counts in float32
    whole = whole_number(number)
    if whole is None or not 0 <= whole < LAST_STEP:
        raise ValueError(f"step: got {describe(step)}; accepted is a whole number, 0 <= step < {LAST_STEP}")
    return torch.tensor([whole], dtype=torch.int32)


def held_array(x: Any, p: Tensor, spec: State, stored: str) -> Tensor:
    """Copy an array of a state to the form in which islices stores it: dense, on the parameter's device, and in float32
    or float64.

    Raise TypeError or ValueError if the array is not a float tensor of the right shape. Also raise ValueError for a
    master copy of a parameter that does not have 16 bits.
    """
    if not isinstance(x, Tensor) or not x.is_floating_point():
        raise TypeError(f"{stored}: got {describe(x)}; accepted is a Tensor of floats")
    kind, shape = backend.dtype(p), tuple(p.shape[:1] if spec.per_row else p.shape)
    wide = wide_dtype(kind)
    if spec.name == "master" and wide == kind:
        raise ValueError(f"{stored}: got one for a parameter of {kind}; accepted is a parameter of 16 bits")
    if tuple(x.shape) != shape:
        raise ValueError(f"{stored}: got shape {tuple(x.shape)}; accepted for a parameter {tuple(p.shape)} is {shape}")
    dense = to_dense(x) if x.layout is torch.sparse_coo else x  # torch's SGD may store the momentum as a sparse tensor
    return dense.detach().to(p.device, getattr(torch, wide), copy=True).contiguous()
