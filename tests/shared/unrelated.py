"""Compare pairs whose difference has no cause that `islices.diff` knows: random pairs and misleading pairs.

A seed determines a whole pair: the kinds, types, rows, values and metadata of the tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import islices
from islices import IndexedSlices
from islices.porting.compare.steps.explain import explain_step
from islices.porting.compare.steps.side import TableStep

try:
    import ml_dtypes

    BFLOAT16: list[Any] = [ml_dtypes.bfloat16]
except ImportError:
    BFLOAT16 = []

__all__ = ["ADVERSARIAL", "Near", "adversarial_pair", "random_pair"]

Array = np.ndarray[Any, Any]
Generator = np.random.Generator
#: float32, the most common dtype, appears twice
DTYPES = [np.float16, np.float32, np.float32, np.float64, *BFLOAT16]
#: (rows of the table, shape of a row)
SHAPES = ((1, ()), (1, (1,)), (2, (3,)), (6, (2,)), (12, (4,)), (30, (8,)), (40, (2, 3)))
ROWS = ("unique", "duplicates", "cancelling")
SIZES = ("empty", "one", "many", "many")
VALUES: dict[str, Callable[[Generator, tuple[int, ...]], Array]] = {
    "normal": lambda r, shape: r.standard_normal(shape),
    "positive": lambda r, shape: r.random(shape),
    "wide": lambda r, shape: r.standard_normal(shape) * np.exp(3 * r.standard_normal(shape)),
    "small": lambda r, shape: 1e-4 * r.standard_normal(shape),
    "few": lambda r, shape: r.integers(-2, 3, shape).astype("f8"),
    "powers": lambda r, shape: np.exp2(r.integers(-4, 4, shape)) * r.choice((-1, 1), shape),
    "sparse": lambda r, shape: r.standard_normal(shape) * (r.random(shape) < 0.3),
}


def slices(r: Generator, rows: int, row: tuple[int, ...], dtype: Any, values: str) -> IndexedSlices:
    """Return random slices. There are no, one or many slots, and rows may be unsorted, repeat, or cancel."""
    size, kind = str(r.choice(SIZES)), str(r.choice(ROWS))
    n = {"empty": 0, "one": 1}.get(size, int(r.integers(1, rows + 1)))
    ids = r.permutation(rows)[:n] if kind == "unique" else r.integers(0, rows, n)
    made = VALUES[values](r, (n, *row))
    if kind == "cancelling" and n:
        ids, made = np.concatenate([ids, ids[:1]]), np.concatenate([made, -made[:1]])
    if r.random() < 0.5:
        order = np.argsort(ids, kind="stable")
        ids, made = ids[order], made[order]
    return IndexedSlices(made.astype(dtype), ids.astype(r.choice(("i4", "i8"))), (rows, *row))


def gradient(r: Generator, rows: int, row: tuple[int, ...], dtype: Any, values: str) -> Any:
    x = slices(r, rows, row, dtype, values)
    form = r.random()
    return x if form < 0.6 else islices.coalesce(x) if form < 0.8 else np.asarray(islices.to_dense(x))


def reported(r: Generator) -> dict[str, Any]:
    given = {"max_norm": 1.0, "padding_idx": 0, "batch_size": 4, "tokens": 12}
    return {name: value for name, value in given.items() if r.random() < 0.3}


def random_pair(seed: int) -> Any:
    """Compare unrelated gradients, or two random updates of one table, and return the report."""
    r = np.random.default_rng([7, seed])
    rows, row = SHAPES[int(r.integers(len(SHAPES)))]
    tensors = "uv" if r.random() < 0.25 else "u"
    values = str(r.choice(list(VALUES)))
    dtypes = r.choice(len(DTYPES), 2)
    one, other = (DTYPES[k] for k in (dtypes if r.random() < 0.3 else dtypes[[0, 0]]))

    def tree(dtype: Any) -> dict[str, Any]:
        return {n: gradient(r, rows, row, dtype, values) for n in tensors}

    def table(dtype: Any) -> dict[str, Any]:
        return {n: VALUES["normal"](r, (rows, *row)).astype(dtype) for n in tensors}

    if r.random() < 0.8:
        extra = {"before": tree(one)} if r.random() < 0.3 else {}
        extra |= {"tables": table(one)} if r.random() < 0.4 else {}
        return islices.diff(tree(one), tree(other), **extra, **reported(r))
    before = table(one)["u"]
    after = [(before.astype("f8") + 0.01 * VALUES[values](r, before.shape)).astype(one) for _ in "ab"]
    grads = [tree(one)["u"], tree(one)["u"]]
    both = grads if r.random() < 0.3 else grads[:1] * 2  # with `grads`, each side has a different gradient
    return explain_step(*(TableStep(before, x, g) for x, g in zip(after, both, strict=True)))


# ---------------------------------------------------------------------- misleading pairs
class Near:
    """A table, a gradient, and noise of one part in a thousand, which is far more than rounding."""

    def __init__(self, r: Generator) -> None:
        rows, width = ((12, 4), (30, 8), (40, 6))[int(r.integers(3))]
        self.r, self.rows, self.shape = r, rows, (rows, width)
        self.dtype = r.choice(["f4", "f4", "f8"])
        self.table = r.standard_normal(self.shape).astype(self.dtype)
        self.g = r.standard_normal(self.shape).astype(self.dtype)
        self.noise = (1 + 1e-3 * r.standard_normal(self.shape)).astype(self.dtype)

    def compared(self, other: Array, **more: Any) -> Any:
        """Run `diff` on the gradient and `other`, and return the report. `other` is dense, or has its rows in a random
        order."""
        ids = self.r.permutation(self.rows)
        one = IndexedSlices(self.g, np.arange(self.rows), self.shape)
        b = other.astype(self.dtype)
        two = b if self.r.random() < 0.3 else IndexedSlices(b[ids], ids.astype("i8"), self.shape)
        return islices.diff(*((one, two) if self.r.random() < 0.5 else (two, one)), **more)

    def stepped(self, update: Array) -> Any:
        """Return the report on two steps. One is SGD with rate 0.01, and the other subtracts `update`."""
        after = [(self.table - x).astype(self.dtype) for x in (0.01 * self.g, update)]
        return explain_step(*(TableStep(self.table, x, self.g) for x in after))

    def slots(self) -> IndexedSlices:
        """Return slices that sum to the gradient up to rounding, with three slots per row."""
        parts = self.r.standard_normal((3, *self.shape)).astype(self.dtype)
        parts[2] = self.g - parts[0] - parts[1]
        return IndexedSlices(parts.reshape(-1, self.shape[1]), np.tile(np.arange(self.rows), 3), self.shape)


def nearly_a_penalty(d: Near) -> Any:
    return d.compared(d.g + 0.01 * d.table * d.noise**30, tables=d.table)


def nearly_signs(d: Near) -> Any:
    return d.compared(d.g + 0.01 * np.sign(d.table) * (d.noise**30), tables=d.table)


def nearly_rounded(d: Near) -> Any:
    return d.compared(d.g.astype("f2").astype(d.dtype) * d.noise)


def nearly_rounded_at_random(d: Near) -> Any:
    """Run `diff` on the gradient and on values that are within one float16 spacing of the gradient, but are not float16
    numbers."""
    return d.compared(d.g * (1 + 2.0**-10 * (d.r.random(d.shape) - 0.5)))


def nearly_bounded(d: Near) -> Any:
    return d.compared(np.clip(d.g, -0.5, 0.5) * d.noise)


def nearly_bounded_rows(d: Near) -> Any:
    norms = np.linalg.norm(d.g, axis=1, keepdims=True)
    return d.compared(d.g * np.minimum(1, 1 / norms) * d.noise)


def two_factors(d: Near) -> Any:
    return d.compared(d.g * np.where(d.r.random((d.rows, 1)) < 0.5, 1.1, 0.7))


def factor_of_each_row(d: Near) -> Any:
    return d.compared(d.g * d.r.uniform(0.5, 2.0, (d.rows, 1)))


def dropped_out(d: Near) -> Any:
    """Run `diff` on the gradient before and after dropout, which makes random elements zero and the others larger."""
    return d.compared(d.g * (d.r.random(d.shape) < 0.9) / 0.9, batch_size=10)


def rows_dropped_out(d: Near) -> Any:
    return d.compared(d.g * (d.r.random((d.rows, 1)) < 0.7) / 0.7, padding_idx=0)


def nearly_clipped(d: Near) -> Any:
    clipped = d.g * d.noise
    return d.compared(clipped / np.linalg.norm(clipped), max_norm=1.0)


def nearly_the_last(d: Near) -> Any:
    slots = d.slots()
    return islices.diff(slots, slots.values[-d.rows :] * d.noise)


def nearly_permuted(d: Near) -> Any:
    return d.compared((d.g * d.noise)[d.r.permutation(d.rows)])


def nearly_shifted(d: Near) -> Any:
    return d.compared(np.roll(d.g * d.noise, 1, axis=0))


def clipped_by_no_norm(d: Near) -> Any:
    """Run `diff` on three tensors before and after scaling by three factors that are unrelated to any norm."""
    tree = {n: d.r.standard_normal(d.shape).astype(d.dtype) for n in "uvw"}
    other = {n: x * float(d.r.uniform(0.1, 0.9)) for n, x in tree.items()}
    return islices.diff(tree, {n: x.astype(d.dtype) for n, x in other.items()}, before=tree, max_norm=0.5)


def another_batch(d: Near) -> Any:
    """Run `diff` on slices before and after a third of the values is replaced."""
    slots, fresh = d.slots(), d.r.standard_normal(d.shape).astype(d.dtype)
    values = np.concatenate([slots.values[: -d.rows], fresh])
    return islices.diff(slots, IndexedSlices(values, slots.indices, d.shape), tokens=len(values))


def nearly_adams_first_step(d: Near) -> Any:
    return d.stepped(np.where(d.g > 0, 0.01, -0.01) * d.noise)


def nearly_adagrads(d: Near) -> Any:
    return d.stepped(0.1 * d.g / np.sqrt(0.1 + d.g * d.g) * d.noise)


def nearly_decayed(d: Near) -> Any:
    return d.stepped(0.01 * d.g + 1e-3 * d.table * d.noise**100)


def rates_of_each_row(d: Near) -> Any:
    return d.stepped(d.g * d.r.uniform(0.005, 0.02, (d.rows, 1)))


ADVERSARIAL: tuple[Callable[[Near], Any], ...] = (
    nearly_a_penalty, nearly_signs, nearly_rounded, nearly_rounded_at_random, nearly_bounded, nearly_bounded_rows,
    two_factors, factor_of_each_row, dropped_out, rows_dropped_out, nearly_clipped, nearly_the_last, nearly_permuted,
    nearly_shifted, clipped_by_no_norm, another_batch, nearly_adams_first_step, nearly_adagrads, nearly_decayed,
    rates_of_each_row,
)  # fmt: skip


def adversarial_pair(seed: int) -> Any:
    """Return the report on a pair that only looks like a pair with a known cause."""
    return ADVERSARIAL[seed % len(ADVERSARIAL)](Near(np.random.default_rng([8, seed])))
