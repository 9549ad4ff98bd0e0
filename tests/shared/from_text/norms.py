"""Norms with exact sums, clips, and their gradients, as clauses 7 to 10 define them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np

from from_text.arrays import Array, Slices, coalesce, mapped, rounded, row_sums, wide


def numbers(x: Any) -> list[float]:
    """Return the stored elements of a leaf as float64, with duplicates summed."""
    if x is None:
        return []
    parts = list(row_sums(x).values()) if isinstance(x, Slices) else [x.x]
    return [float(v) for part in parts for v in np.ravel(part)]


def leaves(tree: Any) -> list[Any]:
    if isinstance(tree, (list, tuple)):
        return [leaf for item in tree for leaf in leaves(item)]
    if isinstance(tree, dict):
        return [leaf for item in tree.values() for leaf in leaves(item)]
    return [] if tree is None else [tree]


# ---------------------------------------------------------------------- clause 7
def _float(x: Fraction) -> float:
    try:
        return float(x)
    except OverflowError:
        return math.inf


def _root(s: Fraction) -> float:
    """Return the square root of s with 53 significant bits, even if s is beyond the range of float64."""
    if not s:
        return 0.0
    half = (s.numerator.bit_length() - s.denominator.bit_length()) // 2
    return math.ldexp(math.sqrt(float(s / Fraction(4) ** half)), half)


def norm64(xs: list[float], ord: float = 2) -> float:
    if ord not in (1, 2, math.inf):
        raise ValueError(f"ord: got {ord}; accepted is 1, 2 or inf")
    sizes = [abs(x) for x in xs]
    if any(math.isnan(x) for x in sizes):
        return math.nan
    if any(math.isinf(x) for x in sizes):
        return math.inf
    largest = max(sizes, default=0.0)
    if ord == math.inf or not largest:
        return largest
    if ord == 1:
        return _float(sum(map(Fraction, sizes), Fraction()))
    return _root(sum((Fraction(x) ** 2 for x in sizes), Fraction()))


def result(n: float, dtypes: Iterable[str]) -> Array:
    dtype = "float64" if "float64" in dtypes else "float32"
    return Array(dtype, np.array(n).astype(dtype))


def dtype_of(x: Any) -> str:
    return str((x.values if isinstance(x, Slices) else x).dtype)


def norm(x: Any, ord: float = 2) -> Array:
    return result(norm64(numbers(x), float(ord)), [dtype_of(x)])


def global_norm(tree: Any, ord: float = 2) -> Array:
    found = leaves(tree)
    return result(norm64([v for x in found for v in numbers(x)], float(ord)), map(dtype_of, found))


def row_norms(x: Any, ord: float = 2) -> Any:
    c = coalesce(x)
    values = c.values.x if isinstance(c, Slices) else c.x
    norms = [float(result(norm64([float(v) for v in np.ravel(row)], float(ord)), [dtype_of(c)]).x) for row in values]
    dtype = "float64" if dtype_of(c) == "float64" else "float32"
    array = Array(dtype, np.array(norms, dtype))
    return Slices(array, c.indices, c.shape[:1], c.index_dtype, True) if isinstance(c, Slices) else array


def top_k_rows(x: Any, k: int) -> Any:
    c = coalesce(x)
    norms = [norm64([float(v) for v in np.ravel(row)], 2.0) for row in c.values.x]
    largest = sorted(range(len(norms)), key=lambda i: (-np.nan_to_num(norms[i], nan=np.inf, posinf=np.inf), i))
    places = sorted(largest[:k])
    return Slices(Array(c.values.dtype, c.values.x[places]), c.indices[places], c.shape, c.index_dtype, True)


# ---------------------------------------------------------------------- clauses 9 and 10
def number(limit: Any) -> float:
    """Convert a limit, which may be a 0-d array, to a number."""
    return float(np.ravel(limit.x)[0]) if isinstance(limit, Array) else limit


def clip_by_value(x: Any, lo: Any, hi: Any) -> Any:
    x = coalesce(x)
    values, lo, hi = x.values if isinstance(x, Slices) else x, number(lo), number(hi)
    if values.x.dtype.kind == "i":
        ends = np.iinfo(values.x.dtype)
        lo, hi = (values.x.dtype.type(min(max(b, ends.min), ends.max)) for b in (lo, hi))
    else:
        lo, hi = (values.x.dtype.type(b) for b in (lo, hi))
    clipped = np.minimum(np.maximum(values.x, lo), hi)
    return x.with_values(clipped) if isinstance(x, Slices) else x.like(clipped)


def factored(x: Array, n: float, limit: Any, nonfinite: str) -> Any:
    """Return the values, scaled so that the norm n becomes the limit, and rounded to the dtype. Return None if the clip
    changes nothing. A norm that is not finite gives NaN, zeros or an error, depending on `nonfinite`. With a finite
    norm, a NaN limit gives NaN."""
    limit = number(limit)
    if not math.isfinite(n):
        if nonfinite == "raise":
            raise FloatingPointError(f"the norm is {n}")
        return np.full_like(x.x, np.nan if nonfinite == "propagate" else 0)
    if math.isnan(limit):
        return np.full_like(x.x, np.nan)
    if n <= limit:
        return None
    return rounded(x.x * wide(x.dtype).type(limit / n), x.dtype)


def clip(x: Any, n: float, limit: float, nonfinite: str) -> Any:
    values = x.values if isinstance(x, Slices) else x
    found = factored(values, n, limit, nonfinite)
    if found is None:
        return x
    return x.with_values(found) if isinstance(x, Slices) else x.like(found)


def units(values: Any, axes: tuple[int, ...]) -> list[tuple[Any, ...]]:
    """Return the index of each unit of an array. There is one unit per position along the axes that norms do not
    reduce."""
    kept = [range(n) if k not in axes else [slice(None)] for k, n in enumerate(values.shape)]
    return list(itertools.product(*kept))


def _clip_units(x: Any, axes: tuple[int, ...], limit_of: Any, nonfinite: str) -> Any:
    x = coalesce(x)
    values = x.values if isinstance(x, Slices) else x
    out = values.x.copy()
    for place in units(out, axes):
        part = Array(values.dtype, values.x[place])
        found = factored(part, norm64([float(v) for v in np.ravel(part.x)]), limit_of(place), nonfinite)
        if found is not None:
            out[place] = found
    return x.with_values(out) if isinstance(x, Slices) else x.like(out)


def _axes(axes: Any, count: int) -> tuple[int, ...]:
    return tuple(sorted(a % count for a in ([axes] if isinstance(axes, int) else axes)))


def clip_by_norm(x: Any, max_norm: float, nonfinite: str = "propagate", axes: Any = None) -> Any:
    if isinstance(x, (list, tuple, dict)):
        return mapped(lambda leaf: clip_by_norm(leaf, max_norm, nonfinite, axes), x)
    if axes is None:
        return clip(x, norm64(numbers(x)), max_norm, nonfinite)
    count = len(x.shape) if isinstance(x, Slices) else x.x.ndim
    return _clip_units(x, _axes(axes, count), lambda place: max_norm, nonfinite)


def clip_by_global_norm(tree: list[Any], max_norm: float, nonfinite: str = "propagate") -> Any:
    found = leaves(tree)
    n = norm64([v for x in found for v in numbers(x)])
    clipped = mapped(lambda x: clip(x, n, max_norm, nonfinite), tree)
    return clipped, result(n, map(dtype_of, found))


def clip_by_row_norm(x: Any, max_norm: float, nonfinite: str = "propagate") -> Any:
    rows = row_sums(x) if isinstance(x, Slices) else dict(enumerate(x.x))
    values = x.values if isinstance(x, Slices) else x
    places = x.indices if isinstance(x, Slices) else np.arange(len(x.x))
    live = x.live if isinstance(x, Slices) else places
    out = values.x.copy()
    for k in live:
        n = norm64([float(v) for v in np.ravel(rows[int(places[k])])])
        found = factored(Array(values.dtype, values.x[k]), n, max_norm, nonfinite)
        if found is not None:
            out[k] = found
    return x.with_values(out) if isinstance(x, Slices) else x.like(out)


def clip_by_block_rms(x: Any, threshold: float, nonfinite: str = "propagate") -> Any:
    if isinstance(x, (list, tuple, dict)):
        return mapped(lambda leaf: clip_by_block_rms(leaf, threshold, nonfinite), x)
    shape = x.shape if isinstance(x, Slices) else x.x.shape
    count = math.prod(shape) or 1
    return clip(coalesce(x), norm64(numbers(x)) / math.sqrt(count), threshold, nonfinite)


def adaptive_grad_clip(
    x: Any, params: Array, clipping: float, eps: float = 1e-3, axes: Any = None, nonfinite: str = "propagate"
) -> Any:
    if isinstance(x, (list, tuple, dict)):
        return mapped(lambda leaf, p: adaptive_grad_clip(leaf, p, clipping, eps, axes, nonfinite), x, params)
    shape = x.shape if isinstance(x, Slices) else x.x.shape
    if axes is not None:
        along = _axes(axes, len(shape))
    elif sum(n > 1 for n in shape) <= 1:
        along = tuple(range(len(shape)))
    elif len(shape) in (2, 3):
        along = (0,)
    elif len(shape) in (4, 5):
        along = tuple(range(len(shape) - 1))
    else:
        raise ValueError("axes: more than five axes have no default")
    sparse_rows = coalesce(x).indices if isinstance(x, Slices) and 0 not in along else None

    def limit_of(place: tuple[Any, ...]) -> float:
        there = place if sparse_rows is None else (int(sparse_rows[place[0]]), *place[1:])
        n = norm64([float(v) for v in np.ravel(params.x[there])])
        return math.nan if math.isnan(n) else clipping * max(n, eps)

    return _clip_units(x, along, limit_of, nonfinite)


# ---------------------------------------------------------------------- gradients
def _signs(x: Any) -> Any:
    return np.sign(x).astype(np.float64)


def derivative(n: float, size: Any, whole: list[float], ord: float) -> Any:
    """Return the derivative of the norm with respect to the sums of rows, in float64. The derivative is 0 at norm 0."""
    if n == 0:
        return np.zeros_like(size)
    if ord == 2:
        return size / n
    if ord == 1:
        return _signs(size)
    top = max(abs(v) for v in whole)
    return np.where(np.abs(size) == top, _signs(size) / sum(abs(v) == top for v in whole), 0.0)


def sums_at_slots(x: Any) -> Any:
    """Return the float64 sum of each slot's row, or the numbers of a dense array. Empty slots get zeros."""
    if isinstance(x, Array):
        return x.x.astype(np.float64)
    rows, out = row_sums(x), np.zeros(x.values.x.shape)
    for k in x.live:
        out[k] = rows[int(x.indices[k])]
    return out


