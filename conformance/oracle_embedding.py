"""Compute the expected results of lookups, bags, renorm_rows and per-sample gradients in exact rational arithmetic.

The module follows clauses 12, 14 and 19, and uses the rounding of `islices.conformance.oracle`.
"""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any

from islices.conformance.data import Array, Shape, Slices
from islices.conformance.oracle import (
    add,
    clip_by_row_norm,
    clip_data,
    clipped,
    concat,
    embedding_grad,
    exact_norm,
    halves,
    left_fold,
    norm_dtype,
    norm_of,
    over,
    plus,
    round_to,
    square_root,
    times,
    to_dense,
    wide,
)

# ---------------------------------------------------------------------- which ids there are
Ids = Any  # an Array, or the tuple (values, lengths)


def starts_of(ids: Ids, offsets: Array | None) -> list[int]:
    """Return the start of each bag in the values of ids, followed by the end of the last bag."""
    if isinstance(ids, tuple):
        return list(itertools.accumulate(ids[1].data, initial=0))
    if offsets is not None:
        return [*offsets.data, len(ids.data)]
    return [ids.shape[-1] * b for b in range(math.prod(ids.shape[:-1]) + 1)]


def lead_of(ids: Ids, offsets: Array | None) -> Shape:
    """Return the shape of a bag lookup's result without the dimensions of a row. An array of this shape has one element
    per bag."""
    if isinstance(ids, tuple):
        return tuple(ids[1].shape)
    if offsets is None:
        return tuple(ids.shape[:-1])
    return (offsets.shape[0],)


def values_of_ids(ids: Ids) -> Array:
    return ids[0] if isinstance(ids, tuple) else ids  # type: ignore[no-any-return]


def absent_of(ids: Ids, offsets: Array | None, invalid: str) -> set[int]:
    """Return the positions of ids for which no row is read: positions after the last bag and, if invalid="drop",
    positions of negative ids."""
    values = values_of_ids(ids)
    gone = {k for k, i in enumerate(values.data) if invalid == "drop" and i < 0}
    if isinstance(ids, tuple) or offsets is not None:
        gone |= set(range(starts_of(ids, offsets)[-1], len(values.data)))
    return gone


# ---------------------------------------------------------------------- bags
#: The positions in ids of the members of one bag, without padding, masked ids and absent ids.
Bag = list[int]


def bags_of(
    ids: Ids,
    table: Array,
    padding_idx: int | None,
    mask: Array | None,
    offsets: Array | None,
    invalid: str,
) -> list[Bag]:
    padding = None if padding_idx is None else padding_idx % table.shape[0]
    gone = absent_of(ids, offsets, invalid)
    values = values_of_ids(ids).data
    counting = [v != padding and k not in gone and (mask is None or mask.data[k]) for k, v in enumerate(values)]
    return [[k for k in range(a, b) if counting[k]] for a, b in itertools.pairwise(starts_of(ids, offsets))]


def root(x: float, kind: str) -> float:
    """Return the correctly rounded square root. Rounding the float64 root to float32 gives the correct float32 root."""
    return float(round_to(square_root(x), kind))


def divisor(bag: Bag, weights: list[Any] | None, combiner: str, kind: str) -> float | None:
    if combiner == "sum":
        return None
    if not bag:
        return 0.0
    if weights is None:
        total = float(len(bag))
    elif combiner == "mean":
        total = left_fold([weights[k] for k in bag], kind)
    else:
        total = left_fold([times(weights[k], weights[k], kind) for k in bag], kind)
    return root(total, kind) if combiner == "sqrtn" else total


def reduced(bag: Bag, row: Any, width: int, weights: list[Any] | None, combiner: str, kind: str) -> list[Any]:
    """Return the combined row of a bag in the wide type. `row(k)` returns the row of the table for position k of
    ids."""
    by = divisor(bag, weights, combiner, kind) if combiner != "max" else None
    if not bag or by == 0:
        return [0.0] * width
    columns = zip(*(row(k) for k in bag), strict=True)
    out = []
    for column in columns:
        if combiner == "max":
            out.append(math.nan if any(v != v for v in column) else max(column))
            continue
        terms = column if weights is None else [times(v, weights[k], kind) for v, k in zip(column, bag, strict=True)]
        total = left_fold(list(terms), kind)
        out.append(total if by is None else over(total, by, kind))
    return out


