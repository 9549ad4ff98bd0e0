"""A second opinion on the golden vectors: the clauses again, in floating point and plain loops.

The oracle works in exact fractions and rounds where the spec says so; this one never rounds a fraction: it adds one
NumPy scalar to another (as `islices.conformance.ranks.plain`, whose sums these are), sums squares with `math.fsum`, and
rounds bfloat16 by hand. The two share no code, so a mistake has to be made twice to enter the vectors. It takes and
gives the plain data of `islices.conformance.data`, and knows nothing of `islices` or the oracle.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from islices.conformance.data import Array, Slices
from islices.conformance.ranks.plain import NARROW, WIDE, Scalar, coalesce, concat, left_fold, narrow, row_sums

__all__ = ["NAIVE"]


def number(c: Any, dtype: str) -> Scalar:
    """A hyperparameter, "inf" included, in the type the arithmetic is done in."""
    return WIDE[dtype](c)


def values_of(x: Any) -> Array:
    return x.values if isinstance(x, Slices) else x


def mapped(x: Any, fn: Callable[[Any], Any]) -> Any:
    """x with fn over each stored number."""
    old = values_of(x)
    new = Array(old.dtype, old.shape, [fn(v) for v in old.data])
    return Slices(new, x.indices, x.dense_shape, x.coalesced, x.padded) if isinstance(x, Slices) else new


def tree_map(x: Any, fn: Callable[[Any], Any]) -> Any:
    if isinstance(x, (Array, Slices)):
        return fn(x)
    if isinstance(x, dict):
        return {k: tree_map(v, fn) for k, v in x.items()}
    return type(x)(tree_map(v, fn) for v in x) if isinstance(x, (list, tuple)) else x


def tree_leaves(x: Any) -> list[Any]:
    found: list[Any] = []
    tree_map(x, found.append)
    return found


# ---------------------------------------------------------------------- sums
def row_of(x: Array, k: int, width: int) -> list[Any]:
    return x.data[k * width : (k + 1) * width]


def sum_by_halves(terms: list[Scalar], zero: Scalar) -> Scalar:
    """Clause 19's sum over the elements of a row."""
    if not terms:
        return zero
    aside: list[Scalar] = []
    while len(terms) > 1:
        if len(terms) % 2:
            aside.append(terms[-1])
        half = len(terms) // 2
        terms = [terms[j] + terms[half + j] for j in range(half)]
    return terms[0] + left_fold(aside, zero) if aside else terms[0]


def to_dense(x: Any) -> Any:
    if isinstance(x, Array):
        return x
    width = math.prod(x.dense_shape[1:])
    data = [NARROW[x.values.dtype](0).item()] * (x.dense_shape[0] * width)
    for row, total in row_sums(x).items():
        data[row * width : (row + 1) * width] = total
    return Array(x.values.dtype, tuple(x.dense_shape), data)


def replace_values(x: Slices, values: Array) -> Array:
    return to_dense(Slices(values, x.indices, x.dense_shape, x.coalesced, x.padded))


# ---------------------------------------------------------------------- linear operations
def scale(x: Any, c: Any) -> Any:
    dtype = values_of(x).dtype
    factor, wide = number(c, dtype), WIDE[dtype]
    return mapped(x, lambda v: narrow(wide(v) * factor, dtype))


def divide(x: Slices, c: Any) -> Any:
    dtype = x.values.dtype
    divisor, wide = number(c.data[0] if isinstance(c, Array) else c, dtype), WIDE[dtype]
    return mapped(x, lambda v: narrow(wide(v) / divisor, dtype))


def add(*xs: Any) -> Any:
    if isinstance(xs[0], list):
        return [add(*(x[k] for x in xs)) for k in range(len(xs[0]))]
    if isinstance(xs[0], dict):
        return {key: add(*(x[key] for x in xs)) for key in xs[0]}
    sparse = [x for x in xs if isinstance(x, Slices)]
    dense = [x for x in xs if isinstance(x, Array)]
    if not dense:
        return concat(sparse) if sparse else None
    dtype, shape = dense[0].dtype, dense[0].shape
    wide = WIDE[dtype]
    total = list(dense[0].data)
    for x in dense[1:]:
        total = [narrow(wide(total[k]) + wide(x.data[k]), dtype) for k in range(len(total))]
    width = math.prod(shape[1:])
    for row, sums in (row_sums(concat(sparse)) if sparse else {}).items():
        for j in range(width):
            total[row * width + j] = narrow(wide(total[row * width + j]) + wide(sums[j]), dtype)
    return Array(dtype, shape, total)