def gradient(op: str, xs: list[Any], upstream: list[Array], limit: float = 0.0, **options: Any) -> list[Array]:
    """Return the gradient of ``sum(op(xs) * upstream)`` with respect to the stored values of each leaf."""
    stored = [x.values if isinstance(x, Slices) else x for x in xs]
    if op == "clip_by_value":
        return [_by_value(xs[0], upstream[0], **options)]
    if op == "clip_by_row_norm":
        return _by_row(xs[0], upstream[0], limit)
    whole = [v for x in xs for v in numbers(x)]
    ord = float(options.get("ord", 2))
    n = norm64(whole, ord)
    n = float(result(n, [x.dtype for x in stored]).x)
    slopes = [derivative(n, sums_at_slots(x), whole, ord) for x in xs]
    if op in ("norm", "global_norm"):
        g = float(np.ravel(upstream[0].x)[0])
        return [s.like(g * d) for s, d in zip(stored, slopes, strict=True)]
    return _clipped(xs, stored, upstream, norm64(whole), limit, slopes)


def _clipped(xs: Any, stored: Any, upstream: Any, n: float, limit: float, slopes: Any) -> list[Array]:
    if n <= limit:
        return [s.like(u.x) for s, u in zip(stored, upstream, strict=True)]
    live = [x.live if isinstance(x, Slices) else np.arange(len(x.x)) for x in xs]
    inner = sum(
        float(u.x[k].astype(np.float64).ravel() @ (s.x[k].astype(np.float64) / n).ravel())
        for s, u, ks in zip(stored, upstream, live, strict=True) for k in ks
    )  # fmt: skip
    f = limit / n
    found = []
    for s, u, d in zip(stored, upstream, slopes, strict=True):
        first, second = rounded(u.x * f, s.dtype), rounded(-f * inner * d, s.dtype)
        found.append(s.like(first + second))
    return found


