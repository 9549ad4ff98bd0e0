"""Check that compiled kernels and NumPy give equal results, for different numbers of threads.

As in the suite, NaN equals NaN, and -0 equals +0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from comparing import assert_same

import islices
from islices import IndexedSlices
from islices.conformance.oracle_optim import OPTIMIZERS

numba = pytest.importorskip("numba")
kernels = pytest.importorskip("islices.kernels")
halves = pytest.importorskip("islices.kernels.halves")
operations = pytest.importorskip("islices.kernels.operations")

FLOATS = (
    "float16",
    *(["bfloat16"] if "bfloat16" in islices.get_backend("numpy").float_dtypes else []),
    "float32",
    "float64",
)
ROWS = 300
#: (shape of a row, largest number of slices); 3000 numbers are more than one block of squares
ROW_SHAPES = (((), 200), ((1,), 200), ((3,), 200), ((4, 5), 200), ((0,), 200), ((7,), 200), ((64,), 100), ((3000,), 9))
#: name -> a function that returns indices of up to n slices in a table with `rows` rows
LAYOUTS: dict[str, Callable[[np.random.Generator, int, int], np.ndarray]] = {
    "empty": lambda rng, n, rows: np.zeros(0, np.int64),
    "one": lambda rng, n, rows: np.array([rows - 1]),
    "sorted-unique": lambda rng, n, rows: np.sort(rng.choice(rows, n, replace=False)),
    "unsorted-unique": lambda rng, n, rows: rng.choice(rows, n, replace=False),
    "sorted-duplicates": lambda rng, n, rows: np.sort(rng.integers(0, rows // 4, n)),
    "unsorted-duplicates": lambda rng, n, rows: np.minimum(rng.zipf(1.3, n) - 1, rows - 1),
    "one-row": lambda rng, n, rows: np.full(n, 7),
    "cancelling": lambda rng, n, rows: np.tile(rng.integers(0, rows, n // 2 + 1), 2)[-n:],
}
SCATTERS = ("add", "sub", "update", "min", "max", "mul", "div")


# ---------------------------------------------------------------------- inputs and comparisons
def numpy_dtype(name: str) -> np.dtype:
    if name == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)


def numbers(rng: np.random.Generator, shape: tuple[int, ...], dtype: str, *, special: bool = False) -> np.ndarray:
    """Return random numbers of both signs. If `special`, floats include zeros, infinities and NaN. Integers may
    overflow when added."""
    if dtype.startswith("int"):
        limit = np.iinfo(dtype)
        return rng.integers(limit.min, limit.max, shape, dtype=dtype)
    x = np.asarray(rng.standard_normal(shape) * 2.0 ** rng.integers(-6, 7, shape))
    if special and x.size:
        flat = x.reshape(-1)
        for value in (math.nan, math.inf, -math.inf, -0.0, 0.0):
            flat[rng.integers(0, x.size, 1 + x.size // 50)] = value
    return x.astype(numpy_dtype(dtype))


def some_slices(
    layout: str, dtype: str, index: str, row_shape: tuple[int, ...], n: int, *, special: bool = False
) -> IndexedSlices:
    rng = np.random.default_rng([n, len(layout), len(row_shape)])
    rows = ROWS if n > 9 else 12
    ids = LAYOUTS[layout](rng, n, rows).astype(index)
    values = numbers(rng, (len(ids), *row_shape), dtype, special=special)
    if layout == "cancelling" and n > 1:
        values[-(n // 2) :] = -values[: n // 2]
    return IndexedSlices(values, ids, (rows, *row_shape))


def without(call: Callable[[], Any]) -> Any:
    """Return the result of `call` with kernels off."""
    with islices.config.use_kernels(False):
        return call()


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    """Restore the number of threads after a test."""
    before = islices.config.get_num_threads()
    yield
    islices.config.set_num_threads(before)


def shared(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Make `count` threads share the work of even the smallest call."""
    monkeypatch.setattr(operations, "SHARED", 4)
    islices.config.set_num_threads(count)


