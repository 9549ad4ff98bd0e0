"""Judge one step of two sides, position by position, up to the first difference that rounding does not explain.

**Outputs, loss and gradients** depend on the tables. Frameworks compute these values in different orders and with
different functions. So a tensor may differ by `ARITHMETIC` eps times its 2-norm (SPEC clause 22 has the same factor).
Once rounding has changed the tables, the outputs, loss and gradients computed from them also differ. So a tensor may
also differ by `GROWTH` times the relative distance of the tables, times its 2-norm. The sum of these two allowances is
at most `MOST_SLACK` times the tensor's 2-norm. In addition, a tensor may differ by `FLOOR` eps times the norm of all
tensors at the position. For the distance of the tables, only the rows in a table's gradients count if these gradients
are sparse on both sides. If `GROWTH` times the distance exceeds `MOST_SLACK`, the position is not judged, unless the
difference is infinite.

**Clipping** is a projection, so it does not increase the distance between two gradients in the 2-norm.

`islices.porting.trajectory.movements` judges the tables and states after the step. SPEC clause 23 defines all
allowances.

May import: `numpy`, the core below `islices.files`, `islices.porting.compare`, this folder.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from islices.core.slices import IndexedSlices
from islices.porting.compare.evidence import MOST_SLACK
from islices.porting.trajectory.distances import distances, eps_of, gap, same_values
from islices.porting.trajectory.movements import Found, Past, furthest, movements
from islices.porting.trajectory.positions import POSITIONS, Leaves, Step, Steps

#: The positions in the order in which they are judged.
ORDER = ("batch", "start", "between", "outputs", "loss", "gradients", "clipped", "step", "state")

#: The allowance for two models that compute in different orders, as a multiple of eps times the tensor's norm.
ARITHMETIC = 256.0
#: An additional allowance, as a multiple of eps times the norm of all tensors at the position.
FLOOR = 8.0
#: The relative distance of outputs, loss and gradients may be larger than that of the tables by this factor.
GROWTH = 1024.0


@dataclass
class Verdict:
    """The result of comparing one step of both sides.

    Attributes
    ----------
    step : int
    positions : dict of str to Found
        The distance at each compared position, in the order of comparison. If a judged position exceeds its allowance,
        it is the last one.
    gap : float
        The largest absolute difference between elements of the tables after the step. The value is NaN if the sides
        have no table of the same name and shape.
    drift : float
        The distance of the tables before the step, relative to their norm. If a table's gradients on both sides are
        sparse, only the rows in these gradients count.
    loss : (float, float)
        The losses of both sides. A side's loss is NaN if the side recorded no loss of one element.
    same_bits : bool
        True if all values that exist on both sides are equal. Their dtypes may differ.
    stop : str or None
        The position where rounding does not explain the difference, or None if there is no such position.
    """

    step: int
    positions: dict[str, Found] = field(default_factory=dict)
    gap: float = math.nan
    drift: float = 0.0
    loss: tuple[float, float] = (math.nan, math.nan)
    same_bits: bool = True
    stop: str | None = None


def judge(now: Steps, past: Past, ignored: frozenset[str], notes: dict[str, str]) -> Verdict:
    """Judge a step, and return the verdict. The tensors of b must already have the names of the tensors of a. Add
    remarks for the report to `notes`. Add the step to `past`, unless a position before "step" stops the comparison."""
    pairs = (now.common(position) for position in now.a.trees)
    same = all(same_values(x, q[name]) for p, q in pairs for name, x in p.items())
    verdict = Verdict(now.a.number, {}, _gap(now), _drift(now), (_loss(now.a), _loss(now.b)), same)
    for position, found in _positions(now, verdict.drift, past, notes):
        if position in ignored:
            continue
        verdict.positions[position] = found
        if found.judged and not found.share <= 1:
            verdict.stop = position
            break
    return verdict


def _positions(now: Steps, drift: float, past: Past, notes: dict[str, str]) -> Iterator[tuple[str, Found]]:
    pairs = {position: now.common(position) for position in POSITIONS}
    if pairs["batch"][0]:
        yield "batch", _near(pairs["batch"], 0.0)
    starts = [pairs[position] for position in ("tables", "state") if pairs[position][0]]
    if past.last is None and starts:
        yield "start", furthest(_near(pair, 1.0) for pair in starts)
    if past.last is not None and (found := _between(now, past.last, notes)):
        yield "between", found
    for position in ("outputs", "loss", "gradients"):
        if pairs[position][0]:
            yield position, _by_norm(pairs[position], drift, _coarsest(now) if position == "loss" else 0.0)
    if any("clipped" in s.trees for s in now) and all(s.applied for s in now):
        yield "clipped", _clipped(pairs["gradients"], (now.a.applied, now.b.applied), drift)
    past.add(now)
    yield from movements(now, past)


# ---------------------------------------------------------------------- single positions
def _near(pair: tuple[Leaves, Leaves], factor: float) -> Found:
    """Return the `Found` of the tensor that uses the largest share of its allowance. The allowance is `factor` times
    the larger 2-norm of both sides times the larger eps of both dtypes."""
    return furthest(Found(apart, factor * eps * size, name) for name, (apart, size, eps) in distances(pair).items())


def _between(now: Steps, last: Steps, notes: dict[str, str]) -> Found | None:
    """Judge the tables that a side changed between the step `last` and the step `now`. Return None if there is no
    changed table that both sides recorded, or if the numbers of the steps are not consecutive. The allowance depends on
    the distance of these tables after the step `last`."""
    if now.a.number != last.a.number + 1:
        return None
    changed: list[str] = []
    for side, then, step in zip("ab", last, now, strict=True):
        before, after = step.get("tables"), then.get("tables_after")
        some = [n for n, x in before.items() if n in after and x is not after[n] and not same_values(x, after[n])]
        if some:
            text = f"{{{side}}} changes tables between steps: {some[0]!r} before step {step.number}"
            notes.setdefault(f"{side} changes", text)
            changed += some
    pairs = last.common("tables_after"), now.common("tables")
    both = [name for name in changed if all(name in pair[0] for pair in pairs)]
    if not both:
        return None
    ended, begun = (({name: x[name] for name in both}, {name: y[name] for name in both}) for x, y in pairs)
    return _by_norm(begun, max(apart / (size or 1.0) for apart, size, _ in distances(ended).values()))


def _drift(now: Steps) -> float:
    """Return the relative distance of the tables before a step. If both gradients of a table are sparse, only the rows
    in these gradients count."""
    before: tuple[Leaves, Leaves] = {}, {}
    for name, *tables in _tables(*now.common("tables")):
        applied = [s.applied.get(name) for s in now]
        ids = [g.indices for g in applied if isinstance(g, IndexedSlices)]
        for side, x in zip(before, tables, strict=True):
            side[name] = x[np.union1d(*ids)] if len(ids) == 2 else x
    away, size = _together(distances(before))
    return away / size if size else 0.0 if not away else math.inf


def _together(found: Mapping[str, tuple[float, float, float]]) -> tuple[float, float]:
    """Combine the distances and norms of single tensors, and return (distance, norm) of all tensors together."""
    apart, size = (math.hypot(*(x[k] for x in found.values())) for k in (0, 1))
    return apart, size


def _tables(a: Leaves, b: Leaves) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Yield (name, array of a, array of b) for all arrays with the same name and shape. A 0-d array becomes a 1-d
    array."""
    for name, x in a.items():
        y = b[name]
        if isinstance(x, np.ndarray) and isinstance(y, np.ndarray) and x.shape == y.shape:
            yield name, np.atleast_1d(x), np.atleast_1d(y)


