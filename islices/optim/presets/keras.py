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

from collections.abc import Callable, Mapping
from typing import Any

from islices.arguments import is_real
from islices.optim import rules
from islices.optim.formulas import (
    FORMULAS,
    FTRL,
    Formula,
    Numbers,
    Preset,
    State,
    adam_state,
    ftrl_kind,
    rmsprop_kind,
    single,
    with_power,
)
from islices.optim.hyperparameters import Hyper, is_on
from islices.optim.operators import div, maximum, minimum, mul, power, sqrt

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


def amsgrad(
    g: Any,
    q: Any,
    w: Any,
    m: Any,
    v: Any,
    v_max: Any,
    gain1: Any,
    gain2: Any,
    power1: Any,
    power2: Any,
    one: Any,
    lr: Any,
    eps: Any,
    decay: Any,
) -> Any:
    """The largest mean of squares so far (velocity_hat) stands under the root."""
    rate = div(mul(lr, sqrt(one - power2)), one - power1)
    w = w - mul(mul(w, decay), lr)
    m = m + mul(g - m, gain1)
    v = v + mul(q - v, gain2)
    v_max = maximum(v_max, v)
    return w - div(mul(m, rate), sqrt(v_max) + eps), m, v, v_max


def ftrl(g: Any, q: Any, w: Any, z: Any, n: Any, lr: Any, l1: Any, l2: Any, beta: Any, shrinkage: Any, two: Any) -> Any:
    """2 (l2 + beta / (2 lr)) stands in the denominator; shrinkage is 2 l2_shrinkage. A row without a gradient is
    computed anew from its z: 0 there gives 0."""
    total = n + q
    root = sqrt(total)
    z = z + ((g + mul(shrinkage, w)) - mul(div(root - sqrt(n), lr), w))
    quadratic = div(root, lr) + mul(two, l2 + div(beta, mul(two, lr)))
    return div(minimum(maximum(z, -l1), l1) - z, quadratic), z, total


def ftrl_linear(
    g: Any, q: Any, w: Any, z: Any, n: Any, lr: Any, l1: Any, l2: Any, beta: Any, shrinkage: Any, two: Any
) -> Any:
    """With learning_rate_power -1."""
    total = n + q
    z = z + ((g + mul(shrinkage, w)) - mul(div(total - n, lr), w))
    quadratic = div(total, lr) + mul(two, l2 + div(beta, mul(two, lr)))
    return div(minimum(maximum(z, -l1), l1) - z, quadratic), z, total


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
    shrinkage: Any,
    two: Any,
    exponent: Any,
    one: Any,
) -> Any:
    """With any other learning_rate_power."""
    total = n + q
    raised = power(total, exponent, one)
    z = z + ((g + mul(shrinkage, w)) - mul(div(raised - power(n, exponent, one), lr), w))
    quadratic = div(raised, lr) + mul(two, l2 + div(beta, mul(two, lr)))
    return div(minimum(maximum(z, -l1), l1) - z, quadratic), z, total


# ---------------------------------------------------------------------- formulas
def _raw(h: Hyper) -> bool:
    return bool(h["duplicates"] == "raw")


def _sgd(h: Hyper) -> Formula:
    mu = h["momentum"]
    if is_on(mu):
        if is_real(mu) and mu > 1:
            raise ValueError(f'momentum: got {mu}; accepted with semantics="keras" is 0 <= value <= 1')
        return Formula(
            nesterov if h["nesterov"] else momentum,
            lambda n: {"mu": n.single("momentum"), "lr": n.single_lr, "decay": n.single("weight_decay")},
            (State("momentum"),),
            rows=("all",),
            raw=_raw(h),
        )
    if is_on(h["weight_decay"]):
        numbers = lambda n: {"lr": n.single_lr, "decay": n.single("weight_decay")}  # noqa: E731
        return Formula(sgd_decayed, numbers, rows=("all",), raw=_raw(h))
    return Formula(rules.sgd, lambda n: {"lr": n.single_lr}, raw=_raw(h))


def _adagrad(h: Hyper) -> Formula:
    decaying = is_on(h["weight_decay"])

    def numbers(n: Numbers) -> Mapping[str, Any]:
        named = {"lr": n.single_lr, "eps": n.h["eps"]}
        return {**named, "decay": n.single("weight_decay")} if decaying else named

    return Formula(
        adagrad_decayed if decaying else adagrad,
        numbers,
        (State("accumulator", single(h["initial_accumulator"])),),
        squares="element",
        rows=("all",) if decaying else ("touched", "all"),
        raw=_raw(h),
    )


def _rmsprop(h: Hyper) -> Formula:
    buffered = is_on(h["momentum"])

    def numbers(n: Numbers) -> Mapping[str, Any]:
        named = {"rho": n.h["rho"], "gain": n.complement("rho"), "eps": n.h["eps"], "lr": n.single_lr}
        named["decay"] = n.single("weight_decay")
        return {**named, "mu": n.h["momentum"]} if buffered else named

    return Formula(
        rmsprop_kind(h, rmsprop, rmsprop_momentum, rmsprop_centered, rmsprop_centered_momentum),
        numbers,
        FORMULAS["rmsprop"].formula(h).state,
        squares="element",
        rows=("all",),
        raw=_raw(h),
    )


def _adam_numbers(n: Numbers) -> Mapping[str, Any]:
    return {
        "gain1": n.complement("beta1"),
        "gain2": n.complement("beta2"),
        "power1": n.library_power(n.single("beta1")),  # TensorFlow's float32 pow is mostly the float64 one rounded
        "power2": n.library_power(n.single("beta2")),
        "one": 1.0,
        "lr": n.single_lr,
        "eps": n.h["eps"],
        "decay": n.single("weight_decay"),
    }


def _adam(h: Hyper) -> Formula:
    rule: Callable[..., Any] = amsgrad if h["amsgrad"] else adam
    return Formula(rule, _adam_numbers, adam_state(h), squares="element", rows=("all",), raw=_raw(h))


def _ftrl_numbers(n: Numbers) -> Mapping[str, Any]:
    named = {"lr": n.single_lr, **{name: n.h[name] for name in ("l1", "l2", "beta")}, "two": 2.0}
    shrinkage = n.h["l2_shrinkage"]
    return with_power(n.h, {**named, "shrinkage": shrinkage + shrinkage})


def _ftrl(h: Hyper) -> Formula:
    return Formula(
        ftrl_kind(h, ftrl, ftrl_linear, ftrl_power),
        _ftrl_numbers,
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
        {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-7, "weight_decay": 0.0, "amsgrad": False},
        _adam,
        "keras.optimizers.Adam",
    ),
    "adamw": Preset(
        {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-7, "weight_decay": 4e-3, "amsgrad": False},
        _adam,
        "keras.optimizers.AdamW",
    ),
    "ftrl": Preset(
        {"lr": 1e-3, **FTRL},
        _ftrl,
        "keras.optimizers.Ftrl",
    ),
}
