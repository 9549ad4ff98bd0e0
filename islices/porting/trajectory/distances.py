"""How far two sides are apart at a position, and how far rounding may have brought them there.

**What tables give: outputs, loss, gradients.** Frameworks sum in other orders and by other functions: `ARITHMETIC` eps
of a tensor's 2-norm, as `diff` grants models (SPEC clause 22), and `FLOOR` eps of the norm of all tensors at that
position together, since a tensor may be a sum that cancels. Tables that rounding has already moved apart give other
gradients: their relative distance d, over the rows that the step's gradients name, may grow by a factor `GROWTH`. Above
`MOST` such a position is no longer judged, which is said; the steps themselves still are.

**Clipping** is a projection: it brings two gradients no further apart than they were, in the 2-norm.

**A step** is judged element by element. Where the formula is known (`islices.porting.trajectory.descriptions`) both results
have been computed from the same numbers: allowed are `ROUNDINGS` + k eps of the tensor's largest movement so far,
after k steps, and the rounding of the table itself. Where it is not, the two steps began with gradients and states
that are a relative r apart in this element: twice that, of the tensor's largest movement, is allowed besides. An
element whose gradient has cancelled has an r near 1: nothing is asked of it, for adagrad and adam take full steps in
the direction of rounding. A row that a gradient names m times is a sum, which frameworks round in orders of their
own: `summed` says by how much.

May import: `numpy`, the core below `islices.files`, `islices.porting.compare.evidence`,
`islices.porting.compare.stored`, `islices.porting.trajectory.positions`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from islices.core.slices import IndexedSlices
from islices.porting.compare.evidence import MOST_SLACK, PRECISION
from islices.porting.compare.stored import Stored, bits_equal, blocks, contained, dot, nonzero_rows, read, wide
from islices.porting.trajectory.positions import Leaf, Leaves

__all__ = [
    "ARITHMETIC", "FLOOR", "GROWTH", "MOST", "ROUNDINGS", "Beside", "apart", "beside", "distances", "eps_of",
    "norm", "relative", "same_values", "summed",
]  # fmt: skip

Array = np.ndarray[Any, Any]

#: eps of a tensor's norm that two models' arithmetic may differ by.
ARITHMETIC = 256.0
#: eps of the norm of all tensors that stand at one position.
FLOOR = 8.0
#: By how much a relative distance of tables may grow on its way to outputs and gradients.
GROWTH = 1024.0
#: The largest relative distance that any of this may excuse.
MOST = MOST_SLACK
#: eps of a movement by which two computations of one step's formula may differ.
ROUNDINGS = 64.0


@dataclass(frozen=True, eq=False)
class Beside:
    """Some rows of two leaves, row beside row, in float64; of rows that either holds, duplicates summed."""

    ids: Array
    x: Array
    y: Array
    eps: float

    @property
    def apart(self) -> Array:
        """`apart` of x and y."""
        return apart(self.x, self.y)


def apart(x: Array, y: Array) -> Array:
    """|x - y|; 0 where both are NaN or the same infinity, infinite where one of them is no number."""
    with np.errstate(invalid="ignore"):
        found = np.abs(x - y)
        if np.isfinite(found.max(initial=0.0)):
            return np.asarray(found)
        same = (x == y) | ((x != x) & (y != y))
    out: Array = np.where(same, 0.0, np.nan_to_num(found, nan=np.inf, posinf=np.inf))
    return out


def beside(x: Leaf, y: Leaf) -> Iterator[Beside] | None:
    """Two leaves' rows beside one another, block by block; None where their shapes differ."""
    a, b = read(x, "", "a"), read(y, "", "b")
    if a.row_shape != b.row_shape or (len(a.shape) != len(b.shape)):
        return None
    if a.shape[:1] != b.shape[:1] and None not in (*a.shape[:1], *b.shape[:1]):
        return None
    return _blocks(a, b, max(eps_of(a.dtype), eps_of(b.dtype)))