def operations_of(dtype: str) -> dict[str, Callable[[IndexedSlices], Any]]:
    linear: dict[str, Callable[[IndexedSlices], Any]] = {
        "coalesce": islices.coalesce,
        "to_dense": islices.to_dense,
        "scale": lambda s: islices.scale(s, 3),
        "clip_by_value": lambda s: islices.clip_by_value(s, -1, 2),
        "add dense": lambda s: islices.add(s, np.ones(s.dense_shape, s.values.dtype)),
    }
    if dtype not in FLOATS:
        return linear
    return linear | {
        "norm": islices.norm,
        "norm of sizes": lambda s: islices.norm(s, 1),
        "largest": lambda s: islices.norm(s, math.inf),
        "norm of a dense array": lambda s: islices.norm(s.values),
        "clip": lambda s: islices.clip_by_global_norm([s, None, {"d": s.values}], 1.5),
        "clip, TensorFlow's": lambda s: islices.clip_by_global_norm([s], 1.5, semantics="tensorflow"),
        "clip by rows": lambda s: islices.clip_by_row_norm(s, 0.5),
    }


def scattered(s: IndexedSlices, op: str, seed: int = 0) -> np.ndarray:
    table = numbers(np.random.default_rng(seed), s.dense_shape, islices.get_backend("numpy").dtype(s.values))
    return islices.scatter(table, s, op)


def stepped(label: str, s: IndexedSlices, table: np.ndarray, *, master: bool = False, **options: Any) -> Any:
    name, hyper = OPTIMIZERS[label]
    optimizer = getattr(islices.optim, name)(**hyper, **options)
    table = table.copy()
    state = optimizer.init(table, master=master)
    for _ in range(2):
        table, state = optimizer.step(table, s, state)
    return table, state


# ---------------------------------------------------------------------- 16-bit floats
def each(function: Any, x: np.ndarray, dtype: Any) -> np.ndarray:
    """Apply a compiled function to each number of x, and return the results."""

    @numba.njit
    def loop(x: Any, out: Any) -> None:
        for k in range(len(x)):
            out[k] = function(x[k])

    out = np.empty(len(x), dtype)
    loop(x, out)
    return out


def half_bits(x: np.ndarray, dtype: str) -> np.ndarray:
    """Round float32 numbers to 16 bits with NumPy or ml_dtypes, and return the bits as uint16."""
    with np.errstate(all="ignore"):
        return x.astype(numpy_dtype(dtype)).view(np.uint16)


@pytest.mark.parametrize("dtype", [d for d in FLOATS if d.endswith("float16")])
def test_halves_are_widened_and_rounded_as_numpy_does(dtype: str) -> None:
    form = halves.FORMATS[dtype]
    patterns = np.arange(1 << 16).astype(np.uint16)
    with np.errstate(all="ignore"):
        wide = patterns.view(numpy_dtype(dtype)).astype(np.float32)
    got = each(form.load, patterns, np.float32)
    np.testing.assert_array_equal(got, wide)
    assert np.array_equal(np.signbit(got), np.signbit(wide)), "zeros keep their sign"

    ordered = np.sort(wide[np.isfinite(wide)])
    # float64 contains every midpoint; the largest 16-bit number has a midpoint as if there were a next number
    ends = np.array([ordered[-1] * 2.0 - ordered[-2], -(ordered[-1] * 2.0 - ordered[-2])])
    steps = np.unique(np.concatenate([ordered.astype(np.float64), ends]))
    midpoints = ((steps[1:] + steps[:-1]) / 2).astype(np.float32)
    around = [f(x, np.float32(e)) for x in (midpoints, ordered) for e in (-np.inf, np.inf) for f in (np.nextafter,)]
    special = np.array([np.inf, -np.inf, np.nan, -np.nan, 0.0, -0.0, 3.4e38, -3.4e38, 65519.996, 65520.0], np.float32)
    payloads = (np.uint32(0x7F800000) | np.arange(1, 1 << 16, 7, np.uint32)).view(np.float32)  # NaN
    rng = np.random.default_rng(0)
    anything = rng.integers(0, 1 << 32, 50_000, np.uint64).astype(np.uint32).view(np.float32)
    x = np.concatenate([midpoints, ordered, *around, special, payloads, anything])
    got, expected = each(form.store, x, np.uint16), half_bits(x, dtype)
    nan = np.isnan(x)
    np.testing.assert_array_equal(got[~nan], expected[~nan])
    assert np.isnan(got[nan].view(numpy_dtype(dtype)).astype(np.float32)).all(), "NaN stays NaN"


