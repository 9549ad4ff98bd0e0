"""The arithmetic of mxnet.optimizer (1.9), in its own order of operations. SPEC clauses 11 and 16.

MXNet's kernels take every hyperparameter as a float32, whatever the table holds, and compute with it in the table's
dtype: 1 - beta is 1 - float32(beta). docs/optimizers.md has each formula and how closely it is followed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from islices.arguments import show
from islices.optim import rules
from islices.optim.formulas import Formula, Numbers, Preset, State
from islices.optim.hyperparameters import Hyper, is_on, refuse_scheduled
from islices.optim.operators import absolute, div, less_equal, maximum, minimum, mul, sqrt, where

__all__ = ["PRESETS"]


# ---------------------------------------------------------------------- rules
def sgd_shrinking(g: Any, w: Any, lr: Any, wd: Any, one: Any) -> Any:
    """Weight decay as a factor of the weight, formed in the table's dtype."""
    return (mul(one - mul(lr, wd), w) - mul(lr, g),)


def sgd_shrunk(g: Any, w: Any, lr: Any, keep: Any) -> Any:
    return (mul(keep, w) - mul(lr, g),)


def momentum(g: Any, w: Any, momentum: Any, mu: Any, lr: Any, wd: Any) -> Any:
    """The buffer is of steps: the learning rate, and the sign, stand inside it."""
    momentum = mul(mu, momentum) - mul(mul(lr, wd), w) - mul(lr, g)
    return w + momentum, momentum


def adam(
    g: Any, w: Any, m: Any, v: Any, beta1: Any, beta2: Any, gain1: Any, gain2: Any, rate: Any, eps: Any, wd: Any
) -> Any:
    """rate is lr sqrt(1 - beta2^t) / (1 - beta1^t): epsilon is added to the root that is not corrected."""
    g = g + mul(wd, w)
    m = mul(beta1, m) + mul(gain1, g)
    v = mul(beta2, v) + mul(mul(gain2, g), g)
    return w - div(mul(rate, m), sqrt(v) + eps), m, v


def adam_standard(
    g: Any, w: Any, m: Any, v: Any, beta1: Any, beta2: Any, gain1: Any, gain2: Any, rate: Any, eps: Any, wd: Any
) -> Any:
    """The kernel of lazy_update=False squares the gradient first."""
    g = g + mul(wd, w)
    m = mul(beta1, m) + mul(gain1, g)
    v = mul(beta2, v) + mul(gain2, mul(g, g))
    return w - div(mul(rate, m), sqrt(v) + eps), m, v


def adagrad(g: Any, q: Any, w: Any, accumulator: Any, lr: Any, eps: Any) -> Any:
    """Epsilon stands under the root."""
    accumulator = accumulator + q
    return w - mul(div(g, sqrt(accumulator + eps)), lr), accumulator


def adagrad_decay(g: Any, q: Any, w: Any, accumulator: Any, lr: Any, eps: Any, wd: Any) -> Any:
    """Weight decay is not divided by the root."""
    accumulator = accumulator + q
    return w - mul(div(g, sqrt(accumulator + eps)) + mul(w, wd), lr), accumulator


def group_adagrad(g: Any, q: Any, w: Any, accumulator: Any, lr: Any, eps: Any) -> Any:
    """q is the mean over the row. The learning rate multiplies before the root divides."""
    accumulator = accumulator + q
    return w - div(mul(lr, g), sqrt(accumulator + eps)), accumulator


def rmsprop(g: Any, w: Any, mean_square: Any, rho: Any, gain: Any, lr: Any, eps: Any, wd: Any) -> Any:
    g = g + mul(wd, w)
    mean_square = mul(gain, mul(g, g)) + mul(rho, mean_square)
    return w - mul(lr, div(g, sqrt(mean_square + eps))), mean_square


def rmsprop_centered(
    g: Any, w: Any, mean_square: Any, mean: Any, momentum: Any, rho: Any, gain: Any, mu: Any, lr: Any, eps: Any, wd: Any
) -> Any:
    """The buffer is of steps, with learning rate and sign; nothing but epsilon keeps the variance above zero."""
    g = g + mul(wd, w)
    mean_square = mul(mul(gain, g), g) + mul(rho, mean_square)
    mean = mul(gain, g) + mul(rho, mean)
    momentum = mul(mu, momentum) - div(mul(lr, g), sqrt(mean_square - mul(mean, mean) + eps))
    return w + momentum, mean_square, mean, momentum


def ftrl(g: Any, q: Any, w: Any, z: Any, n: Any, lr: Any, l1: Any, l2: Any, beta: Any, zero: Any, one: Any) -> Any:
    """The weight is multiplied by 0 where |z| <= l1, not replaced: it is NaN where the quotient is not finite."""
    total = n + q
    root = sqrt(total)
    z = z + (g - div(mul(root - sqrt(n), w), lr))
    bounded = minimum(maximum(z, -l1), l1)
    w = mul(div(bounded - z, div(beta + root, lr) + l2), where(less_equal(absolute(z), l1), zero, one))
    return w, z, total


# ---------------------------------------------------------------------- numbers
def _with_rate(**names: str) -> Callable[[Numbers], Mapping[str, Any]]:
    """A rule's numbers, hyperparameters rounded to float32, by the hyperparameters' names; and the learning rate."""
    return lambda n: {**{own: n.single(name) for own, name in names.items()}, "lr": n.single_lr}


