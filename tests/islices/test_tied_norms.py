"""Compare norms whose sum lies on or next to a midpoint of two float64 with exact arithmetic. SPEC clause 7."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import pytest

import islices
from islices import IndexedSlices
from islices.exact_norms import row_norms
from islices.registry import get_backend
from tests.shared.tied import exact_norm, tied

WIDTH = 48
FRAMEWORKS = ["torch", "tensorflow", "jax", "mxnet"]
KINDS = [(dtype, ord) for dtype in ("float16", "float32", "float64") for ord in (1, 2)]


@functools.cache
def samples(dtype: str, ord: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """(arrays as rows, their float64 norms)"""
    rng = np.random.default_rng(ord)
    x = np.stack([tied(rng, dtype, ord, WIDTH) for _ in range(count)])
    return x, np.array([exact_norm(row, ord) for row in x])


def check_rows(B: Any, x: Any, ord: int, expected: np.ndarray, mode: str) -> None:
    with islices.execution(mode):
        E, norms = row_norms([(B, x)], ord)
        found = E.to_numpy(norms)
    assert np.count_nonzero(found != expected) == 0, f"{B.name}, {mode}, ord {ord}"


@pytest.mark.parametrize(("dtype", "ord"), KINDS)
@pytest.mark.parametrize("kernels", [True, False])
def test_norms_on_ties(dtype: str, ord: int, kernels: bool) -> None:
    x, expected = samples(dtype, ord, 300)
    with islices.use_kernels(kernels):
        for row, norm in zip(x, expected, strict=True):
            leaves = [row[:20], IndexedSlices(row[20:, None], np.arange(WIDTH - 20)[::-1].copy(), (99, 1)), np.zeros(1)]
            assert islices.global_norm(leaves, ord) == norm, row.tolist()


def test_norms_at_the_ends_of_float64() -> None:
    largest = np.finfo(float).max
    for x in ([largest / 2] * 3, [5e-324], [5e-324] * 3, [1.0] + [2.0**-27] * 2 + [5e-324], [0.0], [-1e-308, 1e-310]):
        for kernels in (True, False):
            for ord in (1, 2):
                with islices.use_kernels(kernels):
                    assert islices.norm(np.array(x), ord) == exact_norm(np.array(x), ord), f"{x}, {ord}"


@pytest.mark.parametrize("kernels", [True, False])
def test_a_clip_decides_by_the_exact_norm(kernels: bool) -> None:
    x, limit = np.full(7, 0.9999999999999998), 2.6457513110645903
    with islices.use_kernels(kernels):
        assert islices.clip_by_norm(x, limit) is x
        assert islices.clip_by_norm(x, math.nextafter(limit, 0)) is not x
        assert islices.clip_by_row_norm(x[None], limit) is not None


@pytest.mark.repeats
@pytest.mark.parametrize("mode", ["host", "framework"])
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_norms_on_ties_by_frameworks(name: str, mode: str) -> None:
    B = get_backend(name)
    for dtype, ord in KINDS:
        x, expected = samples(dtype, ord, 500)
        with B.wide_types():
            check_rows(B, B.asarray(x), ord, expected, mode)


@pytest.mark.repeats
@pytest.mark.parametrize("name", ["tensorflow", "jax"])
def test_norms_on_ties_in_traced_code(name: str) -> None:
    B = get_backend(name)
    for dtype, ord in KINDS:
        x, expected = samples(dtype, ord, 500)

        def measured(x: Any, ord: int = ord) -> Any:
            return row_norms([(B, x)], ord)[1]

        with B.wide_types():
            found = B.to_numpy(B.trace(measured)(B.asarray(x)))
        assert np.count_nonzero(found != expected) == 0, f"{name}, {dtype}, ord {ord}"
