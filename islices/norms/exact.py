"""Compute norms that do not depend on the order of summation.

Frameworks sum in different orders, with different numbers of threads. So the last bits of a plain sum of squares can
differ between frameworks. This module cuts every term into a multiple of one large power of two (a unit) and a rest.
The multiples of one unit can be added in any order without rounding. If the rest is cut again (or several times, for
very many terms), the sums of the multiples and of the last rests give the exact sum with a small, known error. The
exact sum then rounds to one known float64, unless it lies close to the midpoint of two adjacent float64 numbers. In
that case `_finish` finds the sign of the exact sum minus the midpoint. The function reads the terms a few bits at a
time, from the highest down, until the sign is certain or no bit is left.

The cut is ExtractVector of S. M. Rump, T. Ogita, S. Oishi, "Accurate floating-point summation, part I: faithful
rounding", SIAM J. Sci. Comput. 31(1), 2008, which also contains `_power_of_two` under the name NextPowerTwo. A square
of a float32 is exact in float64. A float64 is first cut into two halves, and only the square of the lower half may be
rounded. `_digits` cuts the halves as in T. J. Dekker, "A floating-point technique for extending the available
precision", Numer. Math. 18, 1971.

The same code runs on NumPy, on every framework's float64 arrays, and under a trace. SPEC clause 7.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import Any, NamedTuple

import numpy as np

from islices.backend import Array, Backend
from islices.core import modes
from islices.core.shapes import size_of

#: the largest numbers of terms for which two cuts, or three cuts, give an error far below a float64's last bit
TWO_CUTS, THREE_CUTS = 2.0**24, 2.0**30
#: the largest number of terms for which the sum of the absolute rests of two cuts is a small enough bound of the error
FEW_TERMS = 2.0**17
#: the number of bits that `_finish` reads at a time, a multiple of 4; sums of 2^40 numbers of DIGIT bits are exact
DIGIT = 12
#: adding this number to a number below 2^51, and then subtracting it, rounds the smaller number to a whole number
WHOLE = 1.5 * 2.0**52
HUGE, TINY = 2.0**400, 2.0**-400
RESCALE = 2.0**600


class Groups(NamedTuple):
    """Groups of a leaf's rows: the group number of each row, in ascending order, and the number of groups."""

    segments: Array  # (k,), a NumPy array unless traced; in traced code, a segment equal to `number` means no group
    number: int


class Matrix(NamedTuple):
    """The numbers of a leaf as a matrix. Each row has a norm; if `groups` is given, each group of rows has a norm."""

    B: Backend
    x: Array  # a floating dtype, shape (k, m)
    groups: Groups | None = None


#: Leaves whose rows are measured together.
Matrices = Sequence[Matrix]


def as_rows(B: Backend, values: Array, k: int | None) -> Array:
    """Return values as a matrix of k rows: one row (k = 1), or one row for each entry along axis 0."""
    shape = B.shape(values)
    inner = shape if k == 1 else shape[1:]
    with B.scope():
        return B.reshape(values, (k, size_of(inner)))


def exact_norms(leaves: Matrices, ord: float) -> tuple[Backend, Array]:
    """Return the norm of each row over all leaves together, in float64.

    Parameters
    ----------
    leaves : sequence of Matrix
        One or more leaves, all with the same number k of rows, or of groups of rows.
    ord : float
        1, 2 or inf.

    Returns
    -------
    (Backend, array of shape (k,))
        The norms are a float64 array. The backend of this array is `HostBackend` unless a leaf is traced. A row's norm
        is NaN if the row contains NaN, else infinite if the row contains an infinity.
    """
    E = backend_of_norms(leaves)
    if E is modes.HOST:  # convert once: modes.run would convert each result back, which costs more than the arithmetic
        leaves = [Matrix(*on_host(B, x), groups) for B, x, groups in leaves]
    with E.scope():
        return E, norms_of_sums(E, extent_of(E, leaves), partial(sums_of, E, leaves), ord)


