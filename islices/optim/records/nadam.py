"""Nadam: the record, under every semantics. SPEC clauses 11 and 16."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Unpack

import numpy as np

from islices.backend import Array
from islices.core import modes
from islices.optim.factory import Options, make, public
from islices.optim.formulas import Formula, State
from islices.optim.frameworks import ALL, correction, raw
from islices.optim.hyperparameters import Hyper, Limit, Scheduled, decays, refuse_scheduled
from islices.optim.numbers import Numbers, power_of, single
from islices.optim.operators import array_power, div, lerp, mul, sqrt
from islices.optim.optimizer import Optimizer
from islices.optim.record import Preset, Record
from islices.optim.records.adam import BETAS, optax_numbers

__all__ = ["NADAM", "nadam"]

STATE = (State("m"), State("v", positive=True))


# ---------------------------------------------------------------------- the schedule of momentum
# mu_t = beta1 (1 - 0.5 c^t) with c = 0.96^momentum_decay (Dozat 2016). Frameworks keep the product mu_1 ... mu_t as a
# state; here it is beta1^t, of the present beta1, times the product of 1 - 0.5 c^k, a function of t that soon is
# constant: no state, and a table where the step is traced.
@lru_cache(maxsize=64)
def _fading(momentum_decay: float) -> float:
    """c"""
    one = np.ones(1)
    with modes.HOST.scope():
        return float(array_power(modes.HOST, np.array((0.96,)), np.array((float(momentum_decay),)), one)[0])


@lru_cache(maxsize=64)
def _products(c: float) -> np.ndarray[Any, Any]:
    """The products of 1 - 0.5 c^k for k up to 1, 2 ..., to the first that all later ones equal; 0 below 1e-290."""
    products: list[float] = []
    product, factor = 1.0, 0.0
    while product and factor != 1.0:
        factor = 1.0 - 0.5 * power_of(c, len(products) + 1)
        product = product * factor
        product = product if product > 1e-290 else 0.0
        products.append(product)
    return np.array(products)


def _momenta(n: Numbers, beta1: Any, c: float) -> tuple[Array, Array]:
    """mu_t and mu_(t+1)"""
    E, one, half = n.E, n.number(1.0), n.number(0.5)
    now = n.power(c)
    after = E.round_product(now, n.number(c))
    first, second = (E.round_product(n.array_of(beta1), one - E.round_product(half, x)) for x in (now, after))
    return first, second


def _product(n: Numbers, beta1: Any, c: float) -> Array:
    """mu_1 ... mu_t"""
    products = _products(c)
    last = n.array(np.full(1, len(products) - 1, np.int32))
    place = n.E.where(n.E.in_range(n.count, len(products)), n.count, last)
    return n.E.round_product(n.power(beta1), n.E.take(n.array(products), place))


def _rates(n: Numbers, mu: Array, after: Array, product: Array) -> tuple[Array, Array]:
    """What the gradient is multiplied by, and what the running mean."""
    E, one = n.E, n.number(1.0)
    head = E.div(E.round_product(n.lr, one - mu), one - product)
    return head, E.div(E.round_product(n.lr, after), one - E.round_product(product, after))


# ---------------------------------------------------------------------- islices' own
def islices_nadam(
    g: Any, q: Any, w: Any, m: Any, v: Any, gain1: Any, gain2: Any, head: Any, rate: Any, root: Any, eps: Any
) -> Any:
    """Dozat 2016. gain1 and gain2 are 1 - beta, root is sqrt(1 - beta2^t)."""
    m = m + mul(gain1, g - m)
    v = v + mul(gain2, q - v)
    return w - div(mul(head, g) + mul(rate, m), div(sqrt(v), root) + eps), m, v


def _numbers(n: Numbers) -> Mapping[str, Any]:
    beta1, c = n.h["beta1"], _fading(n.h["momentum_decay"])
    head, rate = _rates(n, *_momenta(n, beta1, c), _product(n, beta1, c))
    return {
        "gain1": n.complement("beta1"),
        "gain2": n.complement("beta2"),
        "head": head,
        "rate": rate,
        "root": n.E.sqrt(n.number(1.0) - n.power(n.h["beta2"])),
        "eps": n.h["eps"],
    }


def _mu_product(h: Hyper, t: int) -> float:
    """What torch keeps as mu_product."""
    return (
        float(_torch_products(h["beta1"], h["momentum_decay"], 1 << max(10, (t - 1).bit_length()))[t - 1]) if t else 1.0
    )


def _decay(h: Hyper) -> str:
    return decays(h, "decoupled" if h["decoupled_weight_decay"] else "coupled")


def _islices(h: Hyper) -> Formula:
    return Formula(islices_nadam, _numbers, STATE, squares="element", decay=_decay(h))


# ---------------------------------------------------------------------- torch.optim
def torch_nadam(
    g: Any, w: Any, m: Any, v: Any, gain1: Any, beta2: Any, gain2: Any, head: Any, rate: Any, correction2: Any,
    eps: Any, half: Any, one: Any,
) -> Any:  # fmt: skip
    """Two quotients; with 1 - beta1 from a half on, lerp_ starts at the gradient."""
    m = lerp(m, g, gain1, half, one)
    v = mul(beta2, v) + mul(mul(gain2, g), g)
    under = sqrt(div(v, correction2)) + eps
    return w - div(mul(head, g), under) - div(mul(rate, m), under), m, v


@lru_cache(maxsize=64)
def _torch_products(beta1: float, momentum_decay: float, count: int) -> np.ndarray[Any, Any]:
    """mu_product as torch keeps it, a float32, as far as 1 minus it is not 1."""
    products = np.zeros(count, np.float32)
    product = np.float32(1.0)
    for k in range(count):
        product = product * np.float32(beta1 * (1.0 - 0.5 * 0.96 ** ((k + 1.0) * momentum_decay)))
        if product < 2.0**-60:
            break
        products[k] = product
    return products


def _torch_numbers(n: Numbers) -> Mapping[str, Any]:
    """Where the step is traced, the rounded product stands for that of rounded factors, which has no closed form."""
    h, E, one = n.h, n.E, n.number(1.0)
    if E is modes.HOST:
        t, beta1, psi = float(n.t[0]), h["beta1"], h["momentum_decay"]
        mu, after = (n.number(beta1 * (1.0 - 0.5 * 0.96 ** (k * psi))) for k in (t, t + 1.0))
        product = n.number(_mu_product(h, int(t)))
    else:
        c = _fading(h["momentum_decay"])
        mu, after = _momenta(n, h["beta1"], c)
        product = E.astype(E.astype(_product(n, h["beta1"], c), "float32"), "float64")
    head, rate = _rates(n, mu, after, product)
    return {
        "gain1": n.complement("beta1"),
        "beta2": h["beta2"],
        "gain2": n.complement("beta2"),
        "head": head,
        "rate": rate,
        "correction2": one - n.library_power(h["beta2"]),
        "eps": h["eps"],
        "half": 0.5,
        "one": 1.0,
    }


def _torch(h: Hyper) -> Formula:
    # mu_product is a product of what beta1 was at each step
    refuse_scheduled(h, 'nadam with semantics="torch"', "beta1")
    return Formula(torch_nadam, _torch_numbers, STATE, decay=_decay(h), rows=ALL)


# ---------------------------------------------------------------------- keras.optimizers
def keras_nadam(
    g: Any, q: Any, w: Any, m: Any, v: Any, beta1: Any, beta2: Any, mu: Any, after: Any, product: Any, power2: Any,
    one: Any, lr: Any, eps: Any, decay: Any,
) -> Any:  # fmt: skip
    """Corrections are formed in the table's type."""
    w = w - mul(mul(w, decay), lr)
    m = m + mul(g - m, one - beta1)
    v = v + mul(q - v, one - beta2)
    mean = div(mul(after, m), one - mul(product, after)) + div(mul(one - mu, g), one - product)
    return w - div(mul(mean, lr), sqrt(div(v, one - power2)) + eps), m, v


