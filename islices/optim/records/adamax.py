"""Adamax: the record, under every semantics. SPEC clauses 11 and 16."""

from __future__ import annotations

from typing import Any, Unpack

from islices.optim.factory import Options, make, public
from islices.optim.formulas import Formula, State
from islices.optim.frameworks import ALL
from islices.optim.hyperparameters import Hyper, Scheduled, decays
from islices.optim.operators import absolute, div, lerp, maximum, mul
from islices.optim.optimizer import Optimizer
from islices.optim.record import Preset, Record
from islices.optim.records.adam import BETAS, keras_numbers, optax_numbers, torch_numbers

__all__ = ["ADAMAX", "adamax"]

STATE = (State("m"), State("u", positive=True))


# ---------------------------------------------------------------------- islices' own
def islices_adamax(g: Any, w: Any, m: Any, u: Any, gain1: Any, beta2: Any, rate: Any, eps: Any) -> Any:
    """Kingma and Ba 2015, algorithm 2, with eps. gain1 is 1 - beta1, rate is lr / (1 - beta1^t)."""
    m = m + mul(gain1, g - m)
    u = maximum(mul(beta2, u), absolute(g))
    return w - mul(rate, div(m, u + eps)), m, u


def _islices(h: Hyper) -> Formula:
    return Formula(
        islices_adamax,
        lambda n: {
            "gain1": n.complement("beta1"),
            "beta2": n.h["beta2"],
            "rate": n.E.div(n.lr, n.number(1.0) - n.power(n.h["beta1"])),
            "eps": n.h["eps"],
        },
        STATE,
        decay=decays(h),
    )


# ---------------------------------------------------------------------- torch.optim
def torch_adamax(
    g: Any, w: Any, m: Any, u: Any, gain1: Any, beta2: Any, rate: Any, eps: Any, half: Any, one: Any
) -> Any:
    """eps is added to the size of the gradient; with 1 - beta1 from a half on, lerp_ starts at the gradient."""
    m = lerp(m, g, gain1, half, one)
    u = maximum(mul(beta2, u), absolute(g) + eps)
    return w - div(mul(rate, m), u), m, u


def _torch(h: Hyper) -> Formula:
    return Formula(torch_adamax, torch_numbers, STATE, decay=decays(h), rows=ALL)


# ---------------------------------------------------------------------- keras.optimizers
def keras_adamax(
    g: Any, w: Any, m: Any, u: Any, gain1: Any, beta2: Any, power1: Any, one: Any, lr: Any, eps: Any, decay: Any
) -> Any:
    """The bias correction stands in the denominator."""
    w = w - mul(mul(w, decay), lr)
    m = m + mul(g - m, gain1)
    u = maximum(mul(beta2, u), absolute(g))
    return w - div(mul(lr, m), mul(one - power1, u + eps)), m, u


def _keras(h: Hyper) -> Formula:
    return Formula(keras_adamax, keras_numbers, STATE, rows=ALL)


# ---------------------------------------------------------------------- optax
def optax_adamax(
    g: Any, w: Any, m: Any, u: Any, gain1: Any, beta1: Any, beta2: Any, correction1: Any, lr: Any, eps: Any
) -> Any:
    m = mul(gain1, g) + mul(beta1, m)
    u = maximum(absolute(g) + eps, mul(beta2, u))
    return w - mul(lr, div(div(m, correction1), u)), m, u


def _optax(h: Hyper) -> Formula:
    return Formula(optax_adamax, optax_numbers, STATE, rows=ALL)


# ---------------------------------------------------------------------- the record
ADAMAX = Record(
    "adamax",
    "Adamax",
    ("lr", "beta1", "beta2", "eps", "weight_decay"),
    {
        "islices": Preset({"lr": None, **BETAS, "eps": 1e-8, "weight_decay": 0.0}, _islices),
        "keras": Preset({"lr": 1e-3, **BETAS, "eps": 1e-7, "weight_decay": 0.0}, _keras, "keras.optimizers.Adamax"),
        "optax": Preset({"lr": None, **BETAS, "eps": 1e-8}, _optax, "optax.adamax"),
        "torch": Preset({"lr": 2e-3, **BETAS, "eps": 1e-8, "weight_decay": 0.0}, _torch, "torch.optim.Adamax"),
    },
    stored={"m": "exp_avg", "u": "exp_inf"},
)


@public(ADAMAX)
def adamax(
    lr: Scheduled | None = None,
    *,
    beta1: Scheduled | None = None,
    beta2: Scheduled | None = None,
    eps: Scheduled | None = None,
    weight_decay: Scheduled | None = None,
    **options: Unpack[Options],
) -> Optimizer:
    """Adamax: Adam with the largest size of a gradient in place of the mean square (Kingma and Ba 2015, algorithm 2).

    Parameters
    ----------
    beta1 : float, default 0.9
        Decay of the running mean of gradients.
    beta2 : float, default 0.999
        Decay of the largest size so far.
    eps : float, default 1e-8
        Added to that size.
    weight_decay : float, default 0
        weight_decay * w is added to the gradient of the rows that move.

    Notes
    -----
    ``m = m + (1 - beta1) (g - m)``, ``u = max(beta2 u, |g|)``, then ``w - (lr / (1 - beta1^t)) (m / (u + eps))``. t
    counts the table's steps from 1.
    """
    return make("adamax", lr=lr, beta1=beta1, beta2=beta2, eps=eps, weight_decay=weight_decay, **options)