def backend_of_norms(leaves: Matrices) -> Backend:
    """Return the backend of the norms of leaves: the backend of the first traced leaf, or the host's backend."""
    return next((B for B, x, _ in leaves if B.is_traced(x)), modes.HOST)


def on_host(B: Backend, x: Array) -> tuple[Backend, Array]:
    """Return (host backend, host view) if the host may compute on the array now, else the backend and the array."""
    views = modes.host_views(B, (x,)) if B is not modes.HOST else None
    return (B, x) if views is None else (modes.HOST, views[0])


def array_row_norms(B: Backend, values: Array, ord: float = 2.0) -> tuple[Backend, Array]:
    """Return `exact_norms` of one array: one norm for each entry along axis 0."""
    return exact_norms([Matrix(B, as_rows(B, values, B.shape(values)[0]))], ord)


# ---------------------------------------------------------------------- step by step
class Extent(NamedTuple):
    """The properties of all leaves of a norm that decide where terms are cut."""

    top: Array  # (k,), the largest |x| of each row, in float64
    count: Any  # an upper bound of the number of terms of one norm: a number, or an array that broadcasts with top
    wide: bool  # True if a leaf is float64


#: Several sums for each row, each of shape (k,); all but the last are exact.
Sums = tuple[Array, ...]
#: A function fn(backend, values, units) that computes these sums for a leaf. Each unit is an array (k, 1).
Part = Callable[[Backend, Array, Sequence[Array]], Sums]
#: a function that returns the sums over all leaves: sums(fn, units, number of sums), where fn is a `Part`
Summing = Callable[[Part, Sequence[Array], int], Sums]


def extent_of(E: Backend, leaves: Matrices) -> Extent:
    """Return the `Extent` of one or more leaves."""
    tops = []
    count: Any = 4.0
    wide = False
    for B, x, groups in leaves:
        with B.scope():
            top = B.astype(B.row_amax(x if B.dtype(x) != "bfloat16" else B.widen(x)), "float64")
        if E is modes.HOST:
            top = B.to_numpy(top)
        tops.append(top if groups is None else E.segment_max(top, groups.segments, groups.number, least=0.0))
        terms, split = _terms_of(B, x, groups), B.dtype(x) == "float64"
        count = count + (terms + terms + terms if split else terms)
        wide = wide or split
    return Extent(reduce(E.maximum, tops), count, wide)


def sums_of(E: Backend, leaves: Matrices, fn: Part, units: Sequence[Array], number: int) -> Sums:
    """Return the sums that `fn` computes, added over one or more leaves. `fn` computes `number` sums."""
    parts = [_of_groups(E, *leaf, fn, units, number) for leaf in leaves]
    return tuple(reduce(operator.add, sums) for sums in zip(*parts, strict=True))


