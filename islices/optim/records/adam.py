"""Adam and AdamW: the records, under every semantics. SPEC clauses 11 and 16."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, Unpack

import numpy as np

from islices.backend import Array
from islices.core import modes
from islices.optim.factory import Options, make, public
from islices.optim.formulas import Formula, State
from islices.optim.frameworks import ALL, correction, one_less, raw
from islices.optim.hyperparameters import Hyper, Scheduled, decays, is_on, refuse_scheduled
from islices.optim.numbers import Numbers, single
from islices.optim.operators import div, lerp, maximum, mul, sqrt
from islices.optim.optimizer import Optimizer
from islices.optim.record import Preset, Record

__all__ = ["ADAM", "ADAMW", "BETAS", "adam", "adamw", "keras_numbers", "optax_numbers", "torch_numbers"]

BETAS: Hyper = {"beta1": 0.9, "beta2": 0.999}


# ---------------------------------------------------------------------- islices' own


def islices_adam(g: Any, q: Any, w: Any, m: Any, v: Any, gain1: Any, gain2: Any, rate: Any, root: Any, eps: Any) -> Any:
    """Kingma and Ba 2015, algorithm 1. gain1 and gain2 are 1 - beta; rate is lr / (1 - beta1^t) and root is
    sqrt(1 - beta2^t), t counted from 1."""
    m = m + mul(gain1, g - m)
    v = v + mul(gain2, q - v)
    return w - mul(rate, div(m, div(sqrt(v), root) + eps)), m, v


def islices_amsgrad(
    g: Any, q: Any, w: Any, m: Any, v: Any, v_max: Any, gain1: Any, gain2: Any, rate: Any, root: Any, eps: Any
) -> Any:
    """Reddi et al. 2018: the largest mean of squares so far stands under the root; the same numbers as adam."""
    m = m + mul(gain1, g - m)
    v = v + mul(gain2, q - v)
    v_max = maximum(v_max, v)
    return w - mul(rate, div(m, div(sqrt(v_max), root) + eps)), m, v, v_max


def adam_state(h: Hyper) -> tuple[State, ...]:
    """The running means, and with amsgrad the largest mean of squares so far."""
    return (State("m"), State("v", positive=True), *[State("v_max", positive=True)] * bool(h["amsgrad"]))


def _islices_numbers(n: Numbers) -> Mapping[str, Any]:
    E, one = n.E, n.number(1.0)
    return {
        "gain1": n.complement("beta1"),
        "gain2": n.complement("beta2"),
        "rate": E.div(n.lr, one - n.power(n.h["beta1"])),
        "root": E.sqrt(one - n.power(n.h["beta2"])),
        "eps": n.h["eps"],
    }


def _islices(h: Hyper) -> Formula:
    rule: Callable[..., Any] = islices_amsgrad if h["amsgrad"] else islices_adam
    return Formula(rule, _islices_numbers, adam_state(h), squares="element", decay=decays(h))


def _adamw_islices(h: Hyper) -> Formula:
    return replace(_islices(h), decay=decays(h, "decoupled"))


# ---------------------------------------------------------------------- torch.optim


def torch_sparse_adam(g: Any, q: Any, w: Any, m: Any, v: Any, gain1: Any, gain2: Any, rate: Any, eps: Any) -> Any:
    """eps goes to the root as it is; rate is lr * sqrt(1 - beta2^t) / (1 - beta1^t)."""
    m = m + mul(gain1, g - m)
    v = v + mul(gain2, q - v)
    return w - mul(rate, div(m, sqrt(v) + eps)), m, v


def torch_adam_dense(
    g: Any, w: Any, m: Any, v: Any, gain1: Any, beta2: Any, gain2: Any, rate: Any, root: Any, eps: Any, half: Any,
    one: Any,
) -> Any:  # fmt: skip
    """lerp_, addcmul_, addcdiv_; root is sqrt(1 - beta2^t), rate is lr / (1 - beta1^t)."""
    m = lerp(m, g, gain1, half, one)
    v = mul(beta2, v) + mul(mul(gain2, g), g)
    return w - div(mul(rate, m), div(sqrt(v), root) + eps), m, v


def torch_amsgrad_dense(
    g: Any, w: Any, m: Any, v: Any, v_max: Any, gain1: Any, beta2: Any, gain2: Any, rate: Any, root: Any, eps: Any,
    half: Any, one: Any,
) -> Any:  # fmt: skip
    """The largest mean of squares so far, before its correction, stands under the root."""
    m = lerp(m, g, gain1, half, one)
    v = mul(beta2, v) + mul(mul(gain2, g), g)
    v_max = maximum(v_max, v)
    return w - div(mul(rate, m), div(sqrt(v_max), root) + eps), m, v, v_max


def _torch_sparse_numbers(n: Numbers) -> Mapping[str, Any]:
    E, one = n.E, n.number(1.0)
    rate = E.round_product(n.lr, E.sqrt(one - n.library_power(n.h["beta2"])))
    return {
        "gain1": n.complement("beta1"),
        "gain2": n.complement("beta2"),
        "rate": E.div(rate, one - n.library_power(n.h["beta1"])),
        "eps": n.h["eps"],
    }


def torch_numbers(n: Numbers) -> Mapping[str, Any]:
    one = n.number(1.0)
    rest = one - n.library_power(n.h["beta2"])
    return {
        "gain1": n.complement("beta1"),
        "beta2": n.h["beta2"],
        "gain2": n.complement("beta2"),
        "rate": n.E.div(n.lr, one - n.library_power(n.h["beta1"])),
        "root": n.number(float(rest[0]) ** 0.5) if n.E is modes.HOST else n.E.sqrt(rest),
        "eps": n.h["eps"],
        "half": 0.5,
        "one": 1.0,
    }


def _torch_dense(h: Hyper) -> Formula:
    rule: Callable[..., Any] = torch_amsgrad_dense if h["amsgrad"] else torch_adam_dense
    return Formula(rule, torch_numbers, adam_state(h), decay=decays(h), rows=ALL)


def _torch(h: Hyper) -> Formula:
    if h["amsgrad"] or is_on(h["weight_decay"]):  # SparseAdam has neither
        return _torch_dense(h)
    if h["rows"] == "all":
        return replace(_torch_dense(h), rows=("touched", "all"))
    return Formula(torch_sparse_adam, _torch_sparse_numbers, adam_state(h), squares="element")


def _adamw_torch(h: Hyper) -> Formula:
    return replace(_torch_dense(h), decay=decays(h, "decoupled"))


# ---------------------------------------------------------------------- keras.optimizers


def keras_adam(
    g: Any, q: Any, w: Any, m: Any, v: Any, gain1: Any, gain2: Any, power1: Any, power2: Any, one: Any, lr: Any,
    eps: Any, decay: Any,
) -> Any:  # fmt: skip
    """eps is added to the uncorrected root; the rate is computed in the table's type."""
    rate = div(mul(lr, sqrt(one - power2)), one - power1)
    w = w - mul(mul(w, decay), lr)
    m = m + mul(g - m, gain1)
    v = v + mul(q - v, gain2)
    return w - div(mul(m, rate), sqrt(v) + eps), m, v


