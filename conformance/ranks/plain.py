"""What all_reduce must give, written plainly: clause 25 in NumPy scalars, one addition after the other.

It works on the plain data of `islices.conformance.data` and calls nothing of the library.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from islices.conformance.data import Array, Slices, encode
from islices.conformance.naive import WIDE, coalesce, concat, left_fold, narrow

__all__ = ["all_reduce", "digestible", "error_bound", "reduce_leaf", "terms"]

#: dtype -> largest relative error of one rounding to it, and of one in the type that sums are formed in.
UNIT = {
    "float16": (Fraction(1, 2**11), Fraction(1, 2**24)), "bfloat16": (Fraction(1, 2**8), Fraction(1, 2**24)),
    "float32": (Fraction(1, 2**24), Fraction(1, 2**24)), "float64": (Fraction(1, 2**53), Fraction(1, 2**53)),
}  # fmt: skip


def all_reduce(trees: Sequence[Any], op: str = "sum") -> Any:
    """The result for the ranks' trees, which have one structure; None stands for zeros."""
    first = trees[0]
    if isinstance(first, dict):
        return {key: all_reduce([tree[key] for tree in trees], op) for key in first}
    if isinstance(first, (list, tuple)):
        parts = [all_reduce(leaves, op) for leaves in zip(*trees, strict=True)]
        return type(first)(*parts) if hasattr(first, "_fields") else type(first)(parts)
    return reduce_leaf(trees, op)


def reduce_leaf(leaves: Sequence[Any], op: str = "sum") -> Any:
    """The result for one leaf of each rank."""
    there = [leaf for leaf in leaves if leaf is not None]
    if not there:
        return None
    with np.errstate(all="ignore"):
        if isinstance(there[0], Slices):
            total = coalesce(concat([coalesce(leaf) for leaf in there]))
            values = _divided(total.values, op, len(leaves))
            return Slices(values, total.indices, total.dense_shape, coalesced=True)
        dtype, shape = there[0].dtype, there[0].shape
        # a rank that has none adds zeros, which make +0 of -0
        given = [[0.0] * len(there[0].data) if leaf is None else leaf.data for leaf in leaves]
        wide = WIDE[dtype]
        data = [narrow(left_fold([wide(v) for v in terms], wide(0)), dtype) for terms in zip(*given, strict=True)]
        return _divided(Array(dtype, shape, data), op, len(leaves))


def _divided(x: Array, op: str, ranks: int) -> Array:
    if op == "sum":
        return x
    wide = WIDE[x.dtype]
    return Array(x.dtype, x.shape, [narrow(wide(v) / wide(ranks), x.dtype) for v in x.data])


def terms(leaves: Sequence[Any]) -> dict[tuple[int, int], list[Fraction]]:
    """(row, column) -> every rank's contributions to it, exact, without padding; a dense leaf has one row."""
    found: dict[tuple[int, int], list[Fraction]] = {}
    for leaf in leaves:
        if isinstance(leaf, Slices):
            for index, row in zip(leaf.indices.data, leaf.values.rows(), strict=True):
                for column, v in enumerate([] if leaf.padded and index == leaf.dense_shape[0] else row):
                    found.setdefault((index, column), []).append(Fraction(v))
        elif leaf is not None:
            for column, v in enumerate(leaf.data):
                found.setdefault((0, column), []).append(Fraction(v))
    return found


def error_bound(values: Sequence[Fraction], dtype: str, ranks: int, op: str = "sum") -> Fraction:
    """How far the sum (or mean) of these values over so many ranks may be from the exact one.

    Each value takes part in at most n - 1 additions, each wrong by a factor 1 + d, |d| <= u; 16-bit sums are rounded
    once on their rank and once over all; a mean is one division and, in 16 bits, one more rounding.
    """
    unit, sums = UNIT[dtype]
    factor = (1 + sums) ** max(0, len(values) - 1)
    if unit != sums:
        factor *= (1 + unit) ** 2
    if op == "mean":
        factor *= (1 + unit) * (1 + sums if unit != sums else 1)
    return (factor - 1) * sum(map(abs, values), Fraction(0)) / (ranks if op == "mean" else 1)


def digestible(x: Any) -> str:
    """Plain data as a text, equal only where all bits are, signs of zeros included (not the payloads of NaNs).

    A framework without 0-d arrays has (1,) for them.
    """
    return json.dumps(encode(_unflagged(x)))


def _unflagged(x: Any) -> Any:
    if isinstance(x, Slices):
        return Slices(x.values, x.indices, tuple(x.dense_shape))
    if isinstance(x, Array):
        return Array(x.dtype, () if x.shape == (1,) else x.shape, x.data)
    if isinstance(x, dict):
        return {key: _unflagged(x[key]) for key in sorted(x)}
    return [_unflagged(item) for item in x] if isinstance(x, (list, tuple)) else x
