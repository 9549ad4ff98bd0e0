"""Real powers out of products and square roots, which every framework rounds alike.

No two frameworks agree on the last bits of pow, exp and log. Products and square roots are correctly rounded
everywhere, so what is made of them in a fixed order has the same bits everywhere, and an error that can be counted. A
norm of order p needs two powers: of each number (`terms`) and of their sum (`norm_from`). SPEC clause 7.
May import: `islices.backend`.
"""

from __future__ import annotations

from islices.backend import Array, Backend

__all__ = ["bounded", "is_exact", "norm_from", "power", "terms"]

#: Orders beyond these give the same norms as these: powers of what is not 1 vanish, powers of what is not 0 are 1.
LEAST, MOST = 2.0**-70, 2.0**64
#: Below, quotients of numbers may vanish where their powers do not: fourth roots are taken before the quotient.
SMALL = 0.25
#: Up to this order Newton's correction converges from what the roots give.
CORRECTED = 2.0**32


def is_exact(ord: float) -> bool:
    """Whether a norm of this order needs no power: 1, 2 or inf."""
    return ord in (1.0, 2.0, float("inf"))


def bounded(ord: float) -> float:
    """The order that norms of this one are computed by."""
    return min(max(ord, LEAST), MOST)


def power(E: Backend, x: Array, exponent: float) -> Array:
    """x to a power of at least 2^-128, by the binary digits of the exponent: for float64 x >= 0."""
    whole, rest = int(exponent), exponent - int(exponent)
    out = None
    square = x
    while whole:
        if whole & 1:
            out = square if out is None else E.round_product(out, square)
        whole >>= 1
        if whole:
            square = E.round_product(square, square)
    root = x
    while rest:
        root = E.sqrt(root)
        rest *= 2.0
        if rest >= 1.0:
            rest -= 1.0
            out = root if out is None else E.round_product(out, root)
    return out


def terms(B: Backend, x: Array, top: Array, ord: float) -> Array:
    """(|x| / top)^ord for float64 x whose largest size is top, not 0: none exceeds 1, and that of top is 1."""
    p = bounded(ord)
    if p >= SMALL:
        return power(B, B.div(B.abs(x), top), p)
    return power(B, B.div(_fourth_root(B, B.abs(x)), _fourth_root(B, top)), 4.0 * p)


def norm_from(E: Backend, top: Array, total: Array, ord: float) -> Array:
    """top times total^(1 / ord), where total, at least 1, is a sum of `terms`."""
    p = bounded(ord)
    if p >= SMALL:
        return E.round_product(top, _root(E, total, p))
    root = _root(E, total, 2.0 * p)  # two factors, since one alone may be infinite where the norm is not
    return E.round_product(E.round_product(top, root), root)


def _root(E: Backend, total: Array, degree: float) -> Array:
    """total^(1 / degree), for a total of at least 1."""
    inverse = 1.0 / degree
    root = power(E, total, inverse)
    if degree > CORRECTED or degree.hex().startswith("0x1.0000000000000p"):  # a power of two, whose inverse is exact
        return root
    # one step of Newton's method: what is left is the error of the power alone, divided by the degree
    off = E.div(total - power(E, root, degree), total)
    better = root + E.round_product(root, E.round_product(off, inverse))
    return E.where(E.isfinite(root), better, root)


def _fourth_root(B: Backend, x: Array) -> Array:
    return B.sqrt(B.sqrt(x))
