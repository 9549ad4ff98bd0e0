"""Gradient descent: the record of sgd, with momentum or without, under every semantics. SPEC clauses 11 and 16."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Unpack

from islices.core.arguments import is_real
from islices.optim.factory import Options, make, public
from islices.optim.formulas import Formula, State
from islices.optim.frameworks import ALL, TOUCHED, raw, with_rate
from islices.optim.hyperparameters import Hyper, Scheduled, decays, is_on
from islices.optim.numbers import Numbers
from islices.optim.operators import mul
from islices.optim.optimizer import Optimizer
from islices.optim.record import Preset, Record

__all__ = ["SGD", "sgd"]


# ---------------------------------------------------------------------- islices' own


def islices_sgd(g: Any, w: Any, lr: Any) -> Any:
    return (w - mul(lr, g),)


def islices_momentum(g: Any, w: Any, momentum: Any, mu: Any, gain: Any, lr: Any) -> Any:
    """gain is 1 - dampening. Polyak 1964; the learning rate stands outside the buffer."""
    momentum = mul(mu, momentum) + mul(gain, g)
    return w - mul(lr, momentum), momentum


def islices_nesterov(g: Any, w: Any, momentum: Any, mu: Any, gain: Any, lr: Any) -> Any:
    """Sutskever et al. 2013, with the gradient taken at w itself."""
    momentum = mul(mu, momentum) + mul(gain, g)
    return w - mul(lr, g + mul(mu, momentum)), momentum


def _islices(h: Hyper) -> Formula:
    if not is_on(h["momentum"]):
        return Formula(islices_sgd, lambda n: {"lr": n.lr}, decay=decays(h))
    rule: Callable[..., Any] = islices_nesterov if h["nesterov"] else islices_momentum
    return Formula(
        rule,
        lambda n: {"mu": n.h["momentum"], "gain": n.complement("dampening"), "lr": n.lr},
        (State("momentum"),),
        decay=decays(h),
    )


# ---------------------------------------------------------------------- torch.optim


def _torch(h: Hyper) -> Formula:
    mu, dampening = h["momentum"], h["dampening"]
    if h["nesterov"] and (not is_on(mu) or is_on(dampening)):
        raise ValueError(
            f"nesterov: got True with momentum={mu} and dampening={dampening}; "
            'accepted with semantics="torch" is momentum > 0 and dampening=0'
        )
    own = _islices(h)
    if not is_on(mu):  # a sparse gradient with weight decay raises in torch
        return replace(own, rows=("all",)) if is_on(h["weight_decay"]) else own

    def numbers(n: Numbers) -> Mapping[str, Any]:
        """The buffer begins with the first gradient itself, not dampened."""
        named, first = own.numbers(n), n.E.equal(n.count, 0)
        return {**named, "gain": n.E.where(first, n.number(1.0), n.array_of(named["gain"]))}

    # torch keeps the sum of all sparse gradients, and steps by it every time
    return replace(own, numbers=numbers if is_on(dampening) else own.numbers, rows=("all",))


# ---------------------------------------------------------------------- keras.optimizers


def keras_sgd_decayed(g: Any, w: Any, lr: Any, decay: Any) -> Any:
    w = w - mul(mul(w, decay), lr)
    return (w - mul(g, lr),)


def keras_momentum(g: Any, w: Any, momentum: Any, mu: Any, lr: Any, decay: Any) -> Any:
    """The learning rate stands inside the buffer, which points downwards."""
    w = w - mul(mul(w, decay), lr)
    momentum = mul(momentum, mu) - mul(g, lr)
    return w + momentum, momentum


def keras_nesterov(g: Any, w: Any, momentum: Any, mu: Any, lr: Any, decay: Any) -> Any:
    w = w - mul(mul(w, decay), lr)
    momentum = mul(momentum, mu) - mul(g, lr)
    return w + (mul(momentum, mu) - mul(g, lr)), momentum


def _keras(h: Hyper) -> Formula:
    mu = h["momentum"]
    if is_on(mu):
        if is_real(mu) and mu > 1:
            raise ValueError(f'momentum: got {mu}; accepted with semantics="keras" is 0 <= value <= 1')
        return Formula(
            keras_nesterov if h["nesterov"] else keras_momentum,
            lambda n: {"mu": n.single("momentum"), "lr": n.single_lr, "decay": n.single("weight_decay")},
            (State("momentum"),),
            rows=("all",),
            raw=raw(h),
        )
    if is_on(h["weight_decay"]):
        numbers = lambda n: {"lr": n.single_lr, "decay": n.single("weight_decay")}  # noqa: E731
        return Formula(keras_sgd_decayed, numbers, rows=("all",), raw=raw(h))
    return Formula(islices_sgd, lambda n: {"lr": n.single_lr}, raw=raw(h))


# ---------------------------------------------------------------------- tf.compat.v1.train


def tensorflow_momentum(g: Any, w: Any, momentum: Any, mu: Any, lr: Any) -> Any:
    momentum = mul(momentum, mu) + g
    return w - mul(momentum, lr), momentum


def tensorflow_nesterov_dense(g: Any, w: Any, momentum: Any, mu: Any, lr: Any) -> Any:
    momentum = mul(momentum, mu) + g
    return w - (mul(g, lr) + mul(mul(momentum, mu), lr)), momentum


def tensorflow_nesterov(g: Any, w: Any, momentum: Any, mu: Any, lr: Any) -> Any:
    momentum = mul(momentum, mu) + g
    return w - (mul(g, lr) + mul(momentum, mul(mu, lr))), momentum


def _tensorflow(h: Hyper) -> Formula:
    if not is_on(h["momentum"]):
        return Formula(islices_sgd, lambda n: {"lr": n.single_lr})
    by_rows = {"touched": tensorflow_nesterov, "all": tensorflow_nesterov_dense}
    rule: Callable[..., Any] = by_rows[h["rows"]] if h["nesterov"] else tensorflow_momentum
    return Formula(rule, lambda n: {"mu": n.single("momentum"), "lr": n.single_lr}, (State("momentum"),))


# ---------------------------------------------------------------------- mxnet.optimizer


def mxnet_sgd_shrinking(g: Any, w: Any, lr: Any, wd: Any, one: Any) -> Any:
    """Weight decay as a factor of the weight, formed in the table's dtype."""
    return (mul(one - mul(lr, wd), w) - mul(lr, g),)


