"""Define `judge`, which compares any step function with a documented formula. See SPEC clause 28.

May import: `numpy`, `islices.core.slices`, this folder, `islices.conformance.formulas.records`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import Any

import numpy as np

from islices.conformance.formulas.causes import cause_of
from islices.conformance.formulas.evaluate import Trajectory, initial_state
from islices.conformance.formulas.formula import Formula
from islices.conformance.formulas.inputs import Bags, Rows, inputs
from islices.conformance.formulas.judgement import Judgement
from islices.conformance.formulas.records import FORMULAS
from islices.conformance.formulas.scores import Got, Score, score_of
from islices.conformance.formulas.trajectories import trajectories
from islices.core.slices import IndexedSlices

Array = np.ndarray[Any, Any]
#: (weights, gradient, state, t, **options) -> None, weights, or (weights, state)
Step = Callable[..., Any]


def formula_of(name: str) -> Formula:
    """Return the formula with the given name. If no formula has this name, raise a ValueError that lists the most
    similar names, or all names if none is similar. Raise TypeError if `name` is not a string."""
    if not isinstance(name, str):
        raise TypeError(f"formula: got {type(name).__name__}; accepted is a name such as 'torch.AdamW'")
    if name in FORMULAS:
        return FORMULAS[name]
    by_lower = {known.lower(): known for known in FORMULAS}
    near = [by_lower[x] for x in get_close_matches(name.lower(), by_lower, n=3, cutoff=0.5)]
    more = f"did you mean {', '.join(near)}?" if near else f"accepted are {', '.join(FORMULAS)}"
    raise ValueError(f"formula: got {name!r}; {more}")


def judge(step: Step, formula: str) -> Judgement:
    """Compare a step function with the formula that a framework documents.

    Parameters
    ----------
    step : callable
        ``step(weights, grad, state, t, **options)``. ``weights`` is a float32 array of shape (rows, columns), which the
        function may change. For dense gradients, ``grad`` is an array of the same shape. For formulas of row-sparse
        gradients, ``grad`` is an `islices.IndexedSlices` of NumPy arrays; rows may repeat. For clips of several
        tensors, ``grad`` is a list of arrays. For lookups, ``grad`` is an object with the arrays ``ids``, ``offsets``,
        ``weights`` (or None) and ``upstream``. ``state`` is a dict, the same object in all steps of a trajectory unless
        the function returns another. At the start, ``state`` contains all state arrays of the formula (the command
        ``islices judge --list`` lists them). State arrays are float32 and have the shape of the weights, or (rows, 1)
        for one number per row. The function may store anything in ``state``. ``t`` is the step, counted from 1.
        ``options`` are the formula's options at this step, for example lr. Options that the function does not accept
        are omitted, and trajectories that need them count as unsupported. Trajectories in which the function raises
        NotImplementedError also count as unsupported. The function returns the new weights, or (weights, state), or
        None if it has changed the weights in place. A clip returns the gradient instead of the weights, unless the
        formula clips rows of the table. A lookup returns the output, the gradient of the table, or the gradient of the
        weights of ids, depending on the formula.
    formula : str
        The name of a formula, for example ``"torch.AdamW"``.

    Returns
    -------
    Judgement
        The result. Its main attributes are ``passed``, ``grade``, ``scores`` and ``cause``. ``str()`` returns the
        report as text.

    Raises
    ------
    TypeError
        The step is not callable, has too few parameters, or requires an option that the formula does not have; or
        `formula` is not a string.
    ValueError
        The formula does not exist, or the step returns an invalid tuple or an array with a wrong shape or dtype. The
        dtypes float32 and float64 are accepted.

    Notes
    -----
    A score is the error divided by the bound of clause 28 for a grade. The score of grade 2 is at most 1 for every
    faithful float32 evaluation, in any order of sums, with or without FMA. The score of grade 1 is at most 1 if the
    evaluation also computes scalars in float64. If the function raises an exception other than
    NotImplementedError, `judge` passes it on with a note that names the trajectory.

    Examples
    --------
    >>> from islices.conformance import judge
    >>> def step(w, g, state, t, *, lr, momentum, **options):
    ...     state["momentum"] = momentum * state["momentum"] + g if momentum else None
    ...     return w - lr * (g if not momentum else state["momentum"])
    >>> print(judge(step, formula="optax.sgd").cause)
    nesterov ignored
    """
    record = formula_of(formula)
    takes = options_of(step, record)
    scores: list[Score] = []
    gots: list[tuple[Trajectory, Got]] = []
    unsupported: dict[str, str] = {}
    judged: set[str] = set()
    known: dict[str, None] = {}
    for trajectory in trajectories(record):
        missing = _missing(trajectory, takes)
        try:
            if missing:
                raise NotImplementedError(f"the step takes no {', '.join(missing)}")
            got = run(step, trajectory, takes)
        except NotImplementedError as error:
            unsupported[trajectory.name] = str(error) or "NotImplementedError"
            continue
        gots.append((trajectory, got))
        right = trajectory.expected
        judged.update(name for arrays in got.values() for name in arrays)
        known.update(dict.fromkeys(name for arrays in right.values() for name in arrays))
        scores.extend(score_of(trajectory.name, got, right))
    found = Judgement(record, tuple(scores), unsupported, tuple(x for x in known if x not in judged))
    if found.passed or not gots:
        return found
    return replace(found, cause=UNMOVED if unmoved(record, gots) else cause_of(record, gots))


#: The cause in the report if no step has changed the weights.
UNMOVED = "the weights are those that came: a step returns them, or changes them in place (w -= ..., w[:] = ...)"


def unmoved(formula: Formula, gots: Sequence[tuple[Trajectory, Got]]) -> bool:
    """Return True if the weights at every checkpoint are the initial weights. Return False if the formula's result is
    not the weights."""
    return formula.gives == "weights" and all(
        np.array_equal(arrays["weights"], inputs(trajectory.inputs).weights)
        for trajectory, got in gots
        for arrays in got.values()
    )


# ---------------------------------------------------------------------- running it
def run(step: Step, trajectory: Trajectory, takes: frozenset[str] | None = None) -> Got:
    """Run a step function over a trajectory. Return {checkpoint: {name of the result or of a state: array}}.

    `takes` are the accepted options, or None for all. State arrays that the function neither returned nor changed are
    left out.
    """
    made = inputs(trajectory.inputs)
    w: Array = made.weights.copy()
    h = trajectory.formula.hyper(trajectory.options(1))
    start = initial_state(trajectory.formula, h, w.shape)
    state: Any = initial_state(trajectory.formula, h, w.shape, unused=True)
    begins_with = ", ".join(state) or "nothing"
    gives, found, returned = trajectory.formula.gives, dict[int, dict[str, Array]](), False
    for t, g in enumerate(made.gradients, 1):
        options = {k: v for k, v in trajectory.options(t).items() if takes is None or k in takes}
        try:
            own_g = _gradient(g, w.shape, several=trajectory.formula.several)
            result = step(w, own_g, state, t, **options)
            if isinstance(result, tuple):
                result, state = _pair(result)
                returned = True
            if result is None:
                result = w if gives == "weights" else own_g
            x = _array(gives, _joined(result) if trajectory.formula.several else result, _shape(gives, g, w))
            requested = start if t in made.checkpoints else {}
            own = {
                name: _array(name, state[name], x.shape) for name, x in requested.items() if state.get(name) is not None
            }
        except BaseException as error:
            error.add_note(f"{trajectory.formula.name}, trajectory {trajectory.name!r}, step {t}")
            if isinstance(error, KeyError):
                error.add_note(f"the state begins with {begins_with}")
            raise
        w = np.array(x if gives == "weights" else made.weights)  # a copy, because frameworks return read-only arrays
        if t in made.checkpoints:
            kept = {n: x.copy() for n, x in own.items() if returned or not np.array_equal(x, start[n])}
            found[t] = {gives: x.copy(), **kept}
    return found


#: The shapes of the tensors of a gradient with several tensors. Each row of the vectors' array becomes one tensor.
TENSORS = ((8,), (2, 4), (8, 1))


def _gradient(g: Any, shape: tuple[int, ...], *, several: bool = False) -> Any:
    """Return a copy of the gradient, or of the lookups, in the form that the step function gets."""
    if isinstance(g, Rows):
        return IndexedSlices(g.values.copy(), g.indices.copy(), shape)
    if isinstance(g, Bags):
        return Bags(g.ids.copy(), g.offsets.copy(), None if g.weights is None else g.weights.copy(), g.upstream.copy())
    return [row.copy().reshape(own) for row, own in zip(g, TENSORS, strict=True)] if several else g.copy()


def _joined(tensors: Any) -> Array:
    """Return an array whose rows are the given tensors. Raise ValueError if the tensors do not have the shapes
    `TENSORS`."""
    found = [_plain(x) for x in tensors] if isinstance(tensors, list | tuple) else []
    if [x.shape for x in found] != list(TENSORS):
        came = ", ".join(str(x.shape) for x in found) or type(tensors).__name__
        raise ValueError(f"gradient: got {came}; accepted are arrays of shapes {', '.join(map(str, TENSORS))}")
    return np.stack([x.reshape(-1) for x in found])


def _shape(gives: str, g: Any, w: Array) -> tuple[int, ...]:
    if isinstance(g, Bags) and gives != "gradient":
        return (len(g.ids), 1) if gives == "weight_gradient" else (len(g.upstream), w.shape[1])
    shape: tuple[int, ...] = w.shape
    return shape


def _plain(x: Any) -> Array:
    """Return x as a NumPy array. Row-sparse slices become a dense array in which duplicates are summed."""
    if isinstance(x, IndexedSlices):
        dense = np.zeros([n or 0 for n in x.dense_shape], np.float32)
        np.add.at(dense, x.indices, x.values)
        return dense
    return np.asarray(x.detach() if hasattr(x, "detach") else x)


def _pair(result: tuple[Any, ...]) -> tuple[Any, Any]:
    if len(result) != 2 or not isinstance(result[1], Mapping):
        raise ValueError(
            f"step: got a tuple of {', '.join(type(x).__name__ for x in result)}; accepted are None, weights, "
            "(weights, state) with a dict for the state"
        )
    return result


def _array(name: str, x: Any, shape: tuple[int, ...]) -> Array:
    found = _plain(x)
    if shape[1] == 1 and found.shape == shape[:1]:
        found = found.reshape(shape)  # one number per row may be returned as a vector
    if found.shape != shape or found.dtype.kind != "f" or found.dtype.itemsize < 4:
        raise ValueError(f"{name}: got {found.dtype}{list(found.shape)}; accepted is float32{list(shape)}")
    return found


# ---------------------------------------------------------------------- options
def options_of(step: Step, formula: Formula) -> frozenset[str] | None:
    """Return the names of the options that a step function accepts. Return None if the function accepts all options or
    has no signature. Raise TypeError if `judge` cannot call the function."""
    if not callable(step):
        raise TypeError(f"step: got {type(step).__name__}; accepted is a callable")
    try:
        parameters = list(inspect.signature(step).parameters.values())
    except (TypeError, ValueError):  # builtins have no signature
        return None
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    few = len(positional) < 4 and not any(p.kind is p.VAR_POSITIONAL for p in parameters)
    rest = [p for p in parameters if p not in positional[:4] and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    lacking = [p.name for p in rest if p.default is p.empty and p.name not in formula.options]
    if few or lacking:
        requests = f"it takes {len(positional)} arguments by place" if few else f"it asks for {', '.join(lacking)}"
        raise TypeError(
            f"step: got one that cannot be called, {requests}; accepted is step(weights, grad, state, t, *, "
            f"{', '.join(formula.options)}), less options that it has not"
        )
    return None if any(p.kind is p.VAR_KEYWORD for p in parameters) else frozenset(p.name for p in rest)


def _missing(trajectory: Trajectory, takes: frozenset[str] | None) -> list[str]:
    """Return the options that the step function does not accept, although the trajectory sets them to a value other
    than 0, False or None."""
    if takes is None:
        return []
    return [name for name, value in trajectory.given.items() if name not in takes and value]
