"""One formula an optimizer, for one element of a row: what islices' own semantics compute.

A rule takes the gradient ``g``, where it asks for it the square ``q`` (of the element, or the mean over the row), the
weight ``w``, then its state and its numbers by name, and returns the new weight and the new state, in the order of its
parameters. Operators are those of `islices.optim.operators`; ``+`` and ``-`` are the elements' own. Every operation
rounds once, in the order written: the order is the specification (SPEC clause 16).
"""

from __future__ import annotations

from typing import Any

from islices.optim.operators import absolute, div, less_equal, maximum, minimum, mul, power, sqrt, where

__all__ = [
    "adagrad",
    "adam",
    "amsgrad",
    "coupled",
    "decoupled",
    "ftrl",
    "ftrl_linear",
    "ftrl_power",
    "momentum",
    "nesterov",
    "rmsprop",
    "rmsprop_centered",
    "rmsprop_centered_momentum",
    "rmsprop_momentum",
    "sgd",
]


# ---------------------------------------------------------------------- weight decay, ahead of any rule
def coupled(g: Any, w: Any, decay: Any) -> Any:
    """The gradient with that of the penalty decay / 2 * w^2."""
    return g + mul(decay, w)


def decoupled(w: Any, keep: Any) -> Any:
    """The weight shrunk before the step; keep is 1 - lr * weight_decay. Loshchilov and Hutter 2019."""
    return mul(keep, w)


# ---------------------------------------------------------------------- gradient descent
def sgd(g: Any, w: Any, lr: Any) -> Any:
    return (w - mul(lr, g),)


def momentum(g: Any, w: Any, momentum: Any, mu: Any, gain: Any, lr: Any) -> Any:
    """gain is 1 - dampening. Polyak 1964; the learning rate stands outside the buffer."""
    momentum = mul(mu, momentum) + mul(gain, g)
    return w - mul(lr, momentum), momentum


def nesterov(g: Any, w: Any, momentum: Any, mu: Any, gain: Any, lr: Any) -> Any:
    """Sutskever et al. 2013, with the gradient taken at w itself."""
    momentum = mul(mu, momentum) + mul(gain, g)
    return w - mul(lr, g + mul(mu, momentum)), momentum


# ---------------------------------------------------------------------- squares summed up, or averaged
def adagrad(g: Any, q: Any, w: Any, accumulator: Any, lr: Any, eps: Any) -> Any:
    """Duchi et al. 2011; with q the mean over the row and one accumulator a row, row-wise Adagrad."""
    accumulator = accumulator + q
    return w - mul(lr, div(g, sqrt(accumulator) + eps)), accumulator


def rmsprop(g: Any, q: Any, w: Any, mean_square: Any, rho: Any, gain: Any, lr: Any, eps: Any) -> Any:
    """Tieleman and Hinton 2012; gain is 1 - rho."""
    mean_square = mul(rho, mean_square) + mul(gain, q)
    return w - mul(lr, div(g, sqrt(mean_square) + eps)), mean_square


def rmsprop_momentum(
    g: Any, q: Any, w: Any, mean_square: Any, momentum: Any, rho: Any, gain: Any, mu: Any, lr: Any, eps: Any
) -> Any:
    mean_square = mul(rho, mean_square) + mul(gain, q)
    momentum = mul(mu, momentum) + div(g, sqrt(mean_square) + eps)
    return w - mul(lr, momentum), mean_square, momentum


def rmsprop_centered(
    g: Any, q: Any, w: Any, mean_square: Any, mean: Any, rho: Any, gain: Any, lr: Any, eps: Any, zero: Any
) -> Any:
    """Graves 2013: the variance in place of the mean square; not below zero, where rounding would put it."""
    mean_square = mul(rho, mean_square) + mul(gain, q)
    mean = mul(rho, mean) + mul(gain, g)
    spread = sqrt(maximum(mean_square - mul(mean, mean), zero))
    return w - mul(lr, div(g, spread + eps)), mean_square, mean


