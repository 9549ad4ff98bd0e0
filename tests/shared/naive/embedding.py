"""A second opinion on the embedding clauses (12, 14, 19): lookups, bags, their gradients, and what is per sample.

Floating point and plain loops, for the reason that `naive.operations` gives. Every number is one NumPy scalar,
every step one operation on such scalars; for 16-bit types they are float32 until the result is stored.

Ids out of range, which only traced code can meet, read as zeros, count in no bag, and have no slice here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from islices.conformance.data import Array, Slices
from naive.operations import (
    WIDE,
    Scalar,
    add,
    clip_number,
    embedding_grad,
    left_fold,
    narrow,
    norm64,
    numbers_of,
    row_of,
    scale_by_frequency,
    sum_by_halves,
    to_dense,
)

__all__ = ["NAIVE"]


def from_the_start(index: int | None, rows: int) -> int | None:
    """padding_idx with a negative one counted from the end, once."""
    return index + rows if index is not None and index < 0 else index


# ---------------------------------------------------------------------- bags
def unpaired(ids: Any) -> tuple[Array, Array | None]:
    """(values, lengths) of ids, a pair or not."""
    return ids if isinstance(ids, tuple) else (ids, None)


def bag_members(ids: Any, offsets: Array | None, include_last_offset: bool) -> list[list[int]]:
    """For each bag the positions of its members in ids' data, in order."""
    ids, lengths = unpaired(ids)
    if lengths is not None:
        found: list[list[int]] = []
        position = 0
        for length in lengths.data:
            found.append(list(range(position, position + length)))
            position += length
        return found
    if offsets is None:
        length = ids.shape[-1]
        return [list(range(b * length, (b + 1) * length)) for b in range(math.prod(ids.shape[:-1]))]
    starts = [*offsets.data] if include_last_offset else [*offsets.data, len(ids.data)]
    return [list(range(starts[b], starts[b + 1])) for b in range(len(starts) - 1)]


class Clipped:
    """A row of a table as a lookup with max_norm reads it, and the gradient that passes through."""

    def __init__(self, row: list[Any], dtype: str, max_norm: Any) -> None:
        wide = WIDE[dtype]
        self.dtype, self.row = dtype, row
        self.factor: Any = None
        length = norm64(row, 2)
        if length != length or length == math.inf:
            self.factor = wide(math.nan)
        elif length > float(max_norm):
            self.factor = wide(np.float64(max_norm) / np.float64(length))
        self.limit = wide(max_norm)

    def read(self) -> list[Any]:
        wide = WIDE[self.dtype]
        return self.row if self.factor is None else [narrow(wide(v) * self.factor, self.dtype) for v in self.row]

    def passed(self, g: list[Any]) -> list[Any]:
        """f (g - v sum(v g)), v being the clipped row over the limit."""
        if self.factor is None:
            return list(g)
        wide = WIDE[self.dtype]
        v = [wide(x) * self.factor for x in self.row]
        if self.limit > 0:
            v = [x / self.limit for x in v]
        along = sum_by_halves([a * wide(b) for a, b in zip(v, g, strict=True)], wide(0))
        return [narrow((wide(b) - a * along) * self.factor, self.dtype) for a, b in zip(v, g, strict=True)]


def clipped_table(table: Array, max_norm: Any) -> Array:
    if max_norm is None:
        return table
    width = math.prod(table.shape[1:])
    data: list[Any] = []
    for r in range(table.shape[0]):
        data += Clipped(row_of(table, r, width), table.dtype, max_norm).read()
    return Array(table.dtype, table.shape, data)


