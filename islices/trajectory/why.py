"""What both sides had at the position where they part, handed to `islices.diff` with what they computed it from.

May import: `numpy`, the core, `islices.compare`, this folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from islices.compare.difference import Difference, diff
from islices.trajectory.moves import Expected
from islices.trajectory.steps import Leaves, Step, rows_named

__all__ = ["Known", "explain"]


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
    position: str, a: Step, b: Step, expected: Mapping[str, Expected], known: Known
) -> tuple[Difference, dict[str, Difference]]:
    """(the difference at a position, those of others of the step that tell a cause)."""
    found = _difference(position, a, b, expected, known)
    also = {}
    if not found.causes:
        for other in {"outputs": ("gradients",), "loss": ("gradients",), "step": ("gradients", "clipped"),
                      "state": ("gradients", "clipped")}.get(position, ()):  # fmt: skip
            if _common(a, b, other) is not None:
                more = _difference(other, a, b, expected, known)
                if more.causes:
                    also[other] = more
    return found, also


def _difference(position: str, a: Step, b: Step, expected: Mapping[str, Expected], known: Known) -> Difference:
    if position == "start":
        tables = _common(a, b, "tables")
        found = None if tables is None else known.diff(*tables)
        states = _common(a, b, "state")
        return found if found is not None and (not found.equal or states is None) else known.diff(*(states or ({}, {})))
    if position in ("step", "state"):
        return _step(position, a, b, expected, known)
    x, y = _common(a, b, position) or (rows_named(a), rows_named(b))
    if position == "clipped":
        return known.diff(rows_named(a), rows_named(b), before=a.get("gradients") or b.get("gradients"))
    return known.diff(x, y)


def _step(position: str, a: Step, b: Step, expected: Mapping[str, Expected], known: Known) -> Difference:
    """Both sides' steps from one start: by a known formula from b's own, else b's movement from where a stood."""
    if position == "state":
        return known.diff(*(_common(a, b, "state_after") or ({}, {})))
    before, after = (s.get("tables") or {} for s in (a, b)), (s.get("tables_after") or {} for s in (a, b))
    (w, v), (w_after, v_after) = tuple(before), tuple(after)
    start, left, right = {}, {}, {}
    gradient: Leaves = {}
    for name in w_after.keys() & v_after.keys():
        arrays = (w.get(name), v.get(name), w_after[name], v_after[name])
        if not all(isinstance(x, np.ndarray) for x in arrays):
            continue
        should = expected.get(name)
        of = (a, b)[should.side] if should is not None else a
        if should is not None:
            sides = [w_after[name], v_after[name]]
            sides[1 - should.side] = should.table.reshape(np.shape(sides[0]))
            left[name], right[name] = sides
            start[name] = (w, v)[should.side][name]
        else:
            left[name], start[name] = w_after[name], w[name]
            right[name] = _moved(np.asarray(w[name]), np.asarray(v[name]), np.asarray(v_after[name]))
        named = rows_named(of).get(name)
        if named is not None:
            gradient[name] = named
    return known.diff(left, right, before=start, grad=gradient or None)


def _moved(start: np.ndarray[Any, Any], before: np.ndarray[Any, Any], after: np.ndarray[Any, Any]) -> Any:
    """A side's movement taken from where the other stood: what they were apart before is no cause."""
    moved = after.astype(np.float64) - before.astype(np.float64)
    return np.where(moved == 0, start, (start.astype(np.float64) + moved).astype(start.dtype))


def _common(a: Step, b: Step, position: str) -> tuple[dict[str, Any], dict[str, Any]] | None:
    x, y = a.get(position), b.get(position)
    if x is None or y is None:
        return None
    both = [name for name in x if name in y]
    return ({name: x[name] for name in both}, {name: y[name] for name in both}) if both else None