def _keras_numbers(n: Numbers) -> Mapping[str, Any]:
    """Both betas, and 0.96 but in the product, pass through float32."""
    mu, after = _momenta(n, n.single("beta1"), single(0.96))
    return {
        "beta1": n.single("beta1"),
        "beta2": n.single("beta2"),
        "mu": mu,
        "after": after,
        "product": _product(n, n.h["beta1"], 0.96),
        "power2": n.library_power(n.single("beta2")),
        "one": 1.0,
        "lr": n.single_lr,
        "eps": n.h["eps"],
        "decay": n.single("weight_decay"),
    }


def _keras(h: Hyper) -> Formula:
    return Formula(keras_nadam, _keras_numbers, STATE, squares="element", rows=ALL, raw=raw(h))


# ---------------------------------------------------------------------- optax
def optax_nadam(
    g: Any, q: Any, w: Any, m: Any, v: Any, gain1: Any, gain2: Any, beta1: Any, beta2: Any, correction1: Any,
    after1: Any, correction2: Any, lr: Any, eps: Any,
) -> Any:  # fmt: skip
    """Nesterov's adam, without a schedule; after1 is the correction of the next step."""
    m = mul(gain1, g) + mul(beta1, m)
    v = mul(gain2, q) + mul(beta2, v)
    mean = mul(beta1, div(m, after1)) + mul(gain1, div(g, correction1))
    return w - mul(lr, div(mean, sqrt(div(v, correction2)) + eps)), m, v


