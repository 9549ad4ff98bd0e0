"""Stages that the rules of several optimizers (islices/optim/records/) share, and weight decay ahead of any rule.

A rule takes the gradient ``g``, where it asks for it the square ``q`` (of the element, or the mean over the row), the
weight ``w``, its state and its numbers by name, and returns the new weight and the new state, in the order of
`Formula.state`. A parameter with a default is optional: a state or a number that a formula lacks is None, and a flag
is False. Kernels leave out what these exclude. Operators are those of `islices.optim.operators`; ``+`` and ``-`` are
the elements' own. Every operation rounds once, in the order written: the order is the specification (SPEC clause 16).
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
    """Return a running mean of gradients; with half, as torch's lerp_ forms it."""
    return running(m, g, gain, beta) if half is None else lerp(m, g, gain, half, one)


def square_mean(v, g, q, gain, beta):
    """Return a running mean of squares; without q, (gain g) g is added, as addcmul_ does."""
    return mul(beta, v) + mul(mul(gain, g), g) if q is None else running(v, q, gain, beta)