def lookup(
    table: Array,
    ids: Ids,
    padding_idx: int | None = None,
    mask: Array | None = None,
    combiner: str | None = None,
    weights: Array | None = None,
    offsets: Array | None = None,
    invalid: str = "raise",
) -> Any:
    rows, row_shape = table.rows(), table.shape[1:]
    values, width = values_of_ids(ids), math.prod(row_shape)
    if combiner is None:
        gone = absent_of(ids, None, invalid)
        data = [v for k, i in enumerate(values.data) for v in ([0.0] * width if k in gone else rows[i])]
        found = Array(table.dtype, (*values.shape, *row_shape), data)
        return (found, ids[1]) if isinstance(ids, tuple) else found
    bags = bags_of(ids, table, padding_idx, mask, offsets, invalid)
    shape = lead_of(ids, offsets)
    w = None if weights is None else weights.data
    made = [reduced(bag, lambda k: rows[values.data[k]], width, w, combiner, wide(table.dtype)) for bag in bags]
    return Array(table.dtype, (*shape, *row_shape), [round_to(v, table.dtype) for row in made for v in row])


def bag_gradients(
    table: Array, ids: Array, upstream: Array, bags: list[Bag], weights: Array | None, combiner: str
) -> tuple[Array, Array | None]:
    """Return (the gradients of the looked-up rows with one row per id, the gradient of each weight). Without weights,
    the second item is None."""
    kind, dtype, width = wide(table.dtype), table.dtype, math.prod(table.shape[1:])
    rows = table.rows()
    w = None if weights is None else weights.data
    members: list[list[Any]] = [[0.0] * width for _ in ids.data]
    d_weights = [0.0] * len(ids.data)
    g_rows = [upstream.data[b * width : (b + 1) * width] for b in range(len(bags))]
    for bag, g in zip(bags, g_rows, strict=True):
        if combiner == "max":
            for j in range(width):
                column = [rows[ids.data[k]][j] for k in bag]
                if column:
                    top = next((k for k, v in zip(bag, column, strict=True) if v != v), None)
                    top = bag[column.index(max(column))] if top is None else top
                    members[top][j] = g[j]
            continue
        by = divisor(bag, w, combiner, kind)
        if by == 0:
            continue
        h = [v if by is None else over(v, by, kind) for v in g]
        y = reduced(bag, lambda k: rows[ids.data[k]], width, w, combiner, kind)
        for k in bag:
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
    to_rows = Array(dtype, (*ids.shape, *table.shape[1:]), flat)
    if weights is None:
        return to_rows, None
    return to_rows, Array(dtype, weights.shape, [round_to(v, dtype) for v in d_weights])


def lookup_gradient(
    table: Array,
    ids: Ids,
    upstream: Array,
    padding_idx: int | None = None,
    mask: Array | None = None,
    scale_by_freq: bool = False,
    combiner: str | None = None,
    weights: Array | None = None,
    offsets: Array | None = None,
    invalid: str = "raise",
) -> Any:
    rows = table.shape[0]
    if combiner is None:
        return embedding_grad(upstream, ids, rows, padding_idx, mask, scale_by_freq, invalid)
    bags = bags_of(ids, table, padding_idx, mask, offsets, invalid)
    to_rows, d_weights = bag_gradients(table, values_of_ids(ids), upstream, bags, weights, combiner)
    s = embedding_grad(to_rows, ids, rows, padding_idx, None, scale_by_freq, invalid)
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
def exact_product(a: float, b: float) -> Any:
    return Fraction(a) * Fraction(b) if math.isfinite(a) and math.isfinite(b) else math.nan


def rounded_part(exact: list[Any], dtype: str, shape: Shape) -> Array:
    return Array(dtype, shape, [round_to(round_to(v, wide(dtype)), dtype) for v in exact])


