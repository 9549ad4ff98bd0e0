"""Compute the expected results of most operations in exact rational arithmetic.

Each arithmetic operation computes its exact result. Where the specification says "rounded", this result is rounded once
to the stated format, to nearest, ties to even. NaN and infinities are Python floats and follow IEEE 754. Nothing here
uses NumPy's arithmetic, a framework, or the code of islices outside of the suite.

May import: `islices.conformance.data`.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

from islices.conformance.data import Array, Slices, leaves_of, map_leaves

#: format -> (precision in bits, smallest normal exponent, largest exponent)
FORMATS = {
    "float16": (11, -14, 15),
    "bfloat16": (8, -126, 127),
    "float32": (24, -126, 127),
    "float64": (53, -1022, 1023),
}


# ---------------------------------------------------------------------- rounding
def round_to(x: Fraction | float | int, dtype: str) -> float | int:
    """Return x rounded to the nearest number of a floating dtype, with ties to even. Overflow gives infinity. For an
    integer dtype, return int(x)."""
    if dtype in ("int32", "int64"):
        return int(x)
    if isinstance(x, float) and not math.isfinite(x):
        return x
    return round_ratio(*x.as_integer_ratio(), dtype)


def round_ratio(n: int, d: int, dtype: str) -> float:
    """Return n / d rounded to the nearest number of a floating dtype, with ties to even. d is positive. The fraction
    need not be in lowest terms."""
    if n == 0:
        return 0.0
    precision, emin, emax = FORMATS[dtype]
    size = abs(n)
    shift = precision - 1 - max(floor_log2(size, d), emin)  # the unit is 2^-shift
    whole, rest = divmod(size << shift, d) if shift >= 0 else divmod(size, d << -shift)
    divisor = d if shift >= 0 else d << -shift
    if 2 * rest > divisor or (2 * rest == divisor and whole % 2):
        whole += 1
    rounded = math.inf if whole.bit_length() - shift > emax + 1 else math.ldexp(whole, -shift)
    return rounded if n > 0 else -rounded


def floor_log2(n: int, d: int) -> int:
    """Return floor(log2(n / d)) for positive integers."""
    e = n.bit_length() - d.bit_length()
    return e if (n << -e if e < 0 else n) >= (d << e if e > 0 else d) else e - 1


def square_root(x: float) -> float:
    """Return the float64 nearest to the square root of a float64. Ties cannot occur, because a root is never a
    midpoint. Zeros, NaN and infinities are returned unchanged."""
    if not math.isfinite(x) or x == 0:
        return x
    n, d = x.as_integer_ratio()
    # scaled by a power of four, so that the integer root has at least 64 bits more than the result
    shift = 200 + d.bit_length()
    square = (n << 2 * shift) // d  # d is a power of two below 4^shift: exact
    root = math.isqrt(square)
    return round_ratio(2 * root + (root * root != square), 2 << shift, "float64")


def wide(dtype: str) -> str:
    return "float32" if dtype in ("float16", "bfloat16") else dtype


def rounded(operation: Any, numerator: Any) -> Any:
    """Return a function (a, b, dtype) that rounds the exact result of an operation once. For integers, and if
    one of two floats is not finite, the function returns `operation(a, b)`.

    `numerator(n, d, m, e)` returns the numerator of the result for a = n / d and b = m / e. The denominator is d * e.
    """

    def call(a: float | int, b: float | int, dtype: str) -> float | int:
        if isinstance(a, float) and isinstance(b, float) and not (math.isfinite(a) and math.isfinite(b)):
            return operation(a, b)  # type: ignore[no-any-return]
        if dtype in ("int32", "int64"):
            return operation(int(a), int(b))  # type: ignore[no-any-return]
        (n, d), (m, e) = a.as_integer_ratio(), b.as_integer_ratio()
        return round_ratio(numerator(n, d, m, e), d * e, dtype)

    return call


plus = rounded(operator.add, lambda n, d, m, e: n * e + m * d)
times = rounded(operator.mul, lambda n, d, m, e: n * m)


def over(a: float, b: float, dtype: str) -> float:
    """Return a / b rounded to a dtype. Zeros, NaN and infinities give the results of IEEE 754, except for the sign of a
    zero."""
    if b == 0:
        return math.nan if a == 0 or math.isnan(a) else math.copysign(math.inf, a) * math.copysign(1.0, b)
    if not (math.isfinite(a) and math.isfinite(b)):
        return a / b
    (n, d), (m, e) = a.as_integer_ratio(), b.as_integer_ratio()
    return round_ratio(n * e if m > 0 else -n * e, d * abs(m), dtype)


# ---------------------------------------------------------------------- sums and rows
def left_fold(terms: list[Any], kind: str) -> Any:
    total = terms[0]
    for term in terms[1:]:
        total = plus(total, term, kind)
    return total


def halves(terms: list[Any], kind: str) -> Any:
    """Return the sum by halves that clause 19 defines; 0.0 for no terms."""
    aside: list[Any] = []
    while len(terms) > 1:
        half = len(terms) // 2
        if len(terms) % 2:
            aside.append(terms[-1])
        terms = [plus(a, b, kind) for a, b in zip(terms[:half], terms[half : 2 * half], strict=True)]
    return plus(terms[0], left_fold(aside, kind), kind) if aside else (terms[0] if terms else 0.0)


def fold(contributions: list[list[Any]], dtype: str) -> list[Any]:
    """Return the sum of the rows, added from left to right (clause 3). Each addition is rounded to the wide type. A
    16-bit result is rounded again at the end."""
    total = contributions[0]
    for row in contributions[1:]:
        total = [plus(a, b, wide(dtype)) for a, b in zip(total, row, strict=True)]
    return [round_to(a, dtype) for a in total]


def coalesce(x: Any) -> Any:
    if not isinstance(x, Slices):
        return x
    by_row: dict[int, list[list[Any]]] = {}
    for index, row in zip(x.indices.data, x.values.rows(), strict=True):
        if not (x.padded and index == x.dense_shape[0]):
            by_row.setdefault(index, []).append(row)
    ids = sorted(by_row)
    data = list(itertools.chain.from_iterable(fold(by_row[i], x.values.dtype) for i in ids))
    return x.holding(ids, data, coalesced=True)


def to_dense(x: Any) -> Any:
    if not isinstance(x, Slices):
        return x
    c = coalesce(x)
    zero: float | int = 0 if c.values.dtype.startswith("int") else 0.0
    stored = dict(zip(c.indices.data, c.values.rows(), strict=True))
    width = math.prod(x.dense_shape[1:])
    data = list(itertools.chain.from_iterable(stored.get(r, [zero] * width) for r in range(x.dense_shape[0])))
    return Array(c.values.dtype, tuple(x.dense_shape), data)


# ---------------------------------------------------------------------- linear operations
def values_of(x: Any) -> Array:
    return x.values if isinstance(x, Slices) else x


def with_values(x: Any, data: list[Any]) -> Any:
    values = values_of(x)
    new = Array(values.dtype, values.shape, data)
    return replace(x, values=new) if isinstance(x, Slices) else new


def scale(x: Any, c: float) -> Any:
    values = values_of(x)
    factor = round_to(c, wide(values.dtype))
    return with_values(x, [round_to(times(v, factor, wide(values.dtype)), values.dtype) for v in values.data])


def divide(x: Slices, c: Any) -> Slices:
    kind = wide(x.values.dtype)
    divisor = round_to(c.data[0] if isinstance(c, Array) else c, kind)
    return with_values(x, [round_to(over(v, divisor, kind), x.values.dtype) for v in x.values.data])  # type: ignore[no-any-return]


def concat(xs: list[Slices]) -> Slices:
    first = xs[0]
    data = [v for x in xs for v in x.values.data]
    indices = [i for x in xs for i in x.indices.data]
    dtype = "int64" if any(x.indices.dtype == "int64" for x in xs) else "int32"
    values = Array(first.values.dtype, (len(indices), *first.values.shape[1:]), data)
    return Slices(
        values, Array(dtype, (len(indices),), indices), first.dense_shape, coalesced=len(xs) == 1 and first.coalesced
    )


def add(*xs: Any) -> Any:
    if isinstance(xs[0], list):
        return [add(*column) for column in zip(*xs, strict=True)]
    if isinstance(xs[0], dict):
        return {key: add(*(x[key] for x in xs)) for key in xs[0]}
    xs = tuple(x for x in xs if x is not None)
    if not xs:
        return None
    sparse = [x for x in xs if isinstance(x, Slices)]
    dense = [x for x in xs if isinstance(x, Array)]
    if not dense:
        return concat(sparse)
    dtype = dense[0].dtype
    total = list(dense[0].data)
    for x in dense[1:]:
        total = [round_to(plus(a, b, wide(dtype)), dtype) for a, b in zip(total, x.data, strict=True)]
    if sparse:
        c = coalesce(concat(sparse))
        width = math.prod(dense[0].shape[1:])
        for index, row in zip(c.indices.data, c.values.rows(), strict=True):
            for k, v in enumerate(row):
                total[index * width + k] = round_to(plus(total[index * width + k], v, wide(dtype)), dtype)
    return Array(dtype, dense[0].shape, total)


# ---------------------------------------------------------------------- norms
def exact_norm(leaves: list[Any], ord: Any) -> float:
    """Return the float64 norm of all leaves together (clause 7). For ord 2, the exact sum of squares is rounded to
    float64, and the root is rounded again."""
    return norm_of([v for leaf in leaves for v in values_of(coalesce(leaf)).data], ord)


def norm_of(data: list[Any], ord: Any = 2) -> float:
    """Return the float64 norm of a list of numbers. If a number is NaN, the norm is NaN. Otherwise, if a number is
    infinite, the norm is infinite."""
    if any(math.isnan(v) for v in data):
        return math.nan
    if any(math.isinf(v) for v in data):
        return math.inf
    if ord == "inf":
        return max((abs(v) for v in data), default=0.0)
    if ord == 1:
        return float(round_to(sum((abs(Fraction(v)) for v in data), Fraction(0)), "float64"))
    total = sum((Fraction(v) ** 2 for v in data), Fraction(0))
    # a power of four is factored out first, because the squares may exceed the range of float64 although the norm does
    # not
    shift = 0 if total == 0 else floor_log2(*total.as_integer_ratio()) // 2
    root = square_root(float(round_to(total / Fraction(4) ** shift, "float64")))
    return float(round_to(Fraction(root) * Fraction(2) ** shift, "float64"))


def norm_dtype(leaves: list[Any]) -> str:
    return "float64" if any(values_of(x).dtype == "float64" for x in leaves) else "float32"


def gradients_of(tree: Any) -> list[Any]:
    return [leaf for leaf in leaves_of(tree) if leaf is not None]


def norm(x: Any, ord: Any = 2) -> Array:
    dtype = norm_dtype([x])
    return Array(dtype, (), [round_to(exact_norm([x], ord), dtype)])


def global_norm(tree: Any, ord: Any = 2) -> Array:
    leaves = gradients_of(tree)
    dtype = norm_dtype(leaves)
    return Array(dtype, (), [round_to(exact_norm(leaves, ord), dtype)])


def row_norms(x: Any, ord: Any = 2) -> Any:
    c = coalesce(x)
    rows, dtype = values_of(c).rows(), norm_dtype([c])
    norms = Array(dtype, (len(rows),), [round_to(norm_of(row, ord), dtype) for row in rows])
    return Slices(norms, c.indices, c.dense_shape[:1], coalesced=True) if isinstance(c, Slices) else norms


def top_k_rows(x: Any, k: int) -> Any:
    c = coalesce(x)
    norms = list(map(norm_of, c.values.rows()))
    order = sorted(range(len(norms)), key=lambda place: -norms[place] if math.isfinite(norms[place]) else -math.inf)
    return c.at(sorted(order[:k]), coalesced=True)


# ---------------------------------------------------------------------- clipping
def limit_of(x: Any) -> Any:
    """Return a limit as a number. `x` is a number or a 0-d array."""
    return x.data[0] if isinstance(x, Array) else x


def clip_by_value(x: Any, lo: Any, hi: Any) -> Any:
    x = coalesce(x)
    dtype = values_of(x).dtype
    low, high = (round_to(limit_of(c), wide(dtype)) for c in (lo, hi))
    return with_values(x, [v if math.isnan(v) else round_to(min(max(v, low), high), dtype) for v in values_of(x).data])


def clipped(x: Any, norm64: float, max_norm: float, nonfinite: str) -> Any:
    values = values_of(x)
    return with_values(x, clip_data(values.data, values.dtype, norm64, max_norm, nonfinite))


def clip_data(data: list[Any], dtype: str, norm64: float, max_norm: Any, nonfinite: str) -> list[Any]:
    max_norm = limit_of(max_norm)
    if not math.isfinite(norm64):
        return [0.0 if nonfinite == "zero" else math.nan] * len(data)
    if norm64 <= max_norm:
        return list(data)
    factor = round_to(over(max_norm, norm64, "float64"), wide(dtype))
    return [round_to(times(v, factor, wide(dtype)), dtype) for v in data]


def clip_by_norm(x: Any, max_norm: float, nonfinite: str = "propagate") -> Any:
    if isinstance(x, list):
        return [None if leaf is None else clip_by_norm(leaf, max_norm, nonfinite) for leaf in x]
    return clipped(x, exact_norm([x], 2), max_norm, nonfinite)


def clip_by_global_norm(tree: Any, max_norm: float, nonfinite: str = "propagate") -> Any:
    total = exact_norm(gradients_of(tree), 2)

    def clip(leaf: Any) -> Any:
        return None if leaf is None else clipped(leaf, total, max_norm, nonfinite)

    return (map_leaves(clip, tree), global_norm(tree))


def clip_by_row_norm(x: Any, max_norm: float, nonfinite: str = "propagate") -> Any:
    values = values_of(x)
    rows = values.rows()
    if isinstance(x, Slices):
        c = coalesce(x)
        sums = dict(zip(c.indices.data, c.values.rows(), strict=True))
        own = [sums[i] for i in x.indices.data]
    else:
        own = rows
    data: list[Any] = []
    for row, total in zip(rows, own, strict=True):
        data += clip_data(row, values.dtype, norm_of(total), max_norm, nonfinite)
    return with_values(x, data)


# ---------------------------------------------------------------------- rows and padding
def filtered(x: Any, keep: Any) -> Any:
    """Return x with only the rows r for which keep(r) is True. A sparse result omits the other rows, and a dense result
    has zeros in their place."""
    values = values_of(x)
    if isinstance(x, Slices):
        chosen = [k for k, i in enumerate(x.indices.data) if keep(i)]
        return x.at(chosen, coalesced=x.coalesced, padded=x.padded)
    return Array(
        values.dtype, values.shape, [v if keep(r) else 0.0 for r, row in enumerate(values.rows()) for v in row]
    )


def row_set(rows: Any) -> set[int]:
    data = rows.data if isinstance(rows, Array) else rows
    if isinstance(rows, Array) and rows.dtype == "bool":
        return {r for r, chosen in enumerate(data) if chosen}
    return set(data)


def keep_rows(x: Any, rows: Any) -> Any:
    chosen = row_set(rows)
    return filtered(x, lambda r: r in chosen)


def drop_rows(x: Any, rows: Any) -> Any:
    chosen = row_set(rows)
    return filtered(x, lambda r: r not in chosen)


def drop_padding(x: Any, padding_idx: int) -> Any:
    rows = x.dense_shape[0] if isinstance(x, Slices) else x.shape[0]
    return drop_rows(x, [padding_idx % rows])


def scale_by_frequency(x: Slices) -> Slices:
    dtype = x.values.dtype
    data: list[Any] = []
    for index, row in zip(x.indices.data, x.values.rows(), strict=True):
        count = float(x.indices.data.count(index))
        data += [round_to(over(v, count, wide(dtype)), dtype) for v in row]
    return with_values(x, data)  # type: ignore[no-any-return]


def index_dtype(ids: Array) -> str:
    """Return the dtype of the indices in the gradient of a lookup with these ids."""
    return "int64" if ids.dtype in ("int64", "uint32") else "int32"


def embedding_grad(
    upstream: Array,
    ids: Any,
    num_rows: int,
    padding_idx: int | None = None,
    mask: Array | None = None,
    scale_by_freq: bool = False,
    invalid: str = "raise",
) -> Slices:
    inside = math.inf
    if isinstance(ids, tuple):  # (values, lengths): values from position sum(lengths) on belong to no row
        ids, inside = ids[0], sum(ids[1].data)
    row_shape = upstream.shape[len(ids.shape) :]
    width = math.prod(row_shape)
    data = list(upstream.data)
    if mask is not None:
        data = [v if mask.data[k // width] else 0.0 for k, v in enumerate(data)]
    n = len(ids.data)
    s = Slices(
        Array(upstream.dtype, (n, *row_shape), data),
        Array(index_dtype(ids), (n,), list(ids.data)),
        (num_rows, *row_shape),
    )
    s = s.at([k for k, i in enumerate(ids.data) if k < inside and (invalid == "raise" or i >= 0)])
    if padding_idx is not None:
        s = drop_padding(s, padding_idx)
    return scale_by_frequency(s) if scale_by_freq else s


def scatter(op: str, table: Array, x: Slices) -> Array:
    """Return the table after all slices are applied in order (clause 15). `x` must not be padded."""
    kind, width = wide(table.dtype), math.prod(table.shape[1:])
    data = list(table.data)
    for index, row in zip(x.indices.data, x.values.rows(), strict=True):
        for k, v in enumerate(row):
            at = index * width + k
            data[at] = changed(op, data[at], v, kind)
    return Array(table.dtype, table.shape, [round_to(v, table.dtype) for v in data])


def changed(op: str, old: Any, v: Any, kind: str) -> Any:
    if op == "update":
        return v
    if op in ("add", "sub"):
        return plus(old, v if op == "add" else -v, kind)
    if op == "mul":
        return times(old, v, kind)
    if op == "div":
        return over(old, v, kind)
    if old != old or v != v:
        return math.nan
    return min(old, v) if op == "min" else max(old, v)


SCATTER = ("add", "sub", "update", "min", "max", "mul", "div")


def from_dense(x: Array) -> Slices:
    rows = x.rows()
    ids = [r for r, row in enumerate(rows) if any(v != 0 for v in row)]
    values = Array(x.dtype, (len(ids), *x.shape[1:]), [v for r in ids for v in rows[r]])
    return Slices(values, Array("int64", (len(ids),), ids), x.shape, coalesced=True)


#: clause -> the functions that compute the expected results of the operations with the same names
ORACLE: dict[str, Sequence[Callable[..., Any]]] = {
    "1": (from_dense,),
    "4": (coalesce,),
    "5": (to_dense,),
    "6": (add, concat, divide, scale),
    "7": (norm, row_norms),
    "8": (global_norm,),
    "9": (clip_by_value,),
    "10": (clip_by_global_norm, clip_by_row_norm),
    "12": (drop_padding, embedding_grad, scale_by_frequency),
    "13": (drop_rows, keep_rows, top_k_rows),
}
