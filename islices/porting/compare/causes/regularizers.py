"""Define the cause "regularizer": the loss of one side contains an L2 penalty on the table. The gradient of that side
then contains lambda times the table."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from islices.porting.compare.cause import Cause, Change, Lines
from islices.porting.compare.comparison import Comparison, TwoSides
from islices.porting.compare.evidence import FREE, as_written
from islices.porting.compare.rows import PRECISION, Rows
from islices.porting.compare.stored import Array, wide

#: If fewer elements of the table than this are nonzero, lambda costs as many bits as one element can contribute.
FEW = 4


def regularizer(both: Comparison, which: int) -> Iterator[Change]:
    """Yield a change that adds lambda times the table, the gradient of a penalty, to one side. The function estimates
    lambda for each tensor. The estimate is right even if the sides also differ by a constant factor."""
    strengths: dict[str, float] = {}
    cost = 0.0
    for x, y, pair in both.sides(which):
        found = None if pair.same else _onto_table(x, y, pair)
        if found is not None:
            x, y, table = found
            strength, bits = _fitted(x.values.ravel(), y.values.ravel(), table.ravel(), max(x.eps, y.eps))
            if strength > 0:
                strengths[pair.name] = strength
                # lambda costs the evidence of one element if it has many digits or if only few elements determine it
                decided = bits == FREE or np.count_nonzero(table) < FEW
                cost += max(bits, PRECISION[y.dtype]) if decided else bits
    if not strengths:
        return

    def add(x: Rows, y: Rows, pair: TwoSides) -> Rows | None:
        found = _onto_table(x, y, pair) if pair.name in strengths else None
        if found is None:
            return None
        x, y, table = found
        table = strengths[pair.name] * table
        return replace(
            x, values=x.values + table, terms=x.terms + np.abs(table), counts=x.counts + 1, known=True,
            sparse=y.sparse, slots=None,
        )  # fmt: skip

    shown = ", ".join(sorted({f"{s:.6g}" for s in strengths.values()}))
    text = f"regularizer: {{y}} adds {shown} times the table to its gradient (l2), {{x}} does not"
    yield Change(add, text, {"strengths": strengths}, cost)


def _penalties(details: Mapping[str, Any], framework: str) -> Lines:
    """Return (the line that adds the penalties to the loss, the line that removes them). A line contains one term per
    strength. If there are several strengths, each term lists the tables to which it applies."""
    of: dict[float, list[str]] = {}
    for name, strength in details["strengths"].items():
        of.setdefault(strength, []).append(name)
    terms = [f"{s / 2:.6g} * (table ** 2).sum()" + f" of {', '.join(names)}" * (len(of) > 1) for s, names in of.items()]
    return "; ".join(f"loss = loss + {t}" for t in terms), "; ".join(f"take `{t}` off the loss" for t in terms)


REGULARIZER = Cause("regularizer", 35, propose=regularizer, exact="never", fix=_penalties)


def _onto_table(x: Rows, y: Rows, pair: TwoSides) -> tuple[Rows, Rows, Array] | None:
    """Return (rows of x, rows of y, rows of the table) for all rows that x or y has. Return None if the table is
    unknown or has too few rows. Also return None if x and y have no rows, or rows of different shapes."""
    ids = np.union1d(x.ids, y.ids)
    if pair.whole.table is None or x.row_shape != y.row_shape or not len(ids) or ids[-1] >= len(pair.whole.table):
        return None
    return x.onto(ids), y.onto(ids), wide(pair.whole.table[ids])


def _fitted(x: Array, y: Array, p: Array, eps: float) -> tuple[float, float]:
    """Return (lambda, cost of lambda in bits) such that y is about proportional to x + lambda * p. If no positive
    lambda fits, return (0, 0)."""
    with np.errstate(all="ignore"):
        if not all(np.isfinite(z).all() and z.any() for z in (x, y, p)):
            return 0.0, 0.0
        (alpha, slope), _, rank, _ = np.linalg.lstsq(np.stack([x, p], 1), y)
        left = y - alpha * x - slope * p
    if rank < 2 or alpha <= 0 or slope * np.abs(p).max() < 16 * eps * np.abs(y).max():
        return 0.0, 0.0
    strength = float(slope / alpha)
    error = math.sqrt(float(left @ left) / max(1, len(p) - 2) / float(p @ p)) / alpha
    return as_written(strength, lambda short: abs(short - strength) <= max(4 * error, 4 * eps * strength))