def norms_of_sums(E: Backend, extent: Extent, sums: Summing, ord: float, *, loops: bool = True) -> Array:
    """Return the norm of each row. `sums` is a function that returns sums over the leaves with this extent.

    If `loops` is False, a sum close to a midpoint may be rounded to either neighbour.
    """
    top, count, wide = extent
    if ord == math.inf:
        return top
    one = E.minimum(E.maximum(top, 1.0), 1.0)
    scale = one
    if wide:  # every leaf is scaled then, since all leaves share one sum
        scale = E.where(E.less_equal(top, TINY), RESCALE, one)
        scale = E.where(E.less_equal(HUGE, top), 1.0 / RESCALE, scale)
    largest = E.round_product(top, scale)
    bound = largest if ord == 1 else _times(E, largest * largest, 4.0)
    size = _power_of_two(E, largest)
    # adding and subtracting the first unit leaves a term's coarse part; the other units cut finer parts from the rest
    units = [_power_of_two(E, _times(E, bound, count))]
    if isinstance(count, float):
        ratio: Any = 2.0 ** (math.frexp(count)[1] - 53)
    else:
        ratio = _times(E, _power_of_two(E, _times(E, one, count)), 2.0**-53)
    cuts = _cuts(E, count)
    for _ in range(cuts - 1):
        units.append(_times(E, units[-1], ratio))
    columns = [scale, _times(E, size, 2.0**27), *units]
    # unrounded terms often leave no rest, even at a midpoint; then the sum of the absolute rests bounds the error by 0
    few = cuts == 2 and (ord == 1 or not wide) and bool(np.all(count <= FEW_TERMS))
    parts = sums(partial(_cut_and_sum, ord=ord, rescaled=wide, sizes=few), columns, cuts + 1)
    if few:
        slack, parts = _times(E, parts[-1], 2.0), parts[:-1]
    else:  # bound the error of the sum of the rests, and of the square of a float64's lower half
        slack = _times(E, _times(E, units[-1], count * count) + units[0], 2.0**-104)
    total, off = _rounded(E, parts, slack)
    if loops and (E is not modes.HOST or off.any()):
        off = E.where(E.isfinite(top), off, 0.0)
        total = _finish(E, total, off, count, (scale, size), sums, ord)
    if ord == 2:
        total = E.sqrt(total)
    return E.where(E.isfinite(top), E.div(total, scale), top)


def _cuts(E: Backend, count: Any) -> int:
    """Return the number of cuts that `count` terms need."""
    if not isinstance(count, float) and E is modes.HOST:
        count = float(count.max())
    known = isinstance(count, float)
    return 2 if known and count <= TWO_CUTS else 3 if known and count <= THREE_CUTS else 4


def _terms_of(B: Backend, x: Array, group: Groups | None) -> Any:
    """Return a bound on the number of terms that a leaf adds to one norm. The bound is a float, or an array of shape
    (1,) if the shape is unknown in traced code.
    """
    shape = B.shape(x)
    known = size_of(shape[1:2] if group is None else shape[:2])
    if known is not None:
        return float(known)
    zeros = B.zeros_like(B.reshape(x, (1, size_of(shape))))
    return B.row_sum(B.astype(B.less_equal(zeros, 0.0), "float64"))


def _of_groups(
    E: Backend, B: Backend, x: Array, group: Groups | None, fn: Part, units: Sequence[Array], number: int
) -> Sums:
    """Return the sums of each group: cut every row at the units of its group, and add the sums of the group's rows.

    If `group` is None, return the sums of each row.
    """
    if group is None:
        return _of_rows(E, B, x, fn, units)
    if 0 in B.shape(x) or group.number == 0:
        return (units[0] - units[0],) * number
    own = [E.take(u, group.segments) for u in units]
    return tuple(E.segment_sum(s, group.segments, group.number) for s in _of_rows(E, B, x, fn, own))


def _of_rows(E: Backend, B: Backend, x: Array, fn: Part, units: Sequence[Array]) -> Sums:
    columns = [E.reshape(u, (E.shape(u)[0], 1)) for u in units]
    with B.scope():
        if E is modes.HOST and B is not E:
            columns = [B.asarray(u, x) for u in columns]  # not Python numbers, which MXNet parses from text, inexactly
        sums = fn(B, x, columns)
    return tuple(map(B.to_numpy, sums)) if E is modes.HOST else sums


def _cut_and_sum(B: Backend, x: Array, columns: Sequence[Array], *, ord: float, rescaled: bool, sizes: bool) -> Sums:
    """Return sums for each row: first the sum of the parts cut at each unit, then one sum of the last rests.

    If `sizes` is True, the last sum is that of the rests' absolute values.
    """
    scale, half, *units = columns
    dtype = B.dtype(x)
    sums: list[Array] = []
    for block in B.blocks(x):
        wide = B.astype(block, "float64")
        for term in _terms(B, wide, scale, half, ord, split=dtype == "float64", rescaled=rescaled):
            parts = []
            for unit in units:
                coarse = (term + unit) - unit
                term = term - coarse
                parts.append(B.row_sum(coarse))
            parts.append(B.row_sum(B.abs(term) if sizes else term))
            sums = [a + b for a, b in zip(sums, parts, strict=True)] if sums else parts
    return tuple(sums)


