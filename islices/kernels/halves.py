"""Convert 16-bit floats between bit patterns and float32, because numba does not compute with 16-bit floats on CPUs.

Each dtype has a pair of functions (load, store). `load` converts a stored value to the dtype of computations, and
`store` converts a result back. `store` rounds to nearest even, as NumPy and the frameworks do. Multiplication by
powers of two could produce subnormal numbers, which some threads flush to zero. So the functions of this module avoid
operations with subnormal results. The functions contain many casts, because numba computes with 32-bit integers in 64
bits. May import: `numpy`, `islices.kernels.compiling`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from islices.kernels.compiling import inline


def _same(x):
    return x


def _all_if(condition):
    """Return a bit mask: all ones if the condition is true, else all zeros.

    A mask replaces a branch, because inlining would copy the blocks of a branch into each caller.
    """
    return np.uint32(np.uint32(0) - np.uint32(condition))


all_if = inline(_all_if)


def _widen_bfloat16(bits):
    return np.uint32(np.uint32(bits) << np.uint32(16)).view(np.float32)


def _round_bfloat16(x):
    bits = np.float32(x).view(np.uint32)
    rounded = np.uint32((bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))) >> np.uint32(16))
    nan = all_if(np.uint32(bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000))
    return np.uint16((rounded & ~nan) | (np.uint32(0x7FC0) & nan))


def _widen_float16(bits):
    size = np.uint32(np.uint32(bits) & np.uint32(0x7FFF))
    small = np.float32(np.float32(size) * np.float32(2.0**-24)).view(
        np.uint32
    )  # a subnormal is a multiple of the smallest one
    special = all_if(size >= np.uint32(0x7C00)) & np.uint32(0x38000000)
    normal = np.uint32((size << np.uint32(13)) + np.uint32(0x38000000) + special)
    subnormal = all_if(size < np.uint32(0x400))
    wide = (small & subnormal) | (normal & ~subnormal)
    return np.uint32(wide | ((np.uint32(bits) & np.uint32(0x8000)) << np.uint32(16))).view(np.float32)


def _round_float16(x):
    bits = np.float32(x).view(np.uint32)
    size = np.uint32(bits & np.uint32(0x7FFFFFFF))
    # adding 0.5 rounds a small number to a multiple of float16's smallest subnormal, the last place of 0.5 in float32
    small = np.float32(np.uint32(size).view(np.float32) + np.float32(0.5)).view(np.uint32) - np.uint32(0x3F000000)
    even = (size >> np.uint32(13)) & np.uint32(1)
    normal = np.uint32((size - np.uint32(0x38000000)) + (np.uint32(0xFFF) + even)) >> np.uint32(13)
    subnormal = all_if(size < np.uint32(0x38800000))
    large = all_if(size >= np.uint32(0x477FF000))
    nan = all_if(size > np.uint32(0x7F800000))
    finite = ((small & subnormal) | (normal & ~subnormal)) & ~large
    rounded = finite | (np.uint32(0x7C00) & large) | (np.uint32(0x200) & nan)
    return np.uint16(rounded | ((bits >> np.uint32(16)) & np.uint32(0x8000)))


class Format(NamedTuple):
    """The dtype of stored values, the dtype for computations on these values, and the conversions between the
    dtypes."""

    stored: np.dtype[Any]
    wide: np.dtype[Any]
    load: Any
    store: Any

    @property
    def half(self) -> bool:
        """Return True if values are 16-bit floats, so that computations use another dtype than memory."""
        return self.stored != self.wide


_SAME = inline(_same)
_BITS, _SINGLE = np.dtype(np.uint16), np.dtype(np.float32)
#: the name of a dtype -> its format
FORMATS = {
    "float16": Format(_BITS, _SINGLE, inline(_widen_float16), inline(_round_float16)),
    "bfloat16": Format(_BITS, _SINGLE, inline(_widen_bfloat16), inline(_round_bfloat16)),
    **{name: Format(np.dtype(name), np.dtype(name), _SAME, _SAME) for name in ("float32", "float64", "int32", "int64")},
}
