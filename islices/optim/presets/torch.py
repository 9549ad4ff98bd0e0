"""The arithmetic of torch.optim, in its own order of operations. SPEC clauses 11 and 16.

What torch runs on CPU by default (foreach and fused None): a loop over parameters. Where a class has a path of its
own for sparse gradients, rows="touched" is that path, and rows="all" the dense one. torch's kernels contract products
that feed a sum to FMA where the processor has it, and take their roots from MKL, which rounds some the other way; here
every operation rounds once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from islices import modes
from islices.arguments import is_real
from islices.optim.formulas import FORMULAS, Formula, Numbers, Preset, adam_state, decays, rmsprop_kind
from islices.optim.hyperparameters import Hyper, is_on
from islices.optim.operators import div, less_equal, maximum, mul, sqrt, where

__all__ = ["PRESETS"]


# ---------------------------------------------------------------------- rules that differ from islices' own
def adagrad_dense(g: Any, q: Any, w: Any, accumulator: Any, lr: Any, eps: Any) -> Any:
    """The learning rate enters ahead of the quotient (addcdiv_)."""
    accumulator = accumulator + q
    return w - div(mul(lr, g), sqrt(accumulator) + eps), accumulator


def sparse_adam(g: Any, q: Any, w: Any, m: Any, v: Any, gain1: Any, gain2: Any, rate: Any, eps: Any) -> Any:
    """eps goes to the root as it is; rate is lr * sqrt(1 - beta2^t) / (1 - beta1^t)."""
    m = m + mul(gain1, g - m)
    v = v + mul(gain2, q - v)
    return w - mul(rate, div(m, sqrt(v) + eps)), m, v


def adam_dense(
    g: Any, w: Any, m: Any, v: Any, gain1: Any, beta2: Any, gain2: Any, rate: Any, root: Any, eps: Any
) -> Any:
    """lerp_, addcmul_, addcdiv_; root is sqrt(1 - beta2^t), rate is lr / (1 - beta1^t)."""
    m = m + mul(gain1, g - m)
    v = mul(beta2, v) + mul(mul(gain2, g), g)
    return w - div(mul(rate, m), div(sqrt(v), root) + eps), m, v


def adam_dense_far(
    g: Any,
    w: Any,
    m: Any,
    v: Any,
    gain1: Any,
    beta2: Any,
    gain2: Any,
    rate: Any,
    root: Any,
    eps: Any,
    half: Any,
    one: Any,
) -> Any:
    """The same for any beta1: with 1 - beta1 from a half on, lerp_ starts at the gradient."""
    far = less_equal(half, gain1)
    m = where(far, g, m) + mul(where(far, gain1 - one, gain1), g - m)
    v = mul(beta2, v) + mul(mul(gain2, g), g)
    return w - div(mul(rate, m), div(sqrt(v), root) + eps), m, v


def amsgrad_dense(
    g: Any,
    w: Any,
    m: Any,
    v: Any,
    v_max: Any,
    gain1: Any,
    beta2: Any,
    gain2: Any,
    rate: Any,
    root: Any,
    eps: Any,
    half: Any,
    one: Any,
) -> Any:
    """The largest mean of squares so far, before its correction, stands under the root."""
    far = less_equal(half, gain1)
    m = where(far, g, m) + mul(where(far, gain1 - one, gain1), g - m)
    v = mul(beta2, v) + mul(mul(gain2, g), g)
    v_max = maximum(v_max, v)
    return w - div(mul(rate, m), div(sqrt(v_max), root) + eps), m, v, v_max


def rmsprop(g: Any, w: Any, mean_square: Any, rho: Any, gain: Any, lr: Any, eps: Any) -> Any:
    """gain is 1 - rho."""
    mean_square = mul(rho, mean_square) + mul(mul(gain, g), g)
    return w - div(mul(lr, g), sqrt(mean_square) + eps), mean_square


def rmsprop_momentum(
    g: Any, w: Any, mean_square: Any, momentum: Any, rho: Any, gain: Any, mu: Any, lr: Any, eps: Any
) -> Any:
    mean_square = mul(rho, mean_square) + mul(mul(gain, g), g)
    momentum = mul(mu, momentum) + div(g, sqrt(mean_square) + eps)
    return w - mul(lr, momentum), mean_square, momentum


def rmsprop_centered(
    g: Any, w: Any, mean_square: Any, mean: Any, rho: Any, gain: Any, lr: Any, eps: Any, half: Any, one: Any
) -> Any:
    """Nothing keeps the variance from rounding to less than zero: NaN then, as in torch."""
    mean_square = mul(rho, mean_square) + mul(mul(gain, g), g)
    far = less_equal(half, gain)  # lerp_ starts at the gradient then
    mean = where(far, g, mean) + mul(where(far, gain - one, gain), g - mean)
    return w - div(mul(lr, g), sqrt(mean_square - mul(mean, mean)) + eps), mean_square, mean


def rmsprop_centered_momentum(
    g: Any,
    w: Any,
    mean_square: Any,
    mean: Any,
    momentum: Any,
    rho: Any,
    gain: Any,
    mu: Any,
    lr: Any,
    eps: Any,
    half: Any,
    one: Any,
) -> Any:
    mean_square = mul(rho, mean_square) + mul(mul(gain, g), g)
    far = less_equal(half, gain)
    mean = where(far, g, mean) + mul(where(far, gain - one, gain), g - mean)
    momentum = mul(mu, momentum) + div(g, sqrt(mean_square - mul(mean, mean)) + eps)
    return w - mul(lr, momentum), mean_square, mean, momentum


# ---------------------------------------------------------------------- formulas
def _sgd(h: Hyper) -> Formula:
    mu, dampening = h["momentum"], h["dampening"]
    if h["nesterov"] and (not is_on(mu) or is_on(dampening)):
        raise ValueError(
            f"nesterov: got True with momentum={mu} and dampening={dampening}; "
            'accepted with semantics="torch" is momentum > 0 and dampening=0'
        )
    own = FORMULAS["sgd"].formula(h)
    if not is_on(mu):  # a sparse gradient with weight decay raises in torch
        return own._replace(rows=("all",)) if is_on(h["weight_decay"]) else own

    def numbers(n: Numbers) -> Mapping[str, Any]:
        """The buffer begins with the first gradient itself, not dampened."""
        named, first = own.numbers(n), n.E.equal(n.count, 0)
        return {**named, "gain": n.E.where(first, n.number(1.0), n.array_of(named["gain"]))}

    # torch keeps the sum of all sparse gradients, and steps by it every time
    return own._replace(numbers=numbers if is_on(dampening) else own.numbers, rows=("all",))


def _adagrad(h: Hyper) -> Formula:
    own = FORMULAS["adagrad"].formula(h)
    if is_on(h["weight_decay"]):  # a sparse gradient raises in torch
        own = own._replace(rows=("all",))
    return own if h["rows"] == "touched" else own._replace(rule=adagrad_dense)


def _sparse_adam_numbers(n: Numbers) -> Mapping[str, Any]:
    E, one = n.E, n.number(1.0)
    rate = E.round_product(n.lr, E.sqrt(one - n.library_power(n.h["beta2"])))
    return {
        "gain1": n.complement("beta1"),
        "gain2": n.complement("beta2"),
        "rate": E.div(rate, one - n.library_power(n.h["beta1"])),
        "eps": n.h["eps"],
    }


def _adam_numbers(n: Numbers) -> Mapping[str, Any]:
    one = n.number(1.0)
    rest = one - n.library_power(n.h["beta2"])
    return {
        "gain1": n.complement("beta1"),
        "beta2": n.h["beta2"],
        "gain2": n.complement("beta2"),
        "rate": n.E.div(n.lr, one - n.library_power(n.h["beta1"])),
        "root": n.number(float(rest[0]) ** 0.5) if n.E is modes.HOST else n.E.sqrt(rest),
        "eps": n.h["eps"],
    }


def _adam_far_numbers(n: Numbers) -> Mapping[str, Any]:
    return {**_adam_numbers(n), "half": 0.5, "one": 1.0}


def _dense_adam(h: Hyper) -> Formula:
    state, decay = adam_state(h), decays(h)
    if h["amsgrad"]:
        return Formula(amsgrad_dense, _adam_far_numbers, state, decay=decay, rows=("all",))
    if is_real(h["beta1"]) and 1.0 - h["beta1"] < 0.5:
        return Formula(adam_dense, _adam_numbers, state, decay=decay, rows=("all",))
    return Formula(adam_dense_far, _adam_far_numbers, state, decay=decay, rows=("all",))


def _adam(h: Hyper) -> Formula:
    if h["amsgrad"] or is_on(h["weight_decay"]):  # SparseAdam has neither
        return _dense_adam(h)
    if h["rows"] == "all":
        return _dense_adam(h)._replace(rows=("touched", "all"))
    return Formula(sparse_adam, _sparse_adam_numbers, adam_state(h), squares="element")


def _adamw(h: Hyper) -> Formula:
    return _dense_adam(h)._replace(decay=decays(h, "decoupled"))


def _rmsprop(h: Hyper) -> Formula:
    own = FORMULAS["rmsprop"].formula(h)

    def numbers(n: Numbers) -> Mapping[str, Any]:
        named = {name: x for name, x in own.numbers(n).items() if name != "zero"}
        return {**named, "half": 0.5, "one": 1.0} if h["centered"] else named

    rule = rmsprop_kind(h, rmsprop, rmsprop_momentum, rmsprop_centered, rmsprop_centered_momentum)
    return own._replace(rule=rule, numbers=numbers, squares="", rows=("all",))


#: optimizer -> its preset
PRESETS: Mapping[str, Preset] = {
    "sgd": Preset(
        {"lr": 1e-3, "momentum": 0.0, "dampening": 0.0, "nesterov": False, "weight_decay": 0.0},
        _sgd,
        "torch.optim.SGD",
    ),
    "adagrad": Preset(
        {"lr": 1e-2, "eps": 1e-10, "initial_accumulator": 0.0, "lr_decay": 0.0, "weight_decay": 0.0},
        _adagrad,
        "torch.optim.Adagrad",
    ),
    "rmsprop": Preset(
        {"lr": 1e-2, "rho": 0.99, "eps": 1e-8, "momentum": 0.0, "centered": False, "weight_decay": 0.0},
        _rmsprop,
        "torch.optim.RMSprop",
    ),
    "adam": Preset(
        {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.0, "amsgrad": False},
        _adam,
        "torch.optim.SparseAdam, torch.optim.Adam",
    ),
    "adamw": Preset(
        {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 1e-2, "amsgrad": False},
        _adamw,
        "torch.optim.AdamW",
    ),
}