class Samples:
    """The slices of each sample. If the table is also the output layer, `product` contains the factors (g, x) of that
    layer's gradient."""

    def __init__(
        self,
        upstream: Array,
        ids: Ids,
        num_rows: int,
        product: Any = None,
        mask: Array | None = None,
        **options: Any,
    ) -> None:
        values = values_of_ids(ids)
        row_shape = upstream.shape[len(values.shape) :]
        width = math.prod(row_shape)
        self.dtype, self.shape, self.product = upstream.dtype, (num_rows, *row_shape), product
        self.empty = Slices(Array(self.dtype, (0, *row_shape), []), Array(values.dtype, (0,), []), self.shape)
        if isinstance(ids, tuple):
            starts = starts_of(ids, None)
        else:
            starts = [b * math.prod(ids.shape[1:]) for b in range(ids.shape[0] + 1)]
        self.parts = []
        for a, b in itertools.pairwise(starts):
            own_mask = None if mask is None else Array("bool", (b - a,), mask.data[a:b])
            own_ids = Array(values.dtype, (b - a,), values.data[a:b])
            own = Array(self.dtype, (b - a, *row_shape), upstream.data[a * width : b * width])
            self.parts.append(embedding_grad(own, own_ids, num_rows, mask=own_mask, **options))

    def dense_part(self, b: int) -> list[Any]:
        """Return the exact gradient of the output layer for sample b: the sum of the outer products g[t] x[t] over
        t."""
        g, x = self.product
        t, rows, width = math.prod(g.shape[1:-1]), g.shape[-1], x.shape[-1]
        gs, xs = (a.data[b * t * n : (b + 1) * t * n] for a, n in ((g, rows), (x, width)))
        return [
            sum((exact_product(gs[k * rows + r], xs[k * width + c]) for k in range(t)), Fraction(0))
            for r in range(rows)
            for c in range(width)
        ]

    def norm(self, b: int) -> float:
        s = self.parts[b]
        if self.product is None:
            return exact_norm([s], 2)
        each = [(x.data, len(x.data) // x.shape[0]) for x in self.product]
        if not all(math.isfinite(v) for data, n in each for v in data[b * n : (b + 1) * n]):
            return math.nan
        return norm_of([Fraction(v) + d for v, d in zip(to_dense(s).data, self.dense_part(b), strict=True)])

    def all_norms(self) -> list[float]:
        return list(map(self.norm, range(len(self.parts))))

    def norms(self) -> Array:
        return norms_array(self.all_norms(), norm_dtype([self.empty]))

    def slices(self, b: int) -> Any:
        s = self.parts[b]
        return s if self.product is None else add(rounded_part(self.dense_part(b), self.dtype, self.shape), s)

    def to_dense(self) -> Array:
        every = [to_dense(self.slices(b)).data for b in range(len(self.parts))]
        return Array(self.dtype, (len(every), *self.shape), list(itertools.chain.from_iterable(every)))

    def sum(self) -> Any:
        slices = concat([self.empty, *self.parts])
        if self.product is None:
            return slices
        every = [self.dense_part(b) for b in range(len(self.parts))]
        zeros = [Fraction(0)] * math.prod(self.shape)
        total = [sum(column, Fraction(0)) for column in zip(zeros, *every, strict=True)]
        return add(rounded_part(total, self.dtype, self.shape), slices)

    def clip_sum(self, max_norm: Any, nonfinite: str = "propagate") -> Any:
        norms = self.all_norms()
        self.clip(norms, float(max_norm), nonfinite)
        return self.sum()

    def clip(self, norms: list[float], limit: float, nonfinite: str) -> None:
        """Clip the gradient of each sample by its norm. For the output layer, only the factor x is scaled.

        A gradient that is not finite becomes zeros if nonfinite="zero". For the output layer, both factors then become
        zeros.
        """
        self.parts = [clipped(s, n, limit, nonfinite) for s, n in zip(self.parts, norms, strict=True)]
        if self.product is None:
            return
        g, x = self.product
        upstream: list[Any] = []
        inputs: list[Any] = []
        for b, norm64 in enumerate(norms):
            own_g, own_x = (a.data[b * len(a.data) // len(norms) : (b + 1) * len(a.data) // len(norms)] for a in (g, x))
            gone = nonfinite == "zero" and not math.isfinite(norm64)
            upstream += [0.0] * len(own_g) if gone else own_g
            inputs += clip_data(own_x, x.dtype, norm64, limit, nonfinite)
        self.product = [Array(g.dtype, g.shape, upstream), Array(x.dtype, x.shape, inputs)]


def norms_array(norms: list[float], dtype: str) -> Array:
    return Array(dtype, (len(norms),), [round_to(n, dtype) for n in norms])


def per_sample(method: str, *names: str) -> Any:
    """Return an oracle that makes `Samples` and calls one of its methods. The oracle accepts the arguments of
    `Samples`, then the positional arguments of the method. `names` lists the keyword arguments that are passed to the
    method, not to `Samples`."""

    def oracle(upstream: Array, ids: Ids, num_rows: int, *arguments: Any, **options: Any) -> Any:
        own = {name: options.pop(name) for name in names if name in options}
        return getattr(Samples(upstream, ids, num_rows, **options), method)(*arguments, **own)

    return oracle


def clip_per_sample_sum(upstream: Array, ids: Array, num_rows: int, dense: Array, max_norm: Any) -> Any:
    samples = Samples(upstream, ids, num_rows)
    rows = [Array(dense.dtype, (len(row),), row) for row in dense.rows()]
    norms = [exact_norm([s, row], 2) for s, row in zip(samples.parts, rows, strict=True)]
    limit = float(max_norm)
    samples.clip(norms, limit, "propagate")
    data = [v for row, n in zip(rows, norms, strict=True) for v in clipped(row, n, limit, "propagate").data]
    dtype = norm_dtype([upstream, dense])
    return samples.sum(), Array(dense.dtype, dense.shape, data), norms_array(norms, dtype)


#: operation on per-sample gradients -> the function that computes its expected result
PER_SAMPLE = {
    "clip_per_sample_sum": clip_per_sample_sum,
    "per_sample_clip_sum": per_sample("clip_sum", "nonfinite"),
    **{f"per_sample_{method}": per_sample(method) for method in ("norms", "slices", "sum", "to_dense")},
}
