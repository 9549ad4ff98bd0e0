"""Compute the expected gradients of norms and clips in exact rational arithmetic (clauses 7, 9 and 10).

The cases use numbers for which every operation is exact: norms are rational, and results have few bits. So all orders
of operations that clauses 7 and 10 allow give the same bits. For an inexact result, `root` or `exact` raises
ValueError.
"""

from __future__ import annotations

import math
from collections import defaultdict
from fractions import Fraction
from typing import Any

from islices.conformance.data import Array, Slices
from islices.conformance.oracle import round_to, values_of

#: The place of a number in the dense arrays: (leaf, row, column). Slots of the same row have the same places.
Place = tuple[int, int, int]


def gradient(op: str, leaves: list[Any], upstream: list[Array], limit: Any = None, **options: Any) -> list[Array]:
    """Return the gradient of an operation with respect to the stored values, as one array per leaf."""
    terms = [(k, place, Fraction(v)) for k, x in enumerate(leaves) for place, v in zip(*places(x), strict=True)]
    sums: dict[Place, Fraction] = defaultdict(Fraction)
    for k, (row, column), v in terms:
        sums[k, row, column] += v
    given = [Fraction(g) for array in upstream for g in array.data]
    if op in ("norm", "global_norm"):
        of_norm = norm_slopes(sums, options.get("ord", 2))
        found = [given[0] * of_norm[k, row, column] for k, (row, column), _ in terms]
    elif op == "clip_by_value":
        lo, hi = Fraction(options["lo"]), Fraction(options["hi"])
        width = math.prod(leaves[0].dense_shape[1:])
        found = [given[row * width + c] * (lo <= sums[k, row, c] <= hi) for k, (row, c), _ in terms]
    else:
        found = clip_slopes(terms, sums, given, limit, by_row=op == "clip_by_row_norm")
    out, rest = [], iter(found)
    for x in leaves:
        values = values_of(x)
        out.append(Array(values.dtype, values.shape, [exact(next(rest), values.dtype) for _ in values.data]))
    return out


def places(x: Any) -> tuple[list[tuple[int, int]], list[Any]]:
    """Return ([(row, column) of each stored number], [the stored numbers])."""
    v = values_of(x)
    width = math.prod(v.shape[1:])
    rows = x.indices.data if isinstance(x, Slices) else range(v.shape[0])
    return [(row, column) for row in rows for column in range(width)], v.data


def norm_slopes(sums: dict[Place, Fraction], ord: Any) -> dict[Place, Fraction]:
    """Return the derivative of a norm with respect to each element of the dense arrays (T in the specification)."""
    if ord == 1:
        return {place: Fraction((s > 0) - (s < 0)) for place, s in sums.items()}
    if ord == "inf":
        largest = max((abs(s) for s in sums.values()), default=Fraction(0))
        top = [place for place, s in sums.items() if s and abs(s) == largest]
        return {
            place: Fraction((s > 0) - (s < 0), len(top)) if place in top else Fraction(0) for place, s in sums.items()
        }
    n = root(sum((s * s for s in sums.values()), Fraction(0)))
    return {place: s / n if n else Fraction(0) for place, s in sums.items()}


def clip_slopes(
    terms: list[Any], sums: dict[Place, Fraction], given: list[Fraction], most: Any, *, by_row: bool
) -> list[Fraction]:
    """Return the gradient of a clip with respect to each stored number. `given` is the upstream gradient of each
    number."""

    def unit_of(leaf: int, row: int) -> tuple[int, ...]:
        return (leaf, row) if by_row else ()

    squares: dict[Any, Fraction] = defaultdict(Fraction)
    inner: dict[Any, Fraction] = defaultdict(Fraction)
    for (k, row, _), s in sums.items():
        squares[unit_of(k, row)] += s * s
    for (k, (row, _), v), g in zip(terms, given, strict=True):
        inner[unit_of(k, row)] += g * v
    norms = {unit: root(square) for unit, square in squares.items()}
    found = []
    for (k, (row, column), _), g in zip(terms, given, strict=True):
        unit = unit_of(k, row)
        n = norms[unit]
        if n <= most:
            found.append(g)
        else:
            factor = Fraction(most) / n
            found.append(g * factor - factor * inner[unit] / n * sums[k, row, column] / n)
    return found


def root(square: Fraction) -> Fraction:
    """Return the square root of a rational number. Raise ValueError if the root is not rational."""
    r = Fraction(math.isqrt(square.numerator), math.isqrt(square.denominator))
    if r * r != square:
        raise ValueError(f"the root of {square} is not rational")
    return r


def exact(x: Any, dtype: str) -> Any:
    """Return a result in a dtype. Raise ValueError if the dtype cannot represent the result exactly."""
    rounded = round_to(x, dtype)
    if Fraction(rounded) != x:
        raise ValueError(f"{x} is no {dtype}")
    return rounded
