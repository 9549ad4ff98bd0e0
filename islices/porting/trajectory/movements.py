"""Judge the step itself by element: the tables and states after it, given those before it.

After k steps, the allowance is `ROUNDINGS` + k eps of the tensor's largest movement so far, and the rounding of the
table. The inputs of the two steps, gradients and states, have a relative distance r in an element. The allowance also
has 2 r times the largest movement. An element whose gradient has cancelled has an r near 1. Adagrad and Adam take
full steps in the direction of rounding there, so such elements are not judged.

`Past` holds the contribution of earlier steps; `advance` makes the next one.

May import: `numpy`, the core below `islices.files`, `islices.porting.compare`, this folder.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from islices.porting.compare.evidence import MOST_SLACK
from islices.porting.compare.steps.recipe import corrected_digits
from islices.porting.compare.stored import apart, blocks, placed, rows_differ, wide
from islices.porting.trajectory.distances import beside, eps_of, gap, relative, summed
from islices.porting.trajectory.positions import Step, described, rows_named

Array = np.ndarray[Any, Any]
Steps = tuple[Step, Step]
Pair = tuple[Array, Array]
#: eps of a movement by which two computations of one step's formula may differ.
ROUNDINGS = 64.0
#: The decay of most running means of squares.
BETA2 = 0.999


@dataclass(frozen=True)
class Found:
    """The distance found at one position.

    Attributes
    ----------
    apart : float
        The distance of the sides in the tensor that uses most of its allowance. For outputs, loss and gradients it is
        relative to the tensor's norm; for steps and states it is the distance of one element.
    allowed : float
        The distance that rounding may cause there.
    tensor : str
        The tensor's name.
    judged : bool
        False if the tables are already too far apart for a judgement.
    """

    apart: float
    allowed: float
    tensor: str
    judged: bool = True

    @property
    def share(self) -> float:
        """Return apart / allowed. Rounding does not explain a share above 1."""
        if not self.apart:
            return 0.0
        return self.apart / self.allowed if self.allowed else math.inf


def furthest(found: Iterable[Found]) -> Found:
    """Return the distance that uses most of its allowance."""
    return max(found, key=lambda one: one.share, default=Found(0.0, 0.0, ""))


# ---------------------------------------------------------------------- what earlier steps leave
@dataclass(frozen=True, eq=False)
class MovingRows:
    """One number for each element of some ascending rows, and 0 for all other rows."""

    ids: Array
    values: Array

    def at(self, rows: Array) -> Array:
        """Return the numbers of some rows, ascending."""
        return wide(placed(self.ids, self.values, rows))

    def joined(self, other: MovingRows, by: Callable[[Array, Array], Array]) -> MovingRows:
        """Return both in one object, element by element."""
        ids = np.union1d(self.ids, other.ids)
        return MovingRows(ids, by(self.at(ids), other.at(ids)))


@dataclass(frozen=True, eq=False)
class Past:
    """The steps so far.

    Attributes
    ----------
    last : (Step, Step) or None
        The last step of both sides.
    count : int
        The number of steps.
    reach : dict of str to float
        The largest movement of each table.
    relative : dict of str to Rows
        The relative distance of each table's gradients. For a table without states it covers all steps so far.
    """

    last: Steps | None = None
    count: int = 0
    reach: Mapping[str, float] = field(default_factory=dict)
    relative: Mapping[str, MovingRows] = field(default_factory=dict)


def advance(past: Past, a: Step, b: Step) -> Past:
    """Return the past that includes a step."""
    reach, distance = dict(past.reach), dict(past.relative)
    for t in _tables(a, b):
        reach[t.name] = max(reach.get(t.name, 0.0), gap(t.w, t.w_after), gap(t.v, t.v_after))
        here = _gradients_apart(a, b, t)
        kept = None if _common_states(a, b, t.name) else past.relative.get(t.name)
        distance[t.name] = here if kept is None else here.joined(kept, np.maximum)
    return Past((a, b), past.count + 1, reach, distance)


class _Table(NamedTuple):
    """A table of both sides before a step and after it."""

    name: str
    w: Array
    v: Array
    w_after: Array
    v_after: Array


def _tables(a: Step, b: Step) -> Iterator[_Table]:
    sides = [s.get(position) for position in ("tables", "tables_after") for s in (a, b)]
    for name in sides[0]:
        arrays = [np.atleast_1d(x) for side in sides if isinstance(x := side.get(name), np.ndarray)]
        if len(arrays) == len(sides) and len({x.shape for x in arrays}) == 1:
            yield _Table(name, *arrays)


def _gradients_apart(a: Step, b: Step, t: _Table) -> MovingRows:
    """Return the relative distances of a table's gradients, including different orders of summing duplicates."""
    none = MovingRows(np.zeros(0, np.int64), np.zeros((0, *t.w.shape[1:])))
    gradients = [x for s in (a, b) if (x := rows_named(s).get(t.name)) is not None]
    pairs = beside(*gradients) if len(gradients) == 2 else None
    parts = [(ids, relative(x, y)) for ids, x, y in pairs or ()]
    found = MovingRows(*(np.concatenate(x) for x in zip(*parts, strict=True))) if parts else none
    order = none
    for x in gradients:
        duplicates = summed(x)
        if duplicates is not None:
            order = order.joined(MovingRows(*duplicates), np.maximum)
    found = found.joined(order, np.add) if len(order.ids) else found
    some = np.flatnonzero(found.values.reshape(len(found.ids), -1).any(axis=1))
    return MovingRows(found.ids[some], found.values[some].astype(np.float32))


