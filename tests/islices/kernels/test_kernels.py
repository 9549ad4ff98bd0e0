"""Compiled kernels against the same operations in NumPy: every bit, for any number of threads.

Bits as the suite compares them: NaN equals NaN, -0 equals +0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import islices
from islices import IndexedSlices, optim
from islices.conformance.oracle_optim import OPTIMIZERS

numba = pytest.importorskip("numba", reason="numba is not installed")
kernels = pytest.importorskip("islices.kernels")
halves = pytest.importorskip("islices.kernels.halves")
operations = pytest.importorskip("islices.kernels.operations")

FLOATS = (
    "float16",
    *(["bfloat16"] if "bfloat16" in islices.get_backend("numpy").float_dtypes else []),
    "float32",
    "float64",
)
DTYPES = (*FLOATS, "int32", "int64")
#: (shape of a row, how many slices at most); 3000 is more than one block of squares
ROWS = 300
ROW_SHAPES = (((), 200), ((1,), 200), ((3,), 200), ((4, 5), 200), ((0,), 200), ((7,), 200), ((64,), 100), ((3000,), 9))
#: name -> indices of n slices of so many rows
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


# ---------------------------------------------------------------------- making and comparing
def numpy_dtype(name: str) -> np.dtype:
    if name == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)


def numbers(rng: np.random.Generator, shape: tuple[int, ...], dtype: str, *, special: bool = False) -> np.ndarray:
    """Numbers of either sign; some zeros, infinities and NaN if special. Integers are let overflow."""
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


def arrays(x: Any) -> list[np.ndarray]:
    if isinstance(x, IndexedSlices):
        return [x.values, x.indices]
    if isinstance(x, dict):
        return [part for value in x.values() for part in arrays(value)]
    if isinstance(x, (list, tuple)):
        return [part for value in x for part in arrays(value)]
    return [np.asarray(x)]


def same(got: Any, expected: Any, what: str = "") -> None:
    got, expected = arrays(got), arrays(expected)
    assert len(got) == len(expected), what
    for g, e in zip(got, expected, strict=True):
        assert g.dtype == e.dtype, what
        assert g.shape == e.shape, what
        if g.dtype.kind == "V":  # ml_dtypes' numbers are no floats to NumPy's tests
            g, e = g.astype(np.float32), e.astype(np.float32)
        np.testing.assert_array_equal(g, e, what)


def without(call: Callable[[], Any]) -> Any:
    """What the call gives in NumPy."""
    with islices.use_kernels(False):
        return call()


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    """Whatever a test sets, the next begins as this did."""
    before = islices.get_num_threads()
    yield
    islices.set_num_threads(before)


def shared(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Even the smallest work is shared, among so many threads."""
    monkeypatch.setattr(operations, "SHARED", 4)
    islices.set_num_threads(count)


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
        "scale by what is rounded": lambda s: islices.scale(s, 0.3),
        "clip": lambda s: islices.clip_by_global_norm([s, None, {"d": s.values}], 1.5),
        "clip, TensorFlow's": lambda s: islices.clip_by_global_norm([s], 1.5, semantics="tensorflow"),
        "clip, Keras'": lambda s: islices.clip_by_norm(s, 1.5, semantics="keras"),
        "clip by rows": lambda s: islices.clip_by_row_norm(s, 0.5),
    }


def scattered(s: IndexedSlices, op: str, seed: int = 0) -> np.ndarray:
    table = numbers(np.random.default_rng(seed), s.dense_shape, islices.get_backend("numpy").dtype(s.values))
    return getattr(islices, f"scatter_{op}")(table, s)


def stepped(label: str, s: IndexedSlices, table: np.ndarray, *, master: bool = False, **options: Any) -> Any:
    """(table, state) after two steps on s."""
    name, hyper = OPTIMIZERS[label]
    optimizer = getattr(islices.optim, name)(**hyper, **options)
    table = table.copy()
    state = optimizer.init(table, master=master)
    for _ in range(2):
        table, state = optimizer.step(table, s, state)
    return table, state


