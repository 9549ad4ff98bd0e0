"""Sum squares or absolute values, so that neither the order nor the number of threads changes the result.

A kernel finds the power of two that bounds a block of numbers, and scales float64 numbers by this power to absolute
values below 1. The kernel cuts each term (a square or an absolute value) at two places below the terms' bound. Adding
a large constant to a term leaves the term's upper bits as an exact integer; the remainder has the lower bits. Sums of
integers do not depend on their order. The kernel adds the integers to *bins*, one per power of two, and
`islices.kernels.totals` combines the bins.

The kernel drops a term's bits below the second cut, which are at most 2^-97 of the terms' bound. If a block's numbers
have similar sizes, no bits are dropped, except from squares of float64 numbers. From the number of terms that may drop
bits, `islices.kernels.totals` decides whether the dropped bits can change the result. If dropped bits can change the
result, `islices.norms.exact` computes the norm. SPEC clause 7. May import: `numpy`, this folder.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from islices.kernels.compiling import INTEGER, PLACES, ZERO, Kernel, compile_kernel, inline, matrix, vector
from islices.kernels.folding import fold_kernel
from islices.kernels.grouping import group_kernel
from islices.kernels.halves import FORMATS
from islices.kernels.totals import CUT, LIMBS, LOWEST, add_bins_kernel, add_number, round_kernel

#: the number of bins: one for each binary exponent of a number, and one for numbers that are not finite
BINS = {dtype: 2048 if dtype == "float64" else 256 for dtype in FORMATS}
#: the number of terms cut at a time; a block fits the first-level cache, and its sums fit 63 bits
BLOCK = 2048
#: the constants whose addition to a term makes the first and the second cut
FIRST, SECOND = 1.5 * 2.0 ** (52 - CUT), 1.5 * 2.0 ** (52 - 2 * CUT)
#: the constant whose addition to a number below 1 keeps the upper half of the number's bits
HALVES = 1.5 * 2.0**26


def _cut(term, upper_unit, lower_unit):
    """Return the term's upper and lower bits as two integers, each with the bits of the constant that made the cut."""
    upper = term + upper_unit
    lower = (term - (upper - upper_unit)) + lower_unit
    return np.float64(upper).view(np.int64), np.float64(lower).view(np.int64)


def _power_of_two(exponent):
    """Return 2^exponent as a float64. The power must not be subnormal."""
    return np.uint64(np.uint64(exponent + 1023) << np.uint64(52)).view(np.float64)


cut, power_of_two = inline(_cut), inline(_power_of_two)