def keras_amsgrad(
    g: Any, q: Any, w: Any, m: Any, v: Any, v_max: Any, gain1: Any, gain2: Any, power1: Any, power2: Any, one: Any,
    lr: Any, eps: Any, decay: Any,
) -> Any:  # fmt: skip
    """The largest mean of squares so far (velocity_hat) stands under the root."""
    rate = div(mul(lr, sqrt(one - power2)), one - power1)
    w = w - mul(mul(w, decay), lr)
    m = m + mul(g - m, gain1)
    v = v + mul(q - v, gain2)
    v_max = maximum(v_max, v)
    return w - div(mul(m, rate), sqrt(v_max) + eps), m, v, v_max


def keras_numbers(n: Numbers) -> Mapping[str, Any]:
    return {
        "gain1": n.complement("beta1"),
        "gain2": n.complement("beta2"),
        "beta2": n.h["beta2"],
        "power1": n.library_power(n.single("beta1")),  # TensorFlow's float32 pow is mostly the float64 one rounded
        "power2": n.library_power(n.single("beta2")),
        "one": 1.0,
        "lr": n.single_lr,
        "eps": n.h["eps"],
        "decay": n.single("weight_decay"),
    }


def _keras(h: Hyper) -> Formula:
    rule: Callable[..., Any] = keras_amsgrad if h["amsgrad"] else keras_adam
    return Formula(rule, keras_numbers, adam_state(h), squares="element", rows=ALL, raw=raw(h))


