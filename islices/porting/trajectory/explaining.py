"""Explain the difference at the position where two trainings diverge. This module uses `explain_step` for optimizer
steps with recorded inputs, and `islices.diff` for most other differences.

May import: `numpy`, the core, `islices.porting.compare`, this folder.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from islices.porting.compare.difference import Difference, diff
from islices.porting.compare.explanation import Explanation, Finding
from islices.porting.compare.steps.explain import explain_step
from islices.porting.compare.steps.side import TableStep
from islices.porting.trajectory.distances import same_values, values_of
from islices.porting.trajectory.positions import Leaves, Step, Steps

#: framework -> the semantics of its optimizers
OWN = {"torch": "torch", "keras": "keras", "jax": "optax"}
#: If no cause is found for the table that uses the largest share of its allowance, up to this many of the largest other
#: tables are tried.
LARGER = 2
#: The causes of `diff` that tables and states can also have. The lines of code that fix these causes work only for
#: gradients.
OF_ARRAYS = ("dtype", "factor", "off_by_one", "rounded", "sign")
#: position -> the positions of the same step to compare if no cause is found at this position
OTHERS = {
    "outputs": ("gradients",), "loss": ("gradients",), "step": ("gradients", "clipped"),
    "state": ("gradients", "clipped"),
}  # fmt: skip


#: The options of `diff` that the caller passed: `names` and numbers such as `batch_size`.
Known = dict[str, Any]


def explain(position: str, tensor: str, now: Steps, known: Known) -> tuple[Difference, dict[str, Difference]]:
    """Explain the difference at `position`, and return (that difference, differences at other positions of the step).

    This function compares other positions only if it finds no cause at `position`. The second result is a dict that
    contains only the positions for which a cause was found. `tensor` is the name of the tensor that uses the largest
    share of its allowance.
    """
    found = _position(position, tensor, now, known)
    also = {}
    for other in () if found.causes else OTHERS.get(position, ()):
        if other != "clipped" or any(s.get(other) for s in now):
            also[other] = _position(other, "", now, known)
    sides = now.a.framework, now.b.framework
    named = {name: replace(more, frameworks=sides) for name, more in also.items() if more.causes}
    return replace(found, frameworks=sides), named


def _position(position: str, tensor: str, now: Steps, known: Known) -> Difference:
    if position in ("step", "state"):
        return _step(position, tensor, now, known)
    if position == "between":
        return _all_or_one(tensor, *now.common("tables"), known)
    if position == "start":
        found = _of_arrays(diff(*now.common("tables"), **known))
        if found.tensors and not found.equal:
            return found
        sides = now.common("state")
        states = _of_arrays(diff(*sides, **known))
        return replace(states, causes=states.causes or _begun(*sides, known["names"]))
    if position == "clipped":  # the raw gradients agree, so the loss cannot be the origin of a factor
        before = now.a.get("gradients") or now.b.get("gradients")
        return _unmended(diff(*(s.applied for s in now), before=before, **known), ("factor",))
    (x, y), tables = now.common(position), now.a.get("tables")
    held = tables if position == "gradients" and x.keys() <= tables.keys() else None
    return diff(x, y, tables=held, **known)


def _all_or_one(tensor: str, a: Leaves, b: Leaves, known: Known, instead: Sequence[Explanation] = ()) -> Difference:
    """Explain the difference of tables or states. First compare all tensors together. If `diff` finds no cause, use the
    explanations in `instead`. If `instead` is empty, compare only `tensor`."""
    found = _of_arrays(diff(a, b, **known), instead)
    if found.causes or tensor not in a or tensor not in b:
        return found
    one = _of_arrays(diff({tensor: a[tensor]}, {tensor: b[tensor]}, **known))
    return one if one.causes else found


def _begun(a: Leaves, b: Leaves, names: tuple[str, str]) -> tuple[Explanation, ...]:
    """Return a tuple with the explanation that the states have different initial values. Return an empty tuple unless,
    on each side, all elements of the differing states have the same value."""
    differing = [(values_of(x), values_of(b[name])) for name, x in a.items() if not same_values(x, b[name])]
    begins = [{number for x in side for number in np.unique(x)[:2].tolist()} for side in zip(*differing, strict=True)]
    if [len(numbers) for numbers in begins] != [1, 1]:
        return ()
    (p,), (q,) = begins
    size = sum(x.size for x, _ in differing)
    text = f"initial accumulator: {names[0]} begins with {p:.6g}, {names[1]} with {q:.6g}"
    return (Explanation((Finding("initial_accumulator", text, {"a": p, "b": q, "mends": False}),), True, float(size)),)


def _of_arrays(found: Difference, instead: Sequence[Explanation] = ()) -> Difference:
    """Remove, from the explanations of a difference, those with a cause that only gradients can have, such as clipping.
    If no explanation is left, use those in `instead`. Return the difference, with causes marked as in `_unmended`."""
    kept = [e for e in found.causes if all(c.name in OF_ARRAYS or "step" in c.details for c in e.causes)]
    return _unmended(replace(found, causes=tuple(kept or instead)), OF_ARRAYS)


def _unmended(found: Difference, names: Collection[str]) -> Difference:
    """Mark the causes in `names`, so that reports show no line of code that fixes them, and return the difference.
    Causes of an optimizer step are not marked."""

    def without_fix(c: Finding) -> Finding:
        unknown = c.name in names and "step" not in c.details
        return replace(c, details={**c.details, "mends": False}) if unknown else c

    return replace(found, causes=tuple(replace(e, causes=tuple(map(without_fix, e.causes))) for e in found.causes))


# ---------------------------------------------------------------------- the step
def _step(position: str, tensor: str, now: Steps, known: Known) -> Difference:
    """Explain the difference of a table or a state after the step.

    A small tensor, such as a bias of one element, cannot prove a cause. So if no cause is found for a table, this
    function tries the other tables with the most elements.
    """
    tables = now.a.get("tables")
    name = tensor if tensor in tables else tensor.rpartition(".")[0]
    found = _steps_of(name, now, known)
    if position == "state":
        # the explanation of the tables after a step also explains the states
        x, y = ({k: x for k, x in s.items() if k.startswith(f"{name}.")} for s in now.common("state_after"))
        return _all_or_one(tensor, x, y, known, found.causes)
    larger = sorted((k for k in tables if k != name), key=lambda k: -np.size(tables[k]))[:LARGER]
    others = (_steps_of(k, now, known) for k in (larger if not found.causes else ()))
    return next((more for more in others if more.causes), found)


def _steps_of(name: str, now: Steps, known: Known) -> Difference:
    """Explain the difference of a table after the step. If the inputs of both steps are recorded, compare the
    optimizers of both sides; else compare the tables."""
    one, other = (_table_step(s, name) for s in now)
    if one is not None and other is not None:
        return _of_arrays(explain_step(one, other, name, known["names"]))
    x, y = ({name: s[name]} if name in s else {} for s in now.common("tables_after"))
    return _of_arrays(diff(x, y, **known))


def _table_step(s: Step, name: str) -> TableStep | None:
    """Return the data of a table's step. Return None if the tables or the gradient are not recorded, or if the step is
    not the first and its state is not recorded."""
    step = s.table(name)
    if step.before is None or step.after is None or step.gradient is None or (s.number != 1 and "state" not in s.trees):
        return None
    # before the first step there may be no state, and some optimizers never have one
    state = step.state or {"step": np.array([s.number - 1], np.int32)}
    return replace(step, state=state, optimizer=step.optimizer or {"semantics": OWN.get(s.framework, "")})
