"""Causes that a penalty on the tables makes: lambda times the table, or times its signs, in one side's gradient."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from islices.porting.compare.cause import Beside, Cause, Change, Lines, each_tensor
from islices.porting.compare.comparison import Comparison
from islices.porting.compare.digits import FREE, as_written
from islices.porting.compare.evidence import PRECISION, Rows
from islices.porting.compare.stored import Array, wide

__all__ = ["REGULARISER"]

#: Rows that lambda is read off.
SAMPLED = 4096
#: Elements that small whole numbers may agree on by chance.
FEW = 4
KINDS = {"l2": "the table", "l1": "the signs of the table"}
#: What else was done to the side that has the penalty: it was scaled, or rounded to 16 bits, lambda with it.
MODES = ("", "scaled", "rounded")
#: What 16 bits may have done to lambda, relatively.
ROUNDED = 2.0**-8


def regulariser(both: Comparison, which: int) -> Iterator[Change]:
    """One side has the gradient of a penalty, the other has not. One that is scaled too is fitted with lambda."""
    if both.tables is None:
        return
    for kind, what in KINDS.items():
        for mode in MODES:
            strengths: dict[str, float] = {}
            cost = 0.0

            def change(
                x: Rows, y: Rows, beside: Beside, kind: str = kind, mode: str = mode,
                into: dict[str, float] = strengths,
            ) -> Rows | None:  # fmt: skip
                nonlocal cost
                table = beside.table
                if table is None or x.values.shape[1:] != y.values.shape[1:] or not len(y.ids):
                    return None
                ids = np.union1d(x.ids, y.ids)
                if not len(ids) or ids[-1] >= len(table):
                    return None
                if beside.name not in into:
                    some = ids[:: max(1, len(ids) // SAMPLED)]
                    p = _penalty(table, some, kind)
                    found = _strength(_at(x, some), _at(y, some), p, mode, max(x.eps, y.eps))
                    if found is None:
                        return None
                    # a number that nobody writes so, or that few elements decide, says all of one element
                    decided = found[1] == FREE or np.count_nonzero(p) < FEW
                    bits = max(found[1], PRECISION[y.dtype]) if decided else found[1]
                    into[beside.name], cost = found[0], cost + bits
                return _penalised(x, ids, into[beside.name] * _penalty(table, ids, kind), y.sparse)

            found = each_tensor(both, which, change)
            if found:
                shown = ", ".join(sorted({f"{s:.6g}" for s in strengths.values()}))
                text = f"regulariser: {{y}} adds {shown} times {what} to its gradient ({kind}), {{x}} does not"
                details = {"kind": kind, "strengths": strengths, **found.named}
                yield Change(found.rows, text, details, cost, again=found.again)


def _penalties(details: Mapping[str, Any]) -> Lines:
    """Return the terms of the loss, one for each strength, with the tables that it is of where there are several."""
    of: dict[float, list[str]] = {}
    for name, strength in details["strengths"].items():
        of.setdefault(strength, []).append(name)
    l1 = details["kind"] == "l1"
    terms = [f"{s:.6g} * abs(table).sum()" if l1 else f"{s / 2:.6g} * (table ** 2).sum()" for s in of]
    if len(of) > 1:
        terms = [f"{term} of {', '.join(names)}" for term, names in zip(terms, of.values(), strict=True)]
    return {"": (
        "; ".join(f"loss = loss + {term}" for term in terms), "; ".join(f"take `{term}` off the loss" for term in terms)
    )}  # fmt: skip


REGULARISER = Cause(
    "regulariser", "a regulariser", 35, propose=regulariser, needs=("gradients",), exact="never", fix=_penalties
)


def _penalty(table: Array, ids: Array, kind: str) -> Array:
    w = wide(table[ids])
    return np.sign(w) if kind == "l1" else w


def _at(x: Rows, ids: Array) -> Array:
    """x on some rows, flat; zeros where it has none."""
    out = np.zeros((len(ids), *x.values.shape[1:]))
    place = np.minimum(np.searchsorted(x.ids, ids), max(len(x.ids) - 1, 0))
    there = x.ids[place] == ids if len(x.ids) else np.zeros(len(ids), bool)
    out[there] = x.values[place[there]]
    return out.reshape(-1)


def _strength(x: Array, y: Array, p: Array, mode: str, eps: float) -> tuple[float, float] | None:
    """(lambda, bits that it costs) for which y is x + lambda p; or in proportion to that, or that rounded."""
    p, scaled = p.reshape(-1), mode == "scaled"
    if mode == "rounded":
        alone = _where_alone(x, y, p, eps)
        return _before_rounding(alone[0]) if alone and alone[1] == FREE else None
    with np.errstate(all="ignore"):
        pp, xx, xp = float(p @ p), float(x @ x), float(x @ p)
        if not (0 < pp < math.inf and math.isfinite(xx)):
            return None
        if not scaled and (alone := _where_alone(x, y, p, eps)):
            return alone
        alpha = 1.0
        if scaled:
            determinant = xx * pp - xp * xp
            if determinant <= 1e-6 * xx * pp:
                return None
            alpha = (float(x @ y) * pp - float(y @ p) * xp) / determinant
            if not 0 < alpha < math.inf or abs(alpha - 1) < 1e-4:
                return None
        rest = y - alpha * x
        strength = float(rest @ p) / pp / alpha
        if not (0 < strength < math.inf) or strength * np.abs(p).max() < 16 * eps * np.abs(y).max():
            return None
        left = rest / alpha - strength * p
        error = math.sqrt(float(left @ left) / max(1, len(p) - 1) / pp)
    return as_written(strength, lambda short: abs(short - strength) <= max(4 * error, 4 * eps * strength))


def _before_rounding(strength: float) -> tuple[float, float] | None:
    short, bits = as_written(strength, lambda short: abs(short - strength) <= ROUNDED * strength, 2)
    return None if bits == FREE else (short, bits)


def _where_alone(x: Array, y: Array, p: Array, eps: float) -> tuple[float, float] | None:
    """The same, where one side has nothing but the penalty: what bounds the largest elements does not disturb it."""
    some = (x == 0) & (p != 0) & (np.abs(y) < 0.99 * np.abs(y).max(initial=0.0))
    if some.sum() < 16:
        return None
    strength = float(np.median(y[some] / p[some]))
    off = np.abs(y[some] - strength * p[some]) > 8 * eps * np.abs(y[some])
    if not 0 < strength < math.inf or off.mean() > 0.1:
        return None
    return as_written(strength, lambda short: abs(short - strength) <= 4 * eps * strength)


def _penalised(x: Rows, ids: Array, added: Array, sparse: bool) -> Rows:
    values, terms = added.copy(), np.abs(added)
    counts = np.ones(len(ids), np.int64)
    place = np.searchsorted(ids, x.ids)
    values[place] += x.values
    terms[place] += np.abs(x.values) if x.terms is None else x.terms
    counts[place] += 1 if x.counts is None else x.counts
    return replace(x, ids=ids, values=values, terms=terms, counts=counts, sparse=sparse, slot_ids=None, slots=None)