# ---------------------------------------------------------------------- norms
def halves(v: float) -> tuple[float, float]:
    """v as a sum of two floats of at most 27 bits, whose products are exact (Veltkamp's splitting)."""
    c = v * 134217729.0  # 2 ** 27 + 1
    upper = c - (c - v)
    return upper, v - upper


def norm64(numbers: list[float], ord: Any) -> float:
    """The float64 norm: `math.fsum` is exact up to its one rounding, the root is IEEE's."""
    if any(v != v for v in numbers):
        return math.nan
    largest = float(max((abs(v) for v in numbers), default=0.0))
    if ord == "inf" or largest in (0.0, math.inf):
        return largest
    if ord == 1:
        return math.fsum(abs(v) for v in numbers)
    if ord != 2:
        return norm_by_powers([float(abs(v)) for v in numbers], largest, float(ord))
    shift = math.frexp(largest)[1]  # squares neither overflow nor vanish
    terms: list[float] = []
    for v in numbers:
        upper, lower = halves(math.ldexp(float(v), -shift))
        terms += [upper * upper, 2.0 * upper * lower, lower * lower]
    return math.ldexp(float(np.sqrt(np.float64(math.fsum(terms)))), shift)


def digits(exponent: float) -> tuple[list[int], list[int]]:
    """Which powers 1, 2, 4 ... and which roots 2, 4, 8 ... of a number make up its power."""
    whole = int(exponent)
    numerator, denominator = (exponent - whole).as_integer_ratio()
    fraction = bin(numerator)[2:].zfill(denominator.bit_length() - 1) if numerator else ""
    return (
        [k for k, d in enumerate(bin(whole)[:1:-1]) if d == "1"],
        [k for k, d in enumerate(fraction, 1) if d == "1"],
    )


def raised(x: Scalar, exponent: float) -> Scalar:
    """x to a power, one rounding after the other."""
    squares, roots = digits(exponent)
    out, current = None, x
    for k in range(max(squares, default=-1) + 1):
        current = current if k == 0 else current * current
        if k in squares:
            out = current if out is None else out * current
    current = x
    for k in range(1, max(roots, default=0) + 1):
        current = np.sqrt(current)
        if k in roots:
            out = current if out is None else out * current
    return out


@np.errstate(all="ignore")
def norm_by_powers(sizes: list[float], largest: float, ord: float) -> float:
    """Clause 7's norms of other orders."""
    p = min(max(ord, math.ldexp(1.0, -70)), math.ldexp(1.0, 64))
    split = p < 0.25
    top = np.float64(largest)
    below = np.sqrt(np.sqrt(top)) if split else top
    exponent, degree = (4.0 * p, 2.0 * p) if split else (p, p)
    total = np.float64(
        math.fsum(
            float(raised((np.sqrt(np.sqrt(np.float64(v))) if split else np.float64(v)) / below, exponent))
            for v in sizes
        )
    )
    root = raised(total, 1.0 / degree)
    if degree <= 4294967296.0 and math.frexp(degree)[0] != 0.5 and np.isfinite(root):
        root = root + root * ((total - raised(root, degree)) / total * np.float64(1.0 / degree))
    return float(top * root * root if split else top * root)


def numbers_of(leaves: list[Any]) -> list[float]:
    out: list[float] = []
    for leaf in leaves:
        if isinstance(leaf, Slices):
            for total in row_sums(leaf).values():
                out += total
        else:
            out += leaf.data
    return out


