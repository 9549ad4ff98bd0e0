"""Every backend in step: the same batch for all, then their parameters compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from islices.conformance.tools.parity.bound import Bound
from islices.conformance.tools.parity.models import Batch
from islices.conformance.tools.parity.rounding import EPS, Rounded
from islices.conformance.tools.parity.text import PADDING
from islices.conformance.tools.parity.training import Recipe, Training

__all__ = ["Curve", "Parity", "Stop", "train"]

Array = np.ndarray[Any, Any]
Arrays = dict[str, Array]


@dataclass
class Curve:
    """What one backend did, step by step.

    loss: its own, or the one that the recorded gradients are of. gap: the largest difference from the first backend's
    parameters. share: the largest quotient of such a difference and what is allowed. units: the largest gap of an
    element over eps * (|start| + sum of |steps|) of it. same_bits: the first steps after which all bits were the first
    backend's, the optimizer's state too.
    """

    loss: list[float] = field(default_factory=list)
    gap: list[float] = field(default_factory=list)
    share: list[float] = field(default_factory=list)
    units: list[float] = field(default_factory=list)
    same_bits: int = 0


@dataclass(frozen=True)
class Stop:
    """The step at which two backends came too far apart, and what they had: for `islices.diff`.

    gradients are not clipped yet, clipped are; before and after: the parameters; states: the optimizer's, after the
    step; by_hand: the gradient by hand, not clipped, and its errors, empty with recorded ones; clipped_by_hand: that,
    clipped.
    """

    step: int
    names: tuple[str, str]
    table: str
    gap: float
    bound: float
    gradients: tuple[Any, Any]
    clipped: tuple[Any, Any]
    before: tuple[Arrays, Arrays]
    after: tuple[Arrays, Arrays]
    states: tuple[Arrays, Arrays]
    tokens: int
    by_hand: dict[str, Rounded]
    clipped_by_hand: dict[str, Rounded]


@dataclass
class Parity:
    """A run, step by step.

    gap: the largest distance of any two backends in an element of the parameters; bound: what that element's may be;
    share: the largest quotient of distance and bound of all elements, above 1 where one is too far. typical: the median
    bound of the elements that may differ; way: that of how far these have come, |start| + sum of |steps|.
    """

    curves: dict[str, Curve]
    own: dict[str, Curve]
    gap: list[float] = field(default_factory=list)
    own_gap: list[float] = field(default_factory=list)
    own_gap_of_words: list[float] = field(default_factory=list)
    bound: list[float] = field(default_factory=list)
    share: list[float] = field(default_factory=list)
    typical: list[float] = field(default_factory=list)
    way: list[float] = field(default_factory=list)
    clipped: int = 0
    stop: Stop | None = None


def train(
    recipe: Recipe,
    start: Mapping[str, Array],
    batches: Iterator[Batch],
    steps: int,
    trainings: Sequence[Training],
    *,
    shared: bool = False,
    own: Mapping[str, Any] | None = None,
    tell: Callable[[], None] = lambda: None,
) -> Parity:
    """Train all in step, until the steps are done or two of them come further apart than the bound.

    Parameters
    ----------
    recipe, start, batches
        What all begin with.
    steps : int
    trainings : sequence of Training
        By islices, one a backend. The first is the one that gaps are measured from.
    shared : bool
        All get the same upstream gradients, worked out by hand from the first one's parameters; their bits must then
        stay the same. Otherwise each has its own autodiff, and `Bound` says how far they may be apart.
    own : dict of str to OwnTraining
        Trainings without islices, beside them: nothing bounds these.
    tell : callable
        Called after each step.
    """
    own = dict(own or {})
    parity = Parity({t.name: Curve() for t in trainings}, {name: Curve() for name in own})
    travelled = {name: np.abs(x).astype(np.float64) for name, x in start.items()}
    bound = None if shared else Bound(recipe, start)
    now = {t.name: t.tables() for t in trainings}
    for step in range(1, steps + 1):
        batch, before = next(batches), now
        gradients = _gradients(parity, recipe, trainings, batch, shared)
        norms = [t.step(gradients[t.name]) for t in trainings]
        parity.clipped += norms[0] > recipe.max_norm
        now = {t.name: t.tables() for t in trainings}
        first = trainings[0].name
        for name, total in travelled.items():
            total += np.max([np.abs(now[k][name].astype(np.float64) - before[k][name]) for k in now], axis=0)
        gaps = _spread(now)
        allowed = bound.step(batch, before[first], _spread(before), now[first]) if bound else {}
        table, at = _where(gaps)
        parity.gap.append(float(gaps[table][at]))
        parity.bound.append(float(allowed[table][at]) if bound else 0.0)
        parity.share.append(_share(gaps, allowed))
        if bound:
            may_differ = {name: x > 0 for name, x in allowed.items()}
            parity.typical.append(_median(allowed, may_differ))
            parity.way.append(_median(travelled, may_differ))
        _compare(parity.curves, now, {t.name: t.states() for t in trainings}, step, travelled, allowed)
        for name, training in own.items():
            parity.own[name].loss.append(training.step(batch))
        if own:
            theirs = {name: training.tables() for name, training in own.items()}
            apart = _spread(theirs)
            parity.own_gap.append(_largest(apart))
            parity.own_gap_of_words.append(
                _largest({name: _without_padding(x, recipe, name) for name, x in apart.items()})
            )
            _compare(parity.own, theirs, {}, step, {}, {})
        tell()
        if _too_far(parity, step, shared):
            parity.stop = _stop(recipe, parity, trainings, batch, bound, allowed, gradients, before, now)
            break
    return parity


def _gradients(
    parity: Parity, recipe: Recipe, trainings: Sequence[Training], batch: Batch, shared: bool
) -> dict[str, dict[str, Any]]:
    found = {}
    if shared:
        tables = {name: Rounded(x) for name, x in trainings[0].tables().items()}
        upstream = recipe.model.upstream(tables, batch)
        for t in trainings:
            found[t.name] = t.recorded_gradients(upstream)
            parity.curves[t.name].loss.append(upstream.loss)
        return found
    for t in trainings:
        loss, found[t.name] = t.own_gradients(batch)
        parity.curves[t.name].loss.append(loss)
    return found


def _too_far(parity: Parity, step: int, shared: bool) -> bool:
    if shared:
        return any(curve.same_bits < step for curve in parity.curves.values())
    return parity.share[-1] > 1


# ---------------------------------------------------------------------- comparing
def _spread(tables: Mapping[str, Arrays]) -> Arrays:
    """The largest distance of any two backends' parameters, element by element; NaN equals NaN, and nothing else."""
    names = next(iter(tables.values()))
    stacks = {name: np.stack([x[name].astype(np.float64) for x in tables.values()]) for name in names}
    with np.errstate(invalid="ignore"):
        return {name: np.where(_same(x, x[0]).all(0), 0.0, x.max(0) - x.min(0)) for name, x in stacks.items()}