def _optax_numbers(n: Numbers) -> Mapping[str, Any]:
    after = Numbers(n.E, n.count + n.array(np.ones(1, np.int32)), n.lr, n.h)
    return {**optax_numbers(n), "after1": correction(after, "beta1")}


def _optax(h: Hyper) -> Formula:
    return Formula(optax_nadam, _optax_numbers, STATE, squares="element", rows=ALL)


# ---------------------------------------------------------------------- the record
SCHEDULE: Hyper = {"weight_decay": 0.0, "momentum_decay": 4e-3, "decoupled_weight_decay": False}
NADAM = Record(
    "nadam",
    "NAdam",
    ("lr", "beta1", "beta2", "eps", "weight_decay", "momentum_decay", "decoupled_weight_decay"),
    {
        "islices": Preset({"lr": None, **BETAS, "eps": 1e-8, **SCHEDULE}, _islices),
        "keras": Preset({"lr": 1e-3, **BETAS, "eps": 1e-7, "weight_decay": 0.0}, _keras, "keras.optimizers.Nadam"),
        "optax": Preset({"lr": None, **BETAS, "eps": 1e-8}, _optax, "optax.nadam"),
        "torch": Preset({"lr": 2e-3, **BETAS, "eps": 1e-8, **SCHEDULE}, _torch, "torch.optim.NAdam"),
    },
    stored={"m": "exp_avg", "v": "exp_avg_sq"},
    recomputed={"mu_product": _mu_product},
    fixed=("momentum_decay",),
    limits={"momentum_decay": Limit("0 <= momentum_decay < 256", lambda x: 0 <= x < 256)},
)


@public(NADAM)
def nadam(
    lr: Scheduled | None = None,
    *,
    beta1: Scheduled | None = None,
    beta2: Scheduled | None = None,
    eps: Scheduled | None = None,
    weight_decay: Scheduled | None = None,
    momentum_decay: float | None = None,
    decoupled_weight_decay: bool | None = None,
    **options: Unpack[Options],
) -> Optimizer:
    """Nadam: Adam with Nesterov's momentum, which grows by the step (Dozat 2016).

    Parameters
    ----------
    beta1, beta2 : float, default 0.9 and 0.999
        Decay of the running means of gradients and of their squares; where they change, the corrections of step t are
        formed with the betas of step t.
    eps : float, default 1e-8
        Added to the root of the corrected mean square.
    weight_decay : float, default 0
        weight_decay * w is added to the gradient of the rows that move.
    momentum_decay : float, 0 <= momentum_decay < 256, default 4e-3
        How fast the momentum grows: mu at step t is beta1 (1 - 0.96^(t momentum_decay) / 2). Keras has 1, optax none.
    decoupled_weight_decay : bool, default False
        Multiply the rows that move by 1 - lr * weight_decay first instead.

    Notes
    -----
    ``m = m + (1 - beta1) (g - m)``, ``v = v + (1 - beta2) (g g - v)``, with P the product of mu over the steps up to t
    and mu' that of the next, then ``w - (lr (1 - mu) / (1 - P) g + lr mu' / (1 - P mu') m) / (sqrt(v) / sqrt(1 -
    beta2^t) + eps)``. t counts the table's steps from 1.
    """
    return make(
        "nadam",
        lr=lr,
        beta1=beta1,
        beta2=beta2,
        eps=eps,
        weight_decay=weight_decay,
        momentum_decay=momentum_decay,
        decoupled_weight_decay=decoupled_weight_decay,
        **options,
    )