# ---------------------------------------------------------------------- operations on slices


@pytest.mark.parametrize("top", [0, 2**11 - 1, 2**22, 2**31 - 1, 2**53, 2**62, 2**63 - 1])
@pytest.mark.parametrize("n", [1, 3, 2049])
def test_indices_of_every_size(top: int, n: int) -> None:
    """Compare kernels with NumPy for indices with one or several digits in the radix sort. Some indices are too large
    to be packed into 64 bits with a position."""
    rng = np.random.default_rng([top % 1000, n])
    for index in ("int32", "int64"):
        if top > np.iinfo(index).max:
            continue
        ids = rng.integers(0, top, n, endpoint=True, dtype=index)
        ids[rng.integers(0, n)] = top
        ids[rng.integers(0, n, n // 2)] = ids[0]
        values = rng.standard_normal((n, 2)).astype(np.float32)
        # no number of rows is greater than the greatest int64
        s = IndexedSlices(values, ids, (top + 1 if top < 2**63 - 1 else None, 2))
        for operation in (islices.coalesce, islices.norm, lambda s: islices.clip_by_row_norm(s, 0.1)):
            assert_same(operation(s), without(lambda s=s, operation=operation: operation(s)), index)
        order = np.argsort(ids, kind="stable")
        groups = operations.group(ids)
        assert (groups is None) == (max(1, int(ids.max()).bit_length()) + n.bit_length() > 64), "what can be packed is"
        if groups is not None:
            np.testing.assert_array_equal(groups[0], order)
            np.testing.assert_array_equal(groups[1], np.unique(ids))


# ---------------------------------------------------------------------- threads
@pytest.mark.parametrize(("dtype", "count"), [("float32", 2), ("int64", 7), ("bfloat16", 4)])
def test_threads_change_no_bit(dtype: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = [(layout, shape, n) for layout in LAYOUTS for shape, n in ROW_SHAPES]
    cases = [
        some_slices(layout, dtype, "int64" if n == 9 else "int32", shape, n, special=n == 100)
        for layout, shape, n in kinds
    ]
    calls = [lambda s=s, f=f: f(s) for s in cases for f in operations_of(dtype).values()]
    calls += [lambda s=s, op=op: scattered(s, op) for s in cases for op in SCATTERS if op != "div" or dtype in FLOATS]
    expected = without(lambda: [call() for call in calls])
    shared(monkeypatch, count)
    for k, (call, e) in enumerate(zip(calls, expected, strict=True)):
        assert_same(call(), e, f"call {k}")


@pytest.mark.parametrize(("label", "dtype"), [("adamw-decay", "float32"), ("sgd-decay", "bfloat16")])
@pytest.mark.parametrize("options", [{}, {"frozen": [0, 3, 4, 11]}], ids=str)
def test_all_rows(label: str, options: dict[str, Any], dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    s = some_slices("unsorted-duplicates", dtype, "int32", (7,), 9, special=True)  # most rows have no slice
    table = numbers(np.random.default_rng(1), s.dense_shape, dtype)
    for grad in (s, islices.to_dense(s)):
        for master in {False, dtype != "float32"}:
            kept = {**options, "rows": "all", "master": master}
            expected = without(lambda grad=grad, kept=kept: stepped(label, grad, table, **kept))
            for count in (1, 4, 7):
                shared(monkeypatch, count)
                assert_same(stepped(label, grad, table, **kept), expected, f"{count} threads, master={master}")


def test_kernels_are_switched_in_a_block() -> None:
    assert kernels.active() is operations
    with islices.config.use_kernels(False):
        assert kernels.active() is None
        with islices.config.use_kernels(True):
            assert kernels.active() is operations
        assert kernels.active() is None
    assert kernels.active() is operations
