"""Judge one step of two sides by position, up to the first that rounding does not explain.

**Outputs, loss and gradients** depend on the tables. Frameworks sum in different orders and by different functions.
So a tensor may differ by `ARITHMETIC` eps of its 2-norm, as in `diff` (SPEC clause 22). It may also differ by `FLOOR`
eps of the norm of all tensors at that position. Tables that rounding has moved apart give different gradients. Their
relative distance d, over the rows in the step's gradients, may grow by a factor `GROWTH`. Above `MOST_SLACK` the
position is no longer judged.

**Clipping** is a projection: in the 2-norm, it does not increase the distance of two gradients.

`islices.porting.trajectory.movements` judges the step itself. SPEC clause 23.

May import: `numpy`, the core below `islices.files`, `islices.porting.compare`, this folder.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from islices.core.slices import IndexedSlices
from islices.porting.compare.evidence import MOST_SLACK
from islices.porting.trajectory.distances import distances, eps_of, gap, same_values
from islices.porting.trajectory.movements import Found, Past, advance, furthest, movements
from islices.porting.trajectory.positions import Leaves, Step, common, rows_named

#: The positions as they are judged, in the order of a training.
ORDER = ("batch", "start", "between", "outputs", "loss", "gradients", "clipped", "step", "state")

#: eps of a tensor's norm that two models' arithmetic may differ by.
ARITHMETIC = 256.0
#: eps of the norm of all tensors at one position.
FLOOR = 8.0
#: The factor by which a relative distance of tables may grow in outputs and gradients.
GROWTH = 1024.0


@dataclass
class Verdict:
    """The result of comparing one step of both sides.

    Attributes
    ----------
    step : int
    positions : dict of str to Found
        The distances in order. A position beyond its allowance is the last.
    gap : float
        The largest absolute difference of an element of the tables after the step; NaN if a side has no tables.
    drift : float
        The distance of the tables before the step, relative to their norm, over the rows in the gradients.
    loss : (float, float)
        NaN if a side has no loss.
    same_bits : bool
        True if all values that both sides have agree to the bit.
    stop : str or None
        The position that rounding does not explain.
    """

    step: int
    positions: dict[str, Found] = field(default_factory=dict)
    gap: float = math.nan
    drift: float = 0.0
    loss: tuple[float, float] = (math.nan, math.nan)
    same_bits: bool = True
    stop: str | None = None


def judge(a: Step, b: Step, past: Past, ignored: frozenset[str], notes: dict[str, str]) -> tuple[Verdict, Past]:
    """Judge a step in which b has a's names. Return the verdict and the next step's past, and add to the notes."""
    now = advance(past, a, b)
    verdict = Verdict(a.number, {}, _gap(a, b), _drift(a, b), (_loss(a), _loss(b)), _same_bits(a, b))
    for position, found in _positions(a, b, verdict.drift, past, now, notes):
        if position in ignored:
            continue
        verdict.positions[position] = found
        if found.judged and not found.share <= 1:
            verdict.stop = position
            break
    return verdict, now


def _positions(
    a: Step, b: Step, drift: float, past: Past, now: Past, notes: dict[str, str]
) -> Iterator[tuple[str, Found]]:
    batch = common(a, b, "batch")
    if batch[0]:
        yield "batch", _near(batch, 0.0)
    starts = [pair for position in ("tables", "state") if (pair := common(a, b, position))[0]]
    if past.last is None and starts:
        yield "start", furthest(_near(pair, 1.0) for pair in starts)
    if past.last is not None and a.number == past.last[0].number + 1:
        found = _between((a, b), past.last, notes)
        if found is not None:
            yield "between", found
    for position in ("outputs", "loss", "gradients"):
        pair = common(a, b, position)
        if pair[0]:
            yield position, _by_norm(*pair, drift, _coarsest(a, b) if position == "loss" else 0.0)
    clipped = rows_named(a), rows_named(b)
    if ("clipped" in a.trees or "clipped" in b.trees) and all(clipped):
        yield "clipped", _clipped(*common(a, b, "gradients"), *clipped, drift)
    yield from movements(a, b, now)


# ---------------------------------------------------------------------- single positions
def _near(pair: tuple[Leaves, Leaves], factor: float) -> Found:
    """Compare each distance with the norm times the narrower type's eps times a factor."""
    return furthest(Found(apart, factor * eps * size, name) for name, (apart, size, eps) in distances(*pair).items())