@cache
def dense_kernel(dtype: str, ord: int, *, exact: bool) -> Kernel:
    """Return the kernel that adds the terms of an array to bins, for a dtype and a norm's order 1 or 2.

    If `exact` is True, the kernel adds uncut terms to limbs instead of bins.
    """
    form, wide, sizes = FORMATS[dtype], dtype == "float64", ord == 1
    load, half, bins_of = form.load, form.half, BINS[dtype]
    infinite, bias = bins_of - 1, bins_of // 2 - 1
    number, bits, mantissa = (np.float64, np.uint64, 52) if wide else (np.float32, np.uint32, 23)
    # the largest distance, in powers of two, of numbers of this mantissa at which all bits of their terms are kept
    span = 2 * CUT // ord - 1 - mantissa
    drops = wide and not sizes  # squares of float64 may always drop bits
    zero, one, most = bits(0), bits(1), bits(0 if drops else np.iinfo(bits).max)
    without_sign = bits(np.iinfo(bits).max >> 1)

    def largest_and_least(x, row, begin, end):
        """Return the bits of the largest absolute value, and a lower bound on the exponent of the smallest nonzero
        value."""
        top, least = zero, most
        for j in range(begin, end):
            size = bits(number(x[row, j]).view(bits) & without_sign)  # type: ignore[operator]
            top = max(top, size)
            if not drops:
                least = min(least, bits(size - one))
        return np.int64(top), np.int64(least >> bits(mantissa))

    largest = inline(largest_and_least)

    def add_terms(x, row, begin, end, bins):
        """Add the terms of x[row, begin:end], at most `BLOCK` numbers, to the bin of their power of two."""
        top, least = largest(x, row, begin, end)
        bin = top >> np.int64(mantissa)
        terms = np.int64(end - begin) * (3 if drops else 1)
        if bin - max(least, 1) > span:
            bins[infinite, 2] += terms
        first = second = np.int64(0)
        if bin == infinite:
            for j in range(begin, end):
                first |= np.int64(x[row, j] != x[row, j])
            bins[bin, 0] |= first  # 1 if there is a NaN
            bins[bin, 1] = 1
        else:
            # a bin's numbers are below 2^above, its terms below 2^(ord * above). Terms of float32 are cut at that
            # scale. float64 numbers are scaled below 1 by two factors, since a single one may be out of range
            above = bin - bias + 1
            scale, rest = (power_of_two(-above // 2), power_of_two(-above - -above // 2)) if wide else (1.0, 1.0)
            unit = 1.0 if wide else power_of_two(above if sizes else 2 * above)
            u, v = FIRST * unit, SECOND * unit
            for j in range(begin, end):
                y = (np.float64(x[row, j]) * scale) * rest if wide else np.float64(x[row, j])
                if drops:
                    upper = (y + HALVES) - HALVES
                    lower = y - upper
                    a, b = cut(upper * upper, u, v)
                    c, d = cut(2.0 * (upper * lower), u, v)
                    e, f = cut(lower * lower, u, v)
                    first += (a + c) + e
                    second += (b + d) + f
                else:
                    a, b = cut(abs(y) if sizes else y * y, u, v)
                    first += a
                    second += b
            # remove the bits of the added constants, for all terms at once: integers wrap around
            first -= terms * np.float64(u).view(np.int64)
            second -= terms * np.float64(v).view(np.int64)
            bins[bin, 0] += first >> 32
            bins[bin, 1] += first & 0xFFFFFFFF
            bins[bin, 2] += second >> 32
            bins[bin, 3] += second & 0xFFFFFFFF
            if bin == 0 and top != 0:
                bins[bin, 3] += 1  # the square of a subnormal number may drop all its bits, but is not 0

    def add_exactly(x, row, begin, end, parts):
        """Add the uncut terms of the finite numbers x[row, begin:end] to the limbs (see `totals`) in `parts`."""
        limbs = parts.reshape(parts.size)
        for j in range(begin, end):
            bits = np.float64(x[row, j]).view(np.int64)
            exponent, m = (bits >> 52) & 0x7FF, bits & 0xFFFFFFFFFFFFF
            if exponent:
                m |= 1 << 52
            place = max(exponent, np.int64(1)) - 1075
            if sizes:
                add_number(m, place - LOWEST, limbs)
            else:
                upper, lower, place = m >> 27, m & 0x7FFFFFF, 2 * place - LOWEST
                add_number(lower * lower, place, limbs)
                add_number(2 * upper * lower, place + 27, limbs)
                add_number(upper * upper, place + 54, limbs)

    add_block = inline(add_exactly if exact else add_terms)

    def dense(values, first, last, bins):
        """Add the terms of values[0, first:last] to their bins."""
        widened = np.empty((1, BLOCK if half else 0), np.float32)
        for k in range(first, last, BLOCK):
            end = min(k + BLOCK, last)
            if half:
                for j in range(np.uint64(end - k)):
                    widened[0, j] = load(values[0, np.uint64(k) + j])
                add_block(widened, ZERO, ZERO, np.uint64(end - k), bins)
            else:
                add_block(values, ZERO, np.uint64(k), np.uint64(end), bins)

    arguments = (matrix(form.stored, readonly=True), INTEGER, INTEGER, matrix(np.int64))
    return compile_kernel(dense, arguments)


@cache
def rows_kernel(dtype: str, ord: int, *, exact: bool) -> Kernel:
    """Return the kernel that sums rows with the same index, and adds the square or absolute value of each sum's
    elements to bins.

    The arguments are those of `dense_kernel`.
    """
    stored, fold, dense = FORMATS[dtype].stored, fold_kernel(dtype), dense_kernel(dtype, ord, exact=exact)

    def sums_of_rows(values, order, starts, first, last, bins):
        """Sum the slots of each row r with first <= r < last as `folding` does, and add the terms of the sums to
        bins.
        """
        width = values.shape[1]
        # short rows share a block of `some` rows; blocks do not depend on first, a multiple of some
        some = max(1, BLOCK // max(width, 1))
        sums = np.empty((1, width * some), stored)
        rows = sums.reshape((some, width))
        in_order = order[:0]
        for begin in range(first, last, some):
            count = min(some, last - begin)
            fold(values, order, starts[begin : begin + count + 1], in_order, rows, 0, count)
            dense(sums, 0, count * width, bins)

    return compile_kernel(
        sums_of_rows, (matrix(stored, readonly=True), PLACES, PLACES, INTEGER, INTEGER, matrix(np.int64))
    )


@cache
def norm_kernel(dtype: str, index: np.dtype[Any], ord: int) -> Kernel:
    """Return the kernel that computes a norm of order 1 or 2, for a dtype and int32 or int64 indices."""
    rows, group = rows_kernel(dtype, ord, exact=False), group_kernel(index)
    dense = dense_kernel(dtype, ord, exact=False)
    add_bins, round_sum, count_of_bins = add_bins_kernel(), round_kernel(), BINS[dtype]

    def norm(values, indices):
        """Return the norm of a few rows. Rows with the same index are summed first, unless there are no indices.

        Return -1 if the indices cannot be grouped, or if the rounding of the norm is undecided.
        """
        n = len(values)
        bins, limbs = np.zeros((count_of_bins, 4), np.int64), np.zeros(LIMBS + 3, np.int64)
        if len(indices) == 0:
            dense(values.reshape((1, values.size)), 0, values.size, bins)
        else:
            order, starts, ids = np.empty(n, np.uint64), np.empty(n + 1, np.uint64), np.empty_like(indices)
            count = group(indices, order, starts, ids)
            if count < 0:
                return -1.0
            rows(values, order, starts, 0, count, bins)
        add_bins(bins, ord, limbs)
        return round_sum(limbs, ord)

    return compile_kernel(norm, (matrix(FORMATS[dtype].stored, readonly=True), vector(index, readonly=True)))
