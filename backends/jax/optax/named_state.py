"""Read and write the states of optax's optimizers as named arrays, so that a training can continue in another
framework.

A state has the form {parameter: {name: array}}, for Adam {parameter: {"step": ..., "m": ..., "v": ...}}. Arrays may
belong to any framework, and have the names that the records of `islices.optim` define. The modules for torch and Keras
use the same form. May import: `jax`, `numpy`, the core, this folder.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.tree_util import (
    DictKey,
    GetAttrKey,
    SequenceKey,
    keystr,
    tree_flatten_with_path,
    tree_leaves_with_path,
    tree_unflatten,
)

from islices.backend import Host
from islices.backends.jax.optax.named_rows import weights_of
from islices.core.arguments import show
from islices.core.conversion import convert
from islices.core.registry import describe
from islices.optim.record import RECORDS, Record, carried, check_names

#: class of an optax state -> its fields -> their names in the records of `islices.optim`. Arrays of optax's other
#: classes have no names, except for step counts.
FIELDS: Mapping[str, Mapping[str, str]] = {
    "ScaleByAdamState": {"mu": "m", "nu": "v"},
    "ScaleByAmsgradState": {"mu": "m", "nu": "v", "nu_max": "v_max"},
    "ScaleByLionState": {"mu": "m"},
    "ScaleByRStdDevState": {"mu": "mean", "nu": "mean_square"},
    "ScaleByRmsState": {"nu": "mean_square"},
    "ScaleByRssState": {"sum_of_squares": "accumulator"},
    "TraceState": {"trace": "momentum"},
}
#: The names of the arrays in the states of `islices.optim`.
OURS = {"step", "master", *(name for record in RECORDS.values() for name in record.stored)}
#: The classes of states whose count is the number of steps. The last one is the state of a schedule.
COUNTED = ("ScaleByAdamState", "ScaleByAmsgradState", "ScaleByLionState", "ScaleByRmsState", "ScaleByScheduleState")


#: A function that returns the name of a leaf: its keys, positions and attributes, joined by dots.
path_name = partial(keystr, simple=True, separator=".")


class _Place(NamedTuple):
    kind: str  # the class of the state
    parameter: str | None  # None for a count, which all parameters share
    array: str


def _names(params: Any) -> dict[Any, str]:
    """Return a dict that maps the paths of parameters to their names."""
    return {path: path_name(path) for path, _ in tree_leaves_with_path(weights_of(params))}


def _place(state: Any, path: Any, names: Mapping[Any, str]) -> _Place | None:
    """Find the array at a path in an optax state, and return the class of the state, the parameter and the array's
    name. Return None unless the array is a step count, is listed in `FIELDS`, or belongs to `from_optim`."""
    for k, key in enumerate(path):
        kind, within = type(state).__name__, path[k:-1]
        if within in names and isinstance(path[-1], DictKey) and path[-1].key in OURS:
            return _Place("islices.optim", names[within], path[-1].key)
        if isinstance(key, GetAttrKey):
            if key.name == "count" and kind in COUNTED:
                return _Place(kind, None, "step")
            if key.name in FIELDS.get(kind, ()) and path[k + 1 :] in names:
                return _Place(kind, names[path[k + 1 :]], FIELDS[kind][key.name])
            state = getattr(state, key.name)
        elif isinstance(key, (DictKey, SequenceKey)):
            state = state[key.key if isinstance(key, DictKey) else key.idx]
        else:
            return None
    return None


def state_of(state: Any, params: Any) -> dict[str, dict[str, Any]]:
    """Return the state of each parameter as named arrays, which you can pass to `start_from` for optax or torch.

    Parameters
    ----------
    state : optax state
        The state of optax's sgd, adagrad, rmsprop, adam, adamw, amsgrad or lion, or of `from_optim`, or of a chain that
        contains one of these.
    params : tree of arrays and `islices.Table`
        The parameters to which the state belongs.

    Returns
    -------
    dict of str to dict of str to array
        The arrays of each parameter. The name of a parameter consists of keys, positions and attributes, joined by
        dots. Arrays have the names that `islices.optim` uses, such as "m", "v", "accumulator" and "momentum". If the
        state contains a step count, there is also "step" of shape (1,). Parameters without known arrays are left out.

    Examples
    --------
    >>> import jax.numpy as jnp, optax
    >>> from islices.backends.jax.optax import state_of
    >>> params = {"w": jnp.zeros(2)}
    >>> {name: x.tolist() for name, x in state_of(optax.adam(0.1).init(params), params)["w"].items()}
    {'step': [0], 'm': [0.0, 0.0], 'v': [0.0, 0.0]}
    """
    names = _names(params)
    found: dict[str, dict[str, Any]] = {name: {} for name in names.values()}
    for path, x in tree_leaves_with_path(state):
        place = _place(state, path, names)
        if place is not None and place.array != "master":
            for name in found if place.parameter is None else [place.parameter]:
                found[name].setdefault(place.array, jnp.reshape(x, (1,)) if place.array == "step" else x)
    return {name: arrays for name, arrays in found.items() if arrays}


def start_from(
    state: Any, params: Any, states: Any, *, semantics: str | None = None, learning_rate: float | None = None
) -> Any:
    """Return an optax state that continues from the state of another framework's optimizer.

    Parameters
    ----------
    state : optax state
        The result of ``tx.init(params)``. The new state contains the arrays of `states` in place of this state's arrays
        of the same names.
    params : tree of arrays and `islices.Table`
    states : dict of str to dict of str to array
        For each parameter, a dict of arrays, for Adam {"step": ..., "m": ..., "v": ...}. Arrays may belong to any
        framework, and must have the names that `islices.optim` uses. `state_of` for optax, torch and Keras returns this
        form, and `islices.save` can store it. All parameters must have the same step count, because an optax state has
        only one. Schedules also continue from this count.
    semantics : str, optional
        The framework, such as "torch", whose optimizer made the arrays. `semantics` is required for momentum and for
        amsgrad's maximum, because frameworks store these arrays differently. If `state` comes from `from_optim`, arrays
        are not converted.
    learning_rate : float, optional
        The learning rate of both optimizers. Some frameworks include the learning rate in the stored momentum. This
        number is used to convert the momentum.

    Returns
    -------
    optax state
        A new state with the same structure.

    Raises
    ------
    TypeError, ValueError
        `states` is not a dict of dicts. Or a parameter or an array is unknown or missing, an array has the wrong shape,
        or step counts differ. Or `semantics` is required but missing or unknown, or is a framework whose amsgrad
        maximum cannot be converted to optax's. Or the conversion of momentum needs `learning_rate`, which is None or 0.

    Examples
    --------
    >>> import jax.numpy as jnp, numpy as np, optax
    >>> from islices.backends.jax.optax import start_from
    >>> params = {"w": jnp.zeros(2)}
    >>> held = {"w": {"step": np.array([3]), "m": np.ones(2), "v": np.ones(2)}}
    >>> start_from(optax.adam(0.1).init(params), params, held)[0].count.tolist()
    3
    """
    if not isinstance(states, Mapping) or not all(isinstance(x, Mapping) for x in states.values()):
        raise TypeError(f"states: got {describe(states)}; accepted is a dict of parameters' names to dicts of arrays")
    names = _names(params)
    held: dict[str, dict[str, Any]] = {name: {} for name in names.values()}
    wrong = next((name for name in (*states, *held) if name not in states or name not in held), None)
    if wrong is not None:
        came = "no" if wrong in held else "a"
        raise ValueError(f"states: got {came} {show(wrong)}; accepted are {', '.join(map(repr, held))}")
    count = _count(states)
    leaves, structure = tree_flatten_with_path(state)
    places = [_place(state, path, names) for path, _ in leaves]
    for place, (_, x) in zip(places, leaves, strict=True):
        if place is not None and place.parameter is not None and place.array not in ("step", "master"):
            held[place.parameter][place.array] = x
    for name, arrays in held.items():
        _check(states[name], arrays, f"states[{name!r}]")
    for array, record in _kept_otherwise({place.kind for place in places if place is not None}):
        states = {
            name: {**given, array: carried(_host(given[array]), array, record, semantics, "optax", learning_rate)}
            for name, given in states.items()
        }

    def new(place: _Place | None, old: Any) -> Any:
        if place is None or place.array == "master" or (place.array == "step" and count is None):
            return old
        given = count if place.array == "step" else states[place.parameter][place.array]
        return jnp.asarray(_host(given), old.dtype).reshape(old.shape)

    return tree_unflatten(structure, [new(place, old) for place, (_, old) in zip(places, leaves, strict=True)])


def _kept_otherwise(kinds: set[str]) -> Iterator[tuple[str, Record]]:
    """Yield (name, record) for each array that other frameworks may store in a different form than optax."""
    if "TraceState" in kinds:
        yield "momentum", RECORDS["rmsprop" if kinds & {"ScaleByRmsState", "ScaleByRStdDevState"} else "sgd"]
    if "ScaleByAmsgradState" in kinds:
        yield "v_max", RECORDS["adam"]


def _count(states: Mapping[str, Mapping[str, Any]]) -> int | None:
    counts = {name: int(np.asarray(_host(s["step"])).reshape(())) for name, s in states.items() if "step" in s}
    if len(set(counts.values())) > 1:
        raise ValueError(f"states: got the step counts {counts}; accepted is one for all: optax has one")
    return next(iter(counts.values()), None)


def _check(given: Mapping[str, Any], held: Mapping[str, Any], place: str) -> None:
    """Check that the given arrays of a parameter, apart from "step", have the same names and shapes as the arrays in
    the optax state. Shape () is accepted for (1,)."""
    check_names(given, sorted(held), ["step"], place)
    for key, kept in held.items():
        x, wanted = _host(given[key]), jnp.shape(kept)
        if x.shape != wanted and (x.shape, wanted) != ((), (1,)):
            raise ValueError(f"{place}[{key!r}]: got shape {x.shape}; accepted for the parameter is {wanted}")


def _host(x: Any) -> Host:
    if isinstance(x, (int, float, np.generic)):
        return np.asarray(x)
    return np.asarray(convert(x, "numpy"))
