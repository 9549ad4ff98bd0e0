"""Check that results of any framework equal the expected results exactly."""

from __future__ import annotations

from typing import Any

import numpy as np

import islices
from islices.core.host import bfloat16_to_float32

__all__ = ["assert_same", "host"]


def numbers(x: Any) -> tuple[str, np.ndarray[Any, Any]]:
    """Return the dtype and the numbers of a table, an array or a number of any framework. Numbers of bfloat16 become
    float32."""
    x = x.weights if isinstance(x, islices.Table) else np.asarray(x) if np.isscalar(x) else x
    backend = islices.get_backend(x)
    dtype, array = backend.dtype(x), backend.to_numpy(x)
    return dtype, bfloat16_to_float32(array) if dtype == "bfloat16" else array


def host(x: Any) -> np.ndarray[Any, Any]:
    return numbers(x)[1]


def assert_same(got: Any, expected: Any, subject: str = "result") -> None:
    """Check that two results have the same structure, dtypes, shapes and numbers. NaN equals NaN, and -0 equals +0."""
    if isinstance(expected, dict):
        assert got.keys() == expected.keys(), subject
        for key, x in expected.items():
            assert_same(got[key], x, f"{subject}[{key!r}]")
    elif isinstance(expected, (list, tuple)):
        assert len(got) == len(expected), subject
        for k, x in enumerate(expected):
            assert_same(got[k], x, f"{subject}[{k}]")
    elif isinstance(expected, islices.IndexedSlices):
        assert_same([got.values, got.indices], [expected.values, expected.indices], subject)
        flags = ("dense_shape", "coalesced", "padded")
        assert [getattr(got, name) for name in flags] == [getattr(expected, name) for name in flags], subject
    elif expected is None:
        assert got is None, subject
    else:
        (kind, a), (wanted, b) = numbers(got), numbers(expected)
        assert (kind, a.shape) == (wanted, b.shape), subject
        np.testing.assert_array_equal(a, b, subject)
