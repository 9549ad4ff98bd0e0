"""The arithmetic of tf.compat.v1.train, in its own order of operations. SPEC clauses 11 and 16.

rows="touched" is what these optimizers do with slices, whose duplicates they sum first, rows="all" what they do with a
dense gradient. Adam is the exception: AdamOptimizer moves every row for slices too (rows="all" is that path), and the
lazy one, rows="touched", was tf.contrib.opt.LazyAdamOptimizer, of TensorFlow 1.

Hyperparameters are float32 tensors, cast to the table's type: a float64 table sees them rounded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from islices import modes
from islices.backend import Array
from islices.optim import rules
from islices.optim.formulas import FTRL, Formula, Numbers, Preset, State, ftrl_kind, single, with_power
from islices.optim.hyperparameters import Hyper, is_on, refuse_scheduled
from islices.optim.operators import absolute, div, less_equal, maximum, minimum, mul, power, sqrt, where

__all__ = ["PRESETS"]


# ---------------------------------------------------------------------- rules
def momentum(g: Any, w: Any, momentum: Any, mu: Any, lr: Any) -> Any:
    momentum = mul(momentum, mu) + g
    return w - mul(momentum, lr), momentum


def nesterov_dense(g: Any, w: Any, momentum: Any, mu: Any, lr: Any) -> Any:
    momentum = mul(momentum, mu) + g
    return w - (mul(g, lr) + mul(mul(momentum, mu), lr)), momentum


def nesterov(g: Any, w: Any, momentum: Any, mu: Any, lr: Any) -> Any:
    momentum = mul(momentum, mu) + g
    return w - (mul(g, lr) + mul(momentum, mul(mu, lr))), momentum


def adagrad(g: Any, q: Any, w: Any, accumulator: Any, lr: Any, one: Any) -> Any:
    """No eps; the reciprocal root is a number of its own."""
    accumulator = accumulator + q
    return w - mul(mul(lr, g), div(one, sqrt(accumulator))), accumulator


def rmsprop(
    g: Any, q: Any, w: Any, mean_square: Any, momentum: Any, rho: Any, mu: Any, lr: Any, eps: Any, one: Any
) -> Any:
    """eps stands inside the root, the learning rate inside the buffer."""
    mean_square = mul(mean_square, rho) + mul(q, one - rho)
    momentum = mul(momentum, mu) + mul(mul(div(one, sqrt(mean_square + eps)), lr), g)
    return w - momentum, mean_square, momentum


def rmsprop_dense(
    g: Any, q: Any, w: Any, mean_square: Any, momentum: Any, rho: Any, mu: Any, lr: Any, eps: Any, one: Any
) -> Any:
    mean_square = mean_square + mul(q - mean_square, one - rho)
    momentum = mul(momentum, mu) + div(mul(g, lr), sqrt(mean_square + eps))
    return w - momentum, mean_square, momentum


def rmsprop_centered(
    g: Any, q: Any, w: Any, mean_square: Any, mean: Any, momentum: Any, rho: Any, mu: Any, lr: Any, eps: Any, one: Any
) -> Any:
    mean_square = mul(mean_square, rho) + mul(q, one - rho)
    mean = mul(mean, rho) + mul(g, one - rho)
    scale = div(one, sqrt((mean_square + eps) - mul(mean, mean)))
    momentum = mul(momentum, mu) + mul(mul(scale, lr), g)
    return w - momentum, mean_square, mean, momentum


def rmsprop_centered_dense(
    g: Any, q: Any, w: Any, mean_square: Any, mean: Any, momentum: Any, rho: Any, mu: Any, lr: Any, eps: Any, one: Any
) -> Any:
    mean_square = mean_square + mul(q - mean_square, one - rho)
    mean = mean + mul(g - mean, one - rho)
    momentum = mul(momentum, mu) + div(mul(g, lr), sqrt((mean_square - mul(mean, mean)) + eps))
    return w - momentum, mean_square, mean, momentum


def adam(
    g: Any,
    q: Any,
    w: Any,
    m: Any,
    v: Any,
    beta1: Any,
    beta2: Any,
    power1: Any,
    power2: Any,
    lr: Any,
    eps: Any,
    one: Any,
) -> Any:
    """eps is added to the uncorrected root; the rate is computed in the table's type."""
    rate = div(mul(lr, sqrt(one - power2)), one - power1)
    m = mul(m, beta1) + mul(g, one - beta1)
    v = mul(v, beta2) + mul(q, one - beta2)
    return w - div(mul(rate, m), sqrt(v) + eps), m, v


def ftrl(g: Any, q: Any, w: Any, z: Any, n: Any, lr: Any, l1: Any, penalty: Any, shrinkage: Any) -> Any:
    """penalty is 2 (l2 + beta / (2 lr)), shrinkage 2 l2_shrinkage."""
    total = n + q
    root = sqrt(total)
    z = z + ((g + mul(shrinkage, w)) - mul(div(root - sqrt(n), lr), w))
    bounded = minimum(maximum(z, -l1), l1)
    return where(less_equal(absolute(z), l1), z - z, div(bounded - z, div(root, lr) + penalty)), z, total


def ftrl_linear(g: Any, q: Any, w: Any, z: Any, n: Any, lr: Any, l1: Any, penalty: Any, shrinkage: Any) -> Any:
    """With learning_rate_power -1."""
    total = n + q
    z = z + ((g + mul(shrinkage, w)) - mul(div(total - n, lr), w))
    bounded = minimum(maximum(z, -l1), l1)
    return where(less_equal(absolute(z), l1), z - z, div(bounded - z, div(total, lr) + penalty)), z, total


