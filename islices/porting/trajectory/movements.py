"""Judge the tables and states after an optimizer step, element by element.

A movement is the change of an element by a step. The movements of an element on both sides may differ by at most the
allowance. Let R be the largest movement of any element of the table so far. After k steps, a table's allowance is
(`ROUNDINGS` + k + c) eps R + 2 r R. The rounding of the table and the distance of the element before the step are
added. Here r is the relative distance between the inputs of the step on both sides; the inputs are the gradient and the
states. If a side has no gradients, r is `MOST_SLACK` / 2. c is the result of `corrected_digits` if the states after the
step include an array `v`, as with Adam, else 0. If the terms of an element's gradient have cancelled, r may be near 1.
Adagrad and Adam may then move this element by a full step in the direction of a rounding error. Two such steps differ
by at most 2 R, so the allowance permits them. A state's allowance is similar (SPEC clause 23).

`Past` stores the facts about earlier steps on which the allowance depends.

May import: `numpy`, the core below `islices.files`, `islices.porting.compare`, this folder.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from islices.porting.compare.evidence import MOST_SLACK
from islices.porting.compare.steps.recipe import corrected_digits
from islices.porting.compare.steps.side import TableStep
from islices.porting.compare.stored import Array, apart, blocks, placed, rows_differ, wide
from islices.porting.trajectory.distances import beside, eps_of, gap, relative, summed
from islices.porting.trajectory.positions import Steps

Pair = tuple[Array, Array]
#: A function that gets row numbers, and returns the relative distance between both sides' gradients and states for each
#: element.
Inputs = Callable[[Array], Array]
#: Two computations of the same formula may differ by this many eps of a movement.
ROUNDINGS = 64.0
#: The beta2 to assume if no description contains one. beta2 is the decay rate of running means of squares.
BETA2 = 0.999


@dataclass(frozen=True)
class Found:
    """The distance between both sides at one position.

    Attributes
    ----------
    apart : float
        The distance between the sides in the tensor that uses the largest share of its allowance. For outputs, loss,
        gradients and tables between steps, the distance is relative to the tensor's norm. For clipped gradients, the
        distance is that of all tensors together, relative to the norm of all tensors. If the raw gradients are unknown,
        clipped gradients count like gradients. For the batch and the start, the distance is the norm of the difference.
        For tables and states after the step, `apart` is the distance between the movements of one element, or between
        the step counts.
    allowed : float
        The distance that rounding may cause in this tensor.
    tensor : str
        The name of the tensor, or of the state's array.
    judged : bool
        False if `apart` is finite, but the tables are already so far apart that no finite distance proves anything.
    """

    apart: float
    allowed: float
    tensor: str
    judged: bool = True

    @property
    def share(self) -> float:
        """Return apart / allowed. The share is 0 if the sides are equal, and infinite if they differ although no
        distance is allowed. If the share is above 1, rounding does not explain the distance."""
        if not self.apart:
            return 0.0
        return self.apart / self.allowed if self.allowed else math.inf


def furthest(found: Iterable[Found]) -> Found:
    """Return the `Found` with the largest share. If `found` is empty, return a `Found` with the distance 0."""
    return max(found, key=lambda one: one.share, default=Found(0.0, 0.0, ""))


# ---------------------------------------------------------------------- what earlier steps leave
@dataclass(frozen=True, eq=False)
class MovingRows:
    """A table of numbers that stores only some rows. The elements of all other rows are 0. The row numbers `ids` are
    ascending."""

    ids: Array
    values: Array

    def at(self, rows: Array) -> Array:
        """Return the values for the given ascending row numbers, as float64."""
        return wide(placed(self.ids, self.values, rows))

    def joined(self, other: MovingRows, by: Callable[[Array, Array], Array]) -> MovingRows:
        """Return an object that contains the rows of both objects. The function `by` combines both values of each
        element."""
        ids = np.union1d(self.ids, other.ids)
        return MovingRows(ids, by(self.at(ids), other.at(ids)))


@dataclass(eq=False)
class Past:
    """The facts about earlier steps on which the allowance depends.

    Attributes
    ----------
    last : Steps or None
        The last step of both sides.
    count : int
        The number of steps so far.
    reach : dict of str to float
        For each table, the largest change of any element by any step so far.
    relative : dict of str to MovingRows
        For each table, the relative distance between both sides' gradients. If the sides have an array of the
        optimizer's state other than "step" in common, only the last step counts. If the sides have no such array in
        common, the distance is the maximum over all steps.
    """

    last: Steps | None = None
    count: int = 0
    reach: dict[str, float] = field(default_factory=dict)
    relative: dict[str, MovingRows] = field(default_factory=dict)

    def add(self, now: Steps) -> None:
        for name, x, y in _tables(now):
            self.reach[name] = max(self.reach.get(name, 0.0), gap(x.before, x.after), gap(y.before, y.after))
            here = _gradients_apart(x, y)
            kept = None if _common_states(x, y) else self.relative.get(name)
            self.relative[name] = here if kept is None else here.joined(kept, np.maximum)
        self.last, self.count = now, self.count + 1


def _tables(now: Steps) -> Iterator[tuple[str, TableStep, TableStep]]:
    """Yield (name, step of a, step of b) for each table that both sides recorded before and after the step. Skip a
    table if the four arrays (before and after, of a and b) differ in shape. A 0-d table becomes a 1-d array."""
    for name in now.a.get("tables"):
        sides = [s.table(name) for s in now]
        arrays = [x for s in sides for x in (s.before, s.after) if isinstance(x, np.ndarray)]
        if len(arrays) == 4 and len({x.shape for x in arrays}) == 1:
            x, y = (replace(s, before=np.atleast_1d(s.before), after=np.atleast_1d(s.after)) for s in sides)
            yield name, x, y


def _gradients_apart(x: TableStep, y: TableStep) -> MovingRows:
    """Return the relative distances between both sides' gradients of a table. These distances include the effect of
    different orders in which the sides may sum duplicates."""
    found = none = MovingRows(np.zeros(0, np.int64), np.zeros((0, *x.before.shape[1:])))
    gradients = [s.gradient for s in (x, y) if s.gradient is not None]
    if parts := [(ids, relative(p, q)) for ids, p, q in (len(gradients) == 2 and beside(*gradients)) or ()]:
        found = MovingRows(*(np.concatenate(z) for z in zip(*parts, strict=True)))
    order = none
    for gradient in gradients:
        if duplicates := summed(gradient):
            order = order.joined(MovingRows(*duplicates), np.maximum)
    found = found.joined(order, np.add) if len(order.ids) else found
    some = np.flatnonzero(found.values.reshape(len(found.ids), -1).any(axis=1))
    return MovingRows(found.ids[some], found.values[some].astype(np.float32))


def _common_states(x: TableStep, y: TableStep) -> list[Pair]:
    return [(x.state[key], y.state[key]) for key in x.state if key in y.state and key != "step"]


# ---------------------------------------------------------------------- one step
def movements(now: Steps, past: Past) -> Iterator[tuple[str, Found]]:
    """Yield ("step", the distance of the tables after a step), then ("state", the distance of the states) if any state
    is judged. Yield nothing if a side lacks the tables before or after the step. The caller has already added the step
    to `past`."""
    if any(position not in s.trees for s in now for position in ("tables", "tables_after")):
        return
    known = all(s.applied for s in now)
    steps, states = [], list[Found]()
    for name, x, y in _tables(now):
        r = _inputs_apart(x, y, past.relative[name]) if known else None
        steps.append(_judge_table(name, x, y, now.a.number, past, r))
        states += _judge_states(name, x, y, past.count, r)
    yield "step", furthest(steps)
    if states:
        yield "state", furthest(states)


def _inputs_apart(x: TableStep, y: TableStep, gradients: MovingRows) -> Inputs:
    """Return a function that gets row numbers, and returns the relative distance of the inputs for each element. The
    distance of the inputs is the largest of the distances of the gradients and of the states' arrays."""
    n, size = len(x.before), x.before.size
    states = [(p.reshape(n, -1), q.reshape(n, -1)) for p, q in _common_states(x, y) if p.size == q.size in (n, size)]

    def of_rows(rows: Array) -> Array:
        out = gradients.at(rows).reshape(len(rows), -1)
        for p, q in states:
            out = np.maximum(out, relative(wide(p[rows]), wide(q[rows])))
        return out.reshape(len(rows), *x.before.shape[1:])

    return of_rows