def _by_row(x: Any, upstream: Array, limit: float) -> list[Array]:
    values = x.values if isinstance(x, Slices) else x
    places = x.indices if isinstance(x, Slices) else np.arange(len(x.x))
    live = x.live if isinstance(x, Slices) else places
    out = np.zeros_like(values.x)
    for index in dict.fromkeys(int(places[k]) for k in live):
        ks = [k for k in live if places[k] == index]
        one = Slices(Array(values.dtype, values.x[ks]), np.zeros(len(ks), np.int64), (1, *values.x.shape[1:]))
        out[ks] = gradient("clip_by_norm", [one], [Array(upstream.dtype, upstream.x[ks])], limit)[0].x
    return [values.like(out)]


def _by_value(x: Any, upstream: Array, lo: float, hi: float) -> Array:
    values = x.values if isinstance(x, Slices) else x
    sums = sums_at_slots(x)
    there = upstream.x if isinstance(x, Array) else np.array(
        [upstream.x[i] if i < x.shape[0] else np.zeros(x.shape[1:]) for i in x.indices.tolist()]
    ).reshape(values.x.shape)  # fmt: skip
    passes = (sums >= values.x.dtype.type(lo)) & (sums <= values.x.dtype.type(hi))
    if isinstance(x, Slices) and x.padded:
        passes[x.indices == x.shape[0]] = False
    return replace(values, x=rounded(np.where(passes, there, 0), values.dtype))
