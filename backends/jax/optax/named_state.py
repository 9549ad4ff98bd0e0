"""Read and write the state of optax's optimizers as named arrays, to continue a training of another framework.

A state is {parameter: {"step": ..., "m": ..., "v": ...}}, with arrays of any framework by the names of the records of
`islices.optim`. The modules for torch and Keras use the same form. May import: `jax`, `numpy`, the core, this folder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from islices.backends.jax.optax.named_rows import is_leaf, weights_of
from islices.core.arguments import show
from islices.core.conversion import convert
from islices.core.registry import describe
from islices.optim.record import RECORDS, Record, carried

__all__ = ["path_name", "start_from", "state_of"]

#: The class of an optax state -> its fields -> the names of `islices.optim`'s records; other classes have none.
FIELDS: Mapping[str, Mapping[str, str]] = {
    "ScaleByAdamState": {"mu": "m", "nu": "v"},
    "ScaleByAmsgradState": {"mu": "m", "nu": "v", "nu_max": "v_max"},
    "ScaleByLionState": {"mu": "m"},
    "ScaleByRStdDevState": {"mu": "mean", "nu": "mean_square"},
    "ScaleByRmsState": {"nu": "mean_square"},
    "ScaleByRssState": {"sum_of_squares": "accumulator"},
    "TraceState": {"trace": "momentum"},
}
#: The names of the arrays that `islices.optim` keeps.
OURS = {"step", "master", *(name for record in RECORDS.values() for name in record.stored)}
#: Classes whose count is the number of steps, including schedules.
COUNTED = ("ScaleByAdamState", "ScaleByAmsgradState", "ScaleByLionState", "ScaleByRmsState", "ScaleByScheduleState")


def path_name(path: Any) -> str:
    """Return a leaf's name: keys, positions and attributes, joined by dots, as `islices` names leaves of trees."""
    parts = (getattr(key, "key", getattr(key, "idx", getattr(key, "name", key))) for key in path)
    return ".".join(str(part) for part in parts)


def _parts(state: Any, structure: Any) -> tuple[list[Any], Callable[[list[Any]], Any]]:
    """Return the known parts of a state, from the outside in, and a function that replaces them by other parts.

    Known parts are named tuples of optax and the states of `from_optim`.
    """

    def known(x: Any) -> bool:
        return type(x).__name__ in (*FIELDS, *COUNTED) or _parts_of_islices(x, structure) is not None

    leaves, whole = jax.tree.flatten(state, is_leaf=known)
    places = [k for k, x in enumerate(leaves) if known(x)]

    def again(parts: list[Any]) -> Any:
        for k, part in zip(places, parts, strict=True):
            leaves[k] = part
        return jax.tree.unflatten(whole, leaves)

    return [leaves[k] for k in places], again


def _parts_of_islices(state: Any, structure: Any) -> list[Any] | None:
    """Return the state that `islices.optim` keeps for each parameter, or None for another state."""
    try:
        parts = structure.flatten_up_to(state)
    except (TypeError, ValueError):  # another tree
        return None
    known = all(isinstance(part, dict) and "step" in part and part.keys() <= OURS for part in parts)
    return parts if parts and known else None


def _counts(part: Any) -> bool:
    """Return whether a state has a step count; rmsprop has one in new releases of optax."""
    return type(part).__name__ in COUNTED and "count" in part._fields and part.count is not None


def _names(params: Any) -> tuple[list[str], list[Any], Any]:
    """Return the parameters' names, arrays and tree structure."""
    paths, structure = jax.tree_util.tree_flatten_with_path(weights_of(params), is_leaf=is_leaf)
    return [path_name(path) for path, _ in paths], [x for _, x in paths], structure


def _arrays(field: Any, structure: Any) -> list[Any] | None:
    """Return a state's arrays, one per parameter; None if its tree differs (a part of the parameters)."""
    leaves, own = jax.tree.flatten(weights_of(field))
    return leaves if own == structure else None