def _judge_table(name: str, x: TableStep, y: TableStep, steps: int, past: Past, r: Inputs | None) -> Found:
    reach, before, after = past.reach[name], (x.before, y.before), (x.after, y.after)
    eps, scalars = max(map(eps_of, (*before, *after))), 0.0
    if any("v" in s.state_after for s in (x, y)):  # the rounding errors of the bias correction of v
        known = [beta2 for s in (x, y) if isinstance(beta2 := s.optimizer.get("beta2"), float)]
        scalars = corrected_digits(max(known, default=BETA2), steps)
    of_reach = (ROUNDINGS + past.count + scalars) * eps * reach

    def allowed(rows: Array, size: Array) -> Array:
        inputs = MOST_SLACK / 2 if r is None else r(rows)
        return 2 * eps * size + of_reach + 2 * reach * inputs

    return _furthest_element(name, before, after, allowed)


def _judge_states(name: str, x: TableStep, y: TableStep, count: int, r: Inputs | None) -> Iterator[Found]:
    n, semantics = len(x.before), [s.optimizer.get("semantics") for s in (x, y)]
    for key in filter(y.state_after.__contains__, x.state_after):
        p, q = x.state_after[key], y.state_after[key]
        if key == "step":
            yield Found(float(abs(p.max() - q.max())), 0.0, f"{name}.{key}")
        elif key == "momentum" and not semantics[0] == semantics[1] is not None:
            continue
        elif r is not None and p.size == q.size and p.size in (n, x.before.size):
            p, q = p.reshape(n, -1), q.reshape(n, -1)
            w, v = (s.state[key].reshape(n, -1) if key in s.state else np.zeros_like(p) for s in (x, y))
            yield _judge_state(f"{name}.{key}", (w, v), (p, q), count, r)


