"""The formulas of Adagrad and row-wise Adagrad (one accumulator per row) in each semantics. SPEC clauses 11 and 16."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from islices.norms.clip_formulas import Semantics
from islices.optim.factory import Duplicates, Rows, make
from islices.optim.formulas import Formula, State
from islices.optim.hyperparameters import Hyper, Setting, decays, is_on
from islices.optim.numbers import Keras, Numbers, Singles, single
from islices.optim.operators import div, less_equal, mul, sqrt, where
from islices.optim.optimizer import Optimizer
from islices.optim.record import ALL, TOUCHED, Preset, Record, raw


# ---------------------------------------------------------------------- rules
def adagrad_rule(g, q, w, accumulator, lr, eps, weight_decay=None, inside=False, early=False):
    """Apply Adagrad (Duchi et al. 2011), or row-wise Adagrad if q is the mean of squares over the row.

    If `inside` is True, eps is added under the root. If `early` is True, the gradient is multiplied by the learning
    rate before the division. If `early` is False and `weight_decay` is given, weight_decay times the weight is added to
    the quotient.
    """
    accumulator = accumulator + q
    root = sqrt(accumulator + eps) if inside else sqrt(accumulator) + eps
    if early:
        step = div(mul(lr, g), root)
    elif weight_decay is not None:
        step = mul(div(g, root) + mul(w, weight_decay), lr)
    else:
        step = mul(lr, div(g, root))
    return w - step, accumulator


def tensorflow_adagrad(g, q, w, accumulator, lr, one):
    """Apply TensorFlow's Adagrad, which has no eps and multiplies by a rounded reciprocal root."""
    accumulator = accumulator + q
    return w - mul(mul(lr, g), div(one, sqrt(accumulator))), accumulator


def optax_adagrad(g, q, w, accumulator, lr, eps, one, zero):
    """Apply optax's Adagrad, which multiplies the gradient by lr * where(a > 0, rsqrt(a + eps), 0).

    A NaN is not above 0, so the result of ``where`` for a NaN accumulator is 0.
    """
    accumulator = q + accumulator
    scale = where(less_equal(zero, accumulator), div(one, sqrt(accumulator + eps)), zero)
    scale = where(less_equal(accumulator, zero), zero, scale)
    return w - mul(lr, mul(scale, g)), accumulator


def fbgemm_rowwise_adagrad(g, q, w, accumulator, lr, eps):
    """Apply FBGEMM's row-wise Adagrad: compute one quotient per row, then one product per element."""
    accumulator = accumulator + q
    return w - mul(div(lr, sqrt(accumulator) + eps), g), accumulator


# ---------------------------------------------------------------------- formulas
class Falling(Numbers):
    def lr(self):
        """Return lr / (1 + (t - 1) lr_decay)."""
        if not is_on(self.h["lr_decay"]):
            return self.exact_lr
        one = self.number(1.0)
        falling = self.E.round_product(self.t - one, self.array_of(self.h["lr_decay"]))
        return self.E.div(self.exact_lr, one + falling)


SUMS = (State("accumulator", "initial_accumulator", positive=True),)
ROW_SUMS = (State("accumulator", "initial_accumulator", per_row=True, positive=True),)
ROW_STATE = (State("accumulator", per_row=True),)


def _islices(h: Hyper) -> Formula:
    return Formula(adagrad_rule, Falling, SUMS, "element", decays(h))


def _torch(h: Hyper) -> Formula:
    own = _islices(h)
    if is_on(h["weight_decay"]):  # torch raises for a sparse gradient
        own = replace(own, rows=ALL)
    return own if h["rows"] == "touched" else replace(own, options=("early",))


def _keras(h: Hyper) -> Formula:
    state = (State("accumulator", single(h["initial_accumulator"])),)
    decay = decays(h, "shrunk")
    rows = ALL if decay else ("touched", "all")
    return Formula(adagrad_rule, Keras, state, "element", decay, rows, raw(h), options=("inside", "early"))


def _mxnet(h: Hyper) -> Formula:
    state = (State("accumulator"),)
    if is_on(h["weight_decay"]):
        # MXNet's sparse kernel has no weight decay; MXNet's dense update is Python code on arrays, with float64 numbers
        return Formula(adagrad_rule, Numbers, state, "element", rows=ALL, options=("inside", "weight_decay"))
    return Formula(adagrad_rule, Singles, state, "element", options=("inside",))


