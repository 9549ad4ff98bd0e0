"""The expected results of lookups, bags and per-sample gradients, in exact rational arithmetic.

As `islices.conformance.oracle`, whose rounding it uses: clauses 12, 14 and 19.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

from islices.conformance.data import Array, Slices
from islices.conformance.oracle import (
    clip_by_row_norm,
    clip_data,
    concat,
    embedding_grad,
    exact_norm,
    halves,
    left_fold,
    norm_dtype,
    over,
    plus,
    round_to,
    square_root,
    times,
    to_dense,
    wide,
)

__all__ = ["EMBEDDING"]


# ---------------------------------------------------------------------- bags
class Bag:
    """One bag: the positions of its members in ids, and of those that count."""

    def __init__(self, positions: list[int], ids: Array, padding: int | None, mask: Array | None) -> None:
        self.positions = positions
        self.counting = [k for k in positions if ids.data[k] != padding and (mask is None or mask.data[k])]


def bags_of(ids: Array, table: Array, padding_idx: int | None, mask: Array | None, offsets: Array | None) -> list[Bag]:
    padding = None if padding_idx is None else padding_idx % table.shape[0]
    n = len(ids.data)
    if offsets is None:
        length = ids.shape[-1]
        starts = [length * b for b in range(math.prod(ids.shape[:-1]))]
    else:
        starts = list(offsets.data)
    ends = [*starts, n][1:]
    return [Bag(list(range(a, b)), ids, padding, mask) for a, b in zip(starts, ends, strict=True)]


def root(x: float, kind: str) -> float:
    """The correctly rounded root: a float32 root is the float64 one rounded, which is innocuous."""
    return float(round_to(square_root(x), kind))


def divisor(bag: Bag, weights: list[Any] | None, combiner: str, kind: str) -> float | None:
    if combiner == "sum":
        return None
    if not bag.counting:
        return 0.0
    if weights is None:
        total = float(len(bag.counting))
    elif combiner == "mean":
        total = left_fold([weights[k] for k in bag.counting], kind)
    else:
        total = left_fold([times(weights[k], weights[k], kind) for k in bag.counting], kind)
    return root(total, kind) if combiner == "sqrtn" else total


def reduced(bag: Bag, row: Any, width: int, weights: list[Any] | None, combiner: str, kind: str) -> list[Any]:
    """The bag's row in the wide type; row(k) is member k's."""
    by = divisor(bag, weights, combiner, kind) if combiner != "max" else None
    if not bag.counting or by == 0:
        return [0.0] * width
    columns = zip(*(row(k) for k in bag.counting), strict=True)
    out = []
    for column in columns:
        if combiner == "max":
            out.append(math.nan if any(v != v for v in column) else max(column))
            continue
        terms = (
            column
            if weights is None
            else [times(v, weights[k], kind) for v, k in zip(column, bag.counting, strict=True)]
        )
        total = left_fold(list(terms), kind)
        out.append(total if by is None else over(total, by, kind))
    return out


def lookup(
    table: Array,
    ids: Array,
    padding_idx: int | None = None,
    mask: Array | None = None,
    combiner: str | None = None,
    weights: Array | None = None,
    offsets: Array | None = None,
) -> Array:
    rows, row_shape = table.rows(), table.shape[1:]
    if combiner is None:
        return Array(table.dtype, (*ids.shape, *row_shape), [v for i in ids.data for v in rows[i]])
    bags = bags_of(ids, table, padding_idx, mask, offsets)
    shape = ids.shape[:-1] if offsets is None else offsets.shape
    w = None if weights is None else weights.data
    width = math.prod(row_shape)
    made = [reduced(bag, lambda k: rows[ids.data[k]], width, w, combiner, wide(table.dtype)) for bag in bags]
    return Array(table.dtype, (*shape, *row_shape), [round_to(v, table.dtype) for row in made for v in row])


def bag_gradients(
    table: Array, ids: Array, upstream: Array, bags: list[Bag], weights: Array | None, combiner: str
) -> tuple[Array, Array | None]:
    """(what arrives at each member's row, what arrives at each weight)."""
    kind, dtype, width = wide(table.dtype), table.dtype, math.prod(table.shape[1:])
    rows = table.rows()
    w = None if weights is None else weights.data
    members: list[list[Any]] = [[0.0] * width for _ in ids.data]
    d_weights = [0.0] * len(ids.data)
    g_rows = [upstream.data[b * width : (b + 1) * width] for b in range(len(bags))]
    for bag, g in zip(bags, g_rows, strict=True):
        if combiner == "max":
            for j in range(width):
                column = [rows[ids.data[k]][j] for k in bag.counting]
                if column:
                    top = next((k for k, v in zip(bag.counting, column, strict=True) if v != v), None)
                    top = bag.counting[column.index(max(column))] if top is None else top
                    members[top][j] = g[j]
            continue
        by = divisor(bag, w, combiner, kind)
        if by == 0:
            continue
        h = [v if by is None else over(v, by, kind) for v in g]
        y = reduced(bag, lambda k: rows[ids.data[k]], width, w, combiner, kind)
        for k in bag.counting:
            members[k] = h if w is None else [times(v, w[k], kind) for v in h]
            if w is None:
                continue
            x = rows[ids.data[k]]
            if by is not None:
                share = over(w[k], by, kind) if combiner == "sqrtn" else None
                moved = y if share is None else [times(v, share, kind) for v in y]
                x = [plus(a, -b, kind) for a, b in zip(x, moved, strict=True)]
            d_weights[k] = halves([times(a, b, kind) for a, b in zip(h, x, strict=True)], kind)
    flat = [round_to(v, dtype) for row in members for v in row]
    to_rows = Array(dtype, (len(ids.data), *table.shape[1:]), flat)
    if weights is None:
        return to_rows, None
    return to_rows, Array(dtype, weights.shape, [round_to(v, dtype) for v in d_weights])


def lookup_gradient(
    table: Array,
    ids: Array,
    upstream: Array,
    padding_idx: int | None = None,
    mask: Array | None = None,
    scale_by_freq: bool = False,
    combiner: str | None = None,
    weights: Array | None = None,
    offsets: Array | None = None,
) -> Any:
    if combiner is None:
        return embedding_grad(upstream, ids, table.shape[0], padding_idx, mask, scale_by_freq)
    bags = bags_of(ids, table, padding_idx, mask, offsets)
    to_rows, d_weights = bag_gradients(table, ids, upstream, bags, weights, combiner)
    flat = Array(ids.dtype, (len(ids.data),), list(ids.data))
    s = embedding_grad(to_rows, flat, table.shape[0], padding_idx, None, scale_by_freq)
    return s if d_weights is None else (s, d_weights)


def double_lookup_gradient(table: Array, ids: Array, upstream: Array, other_ids: Array, other: Array) -> Slices:
    rows = table.shape[0]
    return concat([embedding_grad(upstream, ids, rows), embedding_grad(other, other_ids, rows)])


def renorm_rows(table: Array, ids: Array, max_norm: Any, nonfinite: str = "propagate") -> Array:
    named = sorted(set(ids.data))
    width = math.prod(table.shape[1:])
    rows = table.rows()
    chosen = Array(table.dtype, (len(named), *table.shape[1:]), [v for r in named for v in rows[r]])
    new = dict(zip(named, clip_by_row_norm(chosen, float(max_norm), nonfinite).rows(), strict=True))
    data = [v for r in range(table.shape[0]) for v in (new.get(r, rows[r]) if width else [])]
    return Array(table.dtype, table.shape, data)


# ---------------------------------------------------------------------- per sample
def samples(
    upstream: Array, ids: Array, num_rows: int, padding_idx: int | None = None, mask: Array | None = None
) -> list[Slices]:
    """The slices of each sample."""
    batch = ids.shape[0]
    row_shape = upstream.shape[len(ids.shape) :]
    each, width = math.prod(ids.shape[1:]), math.prod(row_shape)
    out = []
    for b in range(batch):
        part = slice(b * each, (b + 1) * each)
        rows = slice(b * each * width, (b + 1) * each * width)
        own_mask = None if mask is None else Array("bool", (each,), mask.data[part])
        own_ids = Array(ids.dtype, (each,), ids.data[part])
        own = Array(upstream.dtype, (each, *row_shape), upstream.data[rows])
        out.append(embedding_grad(own, own_ids, num_rows, padding_idx, own_mask))
    return out


def per_sample_norms(upstream: Array, ids: Array, num_rows: int, **options: Any) -> Array:
    dtype = norm_dtype([upstream])
    found = [round_to(exact_norm([s], 2), dtype) for s in samples(upstream, ids, num_rows, **options)]
    return Array(dtype, (len(found),), found)


def per_sample_to_dense(upstream: Array, ids: Array, num_rows: int, **options: Any) -> Array:
    row_shape = upstream.shape[len(ids.shape) :]
    parts = [to_dense(s).data for s in samples(upstream, ids, num_rows, **options)]
    return Array(upstream.dtype, (len(parts), num_rows, *row_shape), list(itertools.chain.from_iterable(parts)))


def joined(parts: list[Slices], ids: Array, upstream: Array, num_rows: int) -> Slices:
    row_shape = upstream.shape[len(ids.shape) :]
    empty = Slices(Array(upstream.dtype, (0, *row_shape), []), Array(ids.dtype, (0,), []), (num_rows, *row_shape))
    return concat([empty, *parts])


def per_sample_sum(upstream: Array, ids: Array, num_rows: int, **options: Any) -> Slices:
    return joined(samples(upstream, ids, num_rows, **options), ids, upstream, num_rows)


def per_sample_slices(upstream: Array, ids: Array, num_rows: int, b: int, **options: Any) -> Slices:
    return samples(upstream, ids, num_rows, **options)[b]


def clipped(s: Slices, norm64: float, max_norm: float, nonfinite: str) -> Slices:
    data = clip_data(s.values.data, s.values.dtype, norm64, max_norm, nonfinite)
    return Slices(Array(s.values.dtype, s.values.shape, data), s.indices, s.dense_shape)


def per_sample_clip_sum(
    upstream: Array, ids: Array, num_rows: int, max_norm: Any, nonfinite: str = "propagate", **options: Any
) -> Slices:
    parts = samples(upstream, ids, num_rows, **options)
    done = [clipped(s, exact_norm([s], 2), float(max_norm), nonfinite) for s in parts]
    return joined(done, ids, upstream, num_rows)


def clip_per_sample_sum(upstream: Array, ids: Array, num_rows: int, dense: Array, max_norm: Any) -> Any:
    parts = samples(upstream, ids, num_rows)
    width = math.prod(dense.shape[1:])
    rows = [Array(dense.dtype, (width,), row) for row in dense.rows()]
    norms = [exact_norm([s, row], 2) for s, row in zip(parts, rows, strict=True)]
    limit = float(max_norm)
    done = [clipped(s, n, limit, "propagate") for s, n in zip(parts, norms, strict=True)]
    data = [
        v for row, n in zip(rows, norms, strict=True) for v in clip_data(row.data, row.dtype, n, limit, "propagate")
    ]
    dtype = norm_dtype([upstream, dense])
    return (
        joined(done, ids, upstream, num_rows),
        Array(dense.dtype, dense.shape, data),
        Array(dtype, (len(norms),), [round_to(n, dtype) for n in norms]),
    )


#: operation -> its oracle
EMBEDDING = {
    fn.__name__: fn
    for fn in (
        clip_per_sample_sum, double_lookup_gradient, lookup, lookup_gradient, per_sample_clip_sum, per_sample_norms,
        per_sample_slices, per_sample_sum, per_sample_to_dense, renorm_rows,
    )
}  # fmt: skip