def mxnet_sgd_shrunk(g: Any, w: Any, lr: Any, keep: Any) -> Any:
    return (mul(keep, w) - mul(lr, g),)


def mxnet_momentum(g: Any, w: Any, momentum: Any, mu: Any, lr: Any, wd: Any) -> Any:
    """The buffer is of steps: the learning rate, and the sign, stand inside it."""
    momentum = mul(mu, momentum) - mul(mul(lr, wd), w) - mul(lr, g)
    return w + momentum, momentum


def _mxnet(h: Hyper) -> Formula:
    if is_on(h["momentum"]):
        return Formula(mxnet_momentum, with_rate(mu="momentum", wd="weight_decay"), (State("momentum"),))
    if not is_on(h["weight_decay"]):
        return Formula(islices_sgd, with_rate())
    if h["rows"] == "touched":
        numbers = with_rate(wd="weight_decay")
        return Formula(mxnet_sgd_shrinking, lambda n: {**numbers(n), "one": 1.0})
    return Formula(mxnet_sgd_shrunk, _mxnet_keep)


def _mxnet_keep(n: Numbers) -> Mapping[str, Any]:
    """The standard update forms its factor 1 - lr wd in float32, also for a table of float64."""
    E, rate = n.E, n.single_lr
    decay = E.astype(n.array_of(n.h["weight_decay"]), "float32")
    return {"lr": rate, "keep": n.number(1.0, "float32") - E.round_product(rate, decay)}


# ---------------------------------------------------------------------- optax


def _optax(h: Hyper) -> Formula:
    own = replace(_islices({**h, "weight_decay": 0.0}), rows=ALL)
    if not is_on(h["momentum"]):
        return own
    return replace(own, numbers=lambda n: {"mu": n.h["momentum"], "gain": 1.0, "lr": n.lr})


# ---------------------------------------------------------------------- FBGEMM


def _fbgemm(h: Hyper) -> Formula:
    return Formula(islices_sgd, lambda n: {"lr": n.lr}, rows=TOUCHED)


# ---------------------------------------------------------------------- the record
#: Gradient descent.
SGD = Record(
    "sgd",
    "SGD",
    ("lr", "momentum", "dampening", "weight_decay", "nesterov"),
    {
        "islices": Preset(
            {"lr": None, "momentum": 0.0, "dampening": 0.0, "nesterov": False, "weight_decay": 0.0}, _islices
        ),
        "fbgemm": Preset({"lr": 0.01}, _fbgemm, "EmbOptimType.EXACT_SGD"),
        "keras": Preset(
            {"lr": 1e-2, "momentum": 0.0, "nesterov": False, "weight_decay": 0.0},
            _keras,
            "keras.optimizers.SGD",
            terms={"momentum": -1.0},
        ),
        "mxnet": Preset(
            {"lr": 0.01, "momentum": 0.0, "weight_decay": 0.0}, _mxnet, "mx.optimizer.SGD", terms={"momentum": -1.0}
        ),
        "optax": Preset({"lr": None, "momentum": 0.0, "nesterov": False}, _optax, "optax.sgd"),
        "tensorflow": Preset(
            {"lr": None, "momentum": 0.0, "nesterov": False},
            _tensorflow,
            "tf.compat.v1.train.GradientDescentOptimizer, tf.compat.v1.train.MomentumOptimizer",
        ),
        "torch": Preset(
            {"lr": 1e-3, "momentum": 0.0, "dampening": 0.0, "nesterov": False, "weight_decay": 0.0},
            _torch,
            "torch.optim.SGD",
        ),
    },
    stored={"momentum": "momentum_buffer"},
    added=("momentum",),
)


@public(SGD)
def sgd(
    lr: Scheduled | None = None,
    *,
    momentum: Scheduled | None = None,
    dampening: Scheduled | None = None,
    nesterov: bool | None = None,
    weight_decay: Scheduled | None = None,
    **options: Unpack[Options],
) -> Optimizer:
    """Gradient descent, with momentum or without.

    Parameters
    ----------
    momentum : float, default 0
        Momentum coefficient; 0 disables it.
    dampening : float, default 0
        The gradient enters the buffer times 1 - dampening.
    nesterov : bool, default False
        Step by the gradient and the buffer's next decay (Sutskever et al. 2013).
    weight_decay : float, default 0
        weight_decay * w is added to the gradient of the rows that move.

    Notes
    -----
    Without momentum ``w - lr g``. With it ``b = mu b + (1 - dampening) g`` and ``w - lr b``, nesterov
    ``w - lr (g + mu b)``. b begins with zeros.
    """
    return make(
        "sgd", lr=lr, momentum=momentum, dampening=dampening, nesterov=nesterov, weight_decay=weight_decay, **options
    )