# ---------------------------------------------------------------------- the record
DEFAULTS: Hyper = {"eps": 1e-10, "initial_accumulator": 0.0, "lr_decay": 0.0, "weight_decay": 0.0}
ADAGRAD = Record(
    "adagrad",
    "Adagrad",
    ("lr", "lr_decay", "weight_decay", "initial_accumulator", "eps"),
    {
        "islices": Preset(DEFAULTS, _islices),
        "fbgemm": Preset(
            {"lr": 0.01, "eps": 1e-8},
            lambda h: Formula(
                adagrad_rule, Numbers, (State("accumulator"),), "element", rows=TOUCHED, options=("early",)
            ),
            "EmbOptimType.EXACT_ADAGRAD",
        ),
        "keras": Preset(
            {"lr": 1e-3, "eps": 1e-7, "initial_accumulator": 0.1, "weight_decay": 0.0},
            _keras,
            "keras.optimizers.Adagrad",
        ),
        "mxnet": Preset({"lr": 0.01, "eps": 1e-7, "weight_decay": 0.0}, _mxnet, "mx.optimizer.AdaGrad", {"eps": "eps"}),
        "optax": Preset(
            {"eps": 1e-7, "initial_accumulator": 0.1},
            lambda h: Formula(
                optax_adagrad, Numbers, (State("accumulator", "initial_accumulator"),), "element", rows=ALL
            ),
            "optax.adagrad",
        ),
        "tensorflow": Preset(
            {"initial_accumulator": 0.1},
            lambda h: Formula(tensorflow_adagrad, Singles, (State("accumulator", "initial_accumulator"),), "element"),
            "tf.compat.v1.train.AdagradOptimizer",
        ),
        "torch": Preset({"lr": 1e-2, **DEFAULTS}, _torch, "torch.optim.Adagrad"),
    },
    stored={"accumulator": "sum"},
)
ROWWISE_ADAGRAD = Record(
    "rowwise_adagrad",
    "RowwiseAdagrad",
    ("lr", "weight_decay", "initial_accumulator", "eps"),
    {
        "islices": Preset(
            {"eps": 1e-8, "initial_accumulator": 0.0, "weight_decay": 0.0},
            lambda h: Formula(adagrad_rule, Numbers, ROW_SUMS, "row", decays(h)),
        ),
        "fbgemm": Preset(
            {"lr": 0.01, "eps": 1e-8, "weight_decay": 0.0},
            # WeightDecayMode.L2 computes (1 - f weight_decay) w - f g with the row's factor f
            lambda h: Formula(fbgemm_rowwise_adagrad, Numbers, ROW_STATE, "row", decays(h), TOUCHED),
            "EmbOptimType.EXACT_ROWWISE_ADAGRAD",
        ),
        "mxnet": Preset(
            {"lr": 0.01, "eps": 1e-5},
            lambda h: Formula(adagrad_rule, Singles, ROW_STATE, "row", options=("inside", "early")),
            "mx.optimizer.contrib.GroupAdaGrad",
            {"eps": "eps"},
        ),
    },
    stored={"accumulator": "sum"},
)


def adagrad(
    lr: Setting = None,
    *,
    eps: Setting = None,
    initial_accumulator: float | None = None,
    lr_decay: Setting = None,
    weight_decay: Setting = None,
    rows: Rows = None,
    semantics: Semantics = "islices",
    maximize: bool = False,
    frozen: Any = None,
    duplicates: Duplicates = "sum",
) -> Optimizer:
    """Make an Adagrad optimizer, which divides each element's step by the root of the sum of its squared gradients
    (Duchi et al. 2011).

    Parameters
    ----------
    lr : float, array of one, or function of the step
        The learning rate. A function gets the number of completed steps, as an int or, in traced code, an int32 array.
    eps : float, array of one, or function of the step, default 1e-10
        A small number that is added to the root.
    initial_accumulator : float, default 0
        The initial value of the sums of squares.
    lr_decay : float, array of one, or function of the step, default 0
        The learning rate of step t is ``lr / (1 + (t - 1) lr_decay)``.
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
    The defaults above and this formula are those of semantics="islices": ``a = a + g g``, then
    ``w - lr (g / (sqrt(a) + eps))``.
    The operations are carried out in this order, and each rounds once. g is the coalesced gradient. SPEC clause 16.

    Examples
    --------
    >>> import numpy as np
    >>> from islices import IndexedSlices
    >>> table = np.ones((3, 1))
    >>> optimizer = adagrad(0.5)
    >>> grad = IndexedSlices(np.array([[0.25], [0.25]]), np.array([2, 2]), (3, 1))
    >>> table, state = optimizer.step(table, grad, optimizer.init(table))
    >>> table[:2].tolist()
    [[1.0], [1.0]]
    """
    return make("adagrad", **locals())


def rowwise_adagrad(
    lr: Setting = None,
    *,
    eps: Setting = None,
    initial_accumulator: float | None = None,
    weight_decay: Setting = None,
    rows: Rows = None,
    semantics: Semantics = "islices",
    maximize: bool = False,
    frozen: Any = None,
    duplicates: Duplicates = "sum",
) -> Optimizer:
    """Make a row-wise Adagrad optimizer, which stores one accumulator per row.

    Parameters
    ----------
    lr : float, array of one, or function of the step
        The learning rate. A function gets the number of completed steps, as an int or, in traced code, an int32 array.
    eps : float, array of one, or function of the step, default 1e-8
        A small number that is added to the root.
    initial_accumulator : float, default 0
        The initial value of the accumulators.
    weight_decay : float, array of one, or function of the step, default 0
        weight_decay * w is added to the gradient of the updated rows.
    rows : {"touched", "all"}, optional
        With "touched", a step updates only the rows that a sparse gradient contains. With "all", a step updates every
        row, like the dense formula. The default is "touched", or "all" if the semantics supports only "all".
    semantics : {"islices", "fbgemm", "mxnet"}
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
    In the formula below, "mean" is the mean over the row, summed as in SPEC clause 19. The defaults above and this
    formula are those of semantics="islices": ``a = a + mean(g g)``, then ``w - lr (g / (sqrt(a) + eps))``.
    The operations are carried out in this order, and each rounds once. g is the coalesced gradient. SPEC clause 16.

    Examples
    --------
    >>> import numpy as np
    >>> from islices import IndexedSlices
    >>> table = np.ones((3, 1))
    >>> optimizer = rowwise_adagrad(0.5)
    >>> grad = IndexedSlices(np.array([[0.25], [0.25]]), np.array([2, 2]), (3, 1))
    >>> table, state = optimizer.step(table, grad, optimizer.init(table))
    >>> table[:2].tolist()
    [[1.0], [1.0]]
    """
    return make("rowwise_adagrad", **locals())