def norm_of(leaves: list[Any], ord: Any) -> Array:
    dtype = "float64" if "float64" in [values_of(leaf).dtype for leaf in leaves] else "float32"
    return Array(dtype, (), [narrow(np.float64(norm64(numbers_of(leaves), ord)), dtype)])


def norm(x: Any, ord: Any = 2) -> Array:
    return norm_of([x], ord)


def global_norm(tree: Any, ord: Any = 2) -> Array:
    return norm_of(tree_leaves(tree), ord)


# ---------------------------------------------------------------------- clipping
def clip_by_value(x: Any, lo: float, hi: float) -> Any:
    x = coalesce(x)
    dtype = values_of(x).dtype
    wide, low, high = WIDE[dtype], number(lo, dtype), number(hi, dtype)
    return mapped(x, lambda v: v if v != v else narrow(low if wide(v) < low else high if wide(v) > high else v, dtype))


def clip_number(v: Any, dtype: str, norm: float, max_norm: float, nonfinite: str) -> Any:
    if norm != norm or norm == math.inf:
        return 0.0 if nonfinite == "zero" else math.nan
    if norm <= max_norm:
        return v
    factor = WIDE[dtype](np.float64(max_norm) / np.float64(norm))
    return narrow(WIDE[dtype](v) * factor, dtype)


def clip_by_norm(x: Any, max_norm: Any, nonfinite: str = "propagate") -> Any:
    def one(leaf: Any) -> Any:
        total = norm64(numbers_of([leaf]), 2)
        dtype = values_of(leaf).dtype
        return mapped(leaf, lambda v: clip_number(v, dtype, total, float(max_norm), nonfinite))

    return tree_map(x, one)


def clip_by_global_norm(tree: Any, max_norm: Any, nonfinite: str = "propagate") -> Any:
    total = norm64(numbers_of(tree_leaves(tree)), 2)

    def one(leaf: Any) -> Any:
        dtype = values_of(leaf).dtype
        return mapped(leaf, lambda v: clip_number(v, dtype, total, float(max_norm), nonfinite))

    return (tree_map(tree, one), global_norm(tree))


def clip_by_row_norm(x: Any, max_norm: Any, nonfinite: str = "propagate") -> Any:
    values = values_of(x)
    width = math.prod(values.shape[1:])
    rows = [values.data[k * width : (k + 1) * width] for k in range(values.shape[0])]
    data: list[Any] = []
    sums = row_sums(x) if isinstance(x, Slices) else dict(enumerate(rows))
    for k, row in enumerate(rows):
        own = norm64(sums[x.indices.data[k]] if isinstance(x, Slices) else row, 2)
        data += [clip_number(v, values.dtype, own, float(max_norm), nonfinite) for v in row]
    new = iter(data)
    return mapped(x, lambda _: next(new))


