"""Read and write the states of torch optimizers as named arrays, so that a training can continue in another framework.

A state has the form {parameter: {"step": ..., "m": ..., "v": ...}}. Arrays may belong to any framework, and have the
names that the records of `islices.optim` define. The modules for Keras and optax use the same form. May import:
`numpy`, `torch`, the core, `islices.backends.torch.adapter`, this folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from islices.backend import Host
from islices.backends.torch.adapter import backend
from islices.backends.torch.optim.base import RowOptimizer
from islices.backends.torch.optim.checkpoints import held_array, step_count
from islices.backends.torch.optim.hyperparameters import located, made_from
from islices.core.arguments import show
from islices.core.conversion import convert
from islices.core.linear import wide_dtype
from islices.core.registry import describe
from islices.optim.formulas import State
from islices.optim.record import RECORDS, Record, carried, check_names

#: name of a class of torch.optim or of this package -> the record of its formula
CLASSES = {**{record.title: record for record in RECORDS.values()}, "SparseAdam": RECORDS["adam"]}
#: the types that count as arrays in states
ARRAYS = (Tensor, int, float)


def record_of(optimizer: Any) -> Record | None:
    """Return the record of an optimizer. The optimizer's class, or a base class, must be in this package, or be a class
    of torch.optim in `CLASSES`. Return None for any other optimizer."""
    if isinstance(optimizer, RowOptimizer):
        return RECORDS[optimizer.rule]
    for base in type(optimizer).__mro__:
        if base.__module__.startswith("torch.optim") and base.__name__ in CLASSES:
            return CLASSES[base.__name__]
    return None


def _named(model: Any) -> dict[str, Tensor]:
    if isinstance(model, torch.nn.Module):
        return dict(model.named_parameters())
    if isinstance(model, Mapping) and all(isinstance(p, Tensor) for p in model.values()):
        return dict(model)
    raise TypeError(f"model: got {describe(model)}; accepted is a torch.nn.Module, or a dict of names to parameters")


# ---------------------------------------------------------------------- reading
def state_of(optimizer: Any, model: Any) -> dict[str, dict[str, Any]]:
    """Return the state of each parameter as named arrays, which you can pass to `start_from` for torch or optax.

    Parameters
    ----------
    optimizer : torch.optim.Optimizer
        An optimizer of torch.optim or of `islices.backends.torch.optim`. If the optimizer's class has no counterpart in
        `islices.optim`, the arrays keep the names that the class uses.
    model : torch.nn.Module, or dict of str to Tensor
        The model that names the parameters.

    Returns
    -------
    dict of str to dict of str to Tensor
        For each parameter, its arrays under the names of `islices.optim`, such as "m" and "v", and the step count
        "step" of shape (1,). torch.optim.SGD counts no steps, so its state lacks "step". Parameters for which the
        optimizer has no state are left out. The arrays are the optimizer's arrays, not copies, but "step" may be a
        copy, and sparse arrays become dense copies.

    Raises
    ------
    TypeError
        The model is invalid.

    Examples
    --------
    >>> import torch
    >>> from islices.backends.torch import state_of
    >>> layer = torch.nn.Linear(1, 1, bias=False)
    >>> optimizer = torch.optim.Adagrad(layer.parameters())
    >>> layer(torch.ones(1, 1)).sum().backward()
    >>> optimizer.step()
    >>> {name: x.tolist() for name, x in state_of(optimizer, layer)["weight"].items()}
    {'step': [1], 'accumulator': [[1.0]]}
    """
    record = record_of(optimizer)
    ours: dict[Any, str] = {} if record is None else {theirs: name for name, theirs in record.stored.items()}
    skipped = () if record is None else tuple(record.recomputed)
    found = {}
    for name, p in _named(model).items():
        held = optimizer.state.get(p)
        if held:
            arrays: dict[Any, Any] = {ours.get(key, key): x for key, x in held.items() if key not in skipped}
            found[name] = {key: _state_array(key, x) for key, x in arrays.items() if isinstance(x, ARRAYS)}
    return found


def _state_array(name: str, x: Any) -> Any:
    if name == "step":
        return torch.as_tensor(x).detach().to("cpu", torch.int32).reshape(1)
    # in torch's SGD the momentum of sparse gradients is sparse
    return x.detach().to_dense() if isinstance(x, Tensor) and x.layout is torch.sparse_coo else x


def describe_optimizer(
    optimizer: Any, named: Mapping[str, Tensor], gradients: Mapping[str, Tensor]
) -> dict[str, dict[str, Any]]:
    """Return a description of each parameter's optimizer, with the names that `islices.optim` uses.

    If a class of torch.optim has no record, the description contains only the name of the class. For other classes
    without a record, the result is empty. If the formula of a group cannot be described (see `_described`), its
    parameters are left out.
    """
    record = record_of(optimizer)
    kind = type(optimizer)
    if record is None and not kind.__module__.startswith("torch.optim"):
        return {}
    names = {id(p): name for name, p in named.items()}
    found = {}
    for group in optimizer.param_groups:
        for name in [names[id(p)] for p in group["params"] if id(p) in names]:
            sparse = name in gradients and gradients[name].layout is torch.sparse_coo
            other = {"class": f"torch.optim.{kind.__name__}"}
            statement = other if record is None else _described(record, optimizer, group, sparse)
            if statement is not None:
                found[name] = statement
    return found


def _described(record: Record, optimizer: Any, group: Mapping[str, Any], sparse: bool) -> dict[str, Any] | None:
    """Describe the formula of a group. Return None if the group has frozen rows, master copies or values that are not
    numbers, or if no record has the formula."""
    own = isinstance(optimizer, RowOptimizer)
    semantics = group["semantics"] if own else "torch"
    if own and (group.get("frozen") is not None or group.get("master")):
        return None
    statement: dict[str, Any] = {"name": record.name, "semantics": semantics}
    preset = record.presets.get(semantics)
    if preset is None:
        return None
    for ours, theirs in record.spelled("torch").items():
        name, bracket, place = theirs.partition("[")
        x = group.get(name)
        x = x[int(place[:-1])] if bracket and isinstance(x, (tuple, list)) else x
        x = x.item() if isinstance(x, Tensor) and x.numel() == 1 else x
        if x is None or x is False:
            continue
        if not isinstance(x, (bool, int, float)):
            return None
        if ours in preset.defaults:
            statement[ours] = x
        elif x:
            return None
    if record.name == "adam" and group.get("decoupled_weight_decay") and statement.get("weight_decay"):
        statement["name"] = "adamw"
    if group.get("maximize"):
        statement["maximize"] = True
    if own and sparse and group["duplicates"] == "raw":
        statement["duplicates"] = "raw"
    lazy = type(optimizer).__name__ == "SparseAdam" or sparse
    rows = group["rows"] if own and sparse else "touched" if lazy else "all"
    chosen = {**preset.defaults, **statement, "rows": "touched", "duplicates": "sum"}
    if rows == "touched" and not own and "touched" not in preset.formula(chosen).rows:
        rows = "all"  # momentum also updates rows that earlier gradients contained
    return {**statement, "rows": rows} if rows else statement


# ---------------------------------------------------------------------- writing
def start_from(optimizer: Any, model: Any, states: Any, *, semantics: str | None = None) -> None:
    """Replace the state of an optimizer by the state of another framework's optimizer, to continue the training.

    Parameters
    ----------
    optimizer : torch.optim.Optimizer
        An optimizer of torch.optim or of `islices.backends.torch.optim`.
    model : torch.nn.Module, or dict of str to Tensor
        The model that names the parameters.
    states : dict of str to dict of str to array
        For each parameter, a dict {"step": ..., "m": ..., "v": ...}. Arrays may belong to any framework, and must have
        the names that `islices.optim` uses. `islices.load`, and `state_of` for torch, Keras and optax, return this
        form. For SGD, "step" may be missing. Parameters that are not in `states` keep their state.
    semantics : str, optional
        The framework whose optimizer made the arrays, such as "torch" for torch.optim. `semantics` is required for
        momentum and for the amsgrad maximum of Adam, because frameworks store these arrays differently. Some formulas
        include the learning rate in the momentum. If the optimizer's formula and that of `semantics` differ in this,
        the group's current learning rate is used to convert the momentum.

    Raises
    ------
    TypeError, ValueError
        The type of `optimizer`, `model` or `states` is not accepted. A name in `states` is not a parameter of the
        optimizer. An array is unknown, missing or invalid. `semantics` is missing or unknown, the amsgrad maximum
        cannot be converted (optax), or the learning rate that converts the momentum is 0. The call changes no state.

    Examples
    --------
    >>> import numpy as np, torch
    >>> from islices.backends.torch import start_from
    >>> layer = torch.nn.Linear(2, 1, bias=False)
    >>> optimizer = torch.optim.Adam(layer.parameters())
    >>> zeros = np.zeros((1, 2), np.float32)
    >>> start_from(optimizer, layer, {"weight": {"step": np.array([3]), "m": zeros, "v": zeros}})
    >>> sorted(optimizer.state[layer.weight]), float(optimizer.state[layer.weight]["step"])
    (['exp_avg', 'exp_avg_sq', 'step'], 3.0)
    """
    record = record_of(optimizer)
    if record is None:
        raise TypeError(
            f"optimizer: got {describe(optimizer)}; accepted are {', '.join(sorted(CLASSES))} of torch.optim and of "
            "islices.backends.torch.optim"
        )
    named = _named(model)
    if not isinstance(states, Mapping):
        raise TypeError(f"states: got {describe(states)}; accepted is a dict of parameters' names to dicts of arrays")
    groups = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    made = []
    for name, arrays in states.items():
        if name not in named or id(named[name]) not in groups:
            known = ", ".join(map(repr, [k for k, p in named.items() if id(p) in groups][:10]))
            raise ValueError(f"states: got {show(name)}; accepted are parameters that the optimizer steps: {known}")
        made.append((named[name], _state(optimizer, record, groups[id(named[name])], named[name], arrays,
                                         f"states[{name!r}]", semantics)))  # fmt: skip
    for p, state in made:
        optimizer.state[p] = state


def _state(
    optimizer: Any,
    record: Record,
    group: Mapping[str, Any],
    p: Tensor,
    arrays: Any,
    place: str,
    semantics: str | None,
) -> dict[str, Any]:
    if not isinstance(arrays, Mapping):
        raise TypeError(f"{place}: got {describe(arrays)}; accepted is a dict of arrays")
    given = {key: _host(x, f"{place}[{key!r}]") for key, x in arrays.items()}
    if record.name == "sgd":  # torch's and optax's SGD do not count steps, of which there was at least one
        given.setdefault("step", np.ones(1))
    own, hyper = isinstance(optimizer, RowOptimizer), dict[str, Any]()
    if own:
        made, _ = made_from(optimizer.rule, group)
        target, specs = made.semantics, made._formula.state
    else:
        statement = _described(record, optimizer, group, False) or {}
        hyper = {k: x for k, x in statement.items() if k not in ("name", "semantics", "rows", "maximize")}
        target, specs = "torch", RECORDS[statement.get("name", record.name)].states(hyper, "torch", rows="all")
    check_names(given, ["step", *(spec.name for spec in specs)], ["master"], place)
    state: dict[str, Any] = {}
    with located(place):
        count = step_count(given["step"].item() if given["step"].size == 1 else given["step"])
        for spec in specs:
            x = carried(given[spec.name], spec.name, record, semantics, target, float(group["lr"]))
            state[record.stored.get(spec.name, spec.name)] = held_array(torch.tensor(x), p, spec, spec.name)
        if own and "master" in given and wide_dtype(backend.dtype(p)) != backend.dtype(p):
            state["master"] = held_array(torch.tensor(given["master"]), p, State("master"), "master")
    if own:
        return {"step": count, **state}
    state = {name: x.to(p.dtype) for name, x in state.items()}
    if record.name != "sgd":
        state["step"] = int(count) if type(optimizer).__name__ == "SparseAdam" else count.float().reshape(())
    for key, function in record.recomputed.items():
        state[key] = torch.tensor(function(hyper, int(count)), dtype=torch.float32)
    return state


def _host(x: Any, place: str) -> Host:
    if isinstance(x, (int, float, np.generic)):
        return np.asarray(x)
    with located(place):
        found = np.asarray(convert(x, "numpy"))
    return found.astype(np.float32) if found.dtype.kind == "V" else found