class Bag:
    """One bag of a table: the members that count, their rows and weights, the divisor and the result, unrounded."""

    def __init__(
        self,
        table: Array,
        ids: Array,
        members: list[int],
        padding_idx: int | None,
        mask: Array | None,
        combiner: str,
        weights: Array | None,
    ) -> None:
        wide = WIDE[table.dtype]
        self.zero, self.width, self.combiner = wide(0), math.prod(table.shape[1:]), combiner
        padding = from_the_start(padding_idx, table.shape[0])
        #: positions in ids of the members that count
        self.counting = [
            k
            for k in members
            if 0 <= ids.data[k] < table.shape[0] and ids.data[k] != padding and (mask is None or mask.data[k])
        ]
        self.rows = [[wide(v) for v in row_of(table, ids.data[k], self.width)] for k in self.counting]
        self.weights = None if weights is None else [wide(weights.data[k]) for k in self.counting]
        #: what h and the sum are divided by; None where a combiner divides by nothing
        self.divisor = self.divisor_of(wide)
        self.result = [self.reduced(j) for j in range(self.width)]

    def divisor_of(self, wide: Callable[[Any], Scalar]) -> Scalar | None:
        if self.combiner not in ("mean", "sqrtn"):
            return None
        if self.weights is None:
            total = wide(len(self.counting))
        elif self.combiner == "mean":
            total = left_fold(self.weights, self.zero)
        else:
            total = left_fold([w * w for w in self.weights], self.zero)
        return np.sqrt(total) if self.combiner == "sqrtn" else total

    @property
    def closed(self) -> bool:
        """The divisor is 0: the result is zeros and no gradient passes."""
        return self.divisor is not None and bool(self.divisor == 0)

    def reduced(self, j: int) -> Scalar:
        """Element j of the result."""
        column = [row[j] for row in self.rows]
        if self.combiner == "max":
            return column[self.winner(j)] if column else self.zero
        if self.closed:
            return self.zero
        if self.weights is not None:
            column = [w * x for w, x in zip(self.weights, column, strict=True)]
        total = left_fold(column, self.zero)
        return total if self.divisor is None else total / self.divisor

    def winner(self, j: int) -> int:
        """Which counting member is the maximum of element j: the first NaN, else the first of the largest."""
        best = 0
        for k, row in enumerate(self.rows):
            if row[j] != row[j]:
                return k
            if row[j] > self.rows[best][j]:
                best = k
        return best

    def passed(self, upstream: list[Scalar]) -> list[Scalar]:
        """h: the upstream gradient, divided by the divisor where there is one."""
        if self.closed:
            return [self.zero] * self.width
        return list(upstream) if self.divisor is None else [g / self.divisor for g in upstream]

    def row_gradient(self, member: int, upstream: list[Scalar]) -> list[Scalar]:
        """What the row of the given counting member gets."""
        if self.combiner == "max":
            return [upstream[j] if self.winner(j) == member else self.zero for j in range(self.width)]
        h = self.passed(upstream)
        if self.weights is None or self.closed:  # a NaN weight must not turn a gradient that does not pass into NaN
            return h
        return [self.weights[member] * v for v in h]

    def weight_gradient(self, member: int, upstream: list[Scalar]) -> Scalar:
        """What the weight of the given counting member gets."""
        assert self.weights is not None
        if self.closed:
            return self.zero
        terms: list[Scalar] = []
        for h, x, result in zip(self.passed(upstream), self.rows[member], self.result, strict=True):
            if self.combiner == "sum":
                terms.append(h * x)
            elif self.combiner == "mean":
                terms.append(h * (x - result))
            else:
                terms.append(h * (x - result * (self.weights[member] / self.divisor)))
        return sum_by_halves(terms, self.zero)


def lookup(
    table: Array,
    ids: Any,
    padding_idx: int | None = None,
    mask: Array | None = None,
    combiner: str | None = None,
    weights: Array | None = None,
    offsets: Array | None = None,
    include_last_offset: bool = False,
    invalid: str = "raise",
    max_norm: Any = None,
) -> Any:
    row_shape = table.shape[1:]
    width = math.prod(row_shape)
    table = clipped_table(table, max_norm)
    pair, (ids, lengths) = ids, unpaired(ids)
    data: list[Any] = []
    if combiner is None:
        end = len(ids.data) if lengths is None else sum(lengths.data)
        for k, index in enumerate(ids.data):  # padding and masked ids are read as any other
            there = k < end and 0 <= index < table.shape[0]
            data += row_of(table, index, width) if there else [narrow(0, table.dtype)] * width
        rows = Array(table.dtype, (*ids.shape, *row_shape), data)
        return rows if lengths is None else (rows, lengths)
    bags = bag_members(pair, offsets, include_last_offset)
    for members in bags:
        bag = Bag(table, ids, members, padding_idx, mask, combiner, weights)
        data += [narrow(v, table.dtype) for v in bag.result]
    bags_shape = ids.shape[:-1] if offsets is None and lengths is None else (len(bags),)
    return Array(table.dtype, (*bags_shape, *row_shape), data)