def _blocks(a: Stored, b: Stored, eps: float) -> Iterator[Beside]:
    """At least one."""
    if not a.sparse and not b.sparse:
        for part in blocks(len(a.ids), a.row_shape):
            yield Beside(a.ids[part], wide(a.values[part]), wide(b.values[part]), eps)
        return
    one, other = (s.ids if s.sparse else s.ids[nonzero_rows(s.values)] for s in (a, b))
    every = one if np.array_equal(one, other) else np.union1d(one, other)
    for part in blocks(len(every), a.row_shape):
        ids, sides = every[part], []
        for s in (a, b):
            there = contained(ids, s.ids)
            values = wide(s.values[np.searchsorted(s.ids, ids[there])])
            if len(values) < len(ids):
                out = np.zeros((len(ids), *s.row_shape))
                out[there] = values
                values = out
            sides.append(values)
        yield Beside(ids, sides[0], sides[1], eps)


def eps_of(dtype: str) -> float:
    """The spacing of a type at 1; 0 for whole numbers."""
    known = {"float16", "bfloat16", "float32", "float64"}
    return float(2.0 ** (1 - PRECISION[dtype])) if dtype in known else 0.0


def same_values(x: Leaf, y: Leaf) -> bool:
    """Whether two leaves denote the same numbers, whatever their types."""
    if isinstance(x, np.ndarray) and isinstance(y, np.ndarray) and x.dtype == y.dtype != np.uint16:
        return x.shape == y.shape and bool(np.all(bits_equal(x, y)))  # of whole tables: without copies in float64
    if isinstance(x, IndexedSlices) and isinstance(y, IndexedSlices) and _same_arrays(x, y):
        return True
    pairs = beside(x, y)
    return pairs is not None and not any(pair.apart.any() for pair in pairs)


def _same_arrays(x: IndexedSlices, y: IndexedSlices) -> bool:
    """Whether what is stored is the same already."""
    same = x.dense_shape == y.dense_shape and x.values.dtype == y.values.dtype != np.uint16
    return bool(same and np.array_equal(x.indices, y.indices) and np.all(bits_equal(x.values, y.values)))


def norm(x: Array) -> float:
    """The 2-norm of all elements, without overflow."""
    top = float(np.abs(x).max(initial=0.0))
    if not 0 < top < math.inf:
        return top
    x = (x / top).ravel()
    return top * math.sqrt(dot(x, x))


def relative(pair: Beside) -> Array:
    """|x - y| / max(|x|, |y|), element by element; 0 where they are equal."""
    away = pair.apart
    with np.errstate(divide="ignore", invalid="ignore"):
        found = away / np.maximum(np.abs(pair.x), np.abs(pair.y))
    out: Array = np.where(away > 0, np.nan_to_num(found, nan=1.0, posinf=1.0), 0.0)
    return out


def summed(x: Leaf) -> tuple[Array, Array] | None:
    """(rows, for each element how far two orders of summation may be apart, relatively); None without duplicates.

    The bound on m terms is (m - 1) eps times the sum of their sizes, over the size of their sum.
    """
    if isinstance(x, np.ndarray) or x.coalesced:
        return None
    s = read(x, "", "")
    if not s.has_duplicates:
        return None
    many = np.flatnonzero(s.counts > 1)
    place = np.searchsorted(s.ids, s.slot_ids)
    some = np.flatnonzero(s.counts[place] > 1)
    sizes = np.zeros((len(s.ids), *s.row_shape))
    np.add.at(sizes, place[some], np.abs(wide(s.slots[some])))
    counts = s.counts[many].reshape(-1, *([1] * len(s.row_shape)))
    with np.errstate(divide="ignore", invalid="ignore"):
        found = (counts - 1) * eps_of(s.dtype) * sizes[many] / np.abs(wide(s.values[many]))
    return s.ids[many], np.minimum(np.where(sizes[many] > 0, np.nan_to_num(found, nan=0.0, posinf=1.0), 0.0), 1.0)


def distances(a: Leaves, b: Leaves) -> dict[str, tuple[float, float, float]]:
    """name -> (norm of the difference, norm of the larger side, eps), of the tensors that both have."""
    found = {}
    for name in a:
        if name not in b:
            continue
        pairs = beside(a[name], b[name])
        if pairs is None:
            found[name] = (math.inf, 0.0, 0.0)
            continue
        away = one = other = eps = 0.0
        for pair in pairs:
            away, eps = math.hypot(away, norm(pair.apart)), pair.eps
            one, other = math.hypot(one, _finite_norm(pair.x)), math.hypot(other, _finite_norm(pair.y))
        found[name] = (away, max(one, other), eps)
    return found


def _finite_norm(x: Array) -> float:
    found = norm(x)
    return found if math.isfinite(found) else norm(np.where(np.isfinite(x), x, 0.0))
