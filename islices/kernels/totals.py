"""Round the sum of the bins that `islices.kernels.squares` fills, or compute the sum's square root (SPEC clause 7).

The bins' integers, each at its power of two, are added up in *limbs* of 32 bits, in any order.
`islices.kernels.squares` may have dropped low bits of terms. If these bits cannot change the result, the leading bits
of the sum are rounded; otherwise the result is None, and `islices.norms.exact` computes the norm. Python's integers
would give the same result, but the machine code of this module also runs without Python. May import: `numpy`,
`islices.kernels.compiling`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from islices.kernels.compiling import INTEGER, ONE, Kernel, compile_kernel, inline, matrix, vector

Host = np.ndarray[Any, Any]
#: the number of bits between 1 and a term's first cut, and between the two cuts
CUT = 48
#: The exponents of the lowest and of the highest bit of the sum. The smallest square of a float64 has the lowest bit; a
#: sum of 2^63 of the largest squares has the highest bit. After the limbs come two flags, for numbers that are not
#: finite and for NaN. Then comes the number of terms that may have dropped bits.
LOWEST, HIGHEST = -2 * 1074, 2 * 1024 + 64
LIMBS = (HIGHEST - LOWEST) // 32 + 4
#: the number of rows of four limbs that contain all limbs
EXACT = LIMBS // 4 + 1
LOW = 0xFFFFFFFF


def _add_number(x, place, limbs):
    """Add x times 2^place to limbs. Each call adds less than 2^33 to a limb, so 2^30 calls cannot overflow."""
    k, shift = place >> 5, place & 31
    low = (x & LOW) << shift
    high = (x >> 32) << shift
    limbs[k] += low & LOW
    limbs[k + 1] += (low >> 32) + (high & LOW)
    limbs[k + 2] += high >> 32


add_number = inline(_add_number)


def _add_bins(bins, ord, limbs):
    """Add the contents of bins to limbs, an array of shape (LIMBS + 3,).

    `islices.kernels.squares` has filled the bins with the terms of a norm of order `ord`, 1 or 2.
    """
    end = len(bins) - 1
    bias = len(bins) // 2 - 1
    limbs[LIMBS] |= bins[end, 1]
    limbs[LIMBS + 1] |= bins[end, 0]
    limbs[LIMBS + 2] += bins[end, 2]
    for k in range(end):
        if bins[k, 0] | bins[k, 1] | bins[k, 2] | bins[k, 3]:
            place = ord * (k - bias + 1) - (2 * CUT + LOWEST)
            add_number(bins[k, 3], place, limbs)
            add_number(bins[k, 2], place + 32, limbs)
            add_number(bins[k, 1], place + CUT, limbs)
            add_number(bins[k, 0], place + (32 + CUT), limbs)


def _round(limbs, ord):
    """Return the sum in limbs, rounded to float64. If `ord` is 2, return the rounded square root of the rounded sum.

    The result is NaN or infinite if a summed number was NaN or infinite, and -1 if the rounding is undecided. The call
    changes limbs.
    """
    if limbs[LIMBS]:
        return np.nan if limbs[LIMBS + 1] else np.inf
    carry, top = 0, -1
    for k in range(LIMBS):
        here = limbs[k] + carry
        limbs[k] = here & LOW
        carry = here >> 32
        if limbs[k]:
            top = k
    if carry < 0:  # the dropped bits of tiny terms may make the sum negative
        return -1.0
    if top < 0:
        return 0.0
    bits = 32 * top
    while limbs[top] >> (bits - 32 * top):
        bits += 1
    excess = max(0, bits - 64)
    # keep the 64 highest bits, and set the last one if a lower bit is set: a float64 made of these is rounded once
    lowest, shift = excess >> 5, np.uint64(excess & 31)
    low = np.uint64(limbs[lowest]) << np.uint64(32) | np.uint64(limbs[lowest - 1])
    kept = (np.uint64(limbs[lowest + 1]) << np.uint64(32) | np.uint64(limbs[lowest])) >> shift
    # the distance to a midpoint, in units of 2^-96 of the sum's bound; no term drops more than two units
    below = np.int64((low >> shift) & np.uint64(LOW)) | np.int64(kept & np.uint64(0x7FF)) << 32
    near = abs(below - (1 << 42)) <= 3 * limbs[LIMBS + 2]
    if limbs[LIMBS + 2] and (near or excess < 40):  # a sum this small has no term of a normal number
        return -1.0
    if shift:
        kept |= np.uint64(limbs[lowest + 2]) << (np.uint64(64) - shift)
    more = np.uint64(limbs[lowest]) & ((ONE << shift) - ONE)
    for k in range(lowest):
        more |= np.uint64(limbs[k])
    if more:
        kept |= ONE
    number, exponent = np.float64(kept), LOWEST + excess
    if ord == 2:  # make the exponent even; half of it is the root's exponent
        odd = exponent & 1
        number, exponent = np.sqrt(number * (1 + odd)), (exponent - odd) >> 1
    return math.ldexp(number, exponent)


def _add_exact(parts, ord, limbs):
    """Add the exact sums in `parts`, an array of shape (EXACT, 4) that `islices.kernels.squares` fills, to limbs."""
    sums = parts.reshape(parts.size)
    for k in range(LIMBS):
        limbs[k] += sums[k]


@cache
def add_bins_kernel() -> Kernel:
    arguments = (matrix(np.int64, readonly=True), INTEGER, vector(np.int64))
    return compile_kernel(_add_bins, arguments)


@cache
def add_exact_kernel() -> Kernel:
    return compile_kernel(_add_exact, (matrix(np.int64, readonly=True), INTEGER, vector(np.int64)))


@cache
def round_kernel() -> Kernel:
    return compile_kernel(_round, (vector(np.int64), INTEGER))


def limbs_of(bins: Sequence[Host], ord: int) -> Host:
    """Return the sum of bins of one shape, as limbs.

    The sum does not depend on how the work was divided.
    """
    limbs = np.zeros(LIMBS + 3, np.int64)
    if bins:
        whole = bins[0] if len(bins) == 1 else np.sum(bins, axis=0)
        add_bins_kernel()(whole, ord, limbs)
        limbs[LIMBS : LIMBS + 2] = limbs[LIMBS : LIMBS + 2] != 0
    return limbs


def rounded(limbs: Host, ord: int) -> float | None:
    """Return the sum in limbs, rounded to float64. If `ord` is 2, return the rounded square root of the rounded sum.

    The result is NaN or infinite if a summed number was NaN or infinite, and None if the rounding is undecided. The
    call changes limbs.
    """
    found: float = round_kernel()(limbs, ord)
    return None if found == -1.0 else found
