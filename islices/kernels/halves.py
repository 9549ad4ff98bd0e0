"""16-bit floats, which numba does not know, as bit patterns: widened to float32 and rounded back.

For each of the values' types there is a pair (load, store): from what the array holds to what is computed with, and
back, rounded to nearest even as NumPy and the frameworks do. Arithmetic on exponents alone would go through subnormal
numbers, which some threads flush; these do not. (numba computes on 32-bit integers in 64 bits, hence the casts.)
May import: `numpy`, `islices.kernels.compiling`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from islices.kernels.compiling import inline

__all__ = ["FORMATS", "Format"]


def _same(x: Any) -> Any:
    return x


def _widen_bfloat16(bits: Any) -> Any:
    return np.uint32(np.uint32(bits) << np.uint32(16)).view(np.float32)


def _round_bfloat16(x: Any) -> Any:
    bits = np.float32(x).view(np.uint32)
    rounded = (bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))) >> np.uint32(16)
    return np.uint16(0x7FC0) if x != x else np.uint16(rounded)


def _widen_float16(bits: Any) -> Any:
    size = np.uint32(np.uint32(bits) & np.uint32(0x7FFF))
    small = np.float32(size) * np.float32(2.0**-24)  # what is subnormal is a multiple of the least
    shifted = size << np.uint32(13)
    top = np.uint32(0x70000000) if size >= np.uint32(0x7C00) else np.uint32(0x38000000)
    wide = small if size < np.uint32(0x400) else np.uint32(shifted + top).view(np.float32)
    return -wide if np.uint32(bits) & np.uint32(0x8000) else wide


def _round_float16(x: Any) -> Any:
    bits = np.float32(x).view(np.uint32)
    size = np.uint32(bits & np.uint32(0x7FFFFFFF))
    # added to one half, whose last place is the least subnormal, a small number is rounded to a multiple of that
    small = np.float32(np.uint32(size).view(np.float32) + np.float32(0.5)).view(np.uint32) - np.uint32(0x3F000000)
    even = (size >> np.uint32(13)) & np.uint32(1)
    normal = ((size - np.uint32(0x38000000)) + (np.uint32(0xFFF) + even)) >> np.uint32(13)
    rounded = small if size < np.uint32(0x38800000) else normal
    rounded = np.uint32(0x7C00) if size >= np.uint32(0x477FF000) else rounded
    rounded = np.uint32(0x7E00) if size > np.uint32(0x7F800000) else rounded
    return np.uint16(rounded | ((bits >> np.uint32(16)) & np.uint32(0x8000)))


class Format(NamedTuple):
    """How values of a dtype lie in memory, and are computed with."""

    stored: Any
    wide: Any
    load: Any
    store: Any


_SAME = inline(_same)
#: dtype -> its format
FORMATS = {
    "float16": Format(np.uint16, np.float32, inline(_widen_float16), inline(_round_float16)),
    "bfloat16": Format(np.uint16, np.float32, inline(_widen_bfloat16), inline(_round_bfloat16)),
    **{name: Format(np.dtype(name), np.dtype(name), _SAME, _SAME) for name in ("float32", "float64", "int32", "int64")},
}
