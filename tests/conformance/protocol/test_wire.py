"""Test that conversion to JSON and back keeps all bits of numbers and all types of containers. Errors name the place of
an invalid value."""

from __future__ import annotations

import json
import math
import random
from typing import Any

import pytest

from islices.conformance.data import Array, Slices
from islices.conformance.protocol.wire import WireError, from_wire, to_wire

NUMBERS = [0.0, -0.0, 1.0, -1.5, math.inf, -math.inf, 0.1, 5e-324]
ARRAYS = [
    *(
        Array(dtype, (2, 3), [0.0, -0.0, 1.0, -1.5, math.inf, -math.inf])
        for dtype in ("float16", "bfloat16", "float32")
    ),
    Array("float64", (8,), NUMBERS),
    Array("int32", (3,), [-(2**31), 0, 2**31 - 1]),
    Array("int64", (3,), [-(2**63), -1, 2**63 - 1]),
    Array("bool", (2,), [True, False]),
    Array("float32", (), [2.5]),
    Array("float32", (0, 4), []),
    Array("complex64", (1,), [1 + 2j]),
]
SLICES = Slices(ARRAYS[3], Array("int64", (8,), list(range(8))), (None,), coalesced=True, padded=True)
VALUES = [
    None, True, "text \"quoted\"", 0, -1, 2**63 - 1, -(2**63), 2**63, 10**30, -(10**30), *NUMBERS, *ARRAYS, SLICES,
    [], [1, [2.0]], (1, "x"), {"a": ARRAYS[0], "b": [None, (SLICES,)]},
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=lambda v: repr(v)[:40])
def test_what_goes_comes_back(value: Any) -> None:
    got = from_wire(json.loads(json.dumps(to_wire(value))))
    assert repr(got) == repr(value)  # also distinguishes -0.0


FLOAT = {"array": "float32", "shape": [1], "bits": "0000803f"}


@pytest.mark.parametrize(
    ("message", "says"),
    [
        ([3], r"ok\[0\]: got 3"),
        (FLOAT | {"array": "float31"}, "ok.array: got 'float31'; accepted are float16"),
        (FLOAT | {"shape": [2]}, "ok.bits: got 4 bytes; accepted are 8 bytes"),
        (FLOAT | {"shape": [-1]}, r"ok.shape: got \[-1\]"),
        (FLOAT | {"bits": "xy"}, "ok.bits: got 'xy'"),
        ({"slices": FLOAT, "indices": FLOAT, "dense_shape": [1.5]}, "ok.dense_shape"),
        ({"slices": FLOAT, "dense_shape": [1]}, "ok.indices"),
        ({"float": "00"}, "ok.float: got 1 bytes; accepted are 8 bytes"),
        ({"tuple": {"a": 1}}, "ok: got"),
        ({"dict": {"a": 1}}, r"ok\['a'\]: got 1"),
    ],
)
def test_what_is_no_value_is_named(message: Any, says: str) -> None:
    with pytest.raises(WireError, match=says):
        from_wire(message)


def test_deep_nesting_is_refused() -> None:
    message: Any = []
    for _ in range(1000):
        message = [message]
    with pytest.raises(WireError, match="nested deeper"):
        from_wire(message)


def test_any_json_is_a_value_or_refused() -> None:
    """Check that from_wire returns a value or raises WireError for JSON in which random parts were replaced."""
    rng = random.Random(0)
    odd: list[Any] = [None, 3, -1, "x", [], {}, {"array": 1}, [None], 2**70, 0.5, True]

    def broken(x: Any) -> Any:
        if rng.random() < 0.15:
            return rng.choice(odd)
        if isinstance(x, dict):
            return {k: broken(v) for k, v in x.items()}
        return [broken(v) for v in x] if isinstance(x, list) else x

    for _ in range(300):
        message = broken(to_wire(rng.choice(VALUES)))
        try:
            from_wire(message)
        except WireError as error:
            assert str(error).startswith("ok")  # noqa: PT017