# ---------------------------------------------------------------------- tf.compat.v1.train


def tensorflow_adam(
    g: Any, q: Any, w: Any, m: Any, v: Any, beta1: Any, beta2: Any, power1: Any, power2: Any, lr: Any, eps: Any,
    one: Any,
) -> Any:  # fmt: skip
    """eps is added to the uncorrected root; the rate is computed in the table's type."""
    rate = div(mul(lr, sqrt(one - power2)), one - power1)
    m = mul(m, beta1) + mul(g, one - beta1)
    v = mul(v, beta2) + mul(q, one - beta2)
    return w - div(mul(rate, m), sqrt(v) + eps), m, v


@lru_cache(maxsize=64)
def _running_products(base: float, count: int) -> np.ndarray[Any, Any]:
    return np.multiply.accumulate(np.full(count, base, np.float32))


def _tensorflow_power(n: Numbers, base: float) -> Array:
    """base^t as the variable beta_power holds it: a product more each step, each rounded to float32 (traced, the
    rounded power, since a running product has no closed form)."""
    if n.E is not modes.HOST:
        return n.E.astype(n.power(single(base)), "float32")
    t, base = int(n.t[0]), single(base)
    if base == 1.0 or base ** float(t) < 2.0**-60:  # 1 - power is then 0, or 1
        return n.number(float(base == 1.0))
    products = _running_products(base, 1 << max(10, (t - 1).bit_length()))
    return n.number(float(products[t - 1]))


def _tensorflow_numbers(n: Numbers) -> Mapping[str, Any]:
    return {
        "beta1": n.single("beta1"),
        "beta2": n.single("beta2"),
        "power1": _tensorflow_power(n, n.h["beta1"]),
        "power2": _tensorflow_power(n, n.h["beta2"]),
        "lr": n.single_lr,
        "eps": n.single("eps"),
        "one": 1.0,
    }


def _tensorflow(h: Hyper) -> Formula:
    # its power is a running product of what beta was at each step: another beta now would be of no use to it
    refuse_scheduled(h, 'adam with semantics="tensorflow"', "beta1", "beta2")
    return Formula(tensorflow_adam, _tensorflow_numbers, (State("m"), State("v")), squares="element")


# ---------------------------------------------------------------------- mxnet.optimizer


def mxnet_adam(
    g: Any, w: Any, m: Any, v: Any, beta1: Any, beta2: Any, gain1: Any, gain2: Any, rate: Any, eps: Any, wd: Any
) -> Any:
    """rate is lr sqrt(1 - beta2^t) / (1 - beta1^t): epsilon is added to the root that is not corrected."""
    g = g + mul(wd, w)
    m = mul(beta1, m) + mul(gain1, g)
    v = mul(beta2, v) + mul(mul(gain2, g), g)
    return w - div(mul(rate, m), sqrt(v) + eps), m, v


def mxnet_adam_standard(
    g: Any, w: Any, m: Any, v: Any, beta1: Any, beta2: Any, gain1: Any, gain2: Any, rate: Any, eps: Any, wd: Any
) -> Any:
    """The kernel of lazy_update=False squares the gradient first."""
    g = g + mul(wd, w)
    m = mul(beta1, m) + mul(gain1, g)
    v = mul(beta2, v) + mul(gain2, mul(g, g))
    return w - div(mul(rate, m), sqrt(v) + eps), m, v


def _mxnet_numbers(n: Numbers) -> Mapping[str, Any]:
    """The rate is formed in float64 by Python, and rounded once."""
    E, one, h = n.E, n.number(1.0), n.h
    beta1, beta2 = n.single("beta1"), n.single("beta2")
    correction = E.div(E.sqrt(one - n.power(h["beta2"])), one - n.power(h["beta1"]))
    return {
        "beta1": beta1,
        "beta2": beta2,
        "gain1": one_less(n, beta1),
        "gain2": one_less(n, beta2),
        "rate": E.astype(E.round_product(n.lr, correction), "float32"),
        "eps": n.single("eps"),
        "wd": n.single("weight_decay"),
    }


