"""One step of two sides: position by position, the first that rounding does not explain.

See `islices.porting.trajectory.distances`.

May import: `numpy`, the core below `islices.files`, this folder.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from islices.core.dtypes import dtype_name
from islices.porting.compare.stored import blocks
from islices.porting.trajectory.distances import ARITHMETIC, FLOOR, GROWTH, MOST, distances, eps_of, norm, same_values
from islices.porting.trajectory.movements import Moves
from islices.porting.trajectory.positions import Leaves, Step, rows_named
from islices.porting.trajectory.verdict import Found, Verdict

__all__ = ["Judge"]


class Judge:
    """Judges the steps of two sides, one after the other; b's bear a's names (`islices.porting.trajectory.tensor_names`).

    Parameters
    ----------
    optimizers : (mapping, mapping)
        What the caller says steps a's and b's tensors: by name, "" for all.
    ignored : set of str
        Positions that are not judged.
    """

    def __init__(self, optimizers: tuple[Mapping[str, Any], Mapping[str, Any]], ignored: frozenset[str]) -> None:
        self.ignored = ignored
        self.moves = Moves(optimizers)
        self.count = 0
        self.last: tuple[Step, Step] | None = None
        self.changed: list[str] = []

    def step(self, a: Step, b: Step, *, follows: bool) -> Verdict:
        """The verdict on a step; follows: the one before it is the one that was judged last."""
        first = self.count == 0
        self.count += 1
        said = Verdict(a.number, same_bits=_same_bits(a, b))
        said.loss = (_number(a.get("loss")), _number(b.get("loss")))
        said.drift, said.gap = self._drift(a, b), _gap(a.get("tables_after"), b.get("tables_after"))
        last, self.last = self.last if follows else None, (a, b)
        for position, found in self._positions(a, b, said, first, last):
            if position in self.ignored:
                continue
            said.positions[position] = found
            if found.judged and not found.share <= 1:
                said.stop = position
                break
        return said

    def _positions(
        self, a: Step, b: Step, said: Verdict, first: bool, last: tuple[Step, Step] | None
    ) -> Iterator[tuple[str, Found]]:
        if (pair := _both(a, b, "batch")) is not None:
            yield "batch", _batch(*pair)
        if first and (found := _start(a, b)) is not None:
            yield "start", found
        if last is not None and (found := self._between((a, b), last)) is not None:
            yield "between", found
        for position in ("outputs", "loss", "gradients"):
            if (pair := _both(a, b, position)) is not None:
                least = _coarsest(a, b) if position == "loss" else 0.0
                yield position, _by_norm(*pair, said.drift, least)
        if "clipped" in a.trees or "clipped" in b.trees:
            raw, clipped = _both(a, b, "gradients"), (rows_named(a), rows_named(b))
            if clipped[0] and clipped[1]:
                yield "clipped", _clipped(raw, clipped[0], clipped[1], said.drift)
        yield from self.moves.judge(a, b, follows=last is not None)

    @property
    def notes(self) -> list[str]:
        """What is to be said of how steps were judged."""
        return [*self.changed, *self.moves.notes]

    def _between(self, now: tuple[Step, Step], last: tuple[Step, Step]) -> Found | None:
        """The tables that a side has changed since its last step ended: no further apart than what is computed from
        tables as far apart as these were then. None where neither has changed any."""
        changed = dict[str, None]()
        for side, (then, here) in enumerate(zip(last, now, strict=True)):
            before, after = here.get("tables") or {}, then.get("tables_after") or {}
            own = [n for n, x in before.items() if n in after and x is not after[n] and not same_values(x, after[n])]
            changed.update(dict.fromkeys(own))
            told = f"{{{'ab'[side]}}} changes tables between steps"
            if own and not any(note.startswith(told) for note in self.changed):
                self.changed.append(f"{told}: {own[0]!r} before step {here.number}")
        left = _both(*last, "tables_after")
        pair = _both(*now, "tables")
        if not changed or left is None or pair is None:
            return None
        both = [name for name in changed if all(name in side for side in (*left, *pair))]
        drift = max(
            (apart / (size or 1.0) for apart, size, _ in distances(*(_some(x, both) for x in left)).values()),
            default=0.0,
        )
        return _by_norm(_some(pair[0], both), _some(pair[1], both), drift)

    @staticmethod
    def _drift(a: Step, b: Step) -> float:
        pair = _both(a, b, "tables")
        if pair is None:
            return 0.0
        away = size = 0.0
        for name in pair[0].keys() & pair[1].keys():
            x, y = (side[name] for side in pair)
            if not isinstance(x, np.ndarray) or not isinstance(y, np.ndarray) or x.shape != y.shape:
                continue
            x, y = np.atleast_1d(x), np.atleast_1d(y)
            rows = [rows_of_gradient(side, name, len(x)) for side in (a, b)]
            some = None if rows[0] is None or rows[1] is None else np.union1d(rows[0], rows[1])
            for part in blocks(len(x) if some is None else len(some), x.shape[1:]):
                at = part if some is None else some[part]
                p, q = x[at].astype(np.float64), y[at].astype(np.float64)
                with np.errstate(invalid="ignore", over="ignore"):
                    away = math.hypot(away, norm(np.nan_to_num(p - q)))
                size = math.hypot(size, norm(np.nan_to_num(p)))
        return away / size if size else 0.0 if not away else math.inf


def rows_of_gradient(step: Step, name: str, rows: int) -> Any:
    """The rows that a tensor's gradient names; None for a dense one, or none."""
    x = rows_named(step).get(name)
    return None if x is None or isinstance(x, np.ndarray) or not rows else np.unique(x.indices)


