"""Sums in 16 bits as they come out where every addition is rounded: what float16 and bfloat16 accumulation does."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from islices.core.host import bfloat16_bits, group
from islices.porting.compare.stored import Array, wide

__all__ = ["HALVES", "fold"]

#: dtype -> float32 rounded to it, as a host array
HALVES: dict[str, Callable[[Array], Array]] = {"float16": lambda x: x.astype(np.float16), "bfloat16": bfloat16_bits}


def fold(slots: Array, place: Array, count: int, dtype: str) -> Array:
    """The sum of the slots of each row, left to right, every partial sum rounded to dtype.

    Parameters
    ----------
    slots : host array, shape (n, *row_shape)
        Rounded to dtype first.
    place : int64 array, shape (n,)
        The row of each slot, in [0, count); each row has one at least.
    count : int
    dtype : {"float16", "bfloat16"}

    Returns
    -------
    float64 array, shape (count, *row_shape)

    Examples
    --------
    >>> import numpy as np
    >>> ones = np.ones((4096, 1), np.float16)
    >>> float(fold(ones, np.zeros(4096, np.int64), 1, "float16")[0, 0])
    2048.0
    """
    to_half = HALVES[dtype]
    with np.errstate(over="ignore", invalid="ignore"):
        terms = wide(to_half(wide(slots).astype(np.float32))).astype(np.float32)
        order, _, starts = group(place)
        lengths = np.diff(starts)
        sums = terms[order[starts[:-1]]]
        for k in range(1, int(lengths.max(initial=1))):
            more = np.flatnonzero(lengths > k)
            # the sum of two 16-bit floats in float32, then rounded, is the sum rounded once (24 >= 2 * 11 + 2 bits)
            sums[more] = wide(to_half(sums[more] + terms[order[starts[more] + k]]))
    result: Array = sums.astype(np.float64)
    return result
