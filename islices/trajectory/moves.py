"""A step's movement, element by element: tables and the optimizer's state after it, from what both were before.

May import: `numpy`, the core below `islices.io`, `islices.compare.stored`, this folder.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from islices.compare.stored import bits_equal
from islices.dtypes import dtype_name
from islices.trajectory.drift import MOST, ROUNDINGS, apart, beside, eps_of, norm, relative, summed
from islices.trajectory.replay import OWN_MEANING, Replay, array_name, optimizer_from
from islices.trajectory.steps import Leaves, Step, rows_named
from islices.trajectory.verdict import Found

__all__ = ["Moves"]

Array = np.ndarray[Any, Any]
Pair = tuple[Array, Array]
Steps = tuple[Step, Step]


@dataclass
class Formula:
    """One side's optimizer of a tensor, and its steps on what either side had."""

    said: Any
    replays: tuple[Replay, Replay]


@dataclass(frozen=True, eq=False)
class Expected:
    """What one side (0: a, 1: b) should have after a step, by the other's formula."""

    side: int
    table: Array
    state: Mapping[str, Any]


class Moves:
    """Judges what steps make of tables and states.

    Parameters
    ----------
    optimizers : (mapping, mapping)
        What the caller says steps a's and b's tensors.

    Attributes
    ----------
    expected : dict of str to list of Expected
        Of tensors whose formula is known, what a side should have after the last step by the other's.
    notes : list of str
    """

    def __init__(self, optimizers: tuple[Mapping[str, Any], Mapping[str, Any]]) -> None:
        self.given = optimizers
        self.formulas: dict[tuple[str, int], Formula | None] = {}
        self.expected: dict[str, list[Expected]] = {}
        self.reach: dict[str, float] = {}
        self.history: dict[str, Array] = {}
        self.away: dict[str, Array | None] = {}
        self.sums: dict[str, Array] = {}
        self.notes: list[str] = []
        self.count = 0

    def judge(self, a: Step, b: Step, *, follows: bool) -> Iterator[tuple[str, Found]]:
        """The tables after the step, then the states."""
        self.count += 1
        self.expected, self.away = {}, {}
        if not follows:
            for formula in self.formulas.values():
                for replay in formula.replays if formula else ():
                    replay.forget()
        tables = [s.get(position) for position in ("tables", "tables_after") for s in (a, b)]
        if any(x is None for x in tables):
            return
        worst = Found(0.0, 0.0, "")
        for name in tables[2] or {}:
            arrays = [x for side in tables if isinstance(x := (side or {}).get(name), np.ndarray)]
            if len(arrays) == len(tables) and len({x.shape for x in arrays}) == 1:
                w, v, w_after, v_after = map(np.atleast_1d, arrays)
                here = self._table(name, (a, b), (w, v), (w_after, v_after))
                worst = here if here.share > worst.share else worst
        yield "step", worst
        states = [found for name in tables[2] or {} if (found := self._state(name, (a, b))) is not None]
        if states:
            yield "state", max(states, key=lambda found: found.share)

    # ------------------------------------------------------------------ tables
    def _table(self, name: str, steps: Steps, before: Pair, after: Pair) -> Found:
        self._sum(name, steps, before[0].shape)
        expected = self.expected[name] = self._expect(name, steps, before, after)
        unlike = _rows_differ(before[0], after[0]) | _rows_differ(before[1], after[1])
        for one in expected:
            unlike |= _rows_differ(one.table, after[one.side])
        rows = np.flatnonzero(unlike)
        w, v, w_after, v_after = (x[rows].astype(np.float64) for x in (*before, *after))
        reach = self.reach[name] = max(self.reach.get(name, 0.0), _top(w_after - w), _top(v_after - v))
        eps = max(eps_of(dtype_name(x.dtype)) for x in (*before, *after))
        size = np.maximum.reduce([np.abs(x) for x in (w, v, w_after, v_after)])
        r = self.away[name] = self._relative(name, steps, before[0].shape)
        rounding = 2 * eps * size + (ROUNDINGS + self.count) * eps * reach
        by_order = rounding + 2 * reach * self.sums[name][rows] if name in self.sums else rounding
        allowed = rounding + np.abs(w - v)
        if r is not None:
            found = _worst(name, w_after - w, v_after - v, allowed + 2 * reach * r[rows])
        elif expected:
            found = Found(0.0, 0.0, name)
        else:  # nothing says what the steps were computed from
            away, way = norm((w_after - w) - (v_after - v)), norm(w_after - w)
            found = Found(away / (way or 1.0), MOST + norm(allowed) / (way or 1.0), name)
        for one in expected:
            should, is_there = one.table[rows].astype(np.float64), (w_after, v_after)[one.side]
            here = _worst(name, should, is_there, by_order)
            found = here if here.share > found.share else found
        return found

    def _sum(self, name: str, steps: Steps, shape: tuple[int, ...]) -> None:
        """What the order of summation of duplicates may do to each element; of all steps so far without states."""
        kept = None if all(_arrays(s.get("state"), name) for s in steps) else self.sums.get(name)
        for s in steps:
            gradient = rows_named(s).get(name)
            found = None if gradient is None else summed(gradient)
            if found is not None and len(found[0]) and found[0][-1] < shape[0]:
                kept = np.zeros(shape) if kept is None else kept
                there = found[1].reshape(len(found[0]), *shape[1:])
                kept[found[0]] = np.maximum(kept[found[0]], there)
        self.sums.pop(name, None)
        if kept is not None:
            self.sums[name] = kept

    def _relative(self, name: str, steps: Steps, shape: tuple[int, ...]) -> Array | None:
        """How far gradients and states are apart, relatively, element by element; None without gradients.

        Where no state says what is left of them, the gradients of all steps before count too.
        """
        gradients = [rows_named(s) for s in steps]
        if not gradients[0] or not gradients[1]:
            return None
        sums = self.sums.get(name)
        r = np.zeros(shape, np.float32) if sums is None else sums.astype(np.float32)
        x, y = (side.get(name) for side in gradients)
        pair = None if x is None or y is None else beside(x, y)
        if pair is not None:
            r[pair.ids] += relative(pair).reshape(len(pair.ids), *shape[1:])
        states = [_arrays(s.get("state"), name) for s in steps]
        common = [key for key in states[0] if key in states[1] and key != "step"]
        if not common:
            r = self.history[name] = np.maximum(r, self.history.get(name, r))
        for key in common:
            pair = beside(states[0][key], states[1][key])
            if pair is not None and pair.x.size and len(pair.x) == shape[0]:
                there = relative(pair).reshape(shape[0], -1)
                if there.shape[1] in (1, math.prod(shape[1:])):
                    r = np.maximum(r, there.reshape(shape[0], *([1] * (len(shape) - 1)))
                                   if there.shape[1] == 1 else there.reshape(shape))  # fmt: skip
        return r

    # ------------------------------------------------------------------ formulas
    def _expect(self, name: str, steps: Steps, before: Pair, after: Pair) -> list[Expected]:
        """What each side should have by the other's formula, where that gives the other's own step."""
        chosen = []
        for side in (0, 1):
            formula = self._formula(name, side, steps[side])
            if formula is None:
                continue
            try:
                results = [self._replayed(formula, k, side, name, steps[k], before[k]) for k in (0, 1)]
            except (TypeError, ValueError, IndexError) as error:
                self._drop(name, side, f"cannot be replayed: {error}")
                continue
            own, other = results[side], results[1 - side]
            if own is None or other is None:
                continue
            if not self._is_own(own[0], before[side], after[side], self.sums.get(name)):
                self._drop(name, side, "does not give that side's own step")
                continue
            chosen.append(Expected(1 - side, other[0], other[1]))
        return chosen

    def _formula(self, name: str, side: int, step: Step) -> Formula | None:
        key = (name, side)
        if key in self.formulas and self.formulas[key] is None:
            return None
        said = next((d[k] for d in (self.given[side], step.optimizers) for k in (name, "") if k in d), None)
        if said is None:
            return None
        known = self.formulas.get(key)
        if known is None or known.said != said:  # a learning rate that follows a schedule
            try:
                optimizer = optimizer_from(said)
            except (TypeError, ValueError) as error:
                self._drop(name, side, f"is none of islices.optim: {error}")
                return None
            if known is None:
                known = Formula(said, (Replay(optimizer), Replay(optimizer)))
            known.said = said
            for replay in known.replays:
                replay.optimizer = optimizer
            self.formulas[key] = known
        return known

    def _replayed(
        self, formula: Formula, k: int, side: int, name: str, step: Step, table: Array
    ) -> tuple[Array, dict[str, Any]] | None:
        gradient = rows_named(step).get(name)
        if gradient is None:
            return table, {}
        if isinstance(gradient, np.ndarray):
            gradient = gradient.reshape(table.shape)
        recorded = _arrays(step.get("state"), name)
        fresh = step.number == 1
        return formula.replays[k].step(table, gradient, recorded, fresh=fresh, own=k == side)

    def _is_own(self, should: Array, before: Array, after: Array, sums: Array | None) -> bool:
        rows = np.flatnonzero(_rows_differ(should, after) | _rows_differ(before, after))
        x, y, w = (side[rows].astype(np.float64) for side in (should, after, before))
        eps = eps_of(dtype_name(after.dtype))
        allowed = 2 * eps * np.maximum(np.abs(y), np.abs(w)) + (ROUNDINGS + self.count) * eps * _top(y - w)
        if sums is not None:
            allowed = allowed + 2 * _top(y - w) * sums[rows]
        return bool((np.abs(x - y) <= allowed).all())

    def _drop(self, name: str, side: int, why: str) -> None:
        self.formulas[name, side] = None
        self.notes.append(f"step {self.count}: what is said to step {name!r} of {{{'ab'[side]}}} {why}")

    # ------------------------------------------------------------------ states
    def _state(self, name: str, steps: Steps) -> Found | None:
        after = [_arrays(s.get("state_after"), name) for s in steps]
        before = [_arrays(s.get("state"), name) for s in steps]
        expected = self.expected.get(name, [])
        found = []
        for key in after[0]:
            if key not in after[1]:
                continue
            x, y = (side[key] for side in after)
            if not isinstance(x, np.ndarray) or not isinstance(y, np.ndarray) or x.size != y.size:
                continue
            x, y = (side.astype(np.float64).reshape(-1) for side in (x, y))
            label = f"{name}.{key}"
            if key == "step":
                found.append(Found(_top(x - y), 0.0, label))
                continue
            if key in OWN_MEANING and not self._one_semantics(name):
                continue
            w, v = (np.zeros_like(x) if key not in side else _flat(side[key]) for side in before)
            eps = max(eps_of(dtype_name(side[key].dtype)) for side in after)
            size = np.maximum.reduce([np.abs(side) for side in (x, y, w, v)])
            rounding = (ROUNDINGS + self.count) * eps * size + ROUNDINGS * eps * max(_top(x - w), _top(y - v))
            sums = self._flat_of(self.sums.get(name), x.size)
            by_order = rounding if sums is None else rounding + 2 * sums * max(_top(x), _top(y))
            for one in expected:
                if key in one.state:
                    found.append(_worst(label, _flat(one.state[key]), (x, y)[one.side], by_order))
            r = self._flat_of(self.away.get(name), x.size)
            if r is not None:
                allowed = rounding + np.abs(w - v) + 2 * r * max(_top(x), _top(y))
                found.append(_worst(label, x, y, allowed))
        return max(found, key=lambda x: x.share, default=None)

    @staticmethod
    def _flat_of(r: Array | None, size: int) -> Array | None:
        """What was found of a tensor's elements, flat; by rows for an array that has one number a row."""
        if r is None or size == r.size:
            return None if r is None else r.reshape(-1)
        return r.reshape(len(r), -1).max(axis=1, initial=0.0) if size == len(r) else None

    def _one_semantics(self, name: str) -> bool:
        """Whether both sides say that their arrays mean the same."""
        both = [self.formulas.get((name, side)) for side in (0, 1)]
        said = [f.replays[0].optimizer.semantics for f in both if f is not None]
        return len(said) == 2 and said[0] == said[1]


