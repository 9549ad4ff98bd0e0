"""The formulas of RMSprop in each semantics. SPEC clauses 11 and 16."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from islices.core.arguments import show
from islices.norms.clip_formulas import Semantics
from islices.optim.factory import Duplicates, Rows, make
from islices.optim.formulas import Formula, State
from islices.optim.hyperparameters import Hyper, Setting, decays, is_on, refuse_scheduled
from islices.optim.numbers import Keras, Numbers, Singles
from islices.optim.operators import div, maximum, mul, sqrt
from islices.optim.optimizer import Optimizer
from islices.optim.record import ALL, Preset, Record, raw
from islices.optim.rules import gradient_mean, running, square_mean


# ---------------------------------------------------------------------- rules
def rmsprop_rule(
    g, w, mean_square, gain_rho, lr, eps, q=None, mean=None, momentum=None, rho=None, mu=None, half=None, one=None,
    zero=None, inside=False, early=False, reciprocal=False, up=False,
):  # fmt: skip
    """Apply RMSprop (Tieleman and Hinton 2012). `gain_rho` is 1 - rho.

    If `mean` is given, the variance replaces the mean square (Graves 2013). If `zero` is given, a variance that
    rounding makes negative becomes zero. If `inside` is True, eps is added under the root. If `early` is True, the
    gradient is multiplied by the learning rate before the division. If `reciprocal` is True, the gradient is multiplied
    by a rounded reciprocal root and the learning rate, before the momentum. If `up` is True, the buffer stores steps
    that are added to the weight.
    """
    mean_square = square_mean(mean_square, g, q, gain_rho, rho)
    spread = mean_square
    if mean is not None:
        mean = gradient_mean(mean, g, gain_rho, rho, half, one)
        spread = mean_square - mul(mean, mean)
        if zero is not None:
            spread = maximum(spread, zero)
    spread = sqrt(spread + eps) if inside else sqrt(spread) + eps
    step = mul(lr, mul(div(one, spread), g)) if reciprocal else div(mul(lr, g) if early else g, spread)
    if momentum is not None:
        step = momentum = mul(mu, momentum) - step if up else mul(mu, momentum) + step
    if not (early or reciprocal):
        step = mul(lr, step)
    return w + step if up else w - step, mean_square, mean, momentum


def tensorflow_rmsprop(g, q, w, mean_square, momentum, rho, gain_rho, mu, lr, eps, one, mean=None):
    """Apply TensorFlow's RMSprop for slices.

    The rule multiplies by a reciprocal root, and adds eps before it subtracts the squared mean.
    """
    mean_square = running(mean_square, q, gain_rho, rho)
    spread = mean_square + eps
    if mean is not None:
        mean = running(mean, g, gain_rho, rho)
        spread = spread - mul(mean, mean)
    momentum = mul(mu, momentum) + mul(mul(div(one, sqrt(spread)), lr), g)
    return w - momentum, mean_square, mean, momentum


# ---------------------------------------------------------------------- formulas
def _plain(h: Hyper, *options: str) -> Formula:
    """Return the formula, with `options` in addition to the rule's options that the hyperparameters need.

    Without the option "zero", a variance that rounding makes negative may give NaN.
    """
    moving = is_on(h["momentum"])
    state = (
        State("mean_square", positive=True), *[State("mean")] * h["centered"], *[State("momentum")] * moving
    )  # fmt: skip
    return Formula(rmsprop_rule, Numbers, state, "element", decays(h), options=("rho", *["mu"] * moving, *options))


def _torch(h: Hyper) -> Formula:
    lerped = ("half", "one") if h["centered"] else ()
    early = () if is_on(h["momentum"]) else ("early",)
    return replace(_plain(h, *lerped, *early), squares="", rows=ALL)


def _keras(h: Hyper) -> Formula:
    return replace(_plain(h, "inside", "early"), numbers=Keras, decay="shrunk", rows=ALL, raw=raw(h))


def _tensorflow(h: Hyper) -> Formula:
    mean = (State("mean"),) if h["centered"] else ()
    state = (State("mean_square", 1.0), *mean, State("momentum"))  # the mean square starts at 1
    if h["rows"] == "touched":
        return Formula(tensorflow_rmsprop, Singles, state, "element")
    return Formula(rmsprop_rule, Singles, state, "element", options=("mu", "inside", "early"))


#: The default gamma2 of mx.optimizer.RMSProp.
GAMMA2 = 0.9


def _mxnet(h: Hyper) -> Formula:
    """Return MXNet's formula. MXNet's RMSProp has only dense kernels, so the running means of all rows decay."""
    if h["centered"]:
        state = (State("mean_square"), State("mean"), State("momentum"))
        options = ("rho", "mu", "inside", "early", "up")
        return Formula(rmsprop_rule, Singles, state, "", "coupled", ALL, options=options)
    refuse_scheduled(h, 'rmsprop with semantics="mxnet"', "momentum")
    if h["momentum"] not in (0, GAMMA2):
        raise ValueError(f"momentum: got {show(h['momentum'])}; MXNet's RMSProp has one with centered=True only")
    return Formula(rmsprop_rule, Singles, (State("mean_square"),), "element", "coupled", ALL, options=("rho", "inside"))


def _optax(h: Hyper) -> Formula:
    up = ("up",) if is_on(h["momentum"]) else ()
    return replace(_plain({**h, "weight_decay": 0.0}, "one", "inside", "reciprocal", *up), rows=ALL)


# ---------------------------------------------------------------------- the record
#: Defaults of most semantics that have all of these hyperparameters.
DEFAULTS: Hyper = {"rho": 0.9, "eps": 1e-8, "momentum": 0.0, "centered": False, "weight_decay": 0.0}
RMSPROP = Record(
    "rmsprop",
    "RMSprop",
    ("lr", "rho", "eps", "weight_decay", "momentum", "centered"),
    {
        "islices": Preset(DEFAULTS, lambda h: _plain(h, *["zero"] * h["centered"])),
        "keras": Preset(
            {"lr": 1e-3, **DEFAULTS, "eps": 1e-7},
            _keras,
            "keras.optimizers.RMSprop",
            terms={"momentum": 1.0},
        ),
        "mxnet": Preset(
            {"lr": 0.001, **DEFAULTS, "momentum": GAMMA2},
            _mxnet,
            "mx.optimizer.RMSProp",
            {"rho": "gamma1", "momentum": "gamma2"},
            {"momentum": -1.0},
        ),
        "optax": Preset(
            {"rho": 0.9, "eps": 1e-8, "momentum": 0.0, "centered": False},
            _optax,
            "optax.rmsprop",
            terms={"momentum": -1.0},
        ),
        "tensorflow": Preset(
            {"rho": 0.9, "eps": 1e-10, "momentum": 0.0, "centered": False},
            _tensorflow,
            "tf.compat.v1.train.RMSPropOptimizer",
            terms={"momentum": 1.0},
        ),
        "torch": Preset({"lr": 1e-2, **DEFAULTS, "rho": 0.99}, _torch, "torch.optim.RMSprop"),
    },
    stored={"mean_square": "square_avg", "mean": "grad_avg", "momentum": "momentum_buffer"},
    added=("momentum", "mean"),
)


def rmsprop(
    lr: Setting = None,
    *,
    rho: Setting = None,
    eps: Setting = None,
    momentum: Setting = None,
    centered: bool | None = None,
    weight_decay: Setting = None,
    rows: Rows = None,
    semantics: Semantics = "islices",
    maximize: bool = False,
    frozen: Any = None,
    duplicates: Duplicates = "sum",
) -> Optimizer:
    """Make an RMSprop optimizer, which divides the gradient by the root of a running mean of its squares (Tieleman and
    Hinton 2012).

    Parameters
    ----------
    lr : float, array of one, or function of the step
        The learning rate. A function gets the number of completed steps, as an int or, in traced code, an int32 array.
    rho : float, array of one, or function of the step, default 0.9
        The decay rate of the running means.
    eps : float, array of one, or function of the step, default 1e-8
        A small number that is added to the root.
    momentum : float, array of one, or function of the step, default 0
        The decay rate of a buffer of steps.
    centered : bool, default False
        If True, divide by the root of the variance instead of the root of the mean square (Graves 2013).
    weight_decay : float, array of one, or function of the step, default 0
        weight_decay * w is added to the gradient of the updated rows.
    rows : {"touched", "all"}, optional
        With "touched", a step updates only the rows that a sparse gradient contains. With "all", a step updates every
        row, like the dense formula. The default is "touched", or "all" if the semantics supports only "all".
    semantics : {"islices", "keras", "mxnet", "optax", "tensorflow", "torch"}
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
    The defaults above and this formula are those of semantics="islices": ``s = rho s + (1 - rho) (g g)``,
    ``u = g / (sqrt(s) + eps)``, then ``w - lr u``. If centered, ``max(s - c c, 0)`` replaces s under the root, with
    ``c = rho c + (1 - rho) g``. With momentum, ``b = mu b + u`` replaces u.
    The operations are carried out in this order, and each rounds once. g is the coalesced gradient. SPEC clause 16.

    Examples
    --------
    >>> import numpy as np
    >>> from islices import IndexedSlices
    >>> table = np.ones((3, 1))
    >>> optimizer = rmsprop(0.5)
    >>> grad = IndexedSlices(np.array([[0.25], [0.25]]), np.array([2, 2]), (3, 1))
    >>> table, state = optimizer.step(table, grad, optimizer.init(table))
    >>> table[:2].tolist()
    [[1.0], [1.0]]
    """
    return make("rmsprop", **locals())
