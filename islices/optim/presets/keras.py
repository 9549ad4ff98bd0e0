"""The arithmetic of keras.optimizers (3.x), in its own order of operations. SPEC clauses 11 and 16.

As the TensorFlow backend runs it, eagerly. Keras keeps slices as slices through square, and through products and
quotients by a number or a dense array, and writes those by scatter_add and scatter_sub; an addition to anything dense
makes the slices dense, which sums duplicates. So SGD and Adagrad move the rows that a gradient names, and everything
with a running mean moves them all: there is no lazy Adam. Squares are taken of each duplicate: duplicates="raw".

Weight decay is decoupled and reaches every row: w - (w wd) lr, ahead of the step. Also for a float64 table the learning
rate is a float32 variable; weight decay, SGD's momentum, Adam's betas under a power and the first accumulator pass
through float32, the other numbers do not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from islices.optim import rules
from islices.optim.formulas import FORMULAS, Formula, Hyper, Preset, State, complement, rmsprop_kind, single
from islices.optim.operators import div, maximum, minimum, mul, sqrt

__all__ = ["PRESETS"]


# ---------------------------------------------------------------------- rules
# A decay of 0 leaves w as it is; SGD and Adagrad have rules without one, since it makes every row move.
def sgd_decayed(g: Any, w: Any, lr: Any, decay: Any) -> Any:
    w = w - mul(mul(w, decay), lr)
    return (w - mul(g, lr),)


def momentum(g: Any, w: Any, momentum: Any, mu: Any, lr: Any, decay: Any) -> Any:
    """The learning rate stands inside the buffer, which points downwards."""
    w = w - mul(mul(w, decay), lr)
    momentum = mul(momentum, mu) - mul(g, lr)
    return w + momentum, momentum


def nesterov(g: Any, w: Any, momentum: Any, mu: Any, lr: Any, decay: Any) -> Any:
    w = w - mul(mul(w, decay), lr)
    momentum = mul(momentum, mu) - mul(g, lr)
    return w + (mul(momentum, mu) - mul(g, lr)), momentum


def adagrad(g: Any, q: Any, w: Any, accumulator: Any, lr: Any, eps: Any) -> Any:
    """eps stands inside the root."""
    accumulator = accumulator + q
    return w - div(mul(lr, g), sqrt(accumulator + eps)), accumulator


def adagrad_decayed(g: Any, q: Any, w: Any, accumulator: Any, lr: Any, eps: Any, decay: Any) -> Any:
    w = w - mul(mul(w, decay), lr)
    accumulator = accumulator + q
    return w - div(mul(lr, g), sqrt(accumulator + eps)), accumulator


def rmsprop(g: Any, q: Any, w: Any, mean_square: Any, rho: Any, gain: Any, lr: Any, eps: Any, decay: Any) -> Any:
    """eps stands inside the root; gain is 1 - rho."""
    w = w - mul(mul(w, decay), lr)
    mean_square = mul(rho, mean_square) + mul(gain, q)
    return w - div(mul(lr, g), sqrt(mean_square + eps)), mean_square


def rmsprop_momentum(
    g: Any, q: Any, w: Any, mean_square: Any, momentum: Any, rho: Any, gain: Any, mu: Any, lr: Any, eps: Any, decay: Any
) -> Any:
    """The learning rate stands inside the buffer."""
    w = w - mul(mul(w, decay), lr)
    mean_square = mul(rho, mean_square) + mul(gain, q)
    momentum = mul(mu, momentum) + div(mul(lr, g), sqrt(mean_square + eps))
    return w - momentum, mean_square, momentum


def rmsprop_centered(
    g: Any, q: Any, w: Any, mean_square: Any, mean: Any, rho: Any, gain: Any, lr: Any, eps: Any, decay: Any
) -> Any:
    """Only eps keeps the variance from rounding to less than zero."""
    w = w - mul(mul(w, decay), lr)
    mean_square = mul(rho, mean_square) + mul(gain, q)
    mean = mul(rho, mean) + mul(gain, g)
    return w - div(mul(lr, g), sqrt((mean_square - mul(mean, mean)) + eps)), mean_square, mean


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
    decay: Any,
) -> Any:
    w = w - mul(mul(w, decay), lr)
    mean_square = mul(rho, mean_square) + mul(gain, q)
    mean = mul(rho, mean) + mul(gain, g)
    momentum = mul(mu, momentum) + div(mul(lr, g), sqrt((mean_square - mul(mean, mean)) + eps))
    return w - momentum, mean_square, mean, momentum


def adam(
    g: Any,
    q: Any,
    w: Any,
    m: Any,
    v: Any,
    gain1: Any,
    gain2: Any,
    power1: Any,
    power2: Any,
    one: Any,
    lr: Any,
    eps: Any,
    decay: Any,
) -> Any:
    """eps is added to the uncorrected root; the rate is computed in the table's type."""
    rate = div(mul(lr, sqrt(one - power2)), one - power1)
    w = w - mul(mul(w, decay), lr)
    m = m + mul(g - m, gain1)
    v = v + mul(q - v, gain2)
    return w - div(mul(m, rate), sqrt(v) + eps), m, v


