"""The state of optax's optimizers as named arrays, and from them: a training that another framework began goes on.

A state is {parameter: {"step": ..., "m": ..., "v": ...}}, by the names of `islices.optim`'s records, of arrays of any
framework; torch's and Keras's fronts read and write the same. May import: `jax`, `numpy`, the core, this folder.
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
#: What `islices.optim` calls the arrays that it keeps.
OURS = {"step", "master", *(name for record in RECORDS.values() for name in record.stored)}
#: Classes whose count is the number of steps, those of schedules among them.
COUNTED = ("ScaleByAdamState", "ScaleByAmsgradState", "ScaleByLionState", "ScaleByRmsState", "ScaleByScheduleState")


def path_name(path: Any) -> str:
    """A leaf's name: keys, positions and attributes, joined by dots, as `islices` names leaves of trees."""
    parts = (getattr(key, "key", getattr(key, "idx", getattr(key, "name", key))) for key in path)
    return ".".join(str(part) for part in parts)


def _parts(state: Any, structure: Any) -> tuple[list[Any], Callable[[list[Any]], Any]]:
    """(the parts of a state that are known by name, from the outside in: named tuples of optax, and the states of
    `from_optim`; what makes the state of others in their places)."""

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
    except (TypeError, ValueError):  # of another tree
        return None
    known = all(isinstance(part, dict) and "step" in part and part.keys() <= OURS for part in parts)
    return parts if parts and known else None


def _counts(part: Any) -> bool:
    """Return whether a state has a step count; rmsprop's has one in new releases of optax."""
    return type(part).__name__ in COUNTED and "count" in part._fields and part.count is not None


def _names(params: Any) -> tuple[list[str], list[Any], Any]:
    """(the parameters' names, their arrays, the tree that they make up)."""
    paths, structure = jax.tree_util.tree_flatten_with_path(weights_of(params), is_leaf=is_leaf)
    return [path_name(path) for path, _ in paths], [x for _, x in paths], structure


def _arrays(field: Any, structure: Any) -> list[Any] | None:
    """A state's arrays, one a parameter; None where it is of another tree (a part of the parameters)."""
    leaves, own = jax.tree.flatten(weights_of(field))
    return leaves if own == structure else None


def state_of(state: Any, params: Any) -> dict[str, dict[str, Any]]:
    """The state of each parameter as named arrays, for `start_from` of any front.

    Parameters
    ----------
    state : optax state
        Of optax's sgd, adagrad, rmsprop, adam, adamw, amsgrad or lion, and of `from_optim`, in chains too.
    params : tree of arrays and `islices.Table`
        That it is the state of.

    Returns
    -------
    dict of str to dict of str to array
        By parameters' names (keys and positions, joined by dots) and the names of `islices.optim`: "m", "v",
        "accumulator", "momentum" ..., and "step", of shape (1,), where the state counts. Empty where nothing is named.

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
    """An optax state that goes on from what another framework's optimizer has come to.

    Parameters
    ----------
    state : optax state
        What ``tx.init(params)`` returned, in which the arrays are replaced.
    params : tree of arrays and `islices.Table`
    states : dict of str to dict of str to array
        Parameter -> {"step": ..., "m": ..., "v": ...}, by the names of `islices.optim`, arrays of any framework: what
        `state_of` of this front and of torch's and Keras's return, and `islices.load`. All parameters
        have one step count, since optax has one; schedules go on from it too.
    semantics : str, optional
        Whose optimizer the arrays are of, "optax" for optax's own. It has to be said of momentum, which some keep as
        steps, and of amsgrad's maximum. What goes into a state of `from_optim` is taken as it is.
    learning_rate : float, optional
        That of the optimizers, by which momentum of steps and of gradients follow from each other.

    Returns
    -------
    optax state
        A new one, of the same structure.

    Raises
    ------
    TypeError, ValueError
        Parameters that are not there or are missing, arrays of another shape, missing, or that the state does not have;
        a semantics that is not said, or whose maximum is another; momentum that follows by a learning rate, without it.

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
    """The arrays of optax's classes that other frameworks may keep in other terms."""
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
    """held: an array of the shape that is kept for each name; shape: the parameter's, 0-d where one row is kept."""
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
    """A part of a state with other arrays."""
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
    """An array of any framework in place of one of a state."""
    return old if given is old else jnp.asarray(_host(given), old.dtype).reshape(old.shape)


def _host(x: Any) -> np.ndarray[Any, Any]:
    if isinstance(x, (int, float, np.generic)):
        return np.asarray(x)
    return np.asarray(convert(x, "numpy"))