def lookup_gradient(
    table: Array,
    ids: Any,
    upstream: Array,
    padding_idx: int | None = None,
    mask: Array | None = None,
    scale_by_freq: bool = False,
    combiner: str | None = None,
    weights: Array | None = None,
    offsets: Array | None = None,
    include_last_offset: bool = False,
    invalid: str = "raise",
    max_norm: Any = None,
) -> Any:
    """The Slices of the table's gradient, one for each id but padding; with weights (Slices, the weights' gradient)."""
    row_shape = table.shape[1:]
    width = math.prod(row_shape)
    wide, zero = WIDE[table.dtype], narrow(0, table.dtype)
    pair, (ids, lengths) = ids, unpaired(ids)
    bags = None if combiner is None else bag_members(pair, offsets, include_last_offset)
    read = clipped_table(table, max_norm)
    end = len(ids.data) if lengths is None else sum(lengths.data)
    if bags is not None and (lengths is not None or offsets is not None):
        end = sum(map(len, bags))
    # By position in ids; who does not count keeps these zeros.
    rows: list[list[Any]] = [[zero] * width for _ in ids.data]
    weight_grads: list[Any] = [zero] * len(ids.data)
    if bags is None or combiner is None:
        for k in range(len(ids.data)):
            if mask is None or mask.data[k]:
                rows[k] = row_of(upstream, k, width)
    else:
        for b, members in enumerate(bags):
            bag = Bag(read, ids, members, padding_idx, mask, combiner, weights)
            g = [wide(v) for v in row_of(upstream, b, width)]
            for member, k in enumerate(bag.counting):
                rows[k] = [narrow(v, table.dtype) for v in bag.row_gradient(member, g)]
                if weights is not None:
                    weight_grads[k] = narrow(bag.weight_gradient(member, g), table.dtype)
    padding = from_the_start(padding_idx, table.shape[0])
    kept = [k for k, index in enumerate(ids.data) if k < end and 0 <= index < table.shape[0] and index != padding]
    if max_norm is not None:
        for k in kept:
            if mask is None or mask.data[k]:
                rows[k] = Clipped(row_of(table, ids.data[k], width), table.dtype, max_norm).passed(rows[k])
    values = Array(table.dtype, (len(kept), *row_shape), [v for k in kept for v in rows[k]])
    index = "int64" if ids.dtype in ("int64", "uint32") else "int32"
    grad = Slices(values, Array(index, (len(kept),), [ids.data[k] for k in kept]), tuple(table.shape))
    if scale_by_freq:
        grad = scale_by_frequency(grad)
    return grad if weights is None else (grad, Array(table.dtype, weights.shape, weight_grads))


def double_lookup_gradient(table: Array, ids: Array, upstream: Array, other_ids: Array, other: Array) -> Slices:
    """One table looked up twice: the slices of the first lookup first."""
    first, second = lookup_gradient(table, ids, upstream), lookup_gradient(table, other_ids, other)
    index_type = "int64" if "int64" in (first.indices.dtype, second.indices.dtype) else "int32"
    kept = [*first.indices.data, *second.indices.data]
    values = Array(table.dtype, (len(kept), *table.shape[1:]), [*first.values.data, *second.values.data])
    return Slices(values, Array(index_type, (len(kept),), kept), tuple(table.shape))


# ---------------------------------------------------------------------- rows of a table
def renorm_rows(table: Array, ids: Array, max_norm: Any, nonfinite: str = "propagate") -> Array:
    width = math.prod(table.shape[1:])
    data: list[Any] = []
    for r in range(table.shape[0]):
        row = row_of(table, r, width)
        if r in ids.data:
            length = norm64(row, 2)
            row = [clip_number(v, table.dtype, length, float(max_norm), nonfinite) for v in row]
        data += row
    return Array(table.dtype, table.shape, data)


# ---------------------------------------------------------------------- per sample
def part(x: Array, b: int) -> Array:
    """x[b]"""
    return Array(x.dtype, x.shape[1:], row_of(x, b, math.prod(x.shape[1:])))