def _gap(now: Steps) -> float:
    return max((gap(x, y) for _, x, y in _tables(*now.common("tables_after"))), default=math.nan)


def _coarsest(now: Steps) -> float:
    """Return the largest eps among the dtypes of a step's outputs, gradients and tables. The loss is judged with at
    least this eps, because a float32 loss may be recorded as a Python float."""
    positions = ("outputs", "gradients", "tables")
    return max((eps_of(x) for s in now for p in positions for x in s.get(p).values()), default=0.0)


def _by_norm(pair: tuple[Leaves, Leaves], drift: float, least: float = 0.0) -> Found:
    """Judge values that were computed from tables. `drift` is the relative distance of these tables. Dtypes with an eps
    below `least` are treated as if their eps were `least`."""
    known = {name: (apart, size, max(eps, least)) for name, (apart, size, eps) in distances(pair).items()}
    total = _together(known)[1]
    found = furthest(
        Found(
            apart / (size or 1.0),
            (min(ARITHMETIC * eps + GROWTH * drift, MOST_SLACK) * size + FLOOR * eps * total) / (size or 1.0),
            name,
        )
        for name, (apart, size, eps) in known.items()
    )
    return replace(found, judged=GROWTH * drift <= MOST_SLACK or not math.isfinite(found.apart))


def _clipped(raw: tuple[Leaves, Leaves], clipped: tuple[Leaves, Leaves], drift: float) -> Found:
    """Judge the clipped gradients. All clipped tensors together must not be further apart than the raw tensors, except
    for rounding. If there are no raw gradients, judge each tensor by its norm."""
    before, after = distances(raw), distances(clipped)
    if not before or not after:
        return _by_norm(clipped, drift)
    away, (apart, size) = _together(before)[0], _together(after)
    size = size or 1.0
    eps = max(x[2] for x in after.values())
    return Found(apart / size, away / size + ARITHMETIC / 4 * eps, max(after, key=lambda name: after[name][0]))


def _loss(s: Step) -> float:
    numbers = (x for x in s.get("loss").values() if isinstance(x, np.ndarray) and x.size == 1)
    return next((float(x.reshape(())) for x in numbers), math.nan)
