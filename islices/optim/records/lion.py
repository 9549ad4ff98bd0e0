"""Lion: the record, under every semantics. SPEC clauses 11 and 16."""

from __future__ import annotations

from typing import Unpack

from islices.optim.factory import Options, made, public
from islices.optim.formulas import Formula, State
from islices.optim.frameworks import ALL
from islices.optim.hyperparameters import Hyper, Scheduled, decays
from islices.optim.numbers import Numbers, Singles
from islices.optim.operators import mul, sign
from islices.optim.optimizer import Optimizer
from islices.optim.record import Preset, Record
from islices.optim.rules import running

__all__ = ["LION", "lion"]


def lion_rule(g, w, m, gain1, gain2, lr, one, zero, beta1=None, beta2=None, penalty=None):
    """Chen et al. 2023; gain1 and gain2 are 1 - beta. The weight times penalty joins the sign."""
    step = sign(running(m, g, gain1, beta1), zero, one)
    if penalty is not None:
        step = step + mul(penalty, w)
    return w - mul(lr, step), running(m, g, gain2, beta2)


class Optax(Numbers):
    def penalty(self):
        return self.h["weight_decay"]


def _islices(h: Hyper) -> Formula:
    return Formula(lion_rule, Numbers, (State("m"),), decay=decays(h, "decoupled"))


def _keras(h: Hyper) -> Formula:
    return Formula(lion_rule, Singles, (State("m"),), "", "shrunk", ALL, options=("beta1", "beta2"))


def _optax(h: Hyper) -> Formula:
    return Formula(lion_rule, Optax, (State("m"),), rows=ALL, options=("beta1", "beta2", "penalty"))


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
    return made("lion", locals())