# ---------------------------------------------------------------------- 16-bit floats
def each(function: Any, x: np.ndarray, dtype: Any) -> np.ndarray:
    """A compiled function of one number, of all of x."""

    @numba.njit
    def loop(x: Any, out: Any) -> None:
        for k in range(len(x)):
            out[k] = function(x[k])

    out = np.empty(len(x), dtype)
    loop(x, out)
    return out


def half_bits(x: np.ndarray, dtype: str) -> np.ndarray:
    """float32 rounded by NumPy or ml_dtypes."""
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
    # float64 holds every midpoint; beyond the largest number as if there were one more
    ends = np.array([ordered[-1] * 2.0 - ordered[-2], -(ordered[-1] * 2.0 - ordered[-2])])
    steps = np.unique(np.concatenate([ordered.astype(np.float64), ends]))
    midpoints = ((steps[1:] + steps[:-1]) / 2).astype(np.float32)
    around = [f(x, np.float32(e)) for x in (midpoints, ordered) for e in (-np.inf, np.inf) for f in (np.nextafter,)]
    special = np.array([np.inf, -np.inf, np.nan, -np.nan, 0.0, -0.0, 3.4e38, -3.4e38, 65519.996, 65520.0], np.float32)
    payloads = (np.uint32(0x7F800000) | np.arange(1, 1 << 16, 7, np.uint32)).view(np.float32)  # these carry
    rng = np.random.default_rng(0)
    anything = rng.integers(0, 1 << 32, 200_000, np.uint64).astype(np.uint32).view(np.float32)
    x = np.concatenate([midpoints, ordered, *around, special, payloads, anything])
    got, expected = each(form.store, x, np.uint16), half_bits(x, dtype)
    nan = np.isnan(x)
    np.testing.assert_array_equal(got[~nan], expected[~nan])
    assert np.isnan(got[nan].view(numpy_dtype(dtype)).astype(np.float32)).all(), "NaN stays NaN"


# ---------------------------------------------------------------------- operations on slices
@pytest.mark.repeats_where(lambda dtype: dtype in ("float16", "float64", "int32"))
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_operations_have_the_bits_of_numpy(dtype: str, layout: str) -> None:
    for row_shape, n in ROW_SHAPES:
        for index in ("int32", "int64"):
            for special in (False, True) if dtype in FLOATS else (False,):
                s = some_slices(layout, dtype, index, row_shape, n, special=special)
                for name, operation in operations_of(dtype).items():
                    what = f"{name} of {row_shape} {index}, special={special}"
                    same(operation(s), without(lambda operation=operation, s=s: operation(s)), what)


