"""Test that compiled kernels work on every kind of memory. Kernels must compute right results, write to no other
memory, and use little memory."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from suite_runs import SHARED, run_code

import islices
from islices import IndexedSlices
from islices.conformance.composite_operations import UnsupportedError
from islices.conformance.peak_memory import peak_growth

pytest.importorskip("numba")

SCATTERS = ("add", "update", "div")
RNG = np.random.default_rng(0)
VALUES = RNG.standard_normal((40, 6)).astype(np.float32)
IDS = RNG.integers(0, 20, 40)
TABLE = RNG.standard_normal((20, 6)).astype(np.float32)


def unaligned(x: np.ndarray) -> np.ndarray:
    return np.frombuffer(b"\0" + x.tobytes(), x.dtype, offset=1).reshape(x.shape)


def read_only(x: np.ndarray) -> np.ndarray:
    x = x.copy()
    x.setflags(write=False)
    return x


def reversed_twice(x: np.ndarray) -> np.ndarray:
    return x[::-1].copy()[::-1]


def every_other(x: np.ndarray) -> np.ndarray:
    out = np.full((2 * len(x), *x.shape[1:]), 3, x.dtype)
    out[::2] = x
    return out[::2]


#: layout -> a function that returns an array with the same numbers in this layout
LYING: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "unaligned": unaligned,
    "read-only": read_only,
    "Fortran": np.asfortranarray,
    "backwards": reversed_twice,
    "strided": every_other,
    "byte-swapped": lambda x: x.astype(x.dtype.newbyteorder()),
}


def outcome(call: Callable[[], Any]) -> Any:
    """Return copies of the arrays that a call returns, or the type and text of its error. Slices count as their
    values."""
    try:
        x = call()
    except (IndexError, TypeError, ValueError) as error:
        return type(error), str(error)
    parts = x if isinstance(x, (tuple, list)) else [x]
    parts = [part.values if isinstance(part, IndexedSlices) else part for part in parts]
    return [np.array(part) for part in parts]


def agree(call: Callable[[], Any], subject: str) -> Any:
    """Check that a call has the same outcome with and without kernels, and return the outcome."""
    with islices.config.use_kernels(False):
        expected = outcome(call)
    got = outcome(call)
    assert type(got) is type(expected), f"{subject}: got {got}, expected {expected}"
    if isinstance(got, tuple):
        assert got == expected, subject
        return got
    for g, e in zip(got, expected, strict=True):
        assert_array_equal(g, e, subject)
    return got


def stepped(table: np.ndarray, s: IndexedSlices) -> Any:
    optimizer = islices.optim.adam(0.1)
    state = optimizer.init(table)
    table, state = optimizer.step(table, s, state)
    return table, state["m"], state["v"], state["step"]


def calls(values: np.ndarray, ids: np.ndarray, shape: tuple[int, ...], **options: Any) -> dict[str, Callable[[], Any]]:
    def slices() -> IndexedSlices:
        return IndexedSlices(values, ids, shape, **options)

    def table() -> np.ndarray:
        return np.arange(math.prod(shape), dtype=values.dtype.newbyteorder("=")).reshape(shape)

    def scatter(op: str) -> Callable[[], Any]:
        return lambda: islices.scatter(table(), slices(), op)

    return {
        "coalesce": lambda: islices.coalesce(slices()),
        "its rows": lambda: islices.coalesce(slices()).indices,
        "to_dense": lambda: islices.to_dense(slices()),
        "norm": lambda: islices.norm(slices()),
        "norm of values": lambda: islices.norm(values),
        "clip": lambda: islices.clip_by_norm(slices(), 0.5),
        "clip by rows": lambda: islices.clip_by_row_norm(slices(), 0.5),
        "step": lambda: stepped(table(), slices()),
        **{f"scatter_{op}": scatter(op) for op in SCATTERS},
    }


@pytest.mark.parametrize("lying", LYING)
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_however_arrays_lie(dtype: str, lying: str) -> None:
    lie, plain = LYING[lying], VALUES.astype(dtype)
    for values, ids in ((lie(plain), IDS), (plain, lie(IDS)), (lie(plain), lie(IDS.astype(np.int32)))):
        before = values.copy(), ids.copy()
        for name, call in calls(values, ids, (20, 6)).items():
            got = agree(call, f"{name} of {lying}")
            if lying != "byte-swapped":
                (expected,) = [agree(c, name) for n, c in calls(plain, IDS, (20, 6)).items() if n == name]
                for g, e in zip(got, expected, strict=True):
                    assert_array_equal(g, e)
        assert_array_equal(values, before[0], "the caller's values")
        assert_array_equal(ids, before[1], "the caller's indices")


@pytest.mark.parametrize("op", SCATTERS)
def test_a_table_that_the_kernels_cannot_write_into(op: str) -> None:
    """Check scatter into views, arrays in Fortran order and read-only arrays. A view changes in place, the memory
    outside it stays unchanged, and a read-only array raises."""
    s = IndexedSlices(VALUES, IDS, TABLE.shape)
    expected = islices.scatter(TABLE.copy(), s, op)
    for frame, view in (
        (np.full((20, 12), 9, np.float32), np.s_[:, ::2]),
        (np.full((20, 8), 9, np.float32), np.s_[:, 1:7]),
        (np.full((22, 6), 9, np.float32), np.s_[1:21]),
        (np.full((40, 6), 9, np.float32), np.s_[38::-2]),
        (np.asfortranarray(np.full((20, 6), 9, np.float32)), np.s_[:]),
    ):
        frame[view] = TABLE
        others = np.ones(frame.shape, bool)
        others[view] = False
        out = islices.scatter(frame[view], s, op)
        assert_array_equal(out, expected)
        assert_array_equal(frame[view], expected, "in place")
        assert (frame[others] == 9).all(), "beside the table"
    with pytest.raises(ValueError, match="read-only"):
        islices.scatter(read_only(TABLE), s, op)


def test_bad_indices_that_nobody_checked() -> None:
    """Check that steps and scatters raise IndexError for bad indices that were not validated. Each call has the same
    outcome with and without kernels."""
    code = """
        import itertools
        import numpy as np
        from test_memory import IDS, VALUES, agree, calls
        for index in ("int32", "int64"):
            for bad in (-1, -21, 20, 2**31 - 1, -(2**31), 2**62, -(2**63)):
                if not np.iinfo(index).min <= bad <= np.iinfo(index).max:
                    continue
                for place, coalesced in itertools.product((0, 39), (False, True)):
                    ids = IDS.astype(index)
                    ids[place] = bad
                    for name, call in calls(VALUES, ids, (20, 6), validate=False, coalesced=coalesced).items():
                        got = agree(call, f"{name}, index {bad} at {place}, coalesced={coalesced}")
                        if name == "step" or name.startswith("scatter"):
                            assert got[0] is IndexError, (name, bad, got)
        """
    run_code(code, path=SHARED, cwd=Path(__file__).parent)


@pytest.mark.parametrize("index", ["int32", "int64"])
def test_memory_at_the_peak(index: str) -> None:
    """Check that coalesce, a clip and a norm allocate, besides their results, at most 32 bytes per slice and 2 MB."""
    rng = np.random.default_rng(0)
    n, rows, width = 131_072, 1_000_000, 64
    ids = rng.integers(0, rows, n).astype(index)
    s = IndexedSlices(rng.standard_normal((n, width), np.float32), ids, (rows, width))
    count = len(np.unique(ids))
    islices.clip_by_global_norm([islices.coalesce(s)], 1.0)
    islices.clip_by_global_norm([s], 1.0)  # loads the kernels
    allowed = 32 * n + 2_000_000
    try:
        c, grown = peak_growth(lambda: islices.coalesce(s))
    except UnsupportedError as error:
        pytest.skip(str(error))
    assert c.values.shape == (count, width)
    assert grown <= c.values.nbytes + c.indices.nbytes + allowed, f"coalesce: {grown - c.values.nbytes:,} beside"
    del c
    ((clipped,), norm), grown = peak_growth(lambda: islices.clip_by_global_norm([s], 1.0))
    assert norm > 1
    assert grown <= clipped.values.nbytes + allowed, f"clip: {grown - clipped.values.nbytes:,} bytes beside"
    del clipped
    _, grown = peak_growth(lambda: islices.norm(s))
    assert grown <= allowed, f"norm: {grown:,} bytes"