def _judge_state(label: str, before: Pair, after: Pair, count: int, r: Inputs) -> Found:
    eps = max(map(eps_of, after))
    moved = max(map(gap, before, after))
    top = max(float(np.abs(wide(x)).max(initial=0.0)) for x in after)

    def allowed(rows: Array, size: Array) -> Array:
        of_rows = r(rows).reshape(len(rows), -1)
        of_rows = of_rows if size.shape == of_rows.shape else of_rows.max(axis=1, keepdims=True)
        return (ROUNDINGS + count) * eps * size + ROUNDINGS * eps * moved + 2 * top * of_rows

    return _furthest_element(label, before, after, allowed)


def _furthest_element(name: str, before: Pair, after: Pair, allowed: Callable[[Array, Array], Array]) -> Found:
    """Find the element whose movements on both sides differ by the largest share of the allowance, and return its
    `Found`.

    The allowance includes the distance of the sides before the step.
    """
    found = Found(0.0, 0.0, name)
    moved = np.flatnonzero(rows_differ(before[0], after[0]) | rows_differ(before[1], after[1]))
    for part in blocks(len(moved), before[0].shape[1:]) if len(moved) else ():
        w, v, p, q = (wide(x[moved[part]]) for x in (*before, *after))
        away = apart(p - w, q - v)
        size: Array = np.maximum.reduce([np.abs(x) for x in (w, v, p, q)])
        may = allowed(moved[part], size) + np.abs(w - v)
        with np.errstate(invalid="ignore", divide="ignore"):
            share = np.where(away > 0, away / may, 0.0)
        at = int(np.argmax(np.nan_to_num(share, nan=np.inf)))
        found = furthest([found, Found(float(away.flat[at]), float(may.flat[at]), name)])
    return found
