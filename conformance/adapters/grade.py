"""Decide whether an adapter's answer has the expected bits, or at least lies within a bound of the specification.

If the case expects an error, the suite compares only the name of the exception, because the specification does not
define the words of messages. An error with an empty message fails.

May import: `islices`, `numpy`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from islices.conformance.adapters.bounds import Bound, bound_of
from islices.conformance.data import EPS, Array, Case, Slices
from islices.conformance.execute import difference
from islices.conformance.protocol import Answer, Ok, Refused, Unsupported
from islices.conformance.protocol.wire import DTYPES

#: The largest difference, in units in the last place, for which rounding is the likely reason.
NEAR = 64
ORDER = "another order of a sum does that"
FUSED = (
    "a fused multiply-add or another order of a sum does that; compiled C and C++ keep the bits with "
    "-ffp-contract=off and without -ffast-math"
)
NARROW = "sums of 16-bit values are formed in float32 and rounded once (clause 3)"
#: The operations that add but do not multiply.
ADDING = ("coalesce", "to_dense", "add", "scatter_add", "scatter_sub")


def grade(case: Case, answer: Answer) -> tuple[str, dict[str, str]]:
    """Compare an adapter's answer with the case, and return (outcome, details). The outcome is "pass", "bound" (the
    answer lies within a bound), "fail" or "unsupported"."""
    if isinstance(answer, Unsupported):
        return "unsupported", {"reason": answer.reason or "it says so"}
    expected = repr(case.expect)
    if isinstance(answer, Refused):
        got = f"{answer.error}: {answer.message}"[:2000]
        if case.group != "errors":
            wrong = f"refused with {got}"
        elif answer.error != case.expect["raises"]:
            wrong = f"refused with {answer.error}; expected {case.expect['raises']}"
        elif not answer.message:
            wrong = "the error says nothing"
        else:
            return "pass", {}
        return "fail", {"reason": wrong, "got": got, "expected": expected}
    if case.group == "errors":
        wrong = f"got a result, expected {case.expect['raises']}"
        return "fail", {"reason": wrong, "got": repr(answer.value), "expected": expected}
    return _result(case, answer, expected)


def _result(case: Case, answer: Ok, expected: str) -> tuple[str, dict[str, str]]:
    first = difference(answer.value, case.expect)
    if not first:
        return "pass", {}
    details = {"reason": first, "got": repr(answer.value), "expected": expected}
    other = difference(_filled(answer.value, case.expect), case.expect)
    if other:  # more than its floats differ
        return "fail", details | {"reason": other}
    pairs = list(_pairs(answer.value, case.expect))
    wanted = bound_of(case)
    if wanted is not None and _within(pairs, wanted):
        return "bound", details | {"reason": f"{wanted.says}: {_likely(case)}"}
    off = [u for got, want in pairs for u in ulps(got, want) if u]
    if max(off) <= NEAR:
        count = f"{len(off)} of {sum(len(want.data) for _, want in pairs)} elements"
        beyond = f", not {wanted.says}" if wanted is not None else ""
        near = f"{first} ({count} differ, by at most {max(off):g} units in the last place{beyond}: {_likely(case)})"
        return "fail", details | {"reason": near}
    return "fail", details


def _likely(case: Case) -> str:
    """Return the likely reason for a small rounding difference in a result of this case."""
    if any(x.dtype in ("float16", "bfloat16") for x, _ in _pairs(case.expect, case.expect)):
        return NARROW
    return ORDER if case.op in ADDING else FUSED


def _within(pairs: list[tuple[Array, Array]], wanted: Bound) -> bool:
    """Return True if no element differs by more than its bound."""
    if len(pairs) != len(wanted.allowed):
        return False
    for (got, want), allowed in zip(pairs, wanted.allowed, strict=True):
        g, w = (np.array(x.data, np.float64).reshape(-1) for x in (got, want))
        with np.errstate(invalid="ignore"):
            near = (g == w) | ((g != g) & (w != w)) | (np.abs(g - w) <= np.asarray(allowed).reshape(-1))
        if not near.all():
            return False
    return True


# ---------------------------------------------------------------------- distances
def _pairs(got: Any, expected: Any) -> Iterator[tuple[Array, Array]]:
    """Yield the pairs (array of `got`, array of `expected`) of arrays at the same place. For slices, yield only the
    pair of values."""
    if isinstance(expected, Slices) and isinstance(got, Slices):
        yield got.values, expected.values
    elif isinstance(expected, Array) and isinstance(got, Array):
        yield got, expected
    elif isinstance(expected, dict):
        for key, item in expected.items():
            yield from _pairs(got[key], item)
    elif isinstance(expected, (list, tuple)):
        for g, e in zip(got, expected, strict=True):
            yield from _pairs(g, e)


def _filled(got: Any, expected: Any) -> Any:
    """Return `got` with its float arrays replaced by the expected arrays of the same dtype and size. All other
    differences between `got` and `expected` remain."""
    if isinstance(expected, Slices) and isinstance(got, Slices):
        values = _filled(got.values, expected.values)
        return Slices(values, got.indices, got.dense_shape, coalesced=got.coalesced, padded=got.padded)
    if isinstance(expected, Array) and isinstance(got, Array):
        alike = got.dtype == expected.dtype and got.dtype in EPS and len(got.data) == len(expected.data)
        return Array(got.dtype, got.shape, expected.data) if alike else got
    if isinstance(expected, dict) and isinstance(got, dict):
        return {key: _filled(item, expected.get(key)) for key, item in got.items()}
    if isinstance(expected, (list, tuple)) and isinstance(got, (list, tuple)) and len(got) == len(expected):
        return type(got)(_filled(g, e) for g, e in zip(got, expected, strict=True))
    return got


def ulps(got: Array, want: Array) -> list[float]:
    """Return the distance between each element and the wanted element, in units in the last place. The distance is
    infinite if only one of the two elements is NaN, or if unequal elements are not floats."""
    if got.dtype not in EPS:
        return [0.0 if g == w else math.inf for g, w in zip(got.data, want.data, strict=True)]
    places = []
    for x in (got, want):
        wide = np.array(x.data, np.float32 if x.dtype == "bfloat16" else DTYPES[x.dtype]).reshape(-1)
        bits = wide.view(f"i{wide.itemsize}").astype(object)
        if x.dtype == "bfloat16":
            bits >>= 16
        sign = 1 << (8 * np.dtype(DTYPES[x.dtype]).itemsize - 1)
        places.append([b if b >= 0 else -(b + sign) for b in bits])
    pairs = zip(got.data, want.data, *places, strict=True)
    return [
        0.0 if g == w or (g != g and w != w) else math.inf if g != g or w != w else float(abs(a - b))
        for g, w, a, b in pairs
    ]