def ftrl_power(
    g: Any,
    q: Any,
    w: Any,
    z: Any,
    n: Any,
    lr: Any,
    l1: Any,
    penalty: Any,
    shrinkage: Any,
    exponent: Any,
    one: Any,
) -> Any:
    """With any other learning_rate_power."""
    total = n + q
    raised = power(total, exponent, one)
    z = z + ((g + mul(shrinkage, w)) - mul(div(raised - power(n, exponent, one), lr), w))
    bounded = minimum(maximum(z, -l1), l1)
    return where(less_equal(absolute(z), l1), z - z, div(bounded - z, div(raised, lr) + penalty)), z, total


# ---------------------------------------------------------------------- formulas
def _sgd(h: Hyper) -> Formula:
    if not is_on(h["momentum"]):
        return Formula(rules.sgd, lambda n: {"lr": n.single_lr})
    by_rows = {"touched": nesterov, "all": nesterov_dense}
    rule: Callable[..., Any] = by_rows[h["rows"]] if h["nesterov"] else momentum
    return Formula(rule, lambda n: {"mu": n.single("momentum"), "lr": n.single_lr}, (State("momentum"),))


def _adagrad(h: Hyper) -> Formula:
    state = (State("accumulator", "initial_accumulator"),)
    return Formula(adagrad, lambda n: {"lr": n.single_lr, "one": 1.0}, state, squares="element")


def _rmsprop(h: Hyper) -> Formula:
    by_kind: Mapping[tuple[bool, str], Callable[..., Any]] = {
        (False, "touched"): rmsprop,
        (False, "all"): rmsprop_dense,
        (True, "touched"): rmsprop_centered,
        (True, "all"): rmsprop_centered_dense,
    }
    mean = (State("mean"),) if h["centered"] else ()
    return Formula(
        by_kind[bool(h["centered"]), h["rows"]],
        lambda n: {
            "rho": n.single("rho"),
            "mu": n.single("momentum"),
            "eps": n.single("eps"),
            "one": 1.0,
            "lr": n.single_lr,
        },
        (State("mean_square", 1.0), *mean, State("momentum")),  # the mean square begins with ones
        squares="element",
    )


@lru_cache(maxsize=64)
def _running_products(base: float, count: int) -> np.ndarray[Any, Any]:
    return np.multiply.accumulate(np.full(count, base, np.float32))


def _power(n: Numbers, base: float) -> Array:
    """base^t as the variable beta_power holds it: a product more each step, each rounded to float32 (traced, the
    rounded power, since a running product has no closed form)."""
    if n.E is not modes.HOST:
        return n.E.astype(n.power(single(base)), "float32")
    t, base = int(n.t[0]), single(base)
    if base == 1.0 or base ** float(t) < 2.0**-60:  # 1 - power is then 0, or 1
        return n.number(float(base == 1.0))
    products = _running_products(base, 1 << max(10, (t - 1).bit_length()))
    return n.number(float(products[t - 1]))


def _adam(h: Hyper) -> Formula:
    # its power is a running product of what beta was at each step: another beta now would be of no use to it
    refuse_scheduled(h, 'adam with semantics="tensorflow"', "beta1", "beta2")
    return Formula(
        adam,
        lambda n: {
            "beta1": n.single("beta1"),
            "beta2": n.single("beta2"),
            "power1": _power(n, n.h["beta1"]),
            "power2": _power(n, n.h["beta2"]),
            "lr": n.single_lr,
            "eps": n.single("eps"),
            "one": 1.0,
        },
        (State("m"), State("v")),
        squares="element",
    )


def _ftrl_numbers(n: Numbers) -> Mapping[str, Any]:
    E, lr, two = n.E, n.single_lr, n.number(2.0, "float32")
    beta, l2 = (E.astype(n.array_of(n.h[name]), "float32") for name in ("beta", "l2"))
    penalty = E.round_product(two, l2 + E.div(beta, E.round_product(two, lr)))
    shrinkage = n.single("l2_shrinkage")
    return with_power(n.h, {"lr": lr, "l1": n.single("l1"), "penalty": penalty, "shrinkage": shrinkage + shrinkage})


def _ftrl(h: Hyper) -> Formula:
    state = (State("z"), State("n", "initial_accumulator"))
    return Formula(ftrl_kind(h, ftrl, ftrl_linear, ftrl_power), _ftrl_numbers, state, squares="element")


#: optimizer -> its preset
PRESETS: Mapping[str, Preset] = {
    "sgd": Preset(
        {"lr": None, "momentum": 0.0, "nesterov": False},
        _sgd,
        "tf.compat.v1.train.GradientDescentOptimizer, tf.compat.v1.train.MomentumOptimizer",
    ),
    "adagrad": Preset({"lr": None, "initial_accumulator": 0.1}, _adagrad, "tf.compat.v1.train.AdagradOptimizer"),
    "rmsprop": Preset(
        {"lr": None, "rho": 0.9, "eps": 1e-10, "momentum": 0.0, "centered": False},
        _rmsprop,
        "tf.compat.v1.train.RMSPropOptimizer",
    ),
    "adam": Preset(
        {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8},
        _adam,
        "tf.contrib.opt.LazyAdamOptimizer, tf.compat.v1.train.AdamOptimizer",
    ),
    "ftrl": Preset(
        {"lr": None, **FTRL},
        _ftrl,
        "tf.compat.v1.train.FtrlOptimizer",
    ),
}
