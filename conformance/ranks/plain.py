"""Compute the expected result of all_reduce (clause 25) with NumPy scalars, one addition after the other.

The module uses the plain data and the helpers of `islices.conformance.data`, and no other code of islices.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from islices.conformance.data import Array, Slices, encode, map_leaves

#: A NumPy scalar, or a Python number.
Scalar = Any


def bfloat16(x: Scalar) -> Scalar:
    """Return x rounded to bfloat16 (to nearest, ties to even), as a float32 scalar."""
    if not math.isfinite(x):
        return np.float32(x)
    (bits,) = struct.unpack("<I", struct.pack("<f", float(x)))
    low, high = bits & 0xFFFF, bits >> 16
    if low > 0x8000 or (low == 0x8000 and high & 1):
        high += 1
    (out,) = struct.unpack("<f", struct.pack("<I", high << 16))
    return np.float32(out)


#: dtype -> the type in which sums and quotients are computed.
WIDE: dict[str, Callable[[Any], Scalar]] = {
    "float16": np.float32, "bfloat16": np.float32, "float32": np.float32, "float64": np.float64,
    "int32": np.int32, "int64": np.int64,
}  # fmt: skip
#: dtype -> a function that rounds a scalar to it
NARROW: dict[str, Callable[[Any], Scalar]] = {**WIDE, "float16": np.float16, "bfloat16": bfloat16}


def narrow(x: Scalar, dtype: str) -> Any:
    """Round a result to the dtype, and return a Python number, because plain data contain Python numbers."""
    return NARROW[dtype](x).item()


def all_reduce(trees: Sequence[Any], op: str = "sum") -> Any:
    """Return the result of all_reduce for the trees of all ranks, which have the same structure. None stands for
    zeros."""
    first = trees[0]
    if isinstance(first, dict):
        return {key: all_reduce([tree[key] for tree in trees], op) for key in first}
    if isinstance(first, (list, tuple)):
        parts = [all_reduce(leaves, op) for leaves in zip(*trees, strict=True)]
        return getattr(first, "_make", type(first))(parts)
    return reduce_leaf(trees, op)


def reduce_leaf(leaves: Sequence[Any], op: str = "sum") -> Any:
    """Return the result of all_reduce for one leaf of each rank; None if the leaf is None on every rank."""
    there = [leaf for leaf in leaves if leaf is not None]
    if not there:
        return None
    with np.errstate(all="ignore"):
        if isinstance(there[0], Slices):
            total = coalesce(concat([coalesce(leaf) for leaf in there]))
            values = _divided(total.values, op, len(leaves))
            return Slices(values, total.indices, total.dense_shape, coalesced=True)
        dtype, shape = there[0].dtype, there[0].shape
        # a rank with None adds zeros, and -0 + 0 is +0
        given = [[0.0] * len(there[0].data) if leaf is None else leaf.data for leaf in leaves]
        wide = WIDE[dtype]
        data = [narrow(left_fold([wide(v) for v in terms], wide(0)), dtype) for terms in zip(*given, strict=True)]
        return _divided(Array(dtype, shape, data), op, len(leaves))


def _divided(x: Array, op: str, ranks: int) -> Array:
    if op == "sum":
        return x
    wide = WIDE[x.dtype]
    return Array(x.dtype, x.shape, [narrow(wide(v) / wide(ranks), x.dtype) for v in x.data])


# ---------------------------------------------------------------------- sums
def left_fold(terms: list[Scalar], zero: Scalar) -> Scalar:
    """Return the sum of the terms from left to right, or `zero` for no terms. The sum does not begin with zero, because
    -0 + 0 is +0."""
    if not terms:
        return zero
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


def coalesce(x: Slices) -> Slices:
    """Return coalesced slices. Each row is the sum of its slots, added one after the other and rounded once to the
    dtype."""
    dtype = x.values.dtype
    sums: dict[int, list[Any]] = {}
    for index, row in zip(x.indices.data, x.values.rows(), strict=True):
        if not (x.padded and index == x.dense_shape[0]):
            terms = [WIDE[dtype](v) for v in row]
            sums[index] = [a + b for a, b in zip(sums[index], terms, strict=True)] if index in sums else terms
    ids = sorted(sums)
    data = [narrow(v, dtype) for row in ids for v in sums[row]]
    return x.holding(ids, data, coalesced=True)


def concat(xs: list[Slices]) -> Slices:
    data = [v for x in xs for v in x.values.data]
    ids = [i for x in xs for i in x.indices.data]
    index_type = "int64" if "int64" in [x.indices.dtype for x in xs] else "int32"
    values = Array(xs[0].values.dtype, (len(ids), *xs[0].values.shape[1:]), data)
    return Slices(values, Array(index_type, (len(ids),), ids), xs[0].dense_shape)


# ---------------------------------------------------------------------- comparing
def digestible(x: Any) -> str:
    """Return a text that represents plain data. Texts are equal if the bits of the data are equal. The text includes
    the signs of zeros, but neither the payloads of NaN nor the flags of slices.

    The shapes () and (1,) give the same text, because some frameworks have no 0-d arrays.
    """
    return json.dumps(encode(map_leaves(_unflagged, x)), sort_keys=True)


def _unflagged(x: Any) -> Any:
    if isinstance(x, Slices):
        return Slices(x.values, x.indices, tuple(x.dense_shape))
    return Array(x.dtype, () if x.shape == (1,) else x.shape, x.data) if isinstance(x, Array) else x