def rmsprop_centered_momentum(
    g: Any,
    q: Any,
    w: Any,
    mean_square: Any,
    mean: Any,
    momentum: Any,
    rho: Any,
    gain: Any,
    mu: Any,
    lr: Any,
    eps: Any,
    zero: Any,
) -> Any:
    mean_square = mul(rho, mean_square) + mul(gain, q)
    mean = mul(rho, mean) + mul(gain, g)
    spread = sqrt(maximum(mean_square - mul(mean, mean), zero))
    momentum = mul(mu, momentum) + div(g, spread + eps)
    return w - mul(lr, momentum), mean_square, mean, momentum


def adam(g: Any, q: Any, w: Any, m: Any, v: Any, gain1: Any, gain2: Any, rate: Any, root: Any, eps: Any) -> Any:
    """Kingma and Ba 2015, algorithm 1. gain1 and gain2 are 1 - beta; rate is lr / (1 - beta1^t) and root is
    sqrt(1 - beta2^t), t counted from 1."""
    m = m + mul(gain1, g - m)
    v = v + mul(gain2, q - v)
    return w - mul(rate, div(m, div(sqrt(v), root) + eps)), m, v


def amsgrad(
    g: Any, q: Any, w: Any, m: Any, v: Any, v_max: Any, gain1: Any, gain2: Any, rate: Any, root: Any, eps: Any
) -> Any:
    """Reddi et al. 2018: the largest mean of squares so far stands under the root; the same numbers as adam."""
    m = m + mul(gain1, g - m)
    v = v + mul(gain2, q - v)
    v_max = maximum(v_max, v)
    return w - mul(rate, div(m, div(sqrt(v_max), root) + eps)), m, v, v_max


# ---------------------------------------------------------------------- follow the regularized leader
def ftrl(g: Any, q: Any, w: Any, z: Any, n: Any, lr: Any, l1: Any, l2: Any, beta: Any, l2_shrinkage: Any) -> Any:
    """McMahan et al. 2013, algorithm 1: a row whose gradients stay below l1 is exactly zero.

    l2_shrinkage is TensorFlow's: a penalty that z sees and the sum of squares does not.
    """
    total = n + q
    root = sqrt(total)
    z = (z + (g + mul(l2_shrinkage, w))) - mul(div(root - sqrt(n), lr), w)
    bounded = minimum(maximum(z, -l1), l1)
    w = where(less_equal(absolute(z), l1), z - z, div(bounded - z, div(beta + root, lr) + l2))
    return w, z, total


def ftrl_linear(g: Any, q: Any, w: Any, z: Any, n: Any, lr: Any, l1: Any, l2: Any, beta: Any, l2_shrinkage: Any) -> Any:
    """FTRL-Proximal with lr_power -1: the learning rate falls with the sum of squares itself."""
    total = n + q
    z = (z + (g + mul(l2_shrinkage, w))) - mul(div(q, lr), w)
    bounded = minimum(maximum(z, -l1), l1)
    w = where(less_equal(absolute(z), l1), z - z, div(bounded - z, div(beta + total, lr) + l2))
    return w, z, total


def ftrl_power(
    g: Any,
    q: Any,
    w: Any,
    z: Any,
    n: Any,
    lr: Any,
    l1: Any,
    l2: Any,
    beta: Any,
    l2_shrinkage: Any,
    exponent: Any,
    one: Any,
) -> Any:
    """FTRL-Proximal with any other lr_power; exponent is -lr_power."""
    total = n + q
    raised = power(total, exponent, one)
    z = (z + (g + mul(l2_shrinkage, w))) - mul(div(raised - power(n, exponent, one), lr), w)
    bounded = minimum(maximum(z, -l1), l1)
    w = where(less_equal(absolute(z), l1), z - z, div(bounded - z, div(beta + raised, lr) + l2))
    return w, z, total
