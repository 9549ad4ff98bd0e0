"""What both sides had at the position where they part, handed to `islices.diff` with what they computed it from.

May import: `numpy`, the core, `islices.compare`, this folder.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from islices.compare.difference import STATES_HINT, Difference, diff
from islices.compare.step import Step as Taken
from islices.compare.step import explain_steps
from islices.compare.stored import norm_of, read
from islices.trajectory.moves import Expected
from islices.trajectory.steps import Leaves, Step, rows_named

__all__ = ["Known", "explain"]

#: Framework -> the semantics of its own optimizers.
OWN = {"torch": "torch", "keras": "keras", "jax": "optax", "mxnet": "mxnet"}


#: Other tensors whose steps are explained where that of the tensor that is furthest off is not.
LARGER = 2
#: Causes of gradients that a state may have as well.
OF_STATES = {"dtype", "factor", "off_by_one", "permuted", "rounded", "sign", "transposed"}


@dataclass(frozen=True)
class Known:
    """What the caller says, as `diff` takes it."""

    names: tuple[str, str]
    max_norm: float | None = None
    padding_idx: int | None = None
    batch_size: int | None = None
    tokens: int | None = None

    def check(self) -> None:
        """TypeError or ValueError now, not at the step that stops."""
        self.diff(np.zeros(1, np.float32), np.zeros(1, np.float32))

    def diff(self, a: Any, b: Any, **given: Any) -> Difference:
        """`islices.diff` with what is known."""
        return diff(
            a, b, names=self.names, max_norm=self.max_norm, padding_idx=self.padding_idx, batch_size=self.batch_size,
            tokens=self.tokens, **given,
        )  # fmt: skip


def explain(
    position: str, tensor: str, a: Step, b: Step, expected: Mapping[str, Sequence[Expected]], known: Known
) -> tuple[Difference, dict[str, Difference]]:
    """(the difference at a position, those of others of the step that tell a cause)."""

    def told_to(difference: Difference) -> Difference:
        # recordings have the states that they have: there is nothing to give
        notes = tuple(note for note in difference.notes if note != STATES_HINT)
        return replace(difference, frameworks=(a.framework, b.framework), notes=notes)

    if position in ("step", "state"):
        found = _step(position, tensor, a, b, expected, known)
    else:
        found = _position(position, a, b, known)
    also = {}
    if not found.causes:
        others = {"outputs": ("gradients",), "loss": ("gradients",), "step": ("gradients", "clipped"),
                  "state": ("gradients", "clipped")}  # fmt: skip
        for other in others.get(position, ()):
            if other == "clipped" and not (a.get("clipped") or b.get("clipped")):
                continue
            more = _position(other, a, b, known)
            if more.causes:
                also[other] = more
    return told_to(found), {name: told_to(more) for name, more in also.items()}


def _position(position: str, a: Step, b: Step, known: Known) -> Difference:
    if position == "between":
        return known.diff(*_common(a, b, "tables"))
    if position == "start":
        found = known.diff(*_common(a, b, "tables"))
        return found if found.tensors and not found.equal else known.diff(*_common(a, b, "state"))
    if position == "clipped":
        if known.max_norm is None and (limit := _limit(a) or _limit(b)):
            known = replace(known, max_norm=limit)
        return known.diff(rows_named(a), rows_named(b), before=a.get("gradients") or b.get("gradients"))
    x, y = _common(a, b, position)
    tables = a.get("tables")
    if position == "gradients" and tables is not None and all(name in tables for name in x):
        return known.diff(x, y, tables=tables)
    return known.diff(x, y)


def _limit(s: Step) -> float | None:
    """What a side has clipped the norm of its gradients to, to six digits; None where it left them as they were."""
    if not s.get("gradients") or not s.get("clipped"):
        return None
    raw, clipped = (
        norm_of([read(x, name, position).values for name, x in (s.get(position) or {}).items()])
        for position in ("gradients", "clipped")
    )
    return float(f"{clipped:.6g}") if 0 < clipped < raw * (1 - 2.0**-10) else None


def _step(
    position: str, tensor: str, a: Step, b: Step, expected: Mapping[str, Sequence[Expected]], known: Known
) -> Difference:
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
        states = known.diff(*({k: x for k, x in side.items() if k.startswith(f"{name}.")}
                              for side in _common(a, b, "state_after")))  # fmt: skip
        # what explains the tables after a step explains its states, which nobody clips or regularises
        own = tuple(cause for cause in states.causes if set(cause.names) <= OF_STATES)
        return replace(states, causes=own or (found.causes if found is not None else ()))
    if found is not None and found.causes:
        return found
    return _from_one_start(name, a, b, expected, known)


def _steps_of(name: str, a: Step, b: Step, known: Known) -> Difference | None:
    """Each side's step of a tensor explained by itself; None where what they began with is not known."""
    sides = [_taken(s, name) for s in (a, b)]
    if sides[0] is None or sides[1] is None or not all(s.number == 1 or s.get("state") for s in (a, b)):
        return None
    return explain_steps(sides[0], sides[1], names=known.names, padding_idx=known.padding_idx)


def _taken(s: Step, name: str) -> Taken | None:
    trees = [(s.get(position) or {}).get(name) for position in ("tables", "tables_after")]
    gradient = rows_named(s).get(name)
    if gradient is None or any(x is None for x in trees):
        return None
    states = [_nested(s.get(position), name) for position in ("state", "state_after")]
    if states[0] is None and s.number == 1:
        states[0] = {name: {"step": np.zeros(1, np.int32)}}
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


def _from_one_start(
    name: str, a: Step, b: Step, expected: Mapping[str, Sequence[Expected]], known: Known
) -> Difference:
    """By a known formula from what one side had; else b's movement from where a stood."""
    tables = [(s.get(position) or {})[name] for position in ("tables", "tables_after") for s in (a, b)]
    w, v, w_after, v_after = map(np.asarray, tables)
    should = _furthest(expected.get(name, ()), (w_after, v_after))
    gradient = rows_named((a, b)[should.side] if should is not None else a).get(name)
    if should is None:
        sides, start = [w_after, _moved(w, v, v_after)], w
    else:
        sides, start = [w_after, v_after], (w, v)[should.side]
        sides[1 - should.side] = should.table.reshape(w.shape)
    grad = None if gradient is None else {name: gradient}
    return known.diff({name: sides[0]}, {name: sides[1]}, before={name: start}, grad=grad)


def _furthest(expected: Sequence[Expected], after: Sequence[Any]) -> Expected | None:
    """Of what each side should have by the other's formula, what is furthest off."""
    return max(
        expected, key=lambda one: float(np.nanmax(np.abs(after[one.side] - one.table.reshape(after[one.side].shape)))),
        default=None,
    )  # fmt: skip


def _moved(start: np.ndarray[Any, Any], before: np.ndarray[Any, Any], after: np.ndarray[Any, Any]) -> Any:
    """A side's movement taken from where the other stood: what they were apart before is no cause."""
    moved = after.astype(np.float64) - before.astype(np.float64)
    return np.where(moved == 0, start, (start.astype(np.float64) + moved).astype(start.dtype))


def _common(a: Step, b: Step, position: str) -> tuple[dict[str, Any], dict[str, Any]]:
    x, y = a.get(position) or {}, b.get(position) or {}
    both = [name for name in x if name in y]
    return {name: x[name] for name in both}, {name: y[name] for name in both}