def state_of(state: Any, params: Any) -> dict[str, dict[str, Any]]:
    """Return the state of each parameter as named arrays, for `start_from` of any framework's module.

    Parameters
    ----------
    state : optax state
        The state of optax's sgd, adagrad, rmsprop, adam, adamw, amsgrad or lion, or of `from_optim`, in chains too.
    params : tree of arrays and `islices.Table`
        The parameters of this state.

    Returns
    -------
    dict of str to dict of str to array
        Parameter -> arrays. Parameters' names are keys and positions, joined by dots. Arrays have the names of
        `islices.optim`: "m", "v", "accumulator", "momentum" ..., and "step", of shape (1,), if the state has a count.
        The result is empty if no part of the state is known.

    Examples
    --------
    >>> import jax.numpy as jnp, optax
    >>> from islices.backends.jax.optax import state_of
    >>> params = {"w": jnp.zeros(2)}
    >>> {name: x.tolist() for name, x in state_of(optax.adam(0.1).init(params), params)["w"].items()}
    {'step': [0], 'm': [0.0, 0.0], 'v': [0.0, 0.0]}
    """
    names, _, structure = _names(params)
    found: dict[str, dict[str, Any]] = {name: {} for name in names}
    for part in _parts(state, structure)[0]:
        if _counts(part):
            for arrays in found.values():
                arrays.setdefault("step", jnp.reshape(part.count, (1,)))
        for field, ours in FIELDS.get(type(part).__name__, {}).items():
            for name, x in zip(names, _arrays(getattr(part, field), structure) or (), strict=False):
                found[name][ours] = x
        for name, own in zip(names, _parts_of_islices(part, structure) or (), strict=False):
            found[name] |= {key: x for key, x in own.items() if key != "master"}
    return {name: arrays for name, arrays in found.items() if arrays}


def start_from(
    state: Any, params: Any, states: Any, *, semantics: str | None = None, learning_rate: float | None = None
) -> Any:
    """Return an optax state that continues from the state of another framework's optimizer.

    Parameters
    ----------
    state : optax state
        The result of ``tx.init(params)``, whose arrays are replaced in the new state.
    params : tree of arrays and `islices.Table`
    states : dict of str to dict of str to array
        Parameter -> {"step": ..., "m": ..., "v": ...}, with arrays of any framework by the names of `islices.optim`.
        `islices.load` and `state_of` for optax, torch and Keras return this form. All parameters must have the same
        step count, because optax has one count. Schedules continue from this count too.
    semantics : str, optional
        The framework whose optimizer made the arrays: "optax" for optax. Required for momentum and for amsgrad's
        maximum, because frameworks store them differently. Arrays for a state of `from_optim` are not converted.
    learning_rate : float, optional
        The learning rate of the optimizers, which converts momentum of steps to momentum of gradients and back.

    Returns
    -------
    optax state
        A new state of the same structure.

    Raises
    ------
    TypeError, ValueError
        A parameter or an array is unknown or missing, or an array has another shape. A required semantics is missing,
        or its maximum differs. Momentum needs a learning rate, and learning_rate is None.

    Examples
    --------
    >>> import jax.numpy as jnp, numpy as np, optax
    >>> from islices.backends.jax.optax import start_from
    >>> params = {"w": jnp.zeros(2)}
    >>> held = {"w": {"step": np.array([3]), "m": np.ones(2), "v": np.ones(2)}}
    >>> start_from(optax.adam(0.1).init(params), params, held)[0].count.tolist()
    3
    """
    names, arrays, structure = _names(params)
    if not isinstance(states, Mapping) or not all(isinstance(x, Mapping) for x in states.values()):
        raise TypeError(f"states: got {describe(states)}; accepted is a dict of parameters' names to dicts of arrays")
    wrong = next((name for name in (*states, *names) if name not in states or name not in names), None)
    if wrong is not None:
        came = "no" if wrong in names else "a"
        raise ValueError(f"states: got {came} {show(wrong)}; accepted are {', '.join(map(repr, names))}")
    count = _count(states)
    parts, again = _parts(state, structure)
    held: dict[str, dict[str, Any]] = {name: {} for name in names}
    for part in parts:
        for field in FIELDS.get(type(part).__name__, {}).values():
            for name, x in zip(names, arrays, strict=True):
                held[name][field] = x
        for name, own in zip(names, _parts_of_islices(part, structure) or (), strict=False):
            held[name] |= {key: x for key, x in own.items() if key not in ("step", "master")}
    for name, x in zip(names, arrays, strict=True):
        _check(states[name], held[name], jnp.shape(x), f"states[{name!r}]")
    for array, record in _kept_otherwise({type(part).__name__ for part in parts}):
        states = {
            name: {**given, array: carried(_host(given[array]), array, record, semantics, "optax", learning_rate)}
            for name, given in states.items()
        }
    return again([_replaced(part, names, structure, states, count) for part in parts])


