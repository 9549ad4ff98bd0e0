"""The formulas of FTRL-Proximal in each semantics. SPEC clauses 11 and 16."""

from __future__ import annotations

import math
from typing import Any

from islices.norms.clip_formulas import Semantics
from islices.optim.factory import Duplicates, Rows, make
from islices.optim.formulas import Formula, State
from islices.optim.hyperparameters import Accepted, Hyper, Setting
from islices.optim.numbers import Keras, Numbers, Singles, single
from islices.optim.operators import absolute, div, less_equal, maximum, minimum, mul, power, sqrt, where
from islices.optim.optimizer import Optimizer
from islices.optim.record import ALL, Preset, Record, raw


# ---------------------------------------------------------------------- rules
def raised(n, exponent, one, linear):
    """Return n^-lr_power: n if `linear` is True, n^exponent if `exponent` is given, else the square root of n."""
    return n if linear else sqrt(n) if exponent is None else power(n, exponent, one)


def clipped(z, l1):
    return minimum(maximum(z, -l1), l1)


def islices_ftrl(g, q, w, z, n, lr, l1, l2, beta, l2_shrinkage, exponent=None, one=None, linear=False):
    """Apply FTRL-Proximal (McMahan et al. 2013, algorithm 1). An element with ``|z| <= l1`` becomes exactly zero.

    ``l2_shrinkage * w`` is added to the gradient that z accumulates, but not to the gradient that is squared.
    """
    total = n + q
    root = raised(total, exponent, one, linear)
    grown = q if linear else root - raised(n, exponent, one, linear)
    z = (z + (g + mul(l2_shrinkage, w))) - mul(div(grown, lr), w)
    w = where(less_equal(absolute(z), l1), z - z, div(clipped(z, l1) - z, div(beta + root, lr) + l2))
    return w, z, total


def tensorflow_ftrl(g, q, w, z, n, lr, l1, penalty, shrinkage, exponent=None, one=None, linear=False, everywhere=False):
    """Apply TensorFlow's FTRL. `penalty` is 2 (l2 + beta / (2 lr)), and `shrinkage` is 2 l2_shrinkage.

    An element with ``|z| <= l1`` becomes exactly zero, unless `everywhere` is True. If `everywhere` is True, as in
    Keras, every element becomes the quotient, and the quotient may be NaN if ``|z| <= l1``.
    """
    total = n + q
    root = raised(total, exponent, one, linear)
    z = z + ((g + mul(shrinkage, w)) - mul(div(root - raised(n, exponent, one, linear), lr), w))
    w = div(clipped(z, l1) - z, div(root, lr) + penalty)
    return w if everywhere else where(less_equal(absolute(z), l1), z - z, w), z, total


def mxnet_ftrl(g, q, w, z, n, lr, l1, l2, beta, zero, one):
    """Apply MXNet's FTRL, which multiplies the quotient by 0 where |z| <= l1 instead of replacing the quotient by 0.

    So a weight with |z| <= l1 becomes NaN if the quotient is not finite.
    """
    total = n + q
    root = sqrt(total)
    z = z + (g - div(mul(root - sqrt(n), w), lr))
    w = div(clipped(z, l1) - z, div(beta + root, lr) + l2)
    return mul(w, where(less_equal(absolute(z), l1), zero, one)), z, total


# ---------------------------------------------------------------------- formulas
class IslicesFtrl(Numbers):
    def exponent(self):
        return -self.hyper("lr_power")


class KerasFtrl(IslicesFtrl, Keras):
    def penalty(self):
        """Return 2 (l2 + beta / (2 lr)), computed in the dtype of `narrow`."""
        lr, two = self.narrow(self.lr()), self.narrow(self.two)
        beta, l2 = self.narrow(self.h["beta"]), self.narrow(self.h["l2"])
        return self.E.round_product(two, l2 + self.E.div(beta, self.E.round_product(two, lr)))

    def shrinkage(self):
        return self.hyper("l2_shrinkage") + self.hyper("l2_shrinkage")


class TensorFlowFtrl(KerasFtrl, Singles):
    narrow_dtype = "float32"


def _kind(power: float) -> tuple[str, ...]:
    """Return the rule's options for lr_power: () for a square root, ("linear",) for n itself.

    For any other power, return the options with which the rule calls `power`.
    """
    return {-0.5: (), -1.0: ("linear",)}.get(power, ("exponent", "one"))


def _islices(h: Hyper) -> Formula:
    state = (State("z"), State("n", "initial_accumulator", positive=True))
    return Formula(islices_ftrl, IslicesFtrl, state, "element", options=_kind(h["lr_power"]), additive=False)


def _keras(h: Hyper) -> Formula:
    state = (State("z"), State("n", single(h["initial_accumulator"])))
    options = (*_kind(h["lr_power"]), "everywhere")
    return Formula(tensorflow_ftrl, KerasFtrl, state, "element", rows=ALL, raw=raw(h), options=options, additive=False)


