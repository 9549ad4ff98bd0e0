"""Stages that the rules of several optimizers (islices/optim/records/) share, and weight decay before any rule.

The parameters of a rule are, by name, the gradient ``g``, the weight ``w``, arrays of the state and numbers. It may
have ``q``, the square of the element or its mean over the row. A rule returns the new weight and the new state, in
the order of `Formula.state`. A parameter with a default is optional: an absent state or number is None, an absent
flag False. Kernels omit the branches that absent parameters exclude. Operators are those of
`islices.optim.operators`, ``+`` and ``-``. Every operation rounds once, in the order written: the order is the
specification (SPEC clause 16).
"""

from __future__ import annotations

from islices.optim.operators import lerp, mul


# ---------------------------------------------------------------------- decay
def coupled(g, w, decay):
    """Add the gradient of the penalty decay / 2 * w^2."""
    return g + mul(decay, w)


def decoupled(w, keep):
    """Shrink the weight before the step; keep is 1 - lr * weight_decay. Loshchilov and Hutter 2019."""
    return mul(keep, w)


def shrunk(w, decay, rate):
    """Shrink the weight before the step, as Keras does."""
    return w - mul(mul(w, decay), rate)


# ---------------------------------------------------------------------- moments
def running(m, x, gain, beta):
    """Return a running mean: m + gain (x - m), or with beta, beta m + gain x."""
    return m + mul(gain, x - m) if beta is None else mul(beta, m) + mul(gain, x)


def gradient_mean(m, g, gain, beta, half, one):
    """Return a running mean of gradients. With half, compute it as torch's lerp_ does."""
    return running(m, g, gain, beta) if half is None else lerp(m, g, gain, half, one)


def square_mean(v, g, q, gain, beta):
    """Return a running mean of squares. Without q, add (gain g) g as torch's addcmul_ does."""
    return mul(beta, v) + mul(mul(gain, g), g) if q is None else running(v, q, gain, beta)
