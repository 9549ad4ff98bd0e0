"""Define Python objects that no call expects: objects of wrong types, endless objects, and objects that raise an error
in use."""

from __future__ import annotations

import decimal
import fractions
import math
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import numpy as np

import islices


class HostileError(Exception):
    """The error that hostile objects raise. This error must not reach the caller of a public function."""


class Refuses:
    """The base class of objects that raise an error if certain attributes or special methods are used."""

    def __init__(self, subject: str) -> None:
        self.subject = subject

    def __repr__(self) -> str:
        return f"<an object whose {self.subject} raises>"


def _raise(self: Any, *args: Any, **kwargs: Any) -> NoReturn:
    raise HostileError(f"{self.subject} was used")


def _refusing(*names: str) -> Any:
    """Return an object whose named attributes and special methods raise an error."""
    special = {n: _raise for n in names if n.startswith("__") and n != "__array_interface__"}
    plain = {n: property(_raise) for n in names if n not in special}
    return type("Refuses", (Refuses,), {**special, **plain})(" and ".join(names))


def _nested(depth: int) -> list[Any]:
    x: list[Any] = []
    for _ in range(depth):
        x = [x]
    return x


def _endless() -> list[Any]:
    x: list[Any] = []
    x.append(x)
    return x


def _infinite() -> Iterator[int]:
    while True:
        yield 0


class LooksLikeArray:
    """An object that has a shape and a dtype but is not an array."""

    def __init__(self, shape: Any, dtype: Any) -> None:
        self.shape, self.dtype = shape, dtype

    def __repr__(self) -> str:
        return f"<an object of shape {self.shape!r} and dtype {self.dtype!r}>"


#: JUNK has objects that nearly every parameter must reject. The functions in MAKERS make further such objects, which a
#: call could change or use up.
JUNK: tuple[Any, ...] = (
    None, ..., "x", "", b"bytes", int, len, "\ud800", "x" * 100_000, range(3), np.float32, slice(None),
    LooksLikeArray((3, 2), "float32"), LooksLikeArray("abc", None),
)  # fmt: skip
MAKERS: tuple[Callable[[], Any], ...] = (
    lambda: {1, 2}, object, lambda: [None, [None, {}]], lambda: [1, 2, 3], lambda: {1: 2, None: 3}, _infinite,
    lambda: [[1.0, 2.0], [3.0]], lambda: (i for i in range(3)), lambda: memoryview(b"abcd"), lambda: _nested(5000),
    _endless,
)  # fmt: skip
REFUSING = tuple(
    _refusing(*names.split())
    for names in ("__array__", "__len__", "__eq__ __hash__", "dtype shape device", "__index__ __float__", "__getattr__")
)

#: Numbers outside or just inside of accepted ranges, and objects that look like numbers.
NUMBERS: tuple[Any, ...] = (
    0, -1, 1, 7, 2**31, 2**63, -(2**63) - 1, 10**5000, -0.0, 1.5, 1e300, math.nan, math.inf, -math.inf, True, 1j, "1",
    fractions.Fraction(1, 3), decimal.Decimal("sNaN"), np.float16(1.5), np.uint64(2**64 - 1), np.bool_(True),
    np.longdouble(1) / 3, np.datetime64(1, "s"), np.void(b"abcd"), np.array(1.0), np.array([1.0]), np.array("x"),
    np.array([]), np.ones((2, 2)),
)  # fmt: skip

#: Bad shapes, and bad sizes in a shape.
SHAPES: tuple[Any, ...] = (
    (), (0,), (6,), (6, 3, 1), (None, 3), (6, None), (-1, 3), (2**31, 3), (2**63, 3), (10**400, 3), (6.0, 3), "63", 6,
    [6, 3], {6: 3}, (True, 3), np.array([6, 3]), (math.nan, 3), (1,) * 40, (0, 2**62), ((6, 3),),
)  # fmt: skip

#: Bad names of options: names from other functions, unknown names, and objects that are no names.
NAMES: tuple[Any, ...] = (
    "islices", "torch", "zero", "sum", "all", "host", "nonsense", "", "../numpy", "a" * 9999, b"islices", 0, None,
    ["islices"], np.str_("islices"), *REFUSING[:2],
)  # fmt: skip


def shown(x: Any, depth: int = 0) -> str:
    """Return any argument as a text. An object that cannot be read is shown as its type and address."""
    try:
        if isinstance(x, islices.IndexedSlices):
            flags = f"coalesced={x.coalesced}, padded={x.padded}"
            return f"IndexedSlices({shown(x.values)}, {shown(x.indices)}, {x.dense_shape}, {flags})"
        if isinstance(x, islices.Table):
            return f"Table({shown(x.weights)}, padding_idx={x.padding_idx})"
        if type(x) in (list, tuple, dict) and depth < 4:
            items = x.items() if isinstance(x, dict) else enumerate(x)
            return f"{type(x).__name__}({', '.join(f'{k}: {shown(v, depth + 1)}' for k, v in items)})"
        if getattr(x, "dtype", None) is None:
            return f"{x!r:.200}"
        B = islices.get_backend(x)
        data = "" if B.is_native(x) else f" {B.to_numpy(x).tolist()!r:.200}"
        return f"{type(x).__name__} {x.dtype} {x.shape}{data}"
    except Exception:  # an object made to raise, or an array that cannot be read
        return object.__repr__(x)