def _mxnet(h: Hyper) -> Formula:
    return Formula(
        mxnet_adam if h["rows"] == "touched" else mxnet_adam_standard, _mxnet_numbers, (State("m"), State("v"))
    )


# ---------------------------------------------------------------------- optax


def optax_adam(
    g: Any, q: Any, w: Any, m: Any, v: Any, gain1: Any, gain2: Any, beta1: Any, beta2: Any, correction1: Any,
    correction2: Any, lr: Any, eps: Any,
) -> Any:  # fmt: skip
    m = mul(gain1, g) + mul(beta1, m)
    v = mul(gain2, q) + mul(beta2, v)
    return w - mul(lr, div(div(m, correction1), sqrt(div(v, correction2)) + eps)), m, v


def optax_adamw(
    g: Any, q: Any, w: Any, m: Any, v: Any, gain1: Any, gain2: Any, beta1: Any, beta2: Any, correction1: Any,
    correction2: Any, lr: Any, eps: Any, penalty: Any,
) -> Any:  # fmt: skip
    """The weight times penalty joins the direction, ahead of the learning rate."""
    m = mul(gain1, g) + mul(beta1, m)
    v = mul(gain2, q) + mul(beta2, v)
    direction = div(div(m, correction1), sqrt(div(v, correction2)) + eps)
    return w - mul(lr, direction + mul(penalty, w)), m, v


def optax_amsgrad(
    g: Any, q: Any, w: Any, m: Any, v: Any, v_max: Any, gain1: Any, gain2: Any, beta1: Any, beta2: Any,
    correction1: Any, correction2: Any, lr: Any, eps: Any,
) -> Any:  # fmt: skip
    """scale_by_amsgrad: the largest of the corrected means."""
    m = mul(gain1, g) + mul(beta1, m)
    v = mul(gain2, q) + mul(beta2, v)
    v_max = maximum(v_max, div(v, correction2))
    return w - mul(lr, div(div(m, correction1), sqrt(v_max) + eps)), m, v, v_max


def optax_numbers(n: Numbers) -> Mapping[str, Any]:
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


def _optax(h: Hyper) -> Formula:
    rule: Callable[..., Any] = optax_amsgrad if h["amsgrad"] else optax_adam
    return Formula(rule, optax_numbers, adam_state(h), squares="element", rows=ALL)


def _adamw_optax(h: Hyper) -> Formula:
    own = _optax({**h, "amsgrad": False})  # optax has no amsgrad with decoupled weight decay
    if not is_on(h["weight_decay"]):
        return own
    return replace(own, rule=optax_adamw, numbers=lambda n: {**optax_numbers(n), "penalty": n.h["weight_decay"]})