def between(x: Array, start: int, stop: int) -> Array:
    """x[start:stop]"""
    width = math.prod(x.shape[1:])
    return Array(x.dtype, (stop - start, *x.shape[1:]), x.data[start * width : stop * width])


def batch_of(ids: Any) -> int:
    values, lengths = unpaired(ids)
    return values.shape[0] if lengths is None else lengths.shape[0]


def slices_of(
    upstream: Array,
    ids: Any,
    num_rows: int,
    b: int,
    padding_idx: int | None = None,
    mask: Array | None = None,
    invalid: str = "raise",
) -> Slices:
    values, lengths = unpaired(ids)
    if lengths is not None:
        start = sum(lengths.data[:b])
        stop = start + lengths.data[b]
        own = None if mask is None else between(mask, start, stop)
        given = between(upstream, start, stop), between(values, start, stop)
        return embedding_grad(*given, num_rows, padding_idx, own, invalid=invalid)
    own = None if mask is None else part(mask, b)
    return embedding_grad(part(upstream, b), part(ids, b), num_rows, padding_idx, own, invalid=invalid)


def samples(
    upstream: Array, ids: Any, num_rows: int, padding_idx: int | None, mask: Array | None, invalid: str = "raise"
) -> Iterator[Slices]:
    for b in range(batch_of(ids)):
        yield slices_of(upstream, ids, num_rows, b, padding_idx, mask, invalid)


def add_product(total: Any, product: Any, b: int) -> None:
    """To (rows, width) in float64, what an output layer adds to sample b."""
    g, x = (np.array(a.data, np.float64).reshape(a.shape[0], math.prod(a.shape[1:-1]), a.shape[-1]) for a in product)
    for t in range(g.shape[1]):
        for r in range(g.shape[2]):
            for c in range(x.shape[2]):
                total[r, c] += g[b, t, r] * x[b, t, c]


def with_product(s: Slices, product: Any, numbers: Iterable[int]) -> Any:
    """Slices, or with the samples' part of an output layer a dense array: that part rounded, each row's sum added."""
    if product is None:
        return s
    exact = np.zeros(s.dense_shape)
    for b in numbers:
        add_product(exact, product, b)
    dtype = s.values.dtype
    wide = WIDE[dtype]
    return add(Array(dtype, s.dense_shape, [narrow(wide(v), dtype) for v in exact.ravel()]), s)


def per_sample_slices(
    upstream: Array, ids: Any, num_rows: int, b: int, *args: Any, product: Any = None, **options: Any
) -> Any:
    return with_product(slices_of(upstream, ids, num_rows, b, *args, **options), product, [b])


def norms_array(norms: list[float], dtypes: list[str]) -> Array:
    dtype = "float64" if "float64" in dtypes else "float32"
    return Array(dtype, (len(norms),), [narrow(np.float64(v), dtype) for v in norms])


def norm_of_sample(s: Slices, product: Any, b: int) -> float:
    if product is None:
        return norm64(numbers_of([s]), 2)
    total = np.array(to_dense(s).data, np.float64).reshape(s.dense_shape)
    add_product(total, product, b)
    return norm64(total.ravel().tolist(), 2)


def per_sample_norms(
    upstream: Array,
    ids: Any,
    num_rows: int,
    padding_idx: int | None = None,
    mask: Array | None = None,
    invalid: str = "raise",
    product: Any = None,
) -> Array:
    every = samples(upstream, ids, num_rows, padding_idx, mask, invalid)
    return norms_array([norm_of_sample(s, product, b) for b, s in enumerate(every)], [upstream.dtype])


def per_sample_to_dense(
    upstream: Array,
    ids: Any,
    num_rows: int,
    padding_idx: int | None = None,
    mask: Array | None = None,
    invalid: str = "raise",
    product: Any = None,
) -> Array:
    data: list[Any] = []
    for b, s in enumerate(samples(upstream, ids, num_rows, padding_idx, mask, invalid)):
        data += to_dense(with_product(s, product, [b])).data
    row_shape = upstream.shape[len(unpaired(ids)[0].shape) :]
    return Array(upstream.dtype, (batch_of(ids), num_rows, *row_shape), data)


