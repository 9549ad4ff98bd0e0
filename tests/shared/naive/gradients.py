"""A second opinion on gradients: forward differentiation, one stored number at a time, of the naive formulas."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from islices.conformance.data import Array, Slices
from naive.operations import narrow, values_of

__all__ = ["NAIVE"]


class Dual(NamedTuple):
    """A number and its derivative."""

    x: float
    d: float = 0.0

    def plus(self, other: Dual) -> Dual:
        return Dual(self.x + other.x, self.d + other.d)

    def times(self, other: Dual) -> Dual:
        return Dual(self.x * other.x, self.x * other.d + self.d * other.x)

    def over(self, other: Dual) -> Dual:
        return Dual(self.x / other.x, (self.d - self.x / other.x * other.d) / other.x)

    def root(self) -> Dual:
        return Dual(math.sqrt(self.x), self.d / 2 / math.sqrt(self.x)) if self.x else Dual(0.0)

    def size(self) -> Dual:
        return Dual(abs(self.x), self.d * float(np.sign(self.x)))


def total(numbers: Any) -> Dual:
    out = Dual(0.0)
    for one in numbers:
        out = out.plus(one)
    return out


def summed(x: Any, numbers: list[Dual]) -> dict[tuple[int, int], Dual]:
    """The dense array's numbers that are stored."""
    width = int(np.prod(values_of(x).shape[1:]))
    out: dict[tuple[int, int], Dual] = {}
    for k, one in enumerate(numbers):
        row = x.indices.data[k // width] if isinstance(x, Slices) else k // width
        out[row, k % width] = out.get((row, k % width), Dual(0.0)).plus(one)
    return out


def norm(numbers: list[Dual], ord: Any) -> Dual:
    sizes = [one.size() for one in numbers]
    if ord == 1:
        return total(sizes)
    if ord == "inf":
        largest = max((one.x for one in sizes), default=0.0)
        top = [one.d for one in sizes if one.x == largest and largest > 0]
        return Dual(largest, sum(top) / len(top) if top else 0.0)
    return total(one.times(one) for one in sizes).root()


def clipped(numbers: list[Dual], n: Dual, limit: Dual) -> list[Dual]:
    return numbers if n.x <= limit.x else [one.times(limit.over(n)) for one in numbers]


def result(op: str, leaves: list[Any], numbers: list[list[Dual]], limit: Dual, options: dict[str, Any]) -> list[Dual]:
    """What upstream is multiplied with, flat."""
    tables = [summed(x, own) for x, own in zip(leaves, numbers, strict=True)]
    everything = [one for table in tables for one in table.values()]
    if op in ("norm", "global_norm"):
        return [norm(everything, options.get("ord", 2))]
    if op == "clip_by_value":
        shape = leaves[0].dense_shape
        out = []
        for row in range(shape[0]):
            for column in range(int(np.prod(shape[1:]))):
                one = tables[0].get((row, column), Dual(0.0))
                out.append(one if options["lo"] <= one.x <= options["hi"] else Dual(0.0))
        return out
    flat = [one for own in numbers for one in own]
    if op != "clip_by_row_norm":
        return clipped(flat, norm(everything, 2), limit)
    out, width = [], int(np.prod(values_of(leaves[0]).shape[1:]))
    for k, row in enumerate(leaves[0].indices.data):
        own = norm([one for (at, _), one in tables[0].items() if at == row], 2)
        out += clipped(flat[k * width : (k + 1) * width], own, limit)
    return out


def gradient(op: str, leaves: list[Any], upstream: list[Array], limit: Any = None, **options: Any) -> list[Array]:
    arrays = [values_of(x) for x in leaves]
    asked = [*arrays, limit] if isinstance(limit, Array) else arrays
    given = [g for array in upstream for g in array.data]
    found = []
    for which, array in enumerate(asked):
        data = []
        for k in range(len(array.data)):
            marked = [[Dual(v, float((a, j) == (which, k))) for j, v in enumerate(x.data)] for a, x in enumerate(asked)]
            most = marked[-1][0] if isinstance(limit, Array) else Dual(0.0 if limit is None else limit)
            out = result(op, leaves, marked[: len(leaves)], most, options)
            data.append(narrow(sum(g * one.d for g, one in zip(given, out, strict=True)), array.dtype))
        found.append(Array(array.dtype, array.shape, data))
    return found


NAIVE = {"gradient": gradient}