def _between(now: tuple[Step, Step], last: tuple[Step, Step], notes: dict[str, str]) -> Found | None:
    """Judge the tables that a side changed between two steps, by their distance at the end of the first. Return None
    if none changed."""
    changed: list[str] = []
    for side, then, here in zip("ab", last, now, strict=True):
        before, after = here.get("tables"), then.get("tables_after")
        some = [n for n, x in before.items() if n in after and x is not after[n] and not same_values(x, after[n])]
        if some:
            text = f"{{{side}}} changes tables between steps: {some[0]!r} before step {here.number}"
            notes.setdefault(f"{side} changes", text)
            changed += some
    left, pair = common(*last, "tables_after"), common(*now, "tables")
    both = [name for name in changed if name in left[0] and name in pair[0]]
    if not both:
        return None
    old_a, old_b, new_a, new_b = ({name: side[name] for name in both} for side in (*left, *pair))
    drift = max(apart / (size or 1.0) for apart, size, _ in distances(old_a, old_b).values())
    return _by_norm(new_a, new_b, drift)


def _drift(a: Step, b: Step) -> float:
    """Return the relative distance of the tables before a step, over the rows in its gradients."""
    away = size = 0.0
    for name, x, y in _tables(*common(a, b, "tables")):
        g, h = rows_named(a).get(name), rows_named(b).get(name)
        if isinstance(g, IndexedSlices) and isinstance(h, IndexedSlices):
            rows = np.union1d(g.indices, h.indices)
            x, y = x[rows], y[rows]
        ((apart, norm, _),) = distances({name: x}, {name: y}).values()
        away, size = math.hypot(away, apart), math.hypot(size, norm)
    return away / size if size else 0.0 if not away else math.inf


def _tables(a: Leaves, b: Leaves) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Yield the arrays of one name and shape, with at least one axis."""
    for name, x in a.items():
        y = b[name]
        if isinstance(x, np.ndarray) and isinstance(y, np.ndarray) and x.shape == y.shape:
            yield name, np.atleast_1d(x), np.atleast_1d(y)


def _gap(a: Step, b: Step) -> float:
    return max((gap(x, y) for _, x, y in _tables(*common(a, b, "tables_after"))), default=math.nan)


def _coarsest(a: Step, b: Step) -> float:
    """Return the largest eps of a step's arrays, because a float32 loss may arrive as a Python float."""
    positions = ("outputs", "gradients", "tables")
    return max((eps_of(x) for s in (a, b) for p in positions for x in s.get(p).values()), default=0.0)


def _by_norm(a: Leaves, b: Leaves, drift: float, least: float = 0.0) -> Found:
    """Judge values that are computed from tables that have drifted apart."""
    known = {name: (apart, size, max(eps, least)) for name, (apart, size, eps) in distances(a, b).items()}
    total = math.hypot(*(size for _, size, _ in known.values()))
    found = furthest(
        Found(
            apart / (size or 1.0),
            (min(ARITHMETIC * eps + GROWTH * drift, MOST_SLACK) * size + FLOOR * eps * total) / (size or 1.0),
            name,
        )
        for name, (apart, size, eps) in known.items()
    )
    return replace(found, judged=GROWTH * drift <= MOST_SLACK or not math.isfinite(found.apart))


def _clipped(raw_a: Leaves, raw_b: Leaves, a: Leaves, b: Leaves, drift: float) -> Found:
    """Judge clipped gradients. All tensors together must be no further apart than the raw ones."""
    before, after = distances(raw_a, raw_b), distances(a, b)
    if not before or not after:
        return _by_norm(a, b, drift)
    away, apart = (math.hypot(*(x[0] for x in found.values())) for found in (before, after))
    size = math.hypot(*(x[1] for x in after.values())) or 1.0
    eps = max(x[2] for x in after.values())
    return Found(apart / size, away / size + ARITHMETIC / 4 * eps, max(after, key=lambda name: after[name][0]))


def _same_bits(a: Step, b: Step) -> bool:
    pairs = (common(a, b, position) for position in a.trees)
    return all(same_values(x, q[name]) for p, q in pairs for name, x in p.items())


def _loss(s: Step) -> float:
    for x in s.get("loss").values():
        if isinstance(x, np.ndarray) and x.size == 1:
            return float(x.reshape(()))
    return math.nan