def ftrl(g: Any, q: Any, w: Any, z: Any, n: Any, lr: Any, l1: Any, l2: Any, beta: Any, two: Any) -> Any:
    """2 (l2 + beta / (2 lr)) stands in the denominator. A row without a gradient is computed anew from its z: 0 there
    gives 0."""
    total = n + q
    root = sqrt(total)
    z = z + (g - mul(div(root - sqrt(n), lr), w))
    quadratic = div(root, lr) + mul(two, l2 + div(beta, mul(two, lr)))
    return div(minimum(maximum(z, -l1), l1) - z, quadratic), z, total


def ftrl_linear(g: Any, q: Any, w: Any, z: Any, n: Any, lr: Any, l1: Any, l2: Any, beta: Any, two: Any) -> Any:
    """With learning_rate_power -1."""
    total = n + q
    z = z + (g - mul(div(total - n, lr), w))
    quadratic = div(total, lr) + mul(two, l2 + div(beta, mul(two, lr)))
    return div(minimum(maximum(z, -l1), l1) - z, quadratic), z, total


# ---------------------------------------------------------------------- formulas
def _raw(h: Hyper) -> bool:
    return bool(h["duplicates"] == "raw")


def _sgd(h: Hyper) -> Formula:
    decay = single(h["weight_decay"])
    if h["momentum"]:
        if h["momentum"] > 1:
            raise ValueError(f'momentum: got {h["momentum"]}; accepted with semantics="keras" is 0 <= value <= 1')
        return Formula(
            nesterov if h["nesterov"] else momentum,
            lambda n: {"mu": single(h["momentum"]), "lr": n.single_lr, "decay": decay},
            (State("momentum"),),
            rows=("all",),
            raw=_raw(h),
        )
    if decay:
        return Formula(sgd_decayed, lambda n: {"lr": n.single_lr, "decay": decay}, rows=("all",), raw=_raw(h))
    return Formula(rules.sgd, lambda n: {"lr": n.single_lr}, raw=_raw(h))


def _adagrad(h: Hyper) -> Formula:
    state, fixed = (State("accumulator", single(h["initial_accumulator"])),), {"eps": h["eps"]}
    if h["weight_decay"]:
        fixed["decay"] = single(h["weight_decay"])
    return Formula(
        adagrad_decayed if h["weight_decay"] else adagrad,
        lambda n: {**fixed, "lr": n.single_lr},
        state,
        squares="element",
        rows=("all",) if h["weight_decay"] else ("touched", "all"),
        raw=_raw(h),
    )


def _rmsprop(h: Hyper) -> Formula:
    fixed = {"rho": h["rho"], "gain": complement(h["rho"]), "eps": h["eps"]}
    fixed["decay"] = single(h["weight_decay"])
    if h["momentum"]:
        fixed["mu"] = h["momentum"]
    return Formula(
        rmsprop_kind(h, rmsprop, rmsprop_momentum, rmsprop_centered, rmsprop_centered_momentum),
        lambda n: {**fixed, "lr": n.single_lr},
        FORMULAS["rmsprop"].formula(h).state,
        squares="element",
        rows=("all",),
        raw=_raw(h),
    )


def _adam(h: Hyper) -> Formula:
    fixed = {"gain1": complement(h["beta1"]), "gain2": complement(h["beta2"]), "eps": h["eps"]}
    fixed |= {"one": 1.0, "decay": single(h["weight_decay"])}
    return Formula(
        adam,
        lambda n: {
            **fixed,  # TensorFlow's float32 pow is mostly the float64 one rounded
            "power1": n.library_power(single(h["beta1"])),
            "power2": n.library_power(single(h["beta2"])),
            "lr": n.single_lr,
        },
        (State("m"), State("v")),
        squares="element",
        rows=("all",),
        raw=_raw(h),
    )


def _ftrl(h: Hyper) -> Formula:
    FORMULAS["ftrl"].formula(h)  # refuses an lr_power that there is no rule for
    fixed = {**{name: h[name] for name in ("l1", "l2", "beta")}, "two": 2.0}
    return Formula(
        ftrl if h["lr_power"] == -0.5 else ftrl_linear,
        lambda n: {**fixed, "lr": n.single_lr},
        (State("z"), State("n", single(h["initial_accumulator"]))),
        squares="element",
        rows=("all",),
        raw=_raw(h),
    )


#: optimizer -> its preset
PRESETS: Mapping[str, Preset] = {
    "sgd": Preset({"lr": 1e-2, "momentum": 0.0, "nesterov": False, "weight_decay": 0.0}, _sgd, "keras.optimizers.SGD"),
    "adagrad": Preset(
        {"lr": 1e-3, "eps": 1e-7, "initial_accumulator": 0.1, "weight_decay": 0.0},
        _adagrad,
        "keras.optimizers.Adagrad",
    ),
    "rmsprop": Preset(
        {"lr": 1e-3, "rho": 0.9, "eps": 1e-7, "momentum": 0.0, "centered": False, "weight_decay": 0.0},
        _rmsprop,
        "keras.optimizers.RMSprop",
    ),
    "adam": Preset(
        {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-7, "weight_decay": 0.0}, _adam, "keras.optimizers.Adam"
    ),
    "adamw": Preset(
        {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-7, "weight_decay": 4e-3}, _adam, "keras.optimizers.AdamW"
    ),
    "ftrl": Preset(
        {"lr": 1e-3, "l1": 0.0, "l2": 0.0, "beta": 0.0, "lr_power": -0.5, "initial_accumulator": 0.1},
        _ftrl,
        "keras.optimizers.Ftrl",
    ),
}
