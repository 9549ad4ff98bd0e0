"""What both sides had at the position where they part, handed to `islices.diff` with what they computed it from.

May import: `numpy`, the core, `islices.porting.compare`, this folder.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np

from islices.porting.compare.difference import STATES_HINT, Difference, compare_clipped, diff
from islices.porting.compare.explanation import Explanation, Finding
from islices.porting.compare.step import Step as Taken
from islices.porting.compare.step import explain_steps
from islices.porting.compare.stored import norm_of, read
from islices.porting.compare.why import is_last
from islices.porting.trajectory.descriptions import array_name
from islices.porting.trajectory.distances import same_values
from islices.porting.trajectory.positions import Leaves, Step, common, rows_named

__all__ = ["Known", "explain"]

#: Framework -> the semantics of its own optimizers.
OWN = {"torch": "torch", "keras": "keras", "jax": "optax"}

#: Other tensors whose steps are explained where that of the tensor that is furthest off is not.
LARGER = 2
#: What running means of gradients and of their squares decay by.
BETAS = {"m": "beta1", "v": "beta2"}
#: Causes of gradients that tables and states may have as well; what mends them there is not known.
OF_ARRAYS = {"dtype", "factor", "off_by_one", "permuted", "rounded", "sign", "transposed"}


#: The options of `diff` that the caller gives: names and numbers.
Known = dict[str, Any]


def explain(position: str, tensor: str, a: Step, b: Step, known: Known) -> tuple[Difference, dict[str, Difference]]:
    """Return the difference at a position, and those at other positions of the step that name a cause."""

    def told_to(difference: Difference) -> Difference:
        # recordings have the states that they have: there is nothing to give
        notes = tuple(note for note in difference.notes if note != STATES_HINT)
        return replace(difference, frameworks=(a.framework, b.framework), notes=notes)

    if position in ("step", "state"):
        found = _step(position, tensor, a, b, known)
    else:
        found = _position(position, tensor, a, b, known)
    also = {}
    if not found.causes:
        others = {"outputs": ("gradients",), "loss": ("gradients",), "step": ("gradients", "clipped"),
                  "state": ("gradients", "clipped")}  # fmt: skip
        for other in others.get(position, ()):
            if other == "clipped" and not (a.get("clipped") or b.get("clipped")):
                continue
            more = _position(other, "", a, b, known)
            if more.causes:
                also[other] = more
    return told_to(found), {name: told_to(more) for name, more in also.items()}


def _position(position: str, tensor: str, a: Step, b: Step, known: Known) -> Difference:
    if position == "between":
        return _all_or_one(tensor, *common(a, b, "tables"), known)
    if position == "start":
        found = diff(*common(a, b, "tables"), **known)
        if found.tensors and not found.equal:
            return _of_arrays(found)
        sides = common(a, b, "state")
        states = _of_arrays(diff(*sides, **known))
        return replace(states, causes=states.causes or _begun(*sides, known["names"]))
    if position == "clipped":
        return _clipped(a, b, known)
    x, y = common(a, b, position)
    tables = a.get("tables")
    if position == "gradients" and tables is not None and all(name in tables for name in x):
        return diff(x, y, tables=tables, **known)
    return diff(x, y, **known)


def _all_or_one(tensor: str, a: Leaves, b: Leaves, known: Known, instead: Sequence[Explanation] = ()) -> Difference:
    """What nobody clips or regularises: all tensors together, then the one that is furthest off."""
    found = _of_arrays(diff(a, b, **known), instead)
    if found.causes or tensor not in a or tensor not in b:
        return found
    one = _of_arrays(diff({tensor: a[tensor]}, {tensor: b[tensor]}, **known))
    return one if one.causes else found


def _begun(a: Leaves, b: Leaves, names: tuple[str, str]) -> tuple[Explanation, ...]:
    """States that begin with another number each, the same in all their elements."""
    begins: list[set[float]] = [set(), set()]
    size = 0
    for name, x in a.items():
        if not same_values(x, b[name]):
            size += x.size if isinstance(x, np.ndarray) else x.values.size
            for side, leaf in zip(begins, (x, b[name]), strict=True):
                side |= set(np.unique(leaf if isinstance(leaf, np.ndarray) else leaf.values)[:2].tolist())
    if any(len(side) != 1 for side in begins):
        return ()
    p, q = (side.pop() for side in begins)
    text = f"initial accumulator: {names[0]} begins with {p:.6g}, {names[1]} with {q:.6g}"
    return (Explanation((Finding("initial_accumulator", text, {"a": p, "b": q, "mends": False}),), True, float(size)),)


def _of_arrays(found: Difference, instead: Sequence[Explanation] = ()) -> Difference:
    """Of what nobody clips or regularises: without causes that gradients alone have."""
    kept = []
    for e in found.causes:
        if all(c.name in OF_ARRAYS or "step" in c.details for c in e.causes):
            kept.append(replace(e, causes=tuple(c if "step" in c.details else _unmended(c) for c in e.causes)))
    return replace(found, causes=tuple(kept or instead))


def _unmended(cause: Finding) -> Finding:
    return replace(cause, details={**cause.details, "mends": False})


def _clipped(a: Step, b: Step, known: Known) -> Difference:
    """The clipped gradients: to a limit that is said, or that a side's norms show, or to a round number."""
    before = a.get("gradients") or b.get("gradients")
    limits = (known["max_norm"],) if known["max_norm"] is not None else chain((None,), _limits(a, b))
    found = []
    for limit in limits:
        one = compare_clipped(rows_named(a), rows_named(b), before, **{**known, "max_norm": limit})
        if one.causes and not any(map(is_last, one.causes[0].causes)):
            return one
        found.append(one)
    one = next((one for one in found if one.causes), found[0])
    # raw gradients agree, so that it is no factor of the loss
    return replace(
        one,
        causes=tuple(replace(e, causes=tuple(_unmended(c) if is_last(c) else c for c in e.causes)) for e in one.causes),
    )


