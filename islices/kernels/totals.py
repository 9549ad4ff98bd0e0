"""What bins of exact sums hold together, rounded once to float64 (SPEC clause 7).

The bins' integers, each at its power of two, are added up in *limbs* of 32 bits, whatever their order; what leads of
the sum is then rounded, if what the terms drop cannot change the result: it is undecided otherwise. Python's own
integers would say the same; machine code says it where no Python runs.
May import: `numpy`, `islices.kernels.compiling`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from islices.kernels.compiling import INTEGER, Kernel, compile_kernel, inline, matrix, vector

Host = np.ndarray[Any, Any]
#: Bits below 1 of a term's first cut, and between the two.
CUT = 48
#: The exponent of the lowest bit there is, that of a float64's least square, and limbs up to the highest, of a sum of
#: 2^63 of the largest; behind them whether there is an infinity, or a NaN, and how many terms may have dropped a part.
LOWEST, HIGHEST = -2 * 1074, 2 * 1024 + 64
LIMBS = (HIGHEST - LOWEST) // 32 + 4
#: Rows of four limbs that hold them.
EXACT = LIMBS // 4 + 1
LOW = 0xFFFFFFFF


def _add_number(x, place, limbs):
    """x times 2^place added to limbs, to each of which less than 2^33 in size: 2^30 numbers go in."""
    k, shift = place >> np.int64(5), place & np.int64(31)
    low = (x & np.int64(LOW)) << shift
    high = (x >> np.int64(32)) << shift
    limbs[k] += low & np.int64(LOW)
    limbs[k + 1] += (low >> np.int64(32)) + (high & np.int64(LOW))
    limbs[k + 2] += high >> np.int64(32)


add_number = inline(_add_number)


def _add_bins(bins, ord, limbs):
    """What bins hold (as `islices.kernels.squares` fills them, of the sums of order 1 or 2) added to limbs, shape
    (LIMBS + 3,)."""
    end = np.int64(len(bins)) - np.int64(1)
    bias = np.int64(len(bins)) // np.int64(2) - np.int64(1)
    limbs[LIMBS] |= bins[end, 1]
    limbs[LIMBS + 1] |= bins[end, 0]
    limbs[LIMBS + 2] += bins[end, 2]
    for k in range(end):
        if bins[k, 0] | bins[k, 1] | bins[k, 2] | bins[k, 3]:
            place = ord * (k - bias + np.int64(1)) - np.int64(2 * CUT + LOWEST)
            add_number(bins[k, 3], place, limbs)
            add_number(bins[k, 2], place + np.int64(32), limbs)
            add_number(bins[k, 1], place + np.int64(CUT), limbs)
            add_number(bins[k, 0], place + np.int64(32 + CUT), limbs)


def _round(limbs, ord):
    """The sum in limbs, of squares (ord 2) its root, rounded once; NaN or infinite, if a number was; -1 if undecided.
    limbs change."""
    if limbs[LIMBS]:
        return np.nan if limbs[LIMBS + 1] else np.inf
    carry, top = np.int64(0), np.int64(-1)
    for k in range(LIMBS):
        here = limbs[k] + carry
        limbs[k] = here & np.int64(LOW)
        carry = here >> np.int64(32)
        if limbs[k]:
            top = np.int64(k)
    if carry < 0:  # what is dropped of tiny terms may leave less than nothing
        return -1.0
    if top < 0:
        return 0.0
    bits = np.int64(32) * top
    while limbs[top] >> (bits - np.int64(32) * top):
        bits += np.int64(1)
    excess = max(np.int64(0), bits - np.int64(64))
    # to 64 bits and one that says whether there are more: a float64 of that is rounded once
    lowest, shift = excess >> np.int64(5), np.uint64(excess & np.int64(31))
    low = np.uint64(limbs[lowest]) << np.uint64(32) | np.uint64(limbs[lowest - 1])
    kept = (np.uint64(limbs[lowest + 1]) << np.uint64(32) | np.uint64(limbs[lowest])) >> shift
    # how far a midpoint is, in units of 2^-96 of the sum's bound; no term drops more than two such
    below = np.int64((low >> shift) & np.uint64(LOW)) | np.int64(kept & np.uint64(0x7FF)) << np.int64(32)
    near = abs(below - np.int64(1 << 42)) <= np.int64(3) * limbs[LIMBS + 2]
    if limbs[LIMBS + 2] and (near or excess < 40):  # so small a sum has no term of a normal number
        return -1.0
    if shift:
        kept |= np.uint64(limbs[lowest + 2]) << (np.uint64(64) - shift)
    more = np.uint64(limbs[lowest]) & ((np.uint64(1) << shift) - np.uint64(1))
    for k in range(lowest):
        more |= np.uint64(limbs[k])
    if more:
        kept |= np.uint64(1)
    number, exponent = np.float64(kept), np.int64(LOWEST) + excess
    if ord == 2:  # an even exponent, whose half is the root's
        odd = exponent & np.int64(1)
        number, exponent = np.sqrt(number * np.float64(1 + odd)), (exponent - odd) >> np.int64(1)
    return math.ldexp(number, exponent)  # type: ignore[arg-type]


def _add_exact(parts, ord, limbs):
    """The exact sums in parts (as `islices.kernels.squares` fills them, shape (EXACT, 4)) added to limbs."""
    for k in range(LIMBS):
        limbs[k] += parts[k >> 2, k & 3]


@cache
def add_bins_kernel() -> Kernel:
    """The compiled `_add_bins`."""
    arguments = (matrix(np.int64, readonly=True), INTEGER, vector(np.int64))
    return compile_kernel(_add_bins, arguments)


@cache
def add_exact_kernel() -> Kernel:
    """Return the compiled `_add_exact`."""
    return compile_kernel(_add_exact, (matrix(np.int64, readonly=True), INTEGER, vector(np.int64)))


@cache
def round_kernel() -> Kernel:
    """The compiled `_round`."""
    return compile_kernel(_round, (vector(np.int64), INTEGER))


def limbs_of(bins: Sequence[Host], ord: int) -> Host:
    """What bins of one kind hold together: the same limbs whatever parts they were filled in."""
    limbs = np.zeros(LIMBS + 3, np.int64)
    if bins:
        whole = bins[0] if len(bins) == 1 else np.sum(bins, axis=0)
        add_bins_kernel()(whole, ord, limbs)
        limbs[LIMBS : LIMBS + 2] = limbs[LIMBS : LIMBS + 2] != 0
    return limbs


def rounded(limbs: Host, ord: int) -> float | None:
    """The sum in limbs, of squares the root, rounded once, to float64; NaN or infinite, if a number is; None if
    undecided. limbs change."""
    found: float = round_kernel()(limbs, ord)
    return None if found == -1.0 else found
