"""The formulas of Lion in each semantics. SPEC clauses 11 and 16."""

from __future__ import annotations

from typing import Any

from islices.norms.clip_formulas import Semantics
from islices.optim.factory import Duplicates, Rows, make
from islices.optim.formulas import Formula, State
from islices.optim.hyperparameters import Hyper, Setting, decays
from islices.optim.numbers import Numbers, Singles
from islices.optim.operators import mul, sign
from islices.optim.optimizer import Optimizer
from islices.optim.record import ALL, Preset, Record
from islices.optim.rules import running


def lion_rule(g, w, m, gain1, gain2, lr, one, zero, beta1=None, beta2=None, weight_decay=None):
    """Apply Lion (Chen et al. 2023). `gain1` and `gain2` are 1 - beta1 and 1 - beta2.

    If `weight_decay` is given, weight_decay times the weight is added to the sign.
    """
    step = sign(running(m, g, gain1, beta1), zero, one)
    if weight_decay is not None:
        step = step + mul(weight_decay, w)
    return w - mul(lr, step), running(m, g, gain2, beta2)


# ---------------------------------------------------------------------- the record
BETAS: Hyper = {"beta1": 0.9, "beta2": 0.99}
LION = Record(
    "lion",
    "Lion",
    ("lr", "beta1", "beta2", "weight_decay"),
    {
        "islices": Preset(
            {**BETAS, "weight_decay": 0.0},
            lambda h: Formula(lion_rule, Numbers, (State("m"),), decay=decays(h, "decoupled")),
        ),
        "keras": Preset(
            {"lr": 1e-3, **BETAS, "weight_decay": 0.0},
            lambda h: Formula(lion_rule, Singles, (State("m"),), "", "shrunk", ALL, options=("beta1", "beta2")),
            "keras.optimizers.Lion",
        ),
        "optax": Preset(
            {**BETAS, "weight_decay": 1e-3},
            lambda h: Formula(lion_rule, Numbers, (State("m"),), rows=ALL, options=("beta1", "beta2", "weight_decay")),
            "optax.lion",
        ),
    },
    stored={"m": "exp_avg"},
)


def lion(
    lr: Setting = None,
    *,
    beta1: Setting = None,
    beta2: Setting = None,
    weight_decay: Setting = None,
    rows: Rows = None,
    semantics: Semantics = "islices",
    maximize: bool = False,
    frozen: Any = None,
    duplicates: Duplicates = "sum",
) -> Optimizer:
    """Make a Lion optimizer, which subtracts the learning rate times the sign of a running mean of gradients (Chen et
    al. 2023).

    Parameters
    ----------
    lr : float, array of one, or function of the step
        The learning rate. A function gets the number of completed steps, as an int or, in traced code, an int32 array.
    beta1 : float, array of one, or function of the step, default 0.9
        The decay rate of the running mean whose sign is the direction of the step.
    beta2 : float, array of one, or function of the step, default 0.99
        The decay rate of the running mean that the state stores.
    weight_decay : float, array of one, or function of the step, default 0
        The updated rows are first multiplied by 1 - lr * weight_decay.
    rows : {"touched", "all"}, optional
        With "touched", a step updates only the rows that a sparse gradient contains. With "all", a step updates every
        row, like the dense formula. The default is "touched", or "all" if the semantics supports only "all".
    semantics : {"islices", "keras", "optax"}
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
    The defaults above and this formula are those of semantics="islices": ``w - lr sign(m + (1 - beta1) (g - m))``, then
    ``m = m + (1 - beta2) (g - m)``. The sign of 0 is 0.
    The operations are carried out in this order, and each rounds once. g is the coalesced gradient. SPEC clause 16.

    Examples
    --------
    >>> import numpy as np
    >>> from islices import IndexedSlices
    >>> table = np.ones((3, 1))
    >>> optimizer = lion(0.5)
    >>> grad = IndexedSlices(np.array([[0.25], [0.25]]), np.array([2, 2]), (3, 1))
    >>> table, state = optimizer.step(table, grad, optimizer.init(table))
    >>> table[:2].tolist()
    [[1.0], [1.0]]
    """
    return make("lion", **locals())