def _kept_otherwise(kinds: set[str]) -> Iterator[tuple[str, Record]]:
    """Yield the arrays of optax's classes that other frameworks may keep in other units, with their records."""
    if "TraceState" in kinds:
        yield "momentum", RECORDS["rmsprop" if kinds & {"ScaleByRmsState", "ScaleByRStdDevState"} else "sgd"]
    if "ScaleByAmsgradState" in kinds:
        yield "v_max", RECORDS["adam"]


def _count(states: Mapping[str, Mapping[str, Any]]) -> int | None:
    counts = {name: int(np.asarray(_host(s["step"])).reshape(())) for name, s in states.items() if "step" in s}
    if len(set(counts.values())) > 1:
        raise ValueError(f"states: got the step counts {counts}; accepted is one for all: optax has one")
    return next(iter(counts.values()), None)


def _check(given: Mapping[str, Any], held: Mapping[str, Any], shape: tuple[int, ...], place: str) -> None:
    """Check the names and shapes of a parameter's arrays against those of the state.

    held has an array of the required shape for each name. shape is the parameter's shape.
    """
    accepted = ", ".join(map(repr, ("step", *sorted(held))))
    wrong = next((key for key in given if key not in held and key != "step"), None)
    lacking = next((key for key in held if key not in given), None)
    if wrong is not None or lacking is not None:
        came = f"the array {show(wrong)}" if wrong is not None else f"no {lacking!r}"
        raise ValueError(f"{place}: got {came}; accepted are {accepted}")
    for key, kept in held.items():
        x, wanted = _host(given[key]), jnp.shape(kept)
        if x.shape != wanted and not x.shape == shape == ():
            raise ValueError(f"{place}[{key!r}]: got shape {x.shape}; accepted for the parameter is {wanted}")


def _replaced(part: Any, names: list[str], structure: Any, states: Mapping[str, Any], count: int | None) -> Any:
    """Return a part of a state with other arrays."""
    if (parts := _parts_of_islices(part, structure)) is not None:
        return jax.tree.unflatten(
            structure,
            [
                {key: _like(x, states[k].get(key, x)) for key, x in own.items()}
                for k, own in zip(names, parts, strict=True)
            ],
        )
    new: dict[str, Any] = {}
    if _counts(part) and count is not None:
        new["count"] = jnp.asarray(count, part.count.dtype)
    for field, ours in FIELDS.get(type(part).__name__, {}).items():
        old = _arrays(getattr(part, field), structure)
        if old is None:
            raise ValueError(f"state: got {field} of a part of the parameters; accepted is a state of all of them")
        leaves = [_like(x, states[k][ours]) for k, x in zip(names, old, strict=True)]
        new[field] = jax.tree.unflatten(jax.tree.structure(getattr(part, field)), leaves)
    return part._replace(**new)


def _like(old: Any, given: Any) -> Any:
    """Return an array of any framework in the dtype and shape of a state's array."""
    return old if given is old else jnp.asarray(_host(given), old.dtype).reshape(old.shape)


def _host(x: Any) -> np.ndarray[Any, Any]:
    if isinstance(x, (int, float, np.generic)):
        return np.asarray(x)
    return np.asarray(convert(x, "numpy"))
