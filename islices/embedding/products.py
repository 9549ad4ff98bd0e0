"""Compute with the dense part of a tied table's gradient per sample, stored as factors. An output layer x @ table.T
adds this part.

Let g, of shape (B, T, rows), be the gradient with respect to the product. The dense part of sample b is the sum over t
of the outer products of g[b, t] and x[b, t]. This part has the table's shape and rank at most T. For norms, blocks of
rows of the dense part are computed in float64, and the squares of the elements are summed.

Let S be the slices and D the dense part. The host uses two shortcuts for the norm of S + D. First, rows of D that
slices also contain are computed separately and added to the slices' sums. Second, if T is less than the width and x is
finite, a factor (T, T) from the QR decomposition of the transposed x replaces x. Apart from rounding, the replacement
does not change the norm. Neither shortcut subtracts squares. If S and D nearly cancel, |S|^2, |D|^2 and the cross term
would give |S + D|^2 with only half of the bits correct. The factors' Gram matrices would give |D|^2 with the same loss.
SPEC clause 14.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from islices.backend import Array, Backend, Host
from islices.core import modes
from islices.core.registry import describe
from islices.core.shapes import same_shape, size_of

#: the approximate number of float64 elements in a block of `_squares_but`; a block of `_step` has 4 times as many
BLOCK = 1 << 20
#: the largest number of blocks in a traced program, which contains the operations of every block
TRACED_BLOCKS = 64


class Product(NamedTuple):
    """The factors of one use of a table as an output layer, x @ table.T."""

    upstream: Array  # g, the gradient with respect to the product, shape (B, T, rows)
    inputs: Array  # x, the input of the output layer, shape (B, T, width)


def check_product(
    B: Backend, upstream: Any, inputs: Any, dtype: str, dense_shape: tuple[int, ...], argument: str
) -> Product:
    """Return factors (B, ..., rows) and (B, ..., width) as a Product, or raise TypeError or ValueError."""
    batch, *table = dense_shape
    if len(table) != 2:
        raise ValueError(f"{argument}: got one for a table of shape {tuple(table)}; accepted is a table (rows, width)")
    for subject, x in (("gradient", upstream), ("inputs", inputs)):
        if not B.is_array(x) or B.dtype(x) != dtype:
            raise TypeError(f"{argument}: got {describe(x)} as {subject}; accepted is a {dtype} array of {B.name}")
    given, wanted = B.shape(upstream), B.shape(inputs)
    if len(given) < 2 or len(given) != len(wanted) or not same_shape(given[:-1], wanted[:-1]):
        raise ValueError(
            f"{argument}: got a gradient of shape {given} and inputs of shape {wanted}; accepted are (B, ..., rows) "
            "and (B, ..., width), the samples first"
        )
    if not same_shape((given[-1], wanted[-1]), tuple(table)):
        raise ValueError(
            f"{argument}: got factors of {given[-1]} rows of {wanted[-1]}; accepted is the table's {tuple(table)}"
        )
    if not same_shape(given[:1], (batch,)):
        raise ValueError(f"{argument}: got {given[0]} samples; accepted is the lookups' {batch}")
    t = size_of(given[1:-1])
    with B.scope():
        g, x = (B.reshape(a, (batch, t, n)) for a, n in zip((upstream, inputs), table, strict=True))
    return Product(g, x)


# ---------------------------------------------------------------------- norms
def host_parts(
    sums: Host,
    samples: Host,
    rows: Host,
    products: Sequence[Array],
    batch: int,
) -> tuple[Host, Host]:
    """Return (named, rest) in float64: the slices' rows plus their dense part, and the other rows' sums of squares.

    `named` has the shape (k, width), and `rest` has the shape (batch,). `sums` are the distinct rows (k, width) of all
    samples, with duplicates summed. `samples` (ascending) and `rows` contain each row's sample and row number.
    `products` are the factors, one pair after the other.
    """
    named = modes.HOST.astype(sums, "float64").copy()
    rest = np.zeros(batch)
    starts = np.searchsorted(samples, np.arange(batch + 1))
    for b in range(batch):
        own = slice(starts[b], starts[b + 1])
        lefts = [g[b] for g in products[::2]]
        right = np.concatenate([modes.HOST.astype(x[b], "float64") for x in products[1::2]])
        known = rows[own]
        if len(known):
            named[own] += np.concatenate([modes.HOST.astype(g[:, known], "float64") for g in lefts]).T @ right
        rest[b] = _squares_but(lefts, _narrow(right), known)
    return named, rest


def _narrow(right: Host) -> Host:
    """Return a factor (T, r) that replaces `right` in left.T @ right; the norm of a row changes only by rounding.

    The factor has fewer columns than `right` if 0 < T < width and `right` is finite; else return `right`.
    """
    t, width = right.shape
    if not 0 < t < width or not np.isfinite(right).all():
        return right
    return np.asarray(np.linalg.qr(right.T, mode="r")).T


def _squares_but(lefts: Sequence[Host], right: Host, known: Host) -> float:
    """Return the sum of the squares of left.T @ right over all rows except the rows in `known`, which ascend."""
    total, count, (t, width) = 0.0, lefts[0].shape[1], right.shape
    step = max(1, BLOCK // max(1, t + width))
    for start in range(0, count if t else 0, step):
        part = np.concatenate([modes.HOST.astype(g[:, start : start + step], "float64") for g in lefts])
        first, last = np.searchsorted(known, (start, start + step))
        part[:, known[first:last] - start] = 0.0
        block = part.T @ right
        total += np.vdot(block, block)
    return float(total)


def squares(
    B: Backend, sums: Array, samples: Array, rows_named: Array, products: Sequence[Array], *, batch: int, rows: int
) -> Array:
    """Compute the sum of squares of each sample's gradient with the primitives, as a float64 array of shape (batch,).

    `sums` are the distinct rows (k, width) of all samples, with duplicates summed. `samples` and `rows_named` (int64)
    contain each row's sample and row number. An empty slot has the sample ``batch``.
    """
    width = B.shape(products[1])[2]
    sums = B.astype(sums, "float64")
    step = _step(B, sums, rows, batch * width)  # type: ignore[operator]
    total = None
    for start in range(0, rows, step):
        size = min(step, rows - start)
        block = _block(B, products, start, size)
        here = rows_named - _number(B, start, rows_named)
        places = samples * _number(B, size, samples) + here
        places = B.where(B.in_range(here, size), places, B.zeros_like(places) - _number(B, 1, places))
        values, places = B.select(sums, places, B.in_range(places, batch * size), batch * size)
        block = B.add_rows(B.reshape(block, (batch * size, width)), values, places)
        part = B.row_sum(B.reshape(block * block, (batch, size * width)))  # type: ignore[operator]
        total = part if total is None else total + part
    return B.zeros((batch,), "float64", sums) if total is None else total


def _step(B: Backend, like: Array, rows: int, per_row: int) -> int:
    """Return the number of table rows in a block; `per_row` is the number of elements computed per table row."""
    step = max(1, 4 * BLOCK // max(1, per_row))
    return max(step, math.ceil(rows / TRACED_BLOCKS)) if B.is_traced(like) else step


def _number(B: Backend, value: int, like: Array) -> Array:
    """Return an integer as an array (1,) with the dtype of `like`, because JAX narrows 64-bit Python numbers in traced
    code.
    """
    return B.astype(B.asarray(np.full(1, value), like), B.dtype(like))


def _block(B: Backend, products: Sequence[Array], start: int, size: int) -> Array:
    """Return the rows start to start + size - 1 of each sample's dense part, as a float64 array of shape (b, size,
    width)."""
    total = None
    for g, x in zip(products[::2], products[1::2], strict=True):
        b, t, rows = B.shape(g)
        if size != rows:
            flat = B.reshape(g, (size_of((b, t)), rows))
            g = B.reshape(B.columns(flat, start, start + size), (b, t, size))
        part = B.outer_products(B.astype(g, "float64"), B.astype(x, "float64"))
        total = part if total is None else total + part
    return total


# ---------------------------------------------------------------------- dense arrays
def dense_sum(B: Backend, *products: Array, dtype: str) -> Array:
    """Return the sum of all samples' dense parts, an array of shape (rows, width). Blocks are computed in float64 and
    rounded once."""
    together = [B.reshape(x, (1, size_of(B.shape(x)[:2]), B.shape(x)[2])) for x in products]
    rows, width = B.shape(products[0])[2], B.shape(products[1])[2]
    assert rows is not None
    assert width is not None
    step = _step(B, products[0], rows, width + sum(B.shape(x)[1] or 0 for x in together[::2]))
    parts = []
    for start in range(0, rows, step):
        size = min(step, rows - start)
        parts.append(B.astype(B.reshape(_block(B, together, start, size), (size, width)), dtype))
    if not parts:
        return B.zeros((rows, width), dtype, products[0])
    return parts[0] if len(parts) == 1 else B.concat(parts)


def dense_terms(B: Backend, *products: Array, dtype: str) -> Array:
    """Compute the dense part of each sample in float64, and round it once. The result has the shape (B, rows,
    width)."""
    rows = B.shape(products[0])[2]
    assert rows is not None
    return B.astype(_block(B, products, 0, rows), dtype)
