"""Define weight decay, and running means that the rules of several optimizers (islices/optim/records/) use.

The parameters of a rule, which are passed by name, are the gradient ``g``, the weight ``w``, arrays of the state,
numbers and flags. A rule may also have ``q``: the square of the gradient's element, the sum of the duplicates' squares,
or the mean square over the row. A rule returns the new weight and the new state, in the order of `Formula.state`. A
parameter with a default is optional: an absent state or number is None, and an absent flag is False. The result for an
absent state is None. Kernels omit the branches that absent parameters exclude. Rules compute only with the operators of
`islices.optim.operators`, ``+`` and ``-``.
Every sum, difference, product, quotient and square root rounds once, in the written order. The order is part of the
specification (SPEC clause 16).
"""

from __future__ import annotations

from islices.optim.operators import lerp, mul


# ---------------------------------------------------------------------- decay
def coupled(g, w, decay):
    """Return the gradient g plus the gradient of the penalty decay / 2 * w^2."""
    return g + mul(decay, w)


def decoupled(w, keep):
    """Return the weight times `keep`, which is 1 - lr * weight_decay (Loshchilov and Hutter 2019)."""
    return mul(keep, w)


def shrunk(w, decay, rate):
    """Return the weight after Keras's weight decay, which subtracts weight * decay * rate."""
    return w - mul(mul(w, decay), rate)


# ---------------------------------------------------------------------- moments
def running(m, x, gain, beta):
    """Update the running mean m with one more number x. Return m + gain (x - m), or beta m + gain x if `beta` is
    given."""
    return m + mul(gain, x - m) if beta is None else mul(beta, m) + mul(gain, x)


def gradient_mean(m, g, gain, beta, half, one):
    """Update a running mean of gradients with one more gradient. If `half` is given, compute the mean like torch's
    lerp_."""
    return running(m, g, gain, beta) if half is None else lerp(m, g, gain, half, one)


def square_mean(v, g, q, gain, beta):
    """Update a running mean of squares with the square q, and return the new mean. If q is None, return
    beta v + (gain g) g, computed like torch's addcmul_."""
    return mul(beta, v) + mul(mul(gain, g), g) if q is None else running(v, q, gain, beta)