def _tensorflow(h: Hyper) -> Formula:
    state = (State("z"), State("n", "initial_accumulator"))
    return Formula(
        tensorflow_ftrl, TensorFlowFtrl, state, "element", options=_kind(single(h["lr_power"])), additive=False
    )


# ---------------------------------------------------------------------- the record
#: Defaults of every semantics that has all of these hyperparameters.
DEFAULTS: Hyper = {
    "l1": 0.0,
    "l2": 0.0,
    "beta": 0.0,
    "l2_shrinkage": 0.0,
    "lr_power": -0.5,
    "initial_accumulator": 0.1,
}
STRENGTHS = {
    "l1": "l1_regularization_strength",
    "l2": "l2_regularization_strength",
    "l2_shrinkage": "l2_shrinkage_regularization_strength",
    "lr_power": "learning_rate_power",
}
#: The bound of -lr_power: the power is computed from eight binary digits of the exponent's whole part.
LARGEST_POWER = 256
FTRL = Record(
    "ftrl",
    "Ftrl",
    ("lr", "l1", "l2", "beta", "lr_power", "initial_accumulator", "l2_shrinkage"),
    {
        "islices": Preset(DEFAULTS, _islices),
        "keras": Preset({"lr": 1e-3, **DEFAULTS}, _keras, "keras.optimizers.Ftrl", STRENGTHS),
        "mxnet": Preset(
            {"lr": 0.1, "l1": 0.01, "l2": 0.0, "beta": 1.0},
            lambda h: Formula(mxnet_ftrl, Singles, (State("z"), State("n")), "element", additive=False),
            "mx.optimizer.Ftrl",
            {"l1": "lamda1", "l2": "wd"},
        ),
        "tensorflow": Preset(DEFAULTS, _tensorflow, "tf.compat.v1.train.FtrlOptimizer", STRENGTHS),
    },
    fixed=("initial_accumulator", "lr_power"),
    limits={
        "lr": Accepted("a finite number above 0, since FTRL divides by it", lambda x: 0 < x < math.inf),
        "lr_power": Accepted(f"-{LARGEST_POWER} < lr_power <= 0", lambda x: -LARGEST_POWER < x <= 0),
    },
)


def ftrl(
    lr: Setting = None,
    *,
    l1: Setting = None,
    l2: Setting = None,
    beta: Setting = None,
    l2_shrinkage: Setting = None,
    lr_power: float | None = None,
    initial_accumulator: float | None = None,
    rows: Rows = None,
    semantics: Semantics = "islices",
    maximize: bool = False,
    frozen: Any = None,
    duplicates: Duplicates = "sum",
) -> Optimizer:
    """Make an FTRL-Proximal optimizer, in which an l1 penalty can make weights exactly zero (McMahan et al. 2013,
    algorithm 1).

    Parameters
    ----------
    lr : float, array of one, or function of the step
        The learning rate. A function gets the number of completed steps, as an int or, in traced code, an int32 array.
    l1, l2 : float, array of one, or function of the step, default 0
        The strengths of the l1 and l2 penalties.
    beta : float, array of one, or function of the step, default 0
        A number that is added to the root in the denominator.
    l2_shrinkage : float, array of one, or function of the step, default 0
        l2_shrinkage * w is added to the gradient that z accumulates, but not to the gradient that is squared.
        TensorFlow and Keras call this argument l2_shrinkage_regularization_strength. TensorFlow's and Keras's formulas
        double both l2_shrinkage and l2.
    lr_power : float, -256 < lr_power <= 0, default -0.5
        The learning rate is multiplied by n^lr_power, where n is the sum of squares.
    initial_accumulator : float, default 0.1
        The initial value of the sums of squares.
    rows : {"touched", "all"}, optional
        With "touched", a step updates only the rows that a sparse gradient contains. With "all", a step updates every
        row, like the dense formula. The default is "touched", or "all" if the semantics supports only "all".
    semantics : {"islices", "keras", "mxnet", "tensorflow"}
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
    The defaults above and this formula are those of semantics="islices": ``n' = n + g g``,
    ``z = (z + (g + l2_shrinkage w)) - ((r(n') - r(n)) / lr) w``, and w is 0 where ``|z| <= l1``, else
    ``(clip(z, -l1, l1) - z) / ((beta + r(n')) / lr + l2)``. By default, ``r(n) = n^-lr_power`` is the square root.
    The operations are carried out in this order, and each rounds once. g is the coalesced gradient. SPEC clause 16.

    Examples
    --------
    >>> import numpy as np
    >>> from islices import IndexedSlices
    >>> table = np.ones((3, 1))
    >>> optimizer = ftrl(0.5)
    >>> grad = IndexedSlices(np.array([[0.25], [0.25]]), np.array([2, 2]), (3, 1))
    >>> table, state = optimizer.step(table, grad, optimizer.init(table))
    >>> table[:2].tolist()
    [[1.0], [1.0]]
    """
    return make("ftrl", **locals())
