"""A step's movement, element by element: tables and the optimizer's state after it, from what both were before.

May import: `numpy`, the core below `islices.files`, `islices.porting.compare`, this folder.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from islices.core.dtypes import dtype_name
from islices.porting.compare.steps.recipe import corrected_digits
from islices.porting.compare.stored import bits_equal, blocks, contained, wide
from islices.porting.trajectory.distances import MOST, ROUNDINGS, Beside, apart, beside, eps_of, norm, relative, summed
from islices.porting.trajectory.descriptions import OWN_MEANING, Replay, array_name, optimizer_from, other_class
from islices.porting.trajectory.positions import Leaves, Step, rows_named
from islices.porting.trajectory.verdict import Found

__all__ = ["Moves"]

Array = np.ndarray[Any, Any]
Pair = tuple[Array, Array]
Steps = tuple[Step, Step]
#: What most running means of squares decay by.
BETA2 = 0.999


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
        self.history: dict[str, Relative] = {}
        self.away: dict[str, Relative | None] = {}
        self.sums: dict[str, Relative] = {}
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
        row_shape = before[0].shape[1:]
        reach = self.reach.get(name, 0.0)
        for part in blocks(len(rows), row_shape):
            w, v, w_after, v_after = (x[rows[part]].astype(np.float64) for x in (*before, *after))
            reach = max(reach, _top(w_after - w), _top(v_after - v))
        self.reach[name] = reach
        eps = max(eps_of(dtype_name(x.dtype)) for x in (*before, *after))
        scalars = self._scalars(name, steps)
        r = self.away[name] = self._relative(name, steps, before[0].shape)
        worst, replayed = Worst(name), [Worst(name) for _ in expected]
        away = way = bound = 0.0
        for part in blocks(len(rows), row_shape):
            w, v, w_after, v_after = (x[rows[part]].astype(np.float64) for x in (*before, *after))
            size = np.maximum.reduce([np.abs(x) for x in (w, v, w_after, v_after)])
            rounding = 2 * eps * size + (ROUNDINGS + self.count + scalars) * eps * reach
            by_order = rounding + 2 * reach * self._order(name, rows[part], w.shape)
            allowed = rounding + np.abs(w - v)
            if r is not None:
                worst.add(w_after - w, v_after - v, allowed + 2 * reach * r.at(rows[part]).reshape(w.shape))
            elif not expected:  # nothing says what the steps were computed from
                away, way = math.hypot(away, norm((w_after - w) - (v_after - v))), math.hypot(way, norm(w_after - w))
                bound = math.hypot(bound, norm(allowed))
            for one, found in zip(expected, replayed, strict=True):
                found.add(one.table[rows[part]].astype(np.float64), (w_after, v_after)[one.side], by_order)
        if r is None and not expected:
            return Found(away / (way or 1.0), MOST + bound / (way or 1.0), name)
        whole = worst.found if r is not None else Found(0.0, 0.0, name)
        return max([whole, *(x.found for x in replayed)], key=lambda found: found.share)

    def _scalars(self, name: str, steps: Steps) -> float:
        """Roundings more of a step of running means of squares."""
        if not any("v" in _arrays(s.get("state_after"), name) for s in steps):
            return 0.0
        formulas = (self.formulas.get((name, side)) for side in (0, 1))
        known = [f.replays[0].optimizer.hyper.get("beta2") for f in formulas if f is not None]
        beta2 = max((x for x in known if isinstance(x, float)), default=BETA2)
        return corrected_digits(beta2, min(s.number for s in steps))

    def _sum(self, name: str, steps: Steps, shape: tuple[int, ...]) -> None:
        """What the order of summation of duplicates may do to each element; of all steps so far without states."""
        kept = None if all(_arrays(s.get("state"), name) for s in steps) else self.sums.get(name)
        for s in steps:
            gradient = rows_named(s).get(name)
            found = None if gradient is None else summed(gradient)
            if found is not None and len(found[0]) and found[0][-1] < shape[0]:
                here = Relative(shape[0], math.prod(shape[1:]))
                here.keep(*found)
                kept = here.with_history(kept)
        self.sums.pop(name, None)
        if kept is not None:
            self.sums[name] = kept

    def _order(self, name: str, rows: Array, shape: tuple[int, ...]) -> Array | float:
        """What `_sum` found of some rows, ascending, in that shape."""
        sums = self.sums.get(name)
        return 0.0 if sums is None else sums.at(rows).reshape(shape)

    def _relative(self, name: str, steps: Steps, shape: tuple[int, ...]) -> Relative | None:
        """How far gradients and states are apart, relatively, element by element; None without gradients.

        Where no state says what is left of them, the gradients of all steps before count too.
        """
        gradients = [rows_named(s) for s in steps]
        if not gradients[0] or not gradients[1]:
            return None
        width = math.prod(shape[1:])
        x, y = (side.get(name) for side in gradients)
        pairs = None if x is None or y is None else beside(x, y)
        here = Relative(shape[0], width)
        sums = self.sums.get(name)
        for pair in pairs or ():
            found = relative(pair).reshape(len(pair.ids), width)
            here.keep(pair.ids, found if sums is None else found + sums.at(pair.ids))
        here = here.with_history(sums)
        states = [_arrays(s.get("state"), name) for s in steps]
        common = [key for key in states[0] if key in states[1] and key != "step"]
        if not common:
            here = self.history[name] = here.with_history(self.history.get(name))
        for key in common:
            one, other = (np.asarray(side[key]) for side in states)
            if one.shape == other.shape and one.size in (shape[0], shape[0] * width):
                here.states.append((one.reshape(shape[0], -1), other.reshape(shape[0], -1)))
        return here

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
            if not self._is_own(name, own[0], before[side], after[side]):
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
        if (other := other_class(said)) is not None:
            self._note(f"{{{'ab'[side]}}} steps by {other}, which islices.optim does not have: it is not replayed")
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

    def _is_own(self, name: str, should: Array, before: Array, after: Array) -> bool:
        rows = np.flatnonzero(_rows_differ(should, after) | _rows_differ(before, after))
        eps, reach = eps_of(dtype_name(after.dtype)), 0.0
        for part in blocks(len(rows), after.shape[1:]):
            reach = max(reach, _top(after[rows[part]].astype(np.float64) - before[rows[part]].astype(np.float64)))
        for part in blocks(len(rows), after.shape[1:]):
            x, y, w = (side[rows[part]].astype(np.float64) for side in (should, after, before))
            allowed = 2 * eps * np.maximum(np.abs(y), np.abs(w)) + (ROUNDINGS + self.count) * eps * reach
            allowed += 2 * reach * self._order(name, rows[part], w.shape)
            if not (np.abs(x - y) <= allowed).all():
                return False
        return True

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

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
            label = f"{name}.{key}"
            if key == "step":
                found.append(Found(_top(_flat(x) - _flat(y)), 0.0, label))
                continue
            if key in OWN_MEANING and not self._one_semantics(name):
                continue
            found += self._array(label, (x, y), [side.get(key) for side in before], [
                (one.side, one.state[key]) for one in expected if key in one.state
            ], self.away.get(name), self.sums.get(name))  # fmt: skip
        return max(found, key=lambda x: x.share, default=None)

    def _array(
        self,
        label: str,
        after: Pair,
        before: list[Any],
        expected: list[tuple[int, Any]],
        r: Relative | None,
        sums: Relative | None,
    ) -> list[Found]:
        """One array of a state; before: None where it is not known, for zeros."""
        x, y = after
        eps = max(eps_of(dtype_name(side.dtype)) for side in after)
        width = max(1, x.size // max(1, len(np.atleast_1d(x))))
        r, sums = (k if k is not None and x.size in (k.rows, k.rows * k.width) else None for k in (r, sums))
        if (known := r or sums) is not None:
            width = max(1, x.size // max(1, known.rows))
        x, y = (side.reshape(-1, width) for side in after)
        w, v = (None if side is None else np.asarray(side).reshape(-1, width) for side in before)
        should = [(side, np.asarray(given).reshape(-1, width)) for side, given in expected]
        moved = 0.0
        for now, then in ((x, w), (y, v)):
            for part in blocks(len(now), (width,)):
                was = 0.0 if then is None else then[part].astype(np.float64)
                moved = max(moved, _top(now[part].astype(np.float64) - was))
        top = max(_top(x), _top(y))
        unlike = _rows_differ(x, y)
        for side, given in should:
            unlike |= _rows_differ(given, (x, y)[side])
        rows = np.flatnonzero(unlike)
        worst, replayed = Worst(label), [Worst(label) for _ in should]
        for part in blocks(len(rows), (width,)):
            at = rows[part]
            p, q = x[at].astype(np.float64), y[at].astype(np.float64)
            old = [np.zeros_like(p) if side is None else side[at].astype(np.float64) for side in (w, v)]
            size = np.maximum.reduce([np.abs(side) for side in (p, q, *old)])
            rounding = (ROUNDINGS + self.count) * eps * size + ROUNDINGS * eps * moved
            by_order = rounding if sums is None else rounding + 2 * top * sums.of_width(at, width)
            for (side, given), seen in zip(should, replayed, strict=True):
                seen.add(given[at].astype(np.float64), (p, q)[side], by_order)
            if r is not None:
                worst.add(p, q, rounding + np.abs(old[0] - old[1]) + 2 * top * r.of_width(at, width))
        return [seen.found for seen in (*replayed, *([worst] if r is not None else []))]

    def _one_semantics(self, name: str) -> bool:
        """Whether both sides say that their arrays mean the same."""
        both = [self.formulas.get((name, side)) for side in (0, 1)]
        said = [f.replays[0].optimizer.semantics for f in both if f is not None]
        return len(said) == 2 and said[0] == said[1]


class Relative:
    """How far what two steps were computed from is apart, relatively, for each element of a table: of the rows that
    gradients name as it was found, of states as it is asked for."""

    def __init__(self, rows: int, width: int) -> None:
        self.rows, self.width = rows, width
        self.ids, self.values = np.zeros(0, np.int64), np.zeros((0, width), np.float32)
        self._parts: list[Pair] = []
        self.states: list[Pair] = []

    def keep(self, ids: Array, away: Array) -> None:
        """What gradients are apart in some rows, behind those before."""
        away = away.reshape(len(ids), self.width)
        some = np.flatnonzero(away.any(axis=1))
        self._parts.append((ids[some], away[some].astype(np.float32)))

    def with_history(self, old: Relative | None) -> Relative:
        """The larger of both in each element."""
        self._settle()
        if old is None or not len(old.ids):
            return self
        new = Relative(self.rows, self.width)
        new.ids = np.union1d(self.ids, old.ids)
        new.values = np.zeros((len(new.ids), self.width), np.float32)
        new.values[np.searchsorted(new.ids, self.ids)] = self.values
        place = np.searchsorted(new.ids, old.ids)
        new.values[place] = np.maximum(new.values[place], old.values)
        return new

    def _settle(self) -> None:
        if self._parts:
            self.ids, self.values = (np.concatenate(x) for x in zip(*self._parts, strict=True))
            self._parts = []

    def at(self, rows: Array) -> Array:
        """(n, width): of some rows, ascending."""
        self._settle()
        out = np.zeros((len(rows), self.width), np.float32)
        there = np.flatnonzero(contained(rows, self.ids))
        out[there] = self.values[np.searchsorted(self.ids, rows[there])]
        for x, y in self.states:
            out = np.maximum(out, relative(Beside(rows, wide(x[rows]), wide(y[rows]), 0.0)))
        return out

    def of_width(self, rows: Array, width: int) -> Array:
        """`at`, the largest of each row where an array has one number a row."""
        found = self.at(rows)
        return found.max(axis=1, keepdims=True, initial=0.0) if width == 1 else found


class Worst:
    """The element that uses most of what it is allowed, as blocks of them come."""

    def __init__(self, name: str) -> None:
        self.found = Found(0.0, 0.0, name)

    def add(self, x: Array, y: Array, allowed: Array) -> None:
        """Take in some elements."""
        here = _worst(self.found.tensor, x, y, allowed)
        if here.share > self.found.share or (not self.found.apart and not here.apart):
            largest = max(here.allowed, self.found.allowed) if not here.apart else here.allowed
            self.found = Found(here.apart, largest, here.tensor)


# ---------------------------------------------------------------------- arrays
def _arrays(leaves: Leaves | None, name: str) -> dict[str, Any]:
    """The arrays of a tensor's state, by the records' names."""
    start = f"{name}."
    return {array_name(key[len(start) :]): x for key, x in (leaves or {}).items() if key.startswith(start)}


def _rows_differ(x: Array, y: Array) -> Array:
    out = np.zeros(len(x), bool)
    if x.size:
        for part in blocks(len(x), x.shape[1:]):
            p, q = x[part], y[part]
            if p.dtype != q.dtype:
                p, q = p.astype(np.float64), q.astype(np.float64)
            out[part] = ~bits_equal(p, q).reshape(len(p), -1).all(axis=1)
    return out


def _flat(x: Any) -> Array:
    return np.asarray(x).astype(np.float64).reshape(-1)


def _top(x: Array) -> float:
    """The largest |element|; infinite where one is no number."""
    top = max(abs(float(x.max(initial=0.0))), abs(float(x.min(initial=0.0)))) if x.size else 0.0
    return math.inf if math.isnan(top) else top


def _worst(name: str, x: Array, y: Array, allowed: Array) -> Found:
    """The element that uses most of what it is allowed."""
    away = apart(x, y)
    with np.errstate(invalid="ignore", divide="ignore"):
        share = np.where(away > 0, away / allowed, 0.0)
    if not away.size or not away.any():
        return Found(0.0, float(allowed.max(initial=0.0)), name)
    at = int(np.argmax(np.nan_to_num(share, nan=np.inf)))
    return Found(float(away.reshape(-1)[at]), float(allowed.reshape(-1)[at]), name)
