"""Lookups and their gradients, padding, bags and per-sample gradients, as clauses 12, 14 and 19 define them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from from_text.arrays import Array, Slices, add, concat, rounded, to_dense, wide
from from_text.norms import clip, factored, norm64, numbers, result


def halves(x: Any) -> Any:
    """Return the sum of a row by repeated halving (clause 19)."""
    x, aside = np.ravel(x), []
    while len(x) > 1:
        if len(x) % 2:
            aside.append(x[-1])
            x = x[:-1]
        x = x[: len(x) // 2] + x[len(x) // 2 :]
    if not len(x):
        return x.dtype.type(0)
    if not aside:
        return x[0]
    rest = aside[0]
    for v in aside[1:]:
        rest = rest + v
    return x[0] + rest


@dataclass(frozen=True)
class Ids:
    """The flat ids of a lookup, the kind of each id (absent, padding, masked), and each id's bag or sample (-1 for
    none)."""

    ids: Any
    index_dtype: str
    absent: Any
    padding: Any
    masked: Any
    bag: Any
    bags: int

    @property
    def counts(self) -> Any:
        return ~(self.absent | self.padding | self.masked)

    @property
    def kept(self) -> Any:
        """Return the positions of the ids that have a slice."""
        return np.flatnonzero(~(self.absent | self.padding))


def _bags(ids: Any, count: int, offsets: Any, by: str) -> tuple[Any, int]:
    if isinstance(ids, tuple):
        lengths = ids[1].x.tolist()
        ends = np.cumsum([0, *lengths]).tolist()
    elif offsets is not None:
        starts = offsets.x.tolist()
        ends = [*starts, count]
        lengths = np.diff(ends).tolist()
    else:
        shape = ids.x.shape
        split = (shape[0] if shape else 1) if by == "sample" else int(np.prod(shape[:-1]))
        return np.repeat(np.arange(split), count // split if split else 0), split
    bag = np.full(count, -1)
    for b, (start, length) in enumerate(zip(ends, lengths, strict=False)):
        bag[start : start + length] = b
    return bag, len(lengths)


def ids_of(
    ids: Any, rows: int, padding_idx: int | None = None, mask: Any = None, invalid: str = "raise", offsets: Any = None,
    by: str = "bag",
) -> Ids:  # fmt: skip
    array = ids[0] if isinstance(ids, tuple) else ids
    flat = np.ravel(array.x).astype(np.int64)
    for k, index in enumerate(flat.tolist()):
        if index >= rows or (index < 0 and invalid != "drop"):
            raise IndexError(f"ids: got {index} at position {k}; accepted is 0 <= id < {rows}")
    bag, bags = _bags(ids, len(flat), offsets, by)
    absent = flat < 0
    if isinstance(ids, tuple):
        absent |= bag < 0
    padded = np.zeros(len(flat), bool) if padding_idx is None else flat == padding_idx % rows
    masked = np.zeros(len(flat), bool) if mask is None else ~np.ravel((mask[0] if isinstance(mask, tuple) else mask).x)
    index = "int64" if array.dtype in ("int64", "uint32") else "int32"
    return Ids(flat, index, absent, padded & ~absent, masked, bag, bags)


def _by_frequency(values: Any, found: Ids, dtype: str) -> Any:
    """Divide the row of each occurrence by the count of its index. Padding and absent ids do not count."""
    some = ~(found.absent | found.padding)
    there = found.ids[some].tolist()
    counts = {index: there.count(index) for index in set(there)}
    by = np.array([counts.get(i, 1) for i in found.ids.tolist()], values.dtype).reshape(-1, *[1] * (values.ndim - 1))
    return rounded(values / by, dtype)


def _slices(values: Any, found: Ids, shape: tuple[int, ...], dtype: str) -> Slices:
    kept = found.kept
    return Slices(Array(dtype, values[kept]), found.ids[kept], shape, found.index_dtype)


def embedding_grad(upstream: Array, ids: Any, num_rows: int, scale_by_freq: bool = False, **options: Any) -> Slices:
    found = ids_of(ids, num_rows, **options)
    lead = (ids[0] if isinstance(ids, tuple) else ids).x.ndim
    values = upstream.x.reshape(-1, *upstream.x.shape[lead:]).copy()
    values[found.masked] = 0
    if scale_by_freq:
        values = _by_frequency(values, found, upstream.dtype)
    return _slices(values, found, (num_rows, *values.shape[1:]), upstream.dtype)


def drop_padding(s: Any, padding_idx: int) -> Any:
    if isinstance(s, Array):
        out = s.x.copy()
        out[padding_idx] = 0
        return s.like(out)
    s = s.at(s.live)
    return s.at(np.flatnonzero(s.indices != padding_idx % s.shape[0]))


def scale_by_frequency(s: Slices) -> Slices:
    s = s.at(s.live)
    there = s.indices.tolist()
    counts = np.array([there.count(i) for i in there], s.values.x.dtype)
    return s.with_values(s.values.x / counts.reshape(-1, *[1] * (s.values.x.ndim - 1)))


# ---------------------------------------------------------------------- rows and bags
def _rows(table: Array, found: Ids) -> Any:
    """Return the row of each id, or zeros if the id is absent."""
    out = np.zeros((len(found.ids), *table.x.shape[1:]), table.x.dtype)
    for k in np.flatnonzero(~found.absent):
        out[k] = table.x[found.ids[k]]
    return out


def _fold(terms: Any) -> Any:
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


def _divisor(combiner: str, w: Any, count: int, kind: Any) -> Any:
    """Return the divisor of the sum of one bag, or None if the combiner has no divisor."""
    if combiner == "sum":
        return None
    if w is None:
        return kind(count) if combiner == "mean" else np.sqrt(kind(count))
    total = _fold(w if combiner == "mean" else w * w) if count else kind(0)
    return total if combiner == "mean" else np.sqrt(total)


def _bag(combiner: str, x: Any, w: Any) -> tuple[Any, Any]:
    """Return (result, divisor) of one bag. The result is not rounded to 16 bits. The divisor is 0 for an empty bag, and
    None if the combiner has no divisor."""
    kind = x.dtype.type
    if not len(x):
        return np.zeros(x.shape[1:], x.dtype), kind(0)
    if combiner == "max":
        top = x[0]
        for row in x[1:]:
            top = np.where(np.isnan(top) | np.isnan(row), kind(np.nan), np.maximum(top, row))
        return top, None
    total = _fold(x if w is None else x * w.reshape(-1, *[1] * (x.ndim - 1)))
    divisor = _divisor(combiner, w, len(x), kind)
    if divisor is None:
        return total, None
    return (total / divisor if divisor != 0 else np.zeros_like(total)), divisor


def _weights(weights: Any) -> Any:
    return None if weights is None else np.ravel((weights[0] if isinstance(weights, tuple) else weights).x)


def lookup(
    table: Array,
    ids: Any,
    combiner: str | None = None,
    weights: Any = None,
    **options: Any,
) -> Any:
    found = ids_of(ids, len(table.x), **options)
    rows = _rows(table, found)
    if combiner is None:
        if isinstance(ids, tuple):
            return Array(table.dtype, rows), ids[1]
        return Array(table.dtype, rows.reshape(*ids.x.shape, *table.x.shape[1:]))
    w, out = _weights(weights), np.zeros((found.bags, *table.x.shape[1:]), table.x.dtype)
    for b in range(found.bags):
        members = np.flatnonzero((found.bag == b) & found.counts)
        out[b] = _bag(combiner, rows[members], None if w is None else w[members])[0]
    lead = ids.x.shape[:-1] if isinstance(ids, Array) and options.get("offsets") is None else (found.bags,)
    return table.like(out.reshape(*lead, *table.x.shape[1:]))


def lookup_gradient(
    table: Array, ids: Any, upstream: Any, scale_by_freq: bool = False, combiner: str | None = None,
    weights: Any = None, **options: Any,
) -> Any:  # fmt: skip
    found = ids_of(ids, len(table.x), **options)
    upstream = upstream[0] if isinstance(upstream, tuple) else upstream
    rows, row_shape = _rows(table, found), table.x.shape[1:]
    count = len(found.ids) if combiner is None else found.bags
    g, w = upstream.x.reshape(count, *row_shape), _weights(weights)
    if combiner is None:
        values, by_weight = g.copy(), None
        values[found.masked | found.absent] = 0
    else:
        values, by_weight = _bag_gradients(combiner, found, rows, g, w)
        values = rounded(values, table.dtype)
    if scale_by_freq:
        values = _by_frequency(values, found, table.dtype)
    s = _slices(values, found, table.x.shape, table.dtype)
    if weights is None:
        return s
    form = weights[0] if isinstance(weights, tuple) else weights
    return s, form.like(by_weight.reshape(form.x.shape))


def _bag_gradients(combiner: str, found: Ids, rows: Any, g: Any, w: Any) -> tuple[Any, Any]:
    values = np.zeros_like(rows)
    by_weight = None if w is None else np.zeros_like(w)
    for b in range(found.bags):
        members = np.flatnonzero((found.bag == b) & found.counts)
        x, own = rows[members], None if w is None else w[members]
        y, divisor = _bag(combiner, x, own)
        if not len(members) or (divisor is not None and divisor == 0):
            continue
        if combiner == "max":
            waits = np.ones(g[b].shape, bool)
            for k in members:
                hit = waits & ((rows[k] == y) | (np.isnan(rows[k]) & np.isnan(y)))
                values[k] = np.where(hit, g[b], 0)
                waits &= ~hit
            continue
        h = g[b] if divisor is None else g[b] / divisor
        for k in members:
            values[k] = h if w is None else h * w[k]
            if w is not None:
                less = {
                    "sum": rows.dtype.type(0),
                    "mean": y,
                    "sqrtn": y * (w[k] / divisor) if combiner == "sqrtn" else 0,
                }
                by_weight[k] = halves(h * (rows[k] - less[combiner]))
    return values, by_weight


def double_lookup_gradient(table: Array, ids: Any, upstream: Any, other_ids: Any, other: Any) -> Slices:
    return concat([lookup_gradient(table, ids, upstream), lookup_gradient(table, other_ids, other)])


def renorm_rows(table: Array, ids: Any, max_norm: float, nonfinite: str = "propagate") -> Array:
    out = table.x.copy()
    for index in set(ids_of(ids, len(table.x)).ids.tolist()):
        row = Array(table.dtype, table.x[index])
        found = factored(row, norm64(numbers(row)), max_norm, nonfinite)
        out[index] = row.x if found is None else found
    return Array(table.dtype, out)


# ---------------------------------------------------------------------- one gradient per sample
class PerSample:
    def __init__(self, upstream: Array, ids: Any, num_rows: int, product: Any = None, **options: Any) -> None:
        self.found = ids_of(ids, num_rows, by="sample", **options)
        self.all = embedding_grad(upstream, ids, num_rows, **options)
        self.sample = self.found.bag[self.found.kept]
        self.count = self.found.bags
        self.product = None if product is None else [self._positions(x) for x in product]

    def _positions(self, x: Array) -> Array:
        return Array(x.dtype, x.x.reshape(self.count, -1, x.x.shape[-1]))

    def slices_of(self, b: int) -> Slices:
        return self.all.at(np.flatnonzero(self.sample == b))

    def outer(self, b: int) -> Any:
        g, x = (part.x[b].astype(np.float64) for part in self.product)  # type: ignore[union-attr]
        total = np.zeros((g.shape[1], x.shape[1]))
        for t in range(len(g)):
            total = total + np.multiply.outer(g[t], x[t])
        return total

    def numbers(self, b: int) -> list[float]:
        if self.product is None:
            return numbers(self.slices_of(b))
        return [float(v) for v in np.ravel(to_dense(self.slices_of(b)).x.astype(np.float64) + self.outer(b))]

    def dense(self, bs: Any, sparse: Slices) -> Array:
        total = self.outer(bs[0])
        for b in bs[1:]:
            total = total + self.outer(b)
        dtype = self.all.values.dtype
        return add(Array(dtype, rounded(total.astype(wide(dtype)), dtype)), sparse)  # type: ignore[no-any-return]

    def sum(self) -> Any:
        return self.all if self.product is None else self.dense(range(self.count), self.all)

    def clip(self, limit: float, nonfinite: str = "propagate", ns: Any = None) -> PerSample:
        values = self.all.values.x.copy()
        for b in range(self.count):
            n = norm64(self.numbers(b)) if ns is None else ns[b]
            places = self.sample == b
            values[places] = clip(self.slices_of(b), n, limit, nonfinite).values.x
            if self.product is not None:
                g, x = self.product
                x.x[b] = clip(Array(x.dtype, x.x[b]), n, limit, nonfinite).x
                if not np.isfinite(n) and nonfinite == "zero":
                    g.x[b] = 0
        self.all = self.all.with_values(values)
        return self


def per_sample_norms(*args: Any, **options: Any) -> Array:
    samples = PerSample(*args, **options)
    ns = [norm64(samples.numbers(b)) for b in range(samples.count)]
    one = result(0.0, [samples.all.values.dtype])
    return one.like(np.array(ns, np.float64))


def per_sample_sum(*args: Any, **options: Any) -> Any:
    return PerSample(*args, **options).sum()


def per_sample_slices(upstream: Array, ids: Any, num_rows: int, b: int, **options: Any) -> Any:
    samples = PerSample(upstream, ids, num_rows, **options)
    if not 0 <= b < samples.count:
        raise IndexError(f"b: got {b}; accepted is 0 <= b < {samples.count}")
    s = samples.slices_of(b)
    return s if samples.product is None else samples.dense([b], s)


def per_sample_to_dense(*args: Any, **options: Any) -> Array:
    samples = PerSample(*args, **options)
    each = [samples.slices_of(b) for b in range(samples.count)]
    rows = [to_dense(s) if samples.product is None else samples.dense([b], s) for b, s in enumerate(each)]
    dtype = samples.all.values.dtype
    return Array(dtype, np.array([x.x for x in rows], wide(dtype)).reshape(-1, *samples.all.shape))


def per_sample_clip_sum(
    upstream: Array, ids: Any, num_rows: int, max_norm: float, nonfinite: str = "propagate", **options: Any
) -> Any:
    product = options.get("product")
    if product is not None:
        options["product"] = [replace(x, x=x.x.copy()) for x in product]
    return PerSample(upstream, ids, num_rows, **options).clip(max_norm, nonfinite).sum()


def clip_per_sample_sum(upstream: Array, ids: Any, num_rows: int, dense: Array, max_norm: float) -> Any:
    samples = PerSample(upstream, ids, num_rows)
    ns = [norm64([*samples.numbers(b), *map(float, np.ravel(dense.x[b]))]) for b in range(samples.count)]
    rest = np.array([clip(Array(dense.dtype, dense.x[b]), n, max_norm, "propagate").x for b, n in enumerate(ns)])
    norms = result(0.0, [samples.all.values.dtype, dense.dtype]).like(np.array(ns))
    return samples.clip(max_norm, ns=ns).sum(), dense.like(rest), norms