# ---------------------------------------------------------------------- formulas
def _sgd(h: Hyper) -> Formula:
    if is_on(h["momentum"]):
        return Formula(momentum, _with_rate(mu="momentum", wd="weight_decay"), (State("momentum"),))
    if not is_on(h["weight_decay"]):
        return Formula(rules.sgd, _with_rate())
    if h["rows"] == "touched":
        numbers = _with_rate(wd="weight_decay")
        return Formula(sgd_shrinking, lambda n: {**numbers(n), "one": 1.0})
    return Formula(sgd_shrunk, _keep)


def _keep(n: Numbers) -> Mapping[str, Any]:
    """The standard update forms its factor 1 - lr wd in float32, also for a table of float64."""
    E, rate = n.E, n.single_lr
    decay = E.astype(n.array_of(n.h["weight_decay"]), "float32")
    return {"lr": rate, "keep": n.number(1.0, "float32") - E.round_product(rate, decay)}


def _one_less(n: Numbers, x: Any) -> Any:
    """1 - x in float64, for a rounded x."""
    return n.number(1.0) - n.array_of(x)


def _adam_numbers(n: Numbers) -> Mapping[str, Any]:
    """The rate is formed in float64 by Python, and rounded once."""
    E, one, h = n.E, n.number(1.0), n.h
    beta1, beta2 = n.single("beta1"), n.single("beta2")
    correction = E.div(E.sqrt(one - n.power(h["beta2"])), one - n.power(h["beta1"]))
    return {
        "beta1": beta1,
        "beta2": beta2,
        "gain1": _one_less(n, beta1),
        "gain2": _one_less(n, beta2),
        "rate": E.astype(E.round_product(n.lr, correction), "float32"),
        "eps": n.single("eps"),
        "wd": n.single("weight_decay"),
    }


def _adam(h: Hyper) -> Formula:
    return Formula(adam if h["rows"] == "touched" else adam_standard, _adam_numbers, (State("m"), State("v")))


def _adagrad(h: Hyper) -> Formula:
    state = (State("accumulator"),)
    if is_on(h["weight_decay"]):
        # MXNet's sparse kernel refuses it; its dense form is Python over arrays, whose numbers are float64
        numbers = lambda n: {"lr": n.lr, "eps": n.h["eps"], "wd": n.h["weight_decay"]}  # noqa: E731
        return Formula(adagrad_decay, numbers, state, squares="element", rows=("all",))
    return Formula(adagrad, _with_rate(eps="eps"), state, squares="element")


def _rowwise_adagrad(h: Hyper) -> Formula:
    return Formula(group_adagrad, _with_rate(eps="eps"), (State("accumulator", per_row=True),), squares="row")


#: gamma2 of mx.optimizer.RMSProp
GAMMA2 = 0.9


def _rmsprop(h: Hyper) -> Formula:
    """Dense kernels alone: a sparse gradient is made dense, so that the means of all rows decay."""
    names = {"rho": "rho", "eps": "eps", "wd": "weight_decay", **({"mu": "momentum"} if h["centered"] else {})}
    rounded = _with_rate(**names)

    def numbers(n: Numbers) -> Mapping[str, Any]:
        named = rounded(n)
        return {**named, "gain": _one_less(n, named["rho"])}  # rounded to the table's dtype, not to float32

    if h["centered"]:
        state = (State("mean_square"), State("mean"), State("momentum"))
        return Formula(rmsprop_centered, numbers, state, rows=("all",))
    refuse_scheduled(h, 'rmsprop with semantics="mxnet"', "momentum")
    if h["momentum"] not in (0, GAMMA2):
        raise ValueError(f"momentum: got {show(h['momentum'])}; MXNet's RMSProp has one with centered=True only")
    return Formula(rmsprop, numbers, (State("mean_square"),), rows=("all",))


def _ftrl(h: Hyper) -> Formula:
    rounded = _with_rate(l1="l1", l2="l2", beta="beta")
    state = (State("z"), State("n"))
    return Formula(ftrl, lambda n: {**rounded(n), "zero": 0.0, "one": 1.0}, state, squares="element")


#: optimizer -> its preset
PRESETS: Mapping[str, Preset] = {
    "sgd": Preset({"lr": 0.01, "momentum": 0.0, "weight_decay": 0.0}, _sgd, "mx.optimizer.SGD"),
    "adagrad": Preset({"lr": 0.01, "eps": 1e-7, "weight_decay": 0.0}, _adagrad, "mx.optimizer.AdaGrad"),
    "rowwise_adagrad": Preset({"lr": 0.01, "eps": 1e-5}, _rowwise_adagrad, "mx.optimizer.contrib.GroupAdaGrad"),
    "rmsprop": Preset(
        {"lr": 0.001, "rho": 0.9, "eps": 1e-8, "momentum": GAMMA2, "centered": False, "weight_decay": 0.0},
        _rmsprop,
        "mx.optimizer.RMSProp",
    ),
    "adam": Preset(
        {"lr": 0.001, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.0}, _adam, "mx.optimizer.Adam"
    ),
    "ftrl": Preset({"lr": 0.1, "l1": 0.01, "l2": 0.0, "beta": 1.0}, _ftrl, "mx.optimizer.Ftrl"),
}