def _terms(B: Backend, x: Array, scale: Any, half: Any, ord: float, *, split: bool, rescaled: bool) -> list[Array]:
    if rescaled:
        x = B.round_product(x, scale)
    if ord == 1:
        return [B.abs(x)]
    if not split:
        return [x * x]
    upper = (x + half) - half
    lower = x - upper
    cross = upper * lower
    return [upper * upper, cross + cross, lower * lower]  # not 2 * cross, because JAX may narrow it: see `_times`


def _power_of_two(E: Backend, x: Array) -> Array:
    """Return the smallest power of two that is at least x (x >= 0; 0 gives 0)."""
    q = _times(E, x, 2.0**53)
    power = E.abs((q + x) - q)
    return E.where(E.less_equal(power, 0.0), x, power)


def _times(E: Backend, x: Array, c: Any) -> Array:
    """Return x * c; under a trace, the adapter computes the product.

    Under a trace, JAX may narrow a Python number in float64 arithmetic. TensorFlow's graph optimizer may move constant
    factors to places where they overflow.
    """
    return x * c if E is modes.HOST else E.round_product(x, c)


# ---------------------------------------------------------------------- rounding
def _rounded(E: Backend, parts: Sequence[Array], slack: Array) -> tuple[Array, Array]:
    """Return (total, off); every number within `slack` of the parts' exact sum rounds to `total` or to total + off.

    `off` is 0 if all these numbers round to `total`.
    """
    first, second, *more = parts
    total, low = _two_sum(first, second)
    for part in more:
        total, error = _two_sum(total, part)
        low = low + error
    total, low = _two_sum(total, low)
    around = E.where(E.less_equal(slack, 0.0), slack, slack + _times(E, total, 2.0**-100))
    above, below = total + (low + around), total + (low - around)
    return total, E.where(E.less_equal(above, total), below, above) - total


def _two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """Return the rounded sum a + b and the exact rounding error of the sum, computed by Knuth's algorithm."""
    total = a + b
    other = total - a
    return total, (a - (total - other)) + (b - other)


