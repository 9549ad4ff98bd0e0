"""Lion: the record, under every semantics. SPEC clauses 11 and 16."""

from __future__ import annotations

from typing import Any, Unpack

from islices.optim.factory import Options, make, public
from islices.optim.formulas import Formula, State
from islices.optim.frameworks import ALL
from islices.optim.hyperparameters import Hyper, Scheduled, decays
from islices.optim.operators import mul, sign
from islices.optim.optimizer import Optimizer
from islices.optim.record import Preset, Record

__all__ = ["LION", "lion"]


# ---------------------------------------------------------------------- islices' own
def islices_lion(g: Any, w: Any, m: Any, gain1: Any, gain2: Any, lr: Any, one: Any, zero: Any) -> Any:
    """Chen et al. 2023; gain1 and gain2 are 1 - beta."""
    c = m + mul(gain1, g - m)
    return w - mul(lr, sign(c, zero, one)), m + mul(gain2, g - m)


def _islices(h: Hyper) -> Formula:
    return Formula(
        islices_lion,
        lambda n: {
            "gain1": n.complement("beta1"),
            "gain2": n.complement("beta2"),
            "lr": n.lr,
            "one": 1.0,
            "zero": 0.0,
        },
        (State("m"),),
        decay=decays(h, "decoupled"),
    )


# ---------------------------------------------------------------------- keras.optimizers
def keras_lion(g: Any, w: Any, m: Any, beta1: Any, beta2: Any, one: Any, zero: Any, lr: Any, decay: Any) -> Any:
    """Betas pass through float32; 1 - beta is formed in the table's type."""
    w = w - mul(mul(w, decay), lr)
    c = mul(m, beta1) + mul(g, one - beta1)
    return w - mul(lr, sign(c, zero, one)), mul(m, beta2) + mul(g, one - beta2)


def _keras(h: Hyper) -> Formula:
    return Formula(
        keras_lion,
        lambda n: {
            "beta1": n.single("beta1"),
            "beta2": n.single("beta2"),
            "one": 1.0,
            "zero": 0.0,
            "lr": n.single_lr,
            "decay": n.single("weight_decay"),
        },
        (State("m"),),
        rows=ALL,
    )


# ---------------------------------------------------------------------- optax
def optax_lion(
    g: Any, w: Any, m: Any, gain1: Any, gain2: Any, beta1: Any, beta2: Any, one: Any, zero: Any, lr: Any, penalty: Any,
) -> Any:  # fmt: skip
    """The weight times penalty joins the sign, ahead of the learning rate."""
    c = mul(gain1, g) + mul(beta1, m)
    return w - mul(lr, sign(c, zero, one) + mul(penalty, w)), mul(gain2, g) + mul(beta2, m)


def _optax(h: Hyper) -> Formula:
    return Formula(
        optax_lion,
        lambda n: {
            "gain1": n.complement("beta1"),
            "gain2": n.complement("beta2"),
            "beta1": n.h["beta1"],
            "beta2": n.h["beta2"],
            "one": 1.0,
            "zero": 0.0,
            "lr": n.lr,
            "penalty": n.h["weight_decay"],
        },
        (State("m"),),
        rows=ALL,
    )


# ---------------------------------------------------------------------- the record
BETAS: Hyper = {"beta1": 0.9, "beta2": 0.99}
LION = Record(
    "lion",
    "Lion",
    ("lr", "beta1", "beta2", "weight_decay"),
    {
        "islices": Preset({"lr": None, **BETAS, "weight_decay": 0.0}, _islices),
        "keras": Preset({"lr": 1e-3, **BETAS, "weight_decay": 0.0}, _keras, "keras.optimizers.Lion", within=0.0),
        "optax": Preset({"lr": None, **BETAS, "weight_decay": 1e-3}, _optax, "optax.lion", within=0.0),
    },
    stored={"m": "exp_avg"},
)


@public(LION)
def lion(
    lr: Scheduled | None = None,
    *,
    beta1: Scheduled | None = None,
    beta2: Scheduled | None = None,
    weight_decay: Scheduled | None = None,
    **options: Unpack[Options],
) -> Optimizer:
    """Lion: every element moves by the learning rate, in the direction of a running mean (Chen et al. 2023).

    Parameters
    ----------
    beta1 : float, default 0.9
        Decay of the running mean where the gradient joins it for the direction.
    beta2 : float, default 0.99
        Decay of the running mean that is kept.
    weight_decay : float, default 0
        The rows that move are multiplied by 1 - lr * weight_decay first.

    Notes
    -----
    ``w - lr sign(m + (1 - beta1) (g - m))``, then ``m = m + (1 - beta2) (g - m)``; 0 is the sign of 0.
    """
    return make("lion", lr=lr, beta1=beta1, beta2=beta2, weight_decay=weight_decay, **options)
