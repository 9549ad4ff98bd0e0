"""The formulas of gradient descent, with or without momentum, in each semantics. SPEC clauses 11 and 16."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from islices.core.arguments import is_real
from islices.norms.clip_formulas import Semantics
from islices.optim.factory import Duplicates, Rows, make
from islices.optim.formulas import Formula, State
from islices.optim.hyperparameters import Hyper, Setting, decays, is_on
from islices.optim.numbers import Numbers, Singles
from islices.optim.operators import mul
from islices.optim.optimizer import Optimizer
from islices.optim.record import ALL, TOUCHED, Preset, Record, raw


# ---------------------------------------------------------------------- rules
def sgd_rule(g, w, lr, momentum=None, mu=None, gain=None, nesterov=False):
    """Apply gradient descent, with or without momentum (Polyak 1964).

    `gain` is 1 - dampening. The buffer does not include the learning rate. If `nesterov` is True, apply Nesterov's
    momentum (Sutskever et al. 2013), but with the gradient at w.
    """
    step = g
    if momentum is not None:
        step = momentum = mul(mu, momentum) + (g if gain is None else mul(gain, g))
        if nesterov:
            step = g + mul(mu, momentum)
    return w - mul(lr, step), momentum


def inner_sgd(g, w, momentum, mu, lr, weight_decay=None, nesterov=False):
    """Apply momentum with a buffer of steps that include the learning rate and are added to the weight."""
    old = mul(mu, momentum)
    momentum = (old if weight_decay is None else old - mul(mul(lr, weight_decay), w)) - mul(lr, g)
    return w + (mul(mu, momentum) - mul(lr, g) if nesterov else momentum), momentum


def tensorflow_nesterov(g, w, momentum, mu, lr, dense=False):
    """Apply TensorFlow's Nesterov momentum; the buffer does not include the learning rate.

    For slices (`dense` is False), the momentum coefficient is first multiplied by the learning rate.
    """
    momentum = mul(mu, momentum) + g
    return w - (mul(lr, g) + (mul(mul(mu, momentum), lr) if dense else mul(momentum, mul(mu, lr)))), momentum


# ---------------------------------------------------------------------- formulas
class TorchSgd(Numbers):
    def gain(self):
        """Return 1 - dampening, or 1 at the first step, because the buffer starts with the undampened gradient."""
        first = self.E.equal(self.count, 0)
        return self.E.where(first, self.number(1.0), self.array_of(self.complement("dampening")))


class Shrinking(Singles):
    def keep(self):
        """Return 1 - lr weight_decay, computed in the dtype of `narrow`."""
        decay = self.E.round_product(self.narrow(self.hyper("lr")), self.narrow(self.hyper("weight_decay")))
        return self.narrow(self.one) - decay


class Shrunk(Shrinking):
    narrow_dtype = "float32"  # MXNet's dense update computes its factor in float32 even for a float64 table


BUFFER = (State("momentum"),)


def _islices(h: Hyper) -> Formula:
    if not is_on(h["momentum"]):
        return Formula(sgd_rule, Numbers, decay=decays(h))
    options = ("mu", *["gain"] * is_on(h["dampening"]), *["nesterov"] * bool(h["nesterov"]))
    return Formula(sgd_rule, Numbers, BUFFER, decay=decays(h), options=options)


def _torch(h: Hyper) -> Formula:
    mu, dampening = h["momentum"], h["dampening"]
    if h["nesterov"] and (not is_on(mu) or is_on(dampening)):
        raise ValueError(
            f"nesterov: got True with momentum={mu} and dampening={dampening}; "
            'accepted with semantics="torch" is momentum > 0 and dampening=0'
        )
    own = _islices(h)
    if not is_on(mu):  # torch raises for a sparse gradient with weight decay
        return replace(own, rows=ALL) if is_on(h["weight_decay"]) else own
    # torch's buffer accumulates all sparse gradients, and each step uses the whole buffer
    return replace(own, numbers=TorchSgd if is_on(dampening) else Numbers, rows=ALL)


def _keras(h: Hyper) -> Formula:
    mu = h["momentum"]
    if is_on(mu):
        if is_real(mu) and mu > 1:
            raise ValueError(f'momentum: got {mu}; accepted with semantics="keras" is 0 <= value <= 1')
        options = ("nesterov",) if h["nesterov"] else ()
        return Formula(inner_sgd, Singles, BUFFER, "", "shrunk", ALL, raw(h), options=options)
    decay = decays(h, "shrunk")
    return Formula(sgd_rule, Singles, decay=decay, rows=ALL if decay else ("touched", "all"), raw=raw(h))


def _tensorflow(h: Hyper) -> Formula:
    if not is_on(h["momentum"]):
        return Formula(sgd_rule, Singles)
    if not h["nesterov"]:
        return Formula(sgd_rule, Singles, BUFFER, options=("mu",))
    return Formula(tensorflow_nesterov, Singles, BUFFER, options=("dense",) if h["rows"] == "all" else ())


def _mxnet(h: Hyper) -> Formula:
    if is_on(h["momentum"]):
        return Formula(inner_sgd, Singles, BUFFER, options=("weight_decay",))
    numbers = Shrinking if h["rows"] == "touched" else Shrunk
    return Formula(sgd_rule, numbers, decay=decays(h, "decoupled"))


# ---------------------------------------------------------------------- the record
DEFAULTS: Hyper = {"momentum": 0.0, "dampening": 0.0, "nesterov": False, "weight_decay": 0.0}
SGD = Record(
    "sgd",
    "SGD",
    ("lr", "momentum", "dampening", "weight_decay", "nesterov"),
    {
        "islices": Preset(DEFAULTS, _islices),
        "fbgemm": Preset({"lr": 0.01}, lambda h: Formula(sgd_rule, Numbers, rows=TOUCHED), "EmbOptimType.EXACT_SGD"),
        "keras": Preset(
            {"lr": 1e-2, "momentum": 0.0, "nesterov": False, "weight_decay": 0.0},
            _keras,
            "keras.optimizers.SGD",
            terms={"momentum": -1.0},
        ),
        "mxnet": Preset(
            {"lr": 0.01, "momentum": 0.0, "weight_decay": 0.0}, _mxnet, "mx.optimizer.SGD", terms={"momentum": -1.0}
        ),
        "optax": Preset(
            {"momentum": 0.0, "nesterov": False},
            lambda h: replace(_islices({"dampening": 0.0, **h, "weight_decay": 0.0}), rows=ALL),
            "optax.sgd",
        ),
        "tensorflow": Preset(
            {"momentum": 0.0, "nesterov": False},
            _tensorflow,
            "tf.compat.v1.train.GradientDescentOptimizer, tf.compat.v1.train.MomentumOptimizer",
        ),
        "torch": Preset({"lr": 1e-3, **DEFAULTS}, _torch, "torch.optim.SGD"),
    },
    stored={"momentum": "momentum_buffer"},
    added=("momentum",),
)


def sgd(
    lr: Setting = None,
    *,
    momentum: Setting = None,
    dampening: Setting = None,
    nesterov: bool | None = None,
    weight_decay: Setting = None,
    rows: Rows = None,
    semantics: Semantics = "islices",
    maximize: bool = False,
    frozen: Any = None,
    duplicates: Duplicates = "sum",
) -> Optimizer:
    """Make an optimizer for stochastic gradient descent, with or without momentum.

    Parameters
    ----------
    lr : float, array of one, or function of the step
        The learning rate. A function gets the number of completed steps, as an int or, in traced code, an int32 array.
    momentum : float, array of one, or function of the step, default 0
        The momentum coefficient; 0 disables momentum.
    dampening : float, array of one, or function of the step, default 0
        The gradient is multiplied by 1 - dampening and then added to the buffer.
    nesterov : bool, default False
        If True, use Nesterov's momentum: the step is the gradient plus the decayed buffer (Sutskever et al. 2013).
    weight_decay : float, array of one, or function of the step, default 0
        weight_decay * w is added to the gradient of the updated rows.
    rows : {"touched", "all"}, optional
        With "touched", a step updates only the rows that a sparse gradient contains. With "all", a step updates every
        row, like the dense formula. The default is "touched", or "all" if the semantics supports only "all".
    semantics : {"islices", "fbgemm", "keras", "mxnet", "optax", "tensorflow", "torch"}
        The library whose arithmetic and defaults the optimizer uses; see docs/optimizers.md.
    maximize : bool
        If True, maximize the loss instead of minimizing it.
    frozen : 1-D integer array or sequence, or boolean mask, optional
        Rows that no step changes. Weight decay does not change them either.
    duplicates : {"sum", "raw"}
        With "sum", duplicate rows are summed before the update. With "raw", the step applies Keras's update to unsummed
        duplicates; docs/optimizers.md lists where this is supported.

    Returns
    -------
    Optimizer
        ``.init(table) -> state`` and ``.step(table, grad, state) -> (table, state)``.

    Raises
    ------
    TypeError, ValueError, IndexError
        An argument is invalid, or this semantics does not support it.

    Notes
    -----
    The defaults above and these formulas are those of semantics="islices". Without momentum, the step computes
    ``w - lr g``. With momentum, the step computes ``b = mu b + (1 - dampening) g``, then ``w - lr b``, or with nesterov
    ``w - lr (g + mu b)``. b is 0 before the first step.
    The operations are carried out in this order, and each rounds once. g is the coalesced gradient. SPEC clause 16.

    Examples
    --------
    >>> import numpy as np
    >>> from islices import IndexedSlices
    >>> table = np.ones((3, 1))
    >>> optimizer = sgd(0.5)
    >>> grad = IndexedSlices(np.array([[0.25], [0.25]]), np.array([2, 2]), (3, 1))
    >>> table, state = optimizer.step(table, grad, optimizer.init(table))
    >>> table[:2].tolist()
    [[1.0], [1.0]]
    """
    return make("sgd", **locals())
