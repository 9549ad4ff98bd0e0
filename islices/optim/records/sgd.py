"""Gradient descent: the record of sgd, with momentum or without, under every semantics. SPEC clauses 11 and 16."""

from __future__ import annotations

from dataclasses import replace
from typing import Unpack

from islices.core.arguments import is_real
from islices.optim.factory import Options, made, public
from islices.optim.formulas import Formula, State
from islices.optim.frameworks import ALL, TOUCHED, raw
from islices.optim.hyperparameters import Hyper, Scheduled, decays, is_on
from islices.optim.numbers import Numbers, Singles
from islices.optim.operators import mul
from islices.optim.optimizer import Optimizer
from islices.optim.record import Preset, Record

__all__ = ["SGD", "sgd"]


# ---------------------------------------------------------------------- rules
def sgd_rule(g, w, lr, momentum=None, mu=None, gain=None, nesterov=False):
    """gain is 1 - dampening. Polyak 1964; nesterov: Sutskever et al. 2013, with the gradient taken at w itself. The
    learning rate stands outside the buffer."""
    step = g
    if momentum is not None:
        step = momentum = mul(mu, momentum) + mul(gain, g)
        if nesterov:
            step = g + mul(mu, momentum)
    return w - mul(lr, step), momentum


def inner_sgd(g, w, momentum, mu, lr, wd=None, nesterov=False):
    """The learning rate stands inside the buffer, which points downwards; wd: and so does weight decay."""
    old = mul(mu, momentum)
    momentum = (old if wd is None else old - mul(mul(lr, wd), w)) - mul(lr, g)
    return w + (mul(mu, momentum) - mul(lr, g) if nesterov else momentum), momentum


def tensorflow_nesterov(g, w, momentum, mu, lr, dense=False):
    """The learning rate stands outside the buffer; on slices it multiplies the coefficient first."""
    momentum = mul(mu, momentum) + g
    return w - (mul(lr, g) + (mul(mul(mu, momentum), lr) if dense else mul(momentum, mul(mu, lr)))), momentum


# ---------------------------------------------------------------------- formulas
class Islices(Numbers):
    def gain(self):
        return self.complement("dampening")


class Torch(Islices):
    def gain(self):
        """The buffer begins with the first gradient itself, not dampened."""
        first = self.E.equal(self.count, 0)
        return self.E.where(first, self.number(1.0), self.array_of(self.complement("dampening")))


class Undampened(Numbers):
    gain = 1.0


class Single(Singles):
    gain = 1.0

    def wd(self):
        return self.hyper("weight_decay")


class Shrinking(Singles):
    def keep(self):
        """Return 1 - lr wd, formed in the table's dtype."""
        decay = self.E.round_product(self.narrow(self.lr()), self.narrow(self.hyper("weight_decay")))
        return self.narrow(self.one) - decay


class Shrunk(Shrinking):
    def narrow(self, x):
        """x as a float32: the standard update forms its factor so, for a table of float64 too."""
        return self.E.astype(self.array_of(x), "float32")


BUFFER = (State("momentum"),)


def _islices(h: Hyper) -> Formula:
    if not is_on(h["momentum"]):
        return Formula(sgd_rule, Islices, decay=decays(h))
    options = ("mu", "gain", *["nesterov"] * bool(h["nesterov"]))
    return Formula(sgd_rule, Islices, BUFFER, decay=decays(h), options=options)


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
    # torch keeps the sum of all sparse gradients, and steps by it every time
    return replace(own, numbers=Torch if is_on(dampening) else Islices, rows=("all",))


def _keras(h: Hyper) -> Formula:
    mu = h["momentum"]
    if is_on(mu):
        if is_real(mu) and mu > 1:
            raise ValueError(f'momentum: got {mu}; accepted with semantics="keras" is 0 <= value <= 1')
        options = ("nesterov",) if h["nesterov"] else ()
        return Formula(inner_sgd, Single, BUFFER, "", "shrunk", ("all",), raw(h), options=options)
    decay = decays(h, "shrunk")
    return Formula(sgd_rule, Single, decay=decay, rows=("all",) if decay else ("touched", "all"), raw=raw(h))


def _tensorflow(h: Hyper) -> Formula:
    if not is_on(h["momentum"]):
        return Formula(sgd_rule, Single)
    if not h["nesterov"]:
        return Formula(sgd_rule, Single, BUFFER, options=("mu", "gain"))
    return Formula(tensorflow_nesterov, Single, BUFFER, options=("dense",) if h["rows"] == "all" else ())


def _mxnet(h: Hyper) -> Formula:
    if is_on(h["momentum"]):
        return Formula(inner_sgd, Single, BUFFER, options=("wd",))
    numbers = Shrinking if h["rows"] == "touched" else Shrunk
    return Formula(sgd_rule, numbers, decay=decays(h, "decoupled"))


def _optax(h: Hyper) -> Formula:
    return replace(_islices({"dampening": 0.0, **h, "weight_decay": 0.0}), numbers=Undampened, rows=ALL)


def _fbgemm(h: Hyper) -> Formula:
    return Formula(sgd_rule, Islices, rows=TOUCHED)


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
    return made("sgd", locals())