def _limits(a: Step, b: Step) -> Iterator[float]:
    """What the sides may have clipped the norm of their gradients to, to six digits: of all tensors, and of one."""
    found: set[float] = set()
    for s in (a, b):
        raw, clipped = ([norm_of([read(x, name, position).values]) for name, x in (s.get(position) or {}).items()]
                        for position in ("gradients", "clipped"))  # fmt: skip
        pairs = (math.hypot(*raw), math.hypot(*clipped)), (max(raw, default=0.0), max(clipped, default=0.0))
        for before, after in pairs:
            limit = float(f"{after:.6g}")
            if 0 < after < before * (1 - 2.0**-10) and limit not in found:
                found.add(limit)
                yield limit


def _step(position: str, tensor: str, a: Step, b: Step, known: Known) -> Difference:
    """The step of the tensor that is furthest off: of each side by itself, then from one start. Where that one is too
    small to prove a cause, a bias of one element, those with the most elements are asked."""
    name = tensor if tensor in (a.get("tables") or {}) else tensor.rpartition(".")[0]
    found = _steps_of(name, a, b, known)
    if position == "step" and (found is None or not found.causes):
        sizes = {k: x.size for k, x in (a.get("tables") or {}).items() if k != name and isinstance(x, np.ndarray)}
        for larger in sorted(sizes, key=sizes.__getitem__, reverse=True)[:LARGER]:
            more = _steps_of(larger, a, b, known)
            if more is not None and more.causes:
                return more
    if position == "state":
        return _states(name, tensor, a, b, known, () if found is None else found.causes)
    if found is not None and found.causes:
        return found
    return _from_one_start(name, a, b, known, found is not None)


def _states(name: str, array: str, a: Step, b: Step, known: Known, of_step: Sequence[Explanation]) -> Difference:
    """The arrays of a tensor's state together, then the one that is furthest off; what explains the tables after a
    step, of_step, explains its states."""
    x, y = ({k: x for k, x in s.items() if k.startswith(f"{name}.")} for s in common(a, b, "state_after"))
    found = _all_or_one(array, x, y, known, of_step)
    beta = BETAS.get(array_name(array.removeprefix(f"{name}.")))
    if len(found.tensors) > 1 or beta is None or a.number != 1 or b.number != 1:
        return found
    text = f"; after a first step that is a mean of gradients times 1 - {beta}"
    told = [replace(e, causes=tuple(replace(c, text=c.text + text) for c in e.causes)) for e in found.causes]
    return replace(found, causes=tuple(told))


def _steps_of(name: str, a: Step, b: Step, known: Known) -> Difference | None:
    """Each side's step of a tensor explained by itself; None where what they began with is not known."""
    sides = [_taken(s, name) for s in (a, b)]
    if sides[0] is None or sides[1] is None or not all(s.number == 1 or s.get("state") is not None for s in (a, b)):
        return None
    return _of_arrays(explain_steps(sides[0], sides[1], names=known["names"], padding_idx=known["padding_idx"]))


def _taken(s: Step, name: str) -> Taken | None:
    trees = [(s.get(position) or {}).get(name) for position in ("tables", "tables_after")]
    gradient = rows_named(s).get(name)
    if gradient is None or any(x is None for x in trees):
        return None
    states = [_nested(s.get(position), name) for position in ("state", "state_after")]
    if states[0] is None:  # none before the first step, or none at all
        states[0] = {name: {"step": np.array([s.number - 1], np.int32)}}
    return Taken({name: trees[0]}, {name: trees[1]}, {name: gradient}, states[0], states[1], _said(s, name))


def _said(s: Step, name: str) -> dict[str, Any]:
    """What is said to step a tensor; its framework's own semantics where nothing is."""
    said = next((s.optimizers[key] for key in (name, "") if key in s.optimizers), None)
    if said is None:
        return {"semantics": OWN.get(s.framework, "")}
    return dict(said) if isinstance(said, Mapping) else {k: getattr(said, k) for k in ("name", "semantics", "rows")}


def _nested(leaves: Leaves | None, name: str) -> dict[str, dict[str, Any]] | None:
    start = f"{name}."
    found = {key[len(start) :]: x for key, x in (leaves or {}).items() if key.startswith(start)}
    return {name: found} if found else None


def _from_one_start(name: str, a: Step, b: Step, known: Known, asked: bool) -> Difference:
    """Compare b's movement, from where a stood, with a's. asked: no optimizer explains the steps."""
    w, v, w_after, v_after = (np.asarray((s.get(k) or {})[name]) for k in ("tables", "tables_after") for s in (a, b))
    gradient = None if asked else rows_named(a).get(name)
    grad = None if gradient is None else {name: gradient}
    found = diff({name: w_after}, {name: _moved(w, v, v_after)}, before={name: w}, grad=grad, **known)
    return _of_arrays(found) if asked else found


def _moved(start: np.ndarray[Any, Any], before: np.ndarray[Any, Any], after: np.ndarray[Any, Any]) -> Any:
    """A side's movement taken from where the other stood: what they were apart before is no cause."""
    moved = after.astype(np.float64) - before.astype(np.float64)
    return np.where(moved == 0, start, (start.astype(np.float64) + moved).astype(start.dtype))