# ---------------------------------------------------------------------- the record
ARGUMENTS = ("lr", "beta1", "beta2", "eps", "weight_decay", "amsgrad")
STORED = {"m": "exp_avg", "v": "exp_avg_sq", "v_max": "max_exp_avg_sq"}
ADAM = Record(
    "adam",
    "Adam",
    ARGUMENTS,
    {
        "islices": Preset({"lr": None, **BETAS, "eps": 1e-8, "weight_decay": 0.0, "amsgrad": False}, _islices),
        "keras": Preset(
            {"lr": 1e-3, **BETAS, "eps": 1e-7, "weight_decay": 0.0, "amsgrad": False}, _keras, "keras.optimizers.Adam"
        ),
        "mxnet": Preset({"lr": 0.001, **BETAS, "eps": 1e-8, "weight_decay": 0.0}, _mxnet, "mx.optimizer.Adam"),
        "optax": Preset(
            {"lr": None, **BETAS, "eps": 1e-8, "amsgrad": False},
            _optax,
            "optax.adam, optax.amsgrad",
            terms={"v_max": 1.0},
        ),
        "tensorflow": Preset(
            {"lr": 1e-3, **BETAS, "eps": 1e-8},
            _tensorflow,
            "tf.contrib.opt.LazyAdamOptimizer, tf.compat.v1.train.AdamOptimizer",
        ),
        "torch": Preset(
            {"lr": 1e-3, **BETAS, "eps": 1e-8, "weight_decay": 0.0, "amsgrad": False},
            _torch,
            "torch.optim.SparseAdam, torch.optim.Adam",
        ),
    },
    decoupled=False,
    stored=STORED,
    added=("v_max",),
)
ADAMW = Record(
    "adamw",
    "AdamW",
    ARGUMENTS,
    {
        "islices": Preset({"lr": None, **BETAS, "eps": 1e-8, "weight_decay": 1e-2, "amsgrad": False}, _adamw_islices),
        "keras": Preset(
            {"lr": 1e-3, **BETAS, "eps": 1e-7, "weight_decay": 4e-3, "amsgrad": False}, _keras, "keras.optimizers.AdamW"
        ),
        "optax": Preset({"lr": None, **BETAS, "eps": 1e-8, "weight_decay": 1e-4}, _adamw_optax, "optax.adamw"),
        "torch": Preset(
            {"lr": 1e-3, **BETAS, "eps": 1e-8, "weight_decay": 1e-2, "amsgrad": False},
            _adamw_torch,
            "torch.optim.AdamW",
        ),
    },
    decoupled=True,
    variant_of="adam",
    stored=STORED,
    added=("v_max",),
)


@public(ADAM)
def adam(
    lr: Scheduled | None = None,
    *,
    beta1: Scheduled | None = None,
    beta2: Scheduled | None = None,
    eps: Scheduled | None = None,
    weight_decay: Scheduled | None = None,
    amsgrad: bool | None = None,
    **options: Unpack[Options],
) -> Optimizer:
    """Adam (Kingma and Ba 2015, algorithm 1); with rows="touched" the lazy one.

    Parameters
    ----------
    beta1, beta2 : float, default 0.9 and 0.999
        Decay of the running means of gradients and of their squares; where they change, the bias correction of step t
        is 1 - beta^t with the beta of step t.
    eps : float, default 1e-8
        Added to the root of the corrected mean square.
    weight_decay : float, default 0
        weight_decay * w is added to the gradient of the rows that move; see `adamw` for the decoupled one.
    amsgrad : bool, default False
        Divide by the root of the largest mean square so far (Reddi et al. 2018): a third array of state, "v_max".
        Of semantics islices, keras, optax, torch.

    Notes
    -----
    ``m = m + (1 - beta1) (g - m)``, ``v = v + (1 - beta2) (g g - v)``, then
    ``w - (lr / (1 - beta1^t)) (m / (sqrt(v) / sqrt(1 - beta2^t) + eps))``. t counts the table's steps from 1.
    """
    return make("adam", lr=lr, beta1=beta1, beta2=beta2, eps=eps, weight_decay=weight_decay, amsgrad=amsgrad, **options)


@public(ADAMW)
def adamw(
    lr: Scheduled | None = None,
    *,
    beta1: Scheduled | None = None,
    beta2: Scheduled | None = None,
    eps: Scheduled | None = None,
    weight_decay: Scheduled | None = None,
    amsgrad: bool | None = None,
    **options: Unpack[Options],
) -> Optimizer:
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019).

    Parameters
    ----------
    beta1, beta2 : float, default 0.9 and 0.999
        Decay of the running means of gradients and of their squares; where they change, the bias correction of step t
        is 1 - beta^t with the beta of step t.
    eps : float, default 1e-8
        Added to the root of the corrected mean square.
    weight_decay : float, default 0.01
        The rows that move are multiplied by 1 - lr * weight_decay first.
    amsgrad : bool, default False
        Divide by the root of the largest mean square so far (Reddi et al. 2018): a third array of state, "v_max".
        Of semantics islices, keras, torch.

    Notes
    -----
    ``w = (1 - lr weight_decay) w``, then the step of `adam`.
    """
    return make(
        "adamw", lr=lr, beta1=beta1, beta2=beta2, eps=eps, weight_decay=weight_decay, amsgrad=amsgrad, **options
    )