def _finish(
    E: Backend,
    total: Array,
    off: Array,
    count: Any,
    scaling: tuple[Array, Array],
    sums: Summing,
    ord: float,
) -> Array:
    """Round each exact sum to total or to total + off, depending on the sign of the sum minus the midpoint of the two.

    Each step rounds the terms and the midpoint to multiples of a unit, a power of two that shrinks by `DIGIT` bits per
    step. The difference of the rounded numbers is an exact whole number of units. All roundings together change the
    difference by at most half a unit per term. Once the difference exceeds that error, or once no bit is left, it has
    the sign of the exact difference.
    """
    first, second = scaling
    zero = off - off
    one = E.where(E.isfinite(zero), 1.0, zero)
    second = E.where(E.less_equal(second, 0.0), one, second)
    middle = _times(E, off, 0.5)
    # terms are at most size^2, or size: less than half the first unit, so that they are rounded to 0
    unit = _times(E, E.round_product(second, second) if ord == 2 else second, 4.0)
    second = E.div(one, _times(E, second, 2.0 if ord == 2 else 4.0))
    large, near = _times(E, one, 2.0 ** (52 + DIGIT)), _times(E, one, WHOLE)
    start = [E.div(x, unit) for x in (total, middle)]
    difference = zero - ((start[0] + near) - near) - ((start[1] + near) - near)
    left = E.where(E.less_equal(E.abs(off), 0.0), zero, 1.0)
    step = 2.0 ** (DIGIT // 4 if ord == 2 else DIGIT // 2)

    def requested(difference: Array, left: Array, *_: Array) -> Array:
        return E.logical_not(E.less_equal(E.where(E.less_equal(E.abs(difference), count), left, 0.0), 0.0))

    def go_on(difference: Array, left: Array, *numbers: Array) -> tuple[Array, ...]:
        goes_on = requested(difference, left)
        first, second = (_times(E, x, step) for x in numbers[:2])
        upper, lower = (_times(E, x, 2.0**DIGIT) for x in numbers[2:])
        digits, rest = sums(partial(_digits, ord=ord), (first, second, large, near), 2)
        for x in (upper, lower):
            digit, error = _digit(E, x, large, near)
            digits, rest = digits - digit, rest + error
        digits = _times(E, difference, 2.0**DIGIT) + digits
        return (
            E.where(goes_on, digits, difference), E.where(goes_on, rest, left), first, second, upper, lower
        )  # fmt: skip

    state = (difference, left, first, second, *start)
    difference = E.while_any(requested, go_on, state)[0]
    beyond = E.where(E.less_equal(off, 0.0), zero - difference, difference)
    nearest = E.where(E.less_equal(zero, beyond), total + middle, total)  # a midpoint rounds to even
    return E.where(E.less_equal(beyond, 0.0), nearest, total + off)


def _digits(B: Backend, x: Array, columns: Sequence[Array], *, ord: float) -> Sums:
    """Return, for each row, the sum of the terms' bits at this step, and a number above 0 if any term has lower bits.

    The first sum is in units of this step.
    """
    first, second, large, near = columns
    sums: list[Array] = []
    for block in B.blocks(x):
        wide = B.astype(block, "float64")
        y = B.round_product(B.round_product(wide, first), second)
        size = B.abs(y)
        rest = B.where(B.less_equal(1.0, size), 0.0, B.abs(wide))
        y = B.where(B.less_equal(size, 2.0**300), y, 0.0)  # larger numbers have no bits here
        if ord == 2:
            shifted = B.round_product(y, 2.0**27 + 1.0)
            upper = shifted - (shifted - y)
            lower = y - upper
            cross = B.round_product(upper, lower)
            terms = [B.round_product(upper, upper), cross + cross, B.round_product(lower, lower)]
        else:
            terms = [B.abs(y)]
        digits = None
        for term in terms:
            digit, error = _digit(B, term, large, near)
            digits = digit if digits is None else digits + digit
            rest = rest + error
        parts = [B.row_sum(digits), B.row_sum(rest)]
        sums = [a + b for a, b in zip(sums, parts, strict=True)] if sums else parts
    return tuple(sums)


def _digit(B: Backend, x: Array, large: Array, near: Array) -> tuple[Array, Array]:
    """Return (digit, rest) of x. The digit is x rounded to a whole number, minus x rounded to a multiple of 2^DIGIT.

    The rest is the absolute difference of x and the whole number.
    """
    away = B.where(B.less_equal(x, 0.0), -large, large)
    x = B.where(B.less_equal(B.abs(x), large), x - ((x + away) - away), 0.0)  # larger numbers are multiples of 2^DIGIT
    digit = (x + near) - near
    return digit, B.abs(x - digit)


# ---------------------------------------------------------------------- in a fixed order
def row_sums(B: Backend, x: Array) -> Array:
    """Return the sum of each row, an array of shape (n,), computed by halves (SPEC clause 19).

    Each step adds the second half of the columns to the first half, until one column is left. The last column of an odd
    number of columns is set aside; the sum of these columns is added at the end.
    """
    n, m = B.shape(x)[0], math.prod(k for k in B.shape(x)[1:] if k is not None)
    if m == 0:
        return B.astype(B.zeros_like(B.arange(x)), B.dtype(x))
    x = B.reshape(x, (n, m))
    rest = None
    while m > 1:
        half = m // 2
        if m % 2:
            last = B.columns(x, m - 1, m)
            rest = last if rest is None else rest + last
        x = B.columns(x, 0, half) + B.columns(x, half, 2 * half)
        m = half
    return B.reshape(x if rest is None else x + rest, (n,))