# ---------------------------------------------------------------------- single positions
def _both(a: Step, b: Step, position: str) -> tuple[Leaves, Leaves] | None:
    x, y = a.get(position), b.get(position)
    return None if x is None or y is None or not (x.keys() & y.keys()) else (x, y)


def _some(leaves: Leaves, names: list[str]) -> Leaves:
    return {name: leaves[name] for name in names}


def _batch(a: Leaves, b: Leaves) -> Found:
    """Of two types, int32 and int64, the same numbers are the same batch."""
    for name in a:
        if name in b and not same_values(a[name], b[name]):
            return Found(1.0, 0.0, name)
    return Found(0.0, 0.0, "")


def _start(a: Step, b: Step) -> Found | None:
    """Tables and states before the first step: the same numbers, as far as the narrower type holds them."""
    worst = None
    for position in ("tables", "state"):
        pair = _both(a, b, position)
        if pair is None:
            continue
        worst = worst or Found(0.0, 0.0, "")
        unlike = {name: x for name, x in pair[0].items() if name in pair[1] and not same_values(x, pair[1][name])}
        for name, (apart, size, eps) in distances(unlike, pair[1]).items():
            found = Found(apart, eps * size, name)
            worst = found if worst is None or found.share > worst.share else worst
    return worst


def _coarsest(a: Step, b: Step) -> float:
    """The largest eps of what a step computes with: a loss of float32 comes as a Python float."""
    kinds = [
        dtype_name((x if isinstance(x, np.ndarray) else x.values).dtype)
        for step in (a, b) for position in ("outputs", "gradients", "tables")
        for x in step.trees.get(position, {}).values()
    ]  # fmt: skip
    return max(map(eps_of, kinds), default=0.0)


def _by_norm(a: Leaves, b: Leaves, drift: float, least: float = 0.0) -> Found:
    """What is computed from tables that have drifted apart."""
    found = distances(a, b)
    total = math.hypot(*(size for _, size, _ in found.values()))
    worst, judged = Found(0.0, 0.0, ""), True
    for name, (apart, size, own) in found.items():
        eps = max(own, least)
        slack = ARITHMETIC * eps + GROWTH * drift
        judged = judged and GROWTH * drift <= MOST
        allowed = min(slack, MOST) * size + FLOOR * eps * total
        scale = size or 1.0
        here = Found(apart / scale, allowed / scale, name)
        worst = here if here.share > worst.share else worst
    return Found(worst.apart, worst.allowed, worst.tensor, judged or not math.isfinite(worst.apart))


def _clipped(raw: tuple[Leaves, Leaves] | None, a: Leaves, b: Leaves, drift: float) -> Found:
    """Clipped gradients: no further apart than the raw ones were, all tensors together."""
    if raw is None:
        return _by_norm(a, b, drift)
    before, after = distances(*raw), distances(a, b)
    away = math.hypot(*(apart for apart, _, _ in before.values()))
    size = math.hypot(*(size for _, size, _ in after.values())) or 1.0
    eps = max((eps for _, _, eps in after.values()), default=0.0)
    worst = max(after, key=lambda name: after[name][0])
    apart = math.hypot(*(apart for apart, _, _ in after.values()))
    return Found(apart / size, away / size + ARITHMETIC / 4 * eps, worst)


def _same_bits(a: Step, b: Step) -> bool:
    for position in a.trees.keys() & b.trees.keys():
        x, y = a.trees[position], b.trees[position]
        for name in x.keys() & y.keys():
            if not same_values(x[name], y[name]):
                return False
    return True


def _number(leaves: Leaves | None) -> float:
    for x in (leaves or {}).values():
        if isinstance(x, np.ndarray) and x.size == 1:
            return float(x.reshape(()))
    return math.nan


def _gap(a: Leaves | None, b: Leaves | None) -> float:
    found = []
    for name in (a or {}).keys() & (b or {}).keys():
        x, y = (a or {})[name], (b or {})[name]
        if isinstance(x, np.ndarray) and isinstance(y, np.ndarray) and x.shape == y.shape:
            x, y = np.atleast_1d(x), np.atleast_1d(y)
            found += [_largest_gap(x[part], y[part]) for part in blocks(len(x), x.shape[1:])]
    return float(np.max(found)) if found else math.nan  # NaN where an element is


def _largest_gap(x: Any, y: Any) -> float:
    apart = x != y
    return float(np.abs(x[apart].astype(np.float64) - y[apart].astype(np.float64)).max(initial=0.0))