# ---------------------------------------------------------------------- arrays
def _arrays(leaves: Leaves | None, name: str) -> dict[str, Any]:
    """The arrays of a tensor's state, by the records' names."""
    start = f"{name}."
    return {array_name(key[len(start) :]): x for key, x in (leaves or {}).items() if key.startswith(start)}


def _rows_differ(x: Array, y: Array) -> Array:
    if x.dtype != y.dtype:
        x, y = x.astype(np.float64), y.astype(np.float64)
    if not x.size:
        return np.zeros(len(x), bool)
    return np.asarray(~bits_equal(x, y).reshape(len(x), -1).all(axis=1))


def _flat(x: Any) -> Array:
    return np.asarray(x).astype(np.float64).reshape(-1)


def _top(x: Array) -> float:
    """The largest |element|; infinite where one is no number."""
    return float(np.nan_to_num(np.abs(x), nan=np.inf, posinf=np.inf).max(initial=0.0))


def _worst(name: str, x: Array, y: Array, allowed: Array) -> Found:
    """The element that uses most of what it is allowed."""
    away = apart(x, y)
    with np.errstate(invalid="ignore", divide="ignore"):
        share = np.where(away > 0, away / allowed, 0.0)
    if not away.size or not away.any():
        return Found(0.0, float(allowed.max(initial=0.0)), name)
    at = int(np.argmax(np.nan_to_num(share, nan=np.inf)))
    return Found(float(away.reshape(-1)[at]), float(allowed.reshape(-1)[at]), name)