def per_sample_sum(
    upstream: Array,
    ids: Any,
    num_rows: int,
    padding_idx: int | None = None,
    mask: Array | None = None,
    invalid: str = "raise",
    product: Any = None,
) -> Any:
    whole = embedding_grad(upstream, ids, num_rows, padding_idx, mask, invalid=invalid)
    return with_product(whole, product, range(batch_of(ids)))


def clipped_samples(
    upstream: Array,
    ids: Any,
    num_rows: int,
    norms: list[float],
    max_norm: Any,
    padding_idx: int | None,
    mask: Array | None,
    nonfinite: str,
    invalid: str = "raise",
) -> Slices:
    """All slices in order, those of each sample clipped by the norm given for it."""
    row_shape = upstream.shape[len(unpaired(ids)[0].shape) :]
    data: list[Any] = []
    kept: list[int] = []
    for norm, s in zip(norms, samples(upstream, ids, num_rows, padding_idx, mask, invalid), strict=True):
        data += [clip_number(v, upstream.dtype, norm, float(max_norm), nonfinite) for v in s.values.data]
        kept += s.indices.data
    values = Array(upstream.dtype, (len(kept), *row_shape), data)
    return Slices(values, Array(unpaired(ids)[0].dtype, (len(kept),), kept), (num_rows, *row_shape))


def per_sample_clip_sum(
    upstream: Array,
    ids: Any,
    num_rows: int,
    max_norm: Any,
    padding_idx: int | None = None,
    mask: Array | None = None,
    nonfinite: str = "propagate",
    invalid: str = "raise",
    product: Any = None,
) -> Any:
    every = samples(upstream, ids, num_rows, padding_idx, mask, invalid)
    norms = [norm_of_sample(s, product, b) for b, s in enumerate(every)]
    done = clipped_samples(upstream, ids, num_rows, norms, max_norm, padding_idx, mask, nonfinite, invalid)
    if product is None:
        return done
    g, x = product
    kept: list[Any] = []
    scaled: list[Any] = []
    for b, norm in enumerate(norms):
        gone = nonfinite == "zero" and not math.isfinite(norm)
        kept += [0.0 if gone else v for v in part(g, b).data]
        scaled += [clip_number(v, x.dtype, norm, float(max_norm), nonfinite) for v in part(x, b).data]
    product = [Array(g.dtype, g.shape, kept), Array(x.dtype, x.shape, scaled)]
    return with_product(done, product, range(batch_of(ids)))


def clip_per_sample_sum(
    upstream: Array, ids: Array, num_rows: int, dense: Array, max_norm: Any
) -> tuple[Slices, Array, Array]:
    """The tree [PerSample, dense]: the table's clipped slices of all samples, the clipped dense array, the norms."""
    norms: list[float] = []
    data: list[Any] = []
    for b, s in enumerate(samples(upstream, ids, num_rows, None, None)):
        norms.append(norm64(numbers_of([s, part(dense, b)]), 2))
        data += [clip_number(v, dense.dtype, norms[b], float(max_norm), "propagate") for v in part(dense, b).data]
    table_grad = clipped_samples(upstream, ids, num_rows, norms, max_norm, None, None, "propagate")
    return table_grad, Array(dense.dtype, dense.shape, data), norms_array(norms, [upstream.dtype, dense.dtype])


def quiet(operation: Callable[..., Any]) -> Callable[..., Any]:
    """NaN and infinities are inputs here like any other: NumPy need not warn of them."""

    def call(*args: Any, **kwargs: Any) -> Any:
        with np.errstate(all="ignore"):
            return operation(*args, **kwargs)

    return call


#: operation -> its second oracle, called with the case's arguments
NAIVE: dict[str, Callable[..., Any]] = {
    "clip_per_sample_sum": quiet(clip_per_sample_sum),
    "double_lookup_gradient": quiet(double_lookup_gradient),
    "lookup": quiet(lookup),
    "lookup_gradient": quiet(lookup_gradient),
    "per_sample_clip_sum": quiet(per_sample_clip_sum),
    "per_sample_norms": quiet(per_sample_norms),
    "per_sample_slices": quiet(per_sample_slices),
    "per_sample_sum": quiet(per_sample_sum),
    "per_sample_to_dense": quiet(per_sample_to_dense),
    "renorm_rows": quiet(renorm_rows),
}
