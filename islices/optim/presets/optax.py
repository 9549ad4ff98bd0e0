"""The arithmetic of optax, in its own order of operations. SPEC clauses 11 and 16.

optax is dense: every row moves at every step, so rows="all" is all there is. Its own moments weigh the new gradient
first, ``(1 - beta) g + beta m``, its numbers are float32, and the roots of adagrad and rmsprop are reciprocal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from islices.backend import Array
from islices.optim.formulas import FORMULAS, Formula, Numbers, Preset, State, adam_state, rmsprop_kind
from islices.optim.hyperparameters import Hyper, is_on
from islices.optim.operators import div, less_equal, maximum, mul, sqrt, where

__all__ = ["PRESETS"]

DENSE = ("all",)


# ---------------------------------------------------------------------- rules
def adagrad(g: Any, q: Any, w: Any, accumulator: Any, lr: Any, eps: Any, one: Any, zero: Any) -> Any:
    """scale_by_rss: where(a > 0, rsqrt(a + eps), 0); a NaN is not above 0, and its element stays where it is."""
    accumulator = q + accumulator
    scale = where(less_equal(zero, accumulator), div(one, sqrt(accumulator + eps)), zero)
    scale = where(less_equal(accumulator, zero), zero, scale)
    return w - mul(lr, mul(scale, g)), accumulator


def rmsprop(g: Any, q: Any, w: Any, mean_square: Any, rho: Any, gain: Any, lr: Any, eps: Any, one: Any) -> Any:
    mean_square = mul(gain, q) + mul(rho, mean_square)
    return w - mul(lr, mul(div(one, sqrt(mean_square + eps)), g)), mean_square


def rmsprop_momentum(
    g: Any, q: Any, w: Any, mean_square: Any, momentum: Any, rho: Any, gain: Any, mu: Any, lr: Any, eps: Any, one: Any
) -> Any:
    """The buffer holds steps as they are added: learning rate and sign stand inside."""
    mean_square = mul(gain, q) + mul(rho, mean_square)
    momentum = mul(mu, momentum) - mul(lr, mul(div(one, sqrt(mean_square + eps)), g))
    return w + momentum, mean_square, momentum


def rmsprop_centered(
    g: Any, q: Any, w: Any, mean_square: Any, mean: Any, rho: Any, gain: Any, lr: Any, eps: Any, one: Any
) -> Any:
    """The variance may round below zero; epsilon, inside the root, is what keeps it above."""
    mean = mul(gain, g) + mul(rho, mean)
    mean_square = mul(gain, q) + mul(rho, mean_square)
    scale = div(one, sqrt((mean_square - mul(mean, mean)) + eps))
    return w - mul(lr, mul(scale, g)), mean_square, mean


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
    one: Any,
) -> Any:
    mean = mul(gain, g) + mul(rho, mean)
    mean_square = mul(gain, q) + mul(rho, mean_square)
    scale = div(one, sqrt((mean_square - mul(mean, mean)) + eps))
    momentum = mul(mu, momentum) - mul(lr, mul(scale, g))
    return w + momentum, mean_square, mean, momentum


def adam(
    g: Any,
    q: Any,
    w: Any,
    m: Any,
    v: Any,
    gain1: Any,
    gain2: Any,
    beta1: Any,
    beta2: Any,
    correction1: Any,
    correction2: Any,
    lr: Any,
    eps: Any,
) -> Any:
    m = mul(gain1, g) + mul(beta1, m)
    v = mul(gain2, q) + mul(beta2, v)
    return w - mul(lr, div(div(m, correction1), sqrt(div(v, correction2)) + eps)), m, v


def adamw(
    g: Any,
    q: Any,
    w: Any,
    m: Any,
    v: Any,
    gain1: Any,
    gain2: Any,
    beta1: Any,
    beta2: Any,
    correction1: Any,
    correction2: Any,
    lr: Any,
    eps: Any,
    penalty: Any,
) -> Any:
    """The weight times penalty joins the direction, ahead of the learning rate."""
    m = mul(gain1, g) + mul(beta1, m)
    v = mul(gain2, q) + mul(beta2, v)
    direction = div(div(m, correction1), sqrt(div(v, correction2)) + eps)
    return w - mul(lr, direction + mul(penalty, w)), m, v


def amsgrad(
    g: Any,
    q: Any,
    w: Any,
    m: Any,
    v: Any,
    v_max: Any,
    gain1: Any,
    gain2: Any,
    beta1: Any,
    beta2: Any,
    correction1: Any,
    correction2: Any,
    lr: Any,
    eps: Any,
) -> Any:
    """scale_by_amsgrad: the largest of the corrected means."""
    m = mul(gain1, g) + mul(beta1, m)
    v = mul(gain2, q) + mul(beta2, v)
    v_max = maximum(v_max, div(v, correction2))
    return w - mul(lr, div(div(m, correction1), sqrt(v_max) + eps)), m, v, v_max


# ---------------------------------------------------------------------- numbers
def correction(n: Numbers, beta: str) -> Array:
    """1 - beta^t as JAX without x64 computes it: beta, its power and the difference each rounded to float32.

    The difference loses digits: with beta 0.999 it is 1e-5 of itself off at the first step.
    """
    power = n.E.astype(n.power(n.single(beta)), "float32")
    return n.number(1.0, "float32") - power


# ---------------------------------------------------------------------- formulas
def _sgd(h: Hyper) -> Formula:
    own = FORMULAS["sgd"].formula({**h, "weight_decay": 0.0})._replace(rows=DENSE)
    if not is_on(h["momentum"]):
        return own
    return own._replace(numbers=lambda n: {"mu": n.h["momentum"], "gain": 1.0, "lr": n.lr})


def _adagrad(h: Hyper) -> Formula:
    return Formula(
        adagrad,
        lambda n: {"lr": n.lr, "eps": n.h["eps"], "one": 1.0, "zero": 0.0},
        (State("accumulator", "initial_accumulator"),),
        squares="element",
        rows=DENSE,
    )


def _rmsprop(h: Hyper) -> Formula:
    own = FORMULAS["rmsprop"].formula({**h, "weight_decay": 0.0})

    def numbers(n: Numbers) -> Mapping[str, Any]:
        return {**{name: x for name, x in own.numbers(n).items() if name != "zero"}, "one": 1.0}

    rule = rmsprop_kind(h, rmsprop, rmsprop_momentum, rmsprop_centered, rmsprop_centered_momentum)
    return own._replace(rule=rule, numbers=numbers, rows=DENSE)


def _adam_numbers(n: Numbers) -> Mapping[str, Any]:
    return {
        "gain1": n.complement("beta1"),
        "gain2": n.complement("beta2"),
        "beta1": n.h["beta1"],
        "beta2": n.h["beta2"],
        "correction1": correction(n, "beta1"),
        "correction2": correction(n, "beta2"),
        "lr": n.lr,
        "eps": n.h["eps"],
    }


def _adam(h: Hyper) -> Formula:
    rule: Callable[..., Any] = amsgrad if h["amsgrad"] else adam
    return Formula(rule, _adam_numbers, adam_state(h), squares="element", rows=DENSE)


def _adamw(h: Hyper) -> Formula:
    own = _adam({**h, "amsgrad": False})  # optax has no amsgrad with decoupled weight decay
    if not is_on(h["weight_decay"]):
        return own
    return own._replace(rule=adamw, numbers=lambda n: {**_adam_numbers(n), "penalty": n.h["weight_decay"]})


#: optimizer -> its preset
PRESETS: Mapping[str, Preset] = {
    "sgd": Preset({"lr": None, "momentum": 0.0, "nesterov": False}, _sgd, "optax.sgd"),
    "adagrad": Preset({"lr": None, "eps": 1e-7, "initial_accumulator": 0.1}, _adagrad, "optax.adagrad"),
    "rmsprop": Preset(
        {"lr": None, "rho": 0.9, "eps": 1e-8, "momentum": 0.0, "centered": False}, _rmsprop, "optax.rmsprop"
    ),
    "adam": Preset(
        {"lr": None, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "amsgrad": False}, _adam, "optax.adam, optax.amsgrad"
    ),
    "adamw": Preset(
        {"lr": None, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 1e-4}, _adamw, "optax.adamw"
    ),
}
