"""Pass both sides at the position where they diverge to `islices.diff`, with the input of their computation.

May import: `numpy`, the core, `islices.porting.compare`, this folder.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from islices.porting.compare.difference import Difference, diff
from islices.porting.compare.explanation import Explanation, Finding
from islices.porting.compare.step import explain_step
from islices.porting.compare.steps.side import TableStep
from islices.porting.trajectory.distances import same_values
from islices.porting.trajectory.positions import Leaves, Step, common, rows_named

#: {a framework: the semantics of its optimizers}
OWN = {"torch": "torch", "keras": "keras", "jax": "optax"}
#: The number of other tensors to explain if the step of the furthest tensor has no explanation.
LARGER = 2
#: Causes of gradients that tables and states may have as well; their fix is unknown there.
OF_ARRAYS = ("dtype", "factor", "off_by_one", "rounded", "sign")
#: For some positions, other positions of the step that may show the cause.
OTHERS = {
    "outputs": ("gradients",), "loss": ("gradients",), "step": ("gradients", "clipped"),
    "state": ("gradients", "clipped"),
}  # fmt: skip


#: The options of `diff` that the caller gives: names and numbers.
Known = dict[str, Any]


def explain(position: str, tensor: str, a: Step, b: Step, known: Known) -> tuple[Difference, dict[str, Difference]]:
    """Return the difference at a position, and the differences at other positions of the step that name a cause."""
    found = _position(position, tensor, a, b, known)
    also = {}
    for other in () if found.causes else OTHERS.get(position, ()):
        if other != "clipped" or a.get(other) or b.get(other):
            also[other] = _position(other, "", a, b, known)
    sides = a.framework, b.framework
    named = {name: replace(more, frameworks=sides) for name, more in also.items() if more.causes}
    return replace(found, frameworks=sides), named


def _position(position: str, tensor: str, a: Step, b: Step, known: Known) -> Difference:
    if position in ("step", "state"):
        return _step(position, tensor, a, b, known)
    if position == "between":
        return _all_or_one(tensor, *common(a, b, "tables"), known)
    if position == "start":
        found = diff(*common(a, b, "tables"), **known)
        if found.tensors and not found.equal:
            return _of_arrays(found)
        sides = common(a, b, "state")
        states = _of_arrays(diff(*sides, **known))
        return replace(states, causes=states.causes or _begun(*sides, known["names"]))
    if position == "clipped":  # raw gradients agree, so a factor does not come from the loss
        before = a.get("gradients") or b.get("gradients")
        return _unmended(diff(rows_named(a), rows_named(b), before=before, **known), ("factor",))
    x, y = common(a, b, position)
    tables = a.get("tables")
    return diff(x, y, tables=tables if position == "gradients" and x.keys() <= tables.keys() else None, **known)


def _all_or_one(tensor: str, a: Leaves, b: Leaves, known: Known, instead: Sequence[Explanation] = ()) -> Difference:
    """Explain tensors without clipping or regularizers, first together, then only the one that is furthest off."""
    found = _of_arrays(diff(a, b, **known), instead)
    if found.causes or tensor not in a or tensor not in b:
        return found
    one = _of_arrays(diff({tensor: a[tensor]}, {tensor: b[tensor]}, **known))
    return one if one.causes else found


def _begun(a: Leaves, b: Leaves, names: tuple[str, str]) -> tuple[Explanation, ...]:
    """Return the explanation of states that begin with one number per side, if these numbers differ."""
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
    """Return the difference without causes that only gradients have, for arrays without clipping or regularizers."""
    kept = [e for e in found.causes if all(c.name in OF_ARRAYS or "step" in c.details for c in e.causes)]
    return _unmended(replace(found, causes=tuple(kept or instead)), OF_ARRAYS)


def _unmended(found: Difference, names: Collection[str]) -> Difference:
    """Return the difference without the lines that fix some causes."""

    def without_fix(c: Finding) -> Finding:
        unknown = c.name in names and "step" not in c.details
        return replace(c, details={**c.details, "mends": False}) if unknown else c

    return replace(found, causes=tuple(replace(e, causes=tuple(map(without_fix, e.causes))) for e in found.causes))


# ---------------------------------------------------------------------- the step
def _step(position: str, tensor: str, a: Step, b: Step, known: Known) -> Difference:
    """Explain the step of the tensor that is furthest off.

    If that tensor is too small to prove a cause, like a bias of one element, use those with the most elements.
    """
    tables = a.get("tables")
    name = tensor if tensor in tables else tensor.rpartition(".")[0]
    found = _steps_of(name, a, b, known)
    if position == "state":
        # the explanation of the tables after a step also explains the states
        x, y = ({k: x for k, x in s.items() if k.startswith(f"{name}.")} for s in common(a, b, "state_after"))
        return _all_or_one(tensor, x, y, known, found.causes)
    larger = sorted((k for k in tables if k != name), key=lambda k: -np.size(tables[k]))[:LARGER]
    others = (_steps_of(k, a, b, known) for k in (larger if not found.causes else ()))
    return next((more for more in others if more.causes), found)


def _steps_of(name: str, a: Step, b: Step, known: Known) -> Difference:
    """Explain each side's step of a tensor separately, if the inputs of both are known."""
    one, other = (_table_step(s, name) for s in (a, b))
    if one is not None and other is not None:
        return _of_arrays(explain_step(one, other, name, known["names"]))
    x, y = ({name: s[name]} if name in s else {} for s in common(a, b, "tables_after"))
    return _of_arrays(diff(x, y, **known))


def _table_step(s: Step, name: str) -> TableStep | None:
    before, after = (s.get(position).get(name) for position in ("tables", "tables_after"))
    gradient, state = rows_named(s).get(name), s.array_state("state", name)
    if before is None or after is None or gradient is None or (s.number != 1 and "state" not in s.trees):
        return None
    if not state:  # none before the first step, or none at all
        state = {"step": np.array([s.number - 1], np.int32)}
    description = s.optimizers.get(name, s.optimizers.get("")) or {"semantics": OWN.get(s.framework, "")}
    return TableStep(before, after, gradient, state, s.array_state("state_after", name), description)