def _same(x: Array, y: Array) -> Array:
    return (x == y) | (np.isnan(x) & np.isnan(y))  # type: ignore[no-any-return]


def _where(arrays: Arrays) -> tuple[str, tuple[int, ...]]:
    """(name, place) of the largest element; a NaN is larger than any."""
    name = max(arrays, key=lambda k: float(np.nan_to_num(arrays[k].max(), nan=np.inf)))
    return name, tuple(int(k) for k in np.unravel_index(np.argmax(arrays[name]), arrays[name].shape))


def _shares(gaps: Arrays, allowed: Arrays) -> Arrays:
    """gap / allowed, element by element; infinite where no gap is allowed or the gap is no number."""
    with np.errstate(divide="ignore", invalid="ignore"):
        found = {name: x / allowed.get(name, 0.0) for name, x in gaps.items()}
    return {
        name: np.where(gaps[name] == 0, 0.0, np.nan_to_num(x, nan=np.inf, posinf=np.inf)) for name, x in found.items()
    }


def _share(gaps: Arrays, allowed: Arrays) -> float:
    return _largest(_shares(gaps, allowed))


def _largest(arrays: Arrays) -> float:
    return float(np.max([x.max() for x in arrays.values()]))  # of which a NaN is one


def _median(arrays: Arrays, which: Arrays) -> float:
    return float(np.median(np.concatenate([x[which[name]] for name, x in arrays.items()])))


def _without_padding(x: Array, recipe: Recipe, name: str) -> Array:
    return np.delete(x, PADDING, axis=0) if name in recipe.model.tables else x


def _compare(
    curves: Mapping[str, Curve],
    tables: Mapping[str, Arrays],
    states: Mapping[str, Arrays],
    step: int,
    travelled: Arrays,
    allowed: Arrays,
) -> None:
    first = next(iter(curves))
    for name, curve in curves.items():
        away = _spread({first: tables[first], name: tables[name]})
        curve.gap.append(_largest(away))
        if allowed:
            curve.share.append(_share(away, allowed))
        if travelled:  # of trainings by islices; others may move what these never do
            curve.units.append(_largest({k: x / np.where(x > 0, EPS * travelled[k], 1.0) for k, x in away.items()}))
        pairs = [(x, tables[first][k]) for k, x in tables[name].items()]
        pairs += [(x, states[first][k]) for k, x in states.get(name, {}).items()]
        if curve.same_bits == step - 1 and all(np.array_equal(a, b, equal_nan=True) for a, b in pairs):
            curve.same_bits = step


def _stop(
    recipe: Recipe, parity: Parity, trainings: Sequence[Training], batch: Batch, bound: Bound | None, allowed: Arrays,
    gradients: Mapping[str, Any], before: Mapping[str, Arrays], now: Mapping[str, Arrays],
) -> Stop:  # fmt: skip
    """The two backends that are furthest apart, in the element that is furthest beyond its bound."""
    gaps, step = _spread(now), len(parity.gap)
    table, at = _where(_shares(gaps, allowed) if allowed else gaps)
    values = {name: float(x[table][at]) for name, x in now.items()}
    names = [name for name in now if name in (min(values, key=values.__getitem__), max(values, key=values.__getitem__))]
    if len(names) < 2:  # their state alone differs, or not all are numbers
        names = [trainings[0].name, next(name for name, curve in parity.curves.items() if curve.same_bits < step)]
    pair = [next(t for t in trainings if t.name == name) for name in names]
    return Stop(
        step=step,
        names=(names[0], names[1]),
        table=table,
        gap=float(gaps[table][at]),
        bound=float(allowed[table][at]) if bound else 0.0,
        gradients=(dict(gradients[names[0]]), dict(gradients[names[1]])),
        clipped=(pair[0].clipped, pair[1].clipped),
        before=(before[names[0]], before[names[1]]),
        after=(now[names[0]], now[names[1]]),
        states=(pair[0].states(), pair[1].states()),
        tokens=recipe.model.tokens(batch),
        by_hand=bound.by_hand if bound else {},
        clipped_by_hand=bound.clipped_by_hand if bound else {},
    )