@pytest.mark.repeats_where(lambda dtype, op: op != "add" and dtype not in ("float32", "int64"))
@pytest.mark.parametrize("op", SCATTERS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_scatters_have_the_bits_of_numpy(dtype: str, op: str) -> None:
    if op == "div" and dtype not in FLOATS:
        pytest.skip("integers are not divided")
    for layout in LAYOUTS:
        for row_shape, n in ROW_SHAPES:
            for special in (False, True) if dtype in FLOATS else (False,):
                s = some_slices(layout, dtype, "int64" if n % 3 else "int32", row_shape, n, special=special)
                expected = without(lambda s=s: scattered(s, op))
                same(scattered(s, op), expected, f"{layout} {row_shape}, special={special}")


@pytest.mark.repeats_where(lambda label: "-" in label or label in ("momentum", "rowwise_adagrad"))
@pytest.mark.parametrize("label", OPTIMIZERS)
@pytest.mark.one_in(4)
def test_optimizers_have_the_bits_of_numpy(label: str) -> None:
    every = label in ("momentum", "adam", "rowwise_adagrad")
    for dtype in FLOATS if every else ("float32",):
        for layout in LAYOUTS:
            for row_shape, n in ROW_SHAPES if dtype == "float32" else ROW_SHAPES[2:6]:
                s = some_slices(layout, dtype, "int32", row_shape, n, special=layout == "unsorted-duplicates")
                table = numbers(np.random.default_rng(1), s.dense_shape, dtype)
                got = stepped(label, s, table)
                expected = without(lambda s=s, table=table: stepped(label, s, table))
                same(got, expected, f"{layout} {dtype} {row_shape}")


@pytest.mark.parametrize("options", [{"maximize": True}, {"frozen": [0, 3, ROWS - 1]}, {"rows": "all"}], ids=str)
def test_options_of_optimizers(options: dict[str, Any]) -> None:
    s = some_slices("unsorted-duplicates", "float32", "int32", (3,), 200)
    table = numbers(np.random.default_rng(1), s.dense_shape, "float32")
    same(stepped("adam", s, table, **options), without(lambda: stepped("adam", s, table, **options)))


@pytest.mark.parametrize("dtype", [d for d in FLOATS if d.endswith("float16")])
def test_halves_with_a_master_copy_and_wide_gradients(dtype: str) -> None:
    for kind in (dtype, "float32"):
        s = some_slices("unsorted-duplicates", kind, "int32", (3,), 200)
        table = numbers(np.random.default_rng(1), s.dense_shape, dtype)
        for master in (False, True):
            got = stepped("adam", s, table, master=master)
            same(
                got, without(lambda s=s, table=table, m=master: stepped("adam", s, table, master=m)), f"{kind} {master}"
            )


@pytest.mark.parametrize("top", [0, 1, 2**11 - 1, 2**22, 2**31 - 1, 2**40, 2**53, 2**60, 2**62, 2**63 - 1])
@pytest.mark.parametrize("n", [1, 2, 3, 2049, 5000])
def test_indices_of_every_size(top: int, n: int) -> None:
    """Radix digits, their passes, and indices that are too large to be packed with their positions."""
    rng = np.random.default_rng([top % 1000, n])
    for index in ("int32", "int64"):
        if top > np.iinfo(index).max:
            continue
        ids = rng.integers(0, top, n, endpoint=True, dtype=index)
        ids[rng.integers(0, n)] = top
        ids[rng.integers(0, n, n // 2)] = ids[0]
        values = rng.standard_normal((n, 2)).astype(np.float32)
        # no number of rows bounds the greatest int64 and is one itself
        s = IndexedSlices(values, ids, (top + 1 if top < 2**63 - 1 else None, 2))
        for operation in (islices.coalesce, islices.norm, lambda s: islices.clip_by_row_norm(s, 0.1)):
            same(operation(s), without(lambda s=s, operation=operation: operation(s)), index)
        order = np.argsort(ids, kind="stable")
        groups = operations.group(ids)
        assert (groups is None) == (max(1, int(ids.max()).bit_length()) + n.bit_length() > 64), "what can be packed is"
        if groups is not None:
            np.testing.assert_array_equal(groups[0], order)
            np.testing.assert_array_equal(groups[1], np.unique(ids))


def test_the_largest_indices_take_the_other_way_with_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be packed is found out before a table is written to."""
    s = some_slices("unsorted-duplicates", "float32", "int64", (3,), 200)
    expected = scattered(s, "add")
    table = numbers(np.random.default_rng(1), s.dense_shape, "float32")
    step = stepped("adam", s, table)
    monkeypatch.setattr(operations, "is_packed", lambda indices, rows: False)
    monkeypatch.setattr(operations, "group", lambda indices: None)
    same(scattered(s, "add"), expected)
    same(stepped("adam", s, table), step)
    same(islices.norm(s), without(lambda: islices.norm(s)))


# ---------------------------------------------------------------------- threads
@pytest.mark.repeats_where(lambda count, dtype: count not in (2, 7) or dtype in ("float16", "float64", "int32"))
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [1, 2, 4, 7])
def test_threads_change_no_bit(count: int, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [some_slices(layout, dtype, "int32", shape, n) for layout in LAYOUTS for shape, n in ROW_SHAPES]
    calls = [lambda s=s, f=f: f(s) for s in cases for f in operations_of(dtype).values()]
    calls += [lambda s=s, op=op: scattered(s, op) for s in cases for op in SCATTERS if op != "div" or dtype in FLOATS]
    expected = without(lambda: [call() for call in calls])
    shared(monkeypatch, count)
    for k, (call, e) in enumerate(zip(calls, expected, strict=True)):
        same(call(), e, f"call {k}")


@pytest.mark.repeats_where(lambda label: "-" in label)
@pytest.mark.parametrize("label", OPTIMIZERS)
def test_threads_change_no_bit_of_a_step(label: str, monkeypatch: pytest.MonkeyPatch) -> None:
    s = some_slices("unsorted-duplicates", "float32", "int32", (7,), 200)
    table = numbers(np.random.default_rng(1), s.dense_shape, "float32")
    expected = without(lambda: stepped(label, s, table))
    for count in (1, 2, 4, 7):
        shared(monkeypatch, count)
        same(stepped(label, s, table), expected, f"{count} threads")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("options", [{}, {"frozen": [0, 3, 4, 11]}, {"maximize": True}], ids=str)
@pytest.mark.parametrize("label", ["adam", "adamw-decay", "sgd-decay"])
def test_all_rows(label: str, options: dict[str, Any], dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows without a gradient, rows between frozen ones, dense gradients: each thread's run begins where it must."""
    s = some_slices("unsorted-duplicates", dtype, "int32", (7,), 9, special=True)  # most rows have none
    table = numbers(np.random.default_rng(1), s.dense_shape, dtype)
    for grad in (s, islices.to_dense(s)):
        for master in {False, dtype != "float32"}:
            kept = {**options, "rows": "all", "master": master}
            expected = without(lambda grad=grad, kept=kept: stepped(label, grad, table, **kept))
            for count in (1, 2, 4, 7):
                shared(monkeypatch, count)
                same(stepped(label, grad, table, **kept), expected, f"{count} threads, master={master}")


def test_work_of_its_real_size_is_shared() -> None:
    """More slots than `SHARED` says, in a skewed distribution: the parts begin where the slots say, not the rows."""
    rng = np.random.default_rng(2)
    ids = np.minimum(rng.zipf(1.1, 40_000) - 1, 9_999).astype(np.int32)
    values = rng.standard_normal((len(ids), 64), np.float32)
    assert values.size > operations.SHARED
    s = IndexedSlices(values, ids, (10_000, 64))
    for operation in (islices.coalesce, islices.to_dense, islices.norm, lambda s: islices.clip_by_norm(s, 1.0)):
        expected = without(lambda operation=operation: operation(s))
        for count in (1, 2, 4, 7):
            islices.set_num_threads(count)
            same(operation(s), expected, f"{count} threads")


@pytest.mark.parametrize("n", [True, False, 0, -1, 1.0, 2.5, "2", None, np.float64(2), np.bool_(True), [2]])
def test_numbers_of_threads_that_are_none(n: Any) -> None:
    before = islices.get_num_threads()
    with pytest.raises((TypeError, ValueError), match=r"n: got|integer"):
        islices.set_num_threads(n)
    assert islices.get_num_threads() == before


@pytest.mark.parametrize("on", [1, 0, None, "yes"])
def test_kernels_are_switched_by_a_bool(on: Any) -> None:
    with pytest.raises(TypeError, match="on: got"), islices.use_kernels(on):
        pass


def test_kernels_are_switched_in_a_block() -> None:
    assert kernels.active() is operations
    with islices.use_kernels(False):
        assert kernels.active() is None
        with islices.use_kernels(True):
            assert kernels.active() is operations
        assert kernels.active() is None
    assert kernels.active() is operations


@pytest.mark.repeats_where(lambda dtype: dtype == "float16")
@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("make", [optim.sgd, optim.adagrad, optim.rmsprop])
def test_duplicates_seen_one_by_one(make: Any, dtype: str) -> None:
    """Keras' own sums: of raw slices and, where the rule has squares, of theirs, unrounded."""
    found = []
    for on in (True, False):
        optimizer = make(0.1, semantics="keras", duplicates="raw", **({} if make is optim.sgd else {"rows": "all"}))
        table = np.random.default_rng(1).standard_normal((50, 3)).astype(dtype)
        with islices.use_kernels(on):
            state = optimizer.init(table)
            for seed in range(3):
                rng = np.random.default_rng(seed)
                slices = IndexedSlices(rng.standard_normal((40, 3)).astype(dtype), rng.integers(0, 50, 40), (50, 3))
                table, state = optimizer.step(table, slices, state)
        found.append([table, *state.values()])
    for with_kernels, without in zip(*found, strict=True):
        np.testing.assert_array_equal(with_kernels, without)