# ---------------------------------------------------------------------- one step
def movements(a: Step, b: Step, past: Past) -> Iterator[tuple[str, Found]]:
    """Judge the tables after a step, then the states; past includes the step."""
    if any(position not in s.trees for s in (a, b) for position in ("tables", "tables_after")):
        return
    tables = list(_tables(a, b))
    yield "step", furthest(_judge_table(a, b, t, past) for t in tables)
    states = [found for t in tables for found in _judge_states(a, b, t, past)]
    if states:
        yield "state", furthest(states)


def _judge_table(a: Step, b: Step, t: _Table, past: Past) -> Found:
    reach, eps = past.reach[t.name], max(map(eps_of, t[1:]))
    of_reach = (ROUNDINGS + past.count + _scalars(a, b, t.name)) * eps * reach

    known = rows_named(a) and rows_named(b)
    r = _relative(a, b, t, past) if known else lambda rows: MOST_SLACK / 2  # the inputs of the step are unknown
    return _furthest_element(t.name, t[1:3], t[3:], lambda rows, size: 2 * eps * size + of_reach + 2 * reach * r(rows))


def _judge_states(a: Step, b: Step, t: _Table, past: Past) -> Iterator[Found]:
    after, before = ([s.array_state(position, t.name) for s in (a, b)] for position in ("state_after", "state"))
    r = _relative(a, b, t, past) if rows_named(a) and rows_named(b) else None
    semantics = [described(s, t.name, "semantics") for s in (a, b)]
    for key in after[0].keys() & after[1].keys():
        label, arrays = f"{t.name}.{key}", [side[key] for side in after]
        if key == "step":
            yield Found(float(abs(arrays[0].max() - arrays[1].max())), 0.0, label)
        elif key != "momentum" or (semantics[0] == semantics[1] is not None):
            n = len(t.w)
            if r is None or arrays[0].size != arrays[1].size or arrays[0].size not in (n, t.w.size):
                continue
            x, y = (side.reshape(n, -1) for side in arrays)
            w, v = (np.zeros_like(x) if key not in side else side[key].reshape(n, -1) for side in before)
            yield _state(label, (w, v), (x, y), past.count, r)


def _state(label: str, before: Pair, after: Pair, count: int, r: Callable[[Array], Array]) -> Found:
    eps = max(map(eps_of, after))
    moved = max(map(gap, before, after))
    top = max(float(np.abs(wide(x)).max(initial=0.0)) for x in after)

    def allowed(rows: Array, size: Array) -> Array:
        of_rows = r(rows).reshape(len(rows), -1)
        of_rows = of_rows if size.shape == of_rows.shape else of_rows.max(axis=1, keepdims=True)
        return (ROUNDINGS + count) * eps * size + ROUNDINGS * eps * moved + 2 * top * of_rows

    return _furthest_element(label, before, after, allowed)


def _furthest_element(name: str, before: Pair, after: Pair, allowed: Callable[[Array, Array], Array]) -> Found:
    """Compare the movements of both sides. The allowance includes their distance before the step."""
    found = Found(0.0, 0.0, name)
    for rows, w, v, p, q in _moved_rows(before, after):
        away = apart(p - w, q - v)
        size: Array = np.maximum.reduce([np.abs(x) for x in (w, v, p, q)])
        may = allowed(rows, size) + np.abs(w - v)
        with np.errstate(invalid="ignore", divide="ignore"):
            share = np.where(away > 0, away / may, 0.0)
        at = int(np.argmax(np.nan_to_num(share, nan=np.inf)))
        found = furthest([found, Found(float(away.flat[at]), float(may.flat[at]), name)])
    return found


def _moved_rows(before: Pair, after: Pair) -> Iterator[tuple[Array, Array, Array, Array, Array]]:
    """Yield blocks of the rows that moved on either side, with both sides' values before and after in float64."""
    rows = np.flatnonzero(rows_differ(before[0], after[0]) | rows_differ(before[1], after[1]))
    for part in blocks(len(rows), before[0].shape[1:]):
        if len(at := rows[part]):
            w, v, p, q = (wide(x[at]) for x in (*before, *after))
            yield at, w, v, p, q


def _relative(a: Step, b: Step, t: _Table, past: Past) -> Callable[[Array], Array]:
    """Return a function of row numbers that gives the relative distance of the inputs of each element's step."""
    n = len(t.w)
    states = [
        (x.reshape(n, -1), y.reshape(n, -1)) for x, y in _common_states(a, b, t.name)
        if x.size == y.size and x.size in (n, t.w.size)
    ]  # fmt: skip

    def of_rows(rows: Array) -> Array:
        out = past.relative[t.name].at(rows).reshape(len(rows), -1)
        for x, y in states:
            out = np.maximum(out, relative(wide(x[rows]), wide(y[rows])))
        return out.reshape(len(rows), *t.w.shape[1:])

    return of_rows


def _scalars(a: Step, b: Step, name: str) -> float:
    """Return the number of roundings that a running mean of squares adds to a step."""
    if not any("v" in s.array_state("state_after", name) for s in (a, b)):
        return 0.0
    known = [x for s in (a, b) if isinstance(x := described(s, name, "beta2"), float)]
    return corrected_digits(max(known, default=BETA2), min(a.number, b.number))


# ---------------------------------------------------------------------- arrays
def _common_states(a: Step, b: Step, name: str) -> list[tuple[Array, Array]]:
    x, y = (s.array_state("state", name) for s in (a, b))
    return [(x[key], y[key]) for key in x if key in y and key != "step"]
