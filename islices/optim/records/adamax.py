"""The formulas of Adamax in each semantics. SPEC clauses 11 and 16."""

from __future__ import annotations

from typing import Any

from islices.norms.clip_formulas import Semantics
from islices.optim.factory import Duplicates, Rows, make
from islices.optim.formulas import Formula, State
from islices.optim.hyperparameters import Hyper, Setting, decays
from islices.optim.operators import absolute, div, maximum, mul
from islices.optim.optimizer import Optimizer
from islices.optim.record import ALL, Preset, Record
from islices.optim.records.adam import MOMENTS, IslicesAdam, KerasAdam, OptaxAdam, TorchAdam
from islices.optim.rules import gradient_mean


def adamax_rule(
    g, w, m, u, gain1, beta2, rate, eps, beta1=None, half=None, one=None, correction1=None, inside=False, early=False
):
    """Apply Adamax (Kingma and Ba 2015, algorithm 2) with eps. `gain1` is 1 - beta1.

    `rate` is lr / (1 - beta1^t), or lr if the bias correction `correction1` is given. If `inside` is True, eps is added
    to the gradient's absolute value, else to u. If `early` is True, the mean is multiplied by the rate before the
    division.
    """
    m = gradient_mean(m, g, gain1, beta1, half, one)
    u = maximum(mul(beta2, u), absolute(g) + eps if inside else absolute(g))
    size = u if inside else u + eps
    if early:
        step = div(mul(rate, m), size if correction1 is None else mul(correction1, size))
    else:
        step = mul(rate, div(m if correction1 is None else div(m, correction1), size))
    return w - step, m, u


class KerasMax(KerasAdam):
    def rate(self):
        return self.lr()


STATE = (State("m"), State("u", positive=True))


# ---------------------------------------------------------------------- the record
DEFAULTS: Hyper = {**MOMENTS, "weight_decay": 0.0}
ADAMAX = Record(
    "adamax",
    "Adamax",
    ("lr", "beta1", "beta2", "eps", "weight_decay"),
    {
        "islices": Preset(
            DEFAULTS,
            lambda h: Formula(adamax_rule, IslicesAdam, STATE, decay=decays(h)),
        ),
        "keras": Preset(
            {"lr": 1e-3, **DEFAULTS, "eps": 1e-7},
            lambda h: Formula(adamax_rule, KerasMax, STATE, "", "shrunk", ALL, options=("correction1", "early")),
            "keras.optimizers.Adamax",
        ),
        "optax": Preset(
            MOMENTS,
            lambda h: Formula(adamax_rule, OptaxAdam, STATE, rows=ALL, options=("beta1", "correction1", "inside")),
            "optax.adamax",
        ),
        "torch": Preset(
            {"lr": 2e-3, **DEFAULTS},
            lambda h: Formula(
                adamax_rule, TorchAdam, STATE, "", decays(h), ALL, options=("half", "one", "inside", "early")
            ),
            "torch.optim.Adamax",
        ),
    },
    stored={"m": "exp_avg", "u": "exp_inf"},
)


def adamax(
    lr: Setting = None,
    *,
    beta1: Setting = None,
    beta2: Setting = None,
    eps: Setting = None,
    weight_decay: Setting = None,
    rows: Rows = None,
    semantics: Semantics = "islices",
    maximize: bool = False,
    frozen: Any = None,
    duplicates: Duplicates = "sum",
) -> Optimizer:
    """Make an Adamax optimizer: Adam with a decaying maximum of absolute gradients in place of the root mean square
    (Kingma and Ba 2015, algorithm 2).

    Parameters
    ----------
    lr : float, array of one, or function of the step
        The learning rate. A function gets the number of completed steps, as an int or, in traced code, an int32 array.
    beta1 : float, array of one, or function of the step, default 0.9
        The decay rate of the running mean of gradients.
    beta2 : float, array of one, or function of the step, default 0.999
        The decay rate of the maximum of absolute gradients.
    eps : float, array of one, or function of the step, default 1e-8
        A small number that is added to the maximum of absolute gradients.
    weight_decay : float, array of one, or function of the step, default 0
        weight_decay * w is added to the gradient of the updated rows.
    rows : {"touched", "all"}, optional
        With "touched", a step updates only the rows that a sparse gradient contains. With "all", a step updates every
        row, like the dense formula. The default is "touched", or "all" if the semantics supports only "all".
    semantics : {"islices", "keras", "optax", "torch"}
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
    The defaults above and this formula are those of semantics="islices": ``m = m + (1 - beta1) (g - m)``,
    ``u = max(beta2 u, |g|)``, then ``w - (lr / (1 - beta1^t)) (m / (u + eps))``. t counts the table's steps from 1.
    The operations are carried out in this order, and each rounds once. g is the coalesced gradient. SPEC clause 16.

    Examples
    --------
    >>> import numpy as np
    >>> from islices import IndexedSlices
    >>> table = np.ones((3, 1))
    >>> optimizer = adamax(0.5)
    >>> grad = IndexedSlices(np.array([[0.25], [0.25]]), np.array([2, 2]), (3, 1))
    >>> table, state = optimizer.step(table, grad, optimizer.init(table))
    >>> table[:2].tolist()
    [[1.0], [1.0]]
    """
    return make("adamax", **locals())