# ---------------------------------------------------------------------- rows and padding
def select(x: Any, wanted: set[int]) -> Any:
    values = values_of(x)
    width = math.prod(values.shape[1:])
    if isinstance(x, Array):
        data = [v if k // width in wanted else 0.0 for k, v in enumerate(values.data)] if width else []
        return Array(values.dtype, values.shape, data)
    data, ids = [], []
    for k, index in enumerate(x.indices.data):
        if index in wanted:
            ids.append(index)
            data += values.data[k * width : (k + 1) * width]
    new = Array(values.dtype, (len(ids), *values.shape[1:]), data)
    return Slices(new, Array(x.indices.dtype, (len(ids),), ids), x.dense_shape, x.coalesced, x.padded)


def rows_of(x: Any) -> int:
    return int(x.dense_shape[0] if isinstance(x, Slices) else x.shape[0])


def named_rows(rows: Array) -> set[int]:
    return set(np.flatnonzero(rows.data).tolist()) if rows.dtype == "bool" else set(rows.data)


def keep_rows(x: Any, rows: Array) -> Any:
    return select(x, named_rows(rows))


def drop_rows(x: Any, rows: Array) -> Any:
    return select(x, set(range(rows_of(x))) - named_rows(rows))


def drop_padding(x: Any, padding_idx: int) -> Any:
    count = rows_of(x)
    return select(x, set(range(count)) - {padding_idx + count if padding_idx < 0 else padding_idx})


def scale_by_frequency(x: Slices) -> Slices:
    dtype = x.values.dtype
    width = math.prod(x.values.shape[1:])
    counts: dict[int, int] = {}
    for index in x.indices.data:
        counts[index] = counts.get(index, 0) + 1
    data = [
        narrow(WIDE[dtype](v) / WIDE[dtype](counts[x.indices.data[k // width]]), dtype)
        for k, v in enumerate(x.values.data)
    ]
    new = iter(data)
    return mapped(x, lambda _: next(new))


def embedding_grad(
    upstream: Array,
    ids: Any,
    num_rows: int,
    padding_idx: int | None = None,
    mask: Array | None = None,
    scale_by_freq: bool = False,
    invalid: str = "raise",
) -> Slices:
    end = None
    if isinstance(ids, tuple):
        ids, lengths = ids
        end = sum(lengths.data)
    row_shape = upstream.shape[len(ids.shape) :]
    width = math.prod(row_shape)
    data: list[Any] = []
    kept: list[int] = []
    padding = None if padding_idx is None else padding_idx % num_rows
    for k, index in enumerate(ids.data):
        if index == padding or (end is not None and k >= end) or (invalid == "drop" and index < 0):
            continue
        row = upstream.data[k * width : (k + 1) * width]
        data += row if mask is None or mask.data[k] else [0.0] * width
        kept.append(index)
    values = Array(upstream.dtype, (len(kept), *row_shape), data)
    index = "int64" if ids.dtype in ("int64", "uint32") else "int32"
    s = Slices(values, Array(index, (len(kept),), kept), (num_rows, *row_shape))
    return scale_by_frequency(s) if scale_by_freq else s


def from_dense(x: Array) -> Slices:
    width = math.prod(x.shape[1:])
    data: list[Any] = []
    ids: list[int] = []
    for row in range(x.shape[0]):
        stored = x.data[row * width : (row + 1) * width]
        if any(v != 0.0 for v in stored):
            ids.append(row)
            data += stored
    values = Array(x.dtype, (len(ids), *x.shape[1:]), data)
    return Slices(values, Array("int64", (len(ids),), ids), x.shape, coalesced=True)


#: operation -> its second oracle, called as the operation is


# ---------------------------------------------------------------------- row updates
def scattering(operation: Callable[[Scalar, Scalar], Scalar]) -> Callable[[Array, Slices], Array]:
    """The update of a table that applies an operation to one scalar of a row after another."""

    def apply(table: Array, x: Slices) -> Array:
        wide = WIDE[table.dtype]
        width = math.prod(table.shape[1:])
        new = [wide(v) for v in table.data]
        for k, index in enumerate(x.indices.data):
            for j in range(width):
                new[index * width + j] = operation(new[index * width + j], wide(x.values.data[k * width + j]))
        return Array(table.dtype, table.shape, [narrow(v, table.dtype) for v in new])

    return apply


NAIVE: dict[str, Callable[..., Any]] = {
    "add": add,
    "clip_by_global_norm": clip_by_global_norm,
    "clip_by_norm": clip_by_norm,
    "clip_by_row_norm": clip_by_row_norm,
    "clip_by_value": clip_by_value,
    "coalesce": coalesce,
    "concat": concat,
    "divide": divide,
    "drop_padding": drop_padding,
    "drop_rows": drop_rows,
    "embedding_grad": embedding_grad,
    "from_dense": from_dense,
    "global_norm": global_norm,
    "keep_rows": keep_rows,
    "norm": norm,
    "replace_values": replace_values,
    "scale": scale,
    "scale_by_frequency": scale_by_frequency,
    "to_dense": to_dense,
    "scatter_add": scattering(lambda a, b: a + b),
    "scatter_sub": scattering(lambda a, b: a - b),
    "scatter_update": scattering(lambda a, b: b),
    "scatter_min": scattering(np.minimum),
    "scatter_max": scattering(np.maximum),
    "scatter_mul": scattering(lambda a, b: a * b),
    "scatter_div": scattering(lambda a, b: a / b),
}
