"""An optimizer from a rule of your own. SPEC clause 16."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from inspect import Parameter
from typing import Any, Literal

from islices.core.arguments import check_flag, check_name, is_real
from islices.core.registry import describe
from islices.optim.factory import ROWS
from islices.optim.formulas import Formula, State, parameters_of
from islices.optim.hyperparameters import FINITE, Accepted, Scheduled, check_hyper
from islices.optim.numbers import Numbers
from islices.optim.operators import bind
from islices.optim.optimizer import Optimizer

ANY = Accepted("a finite number", math.isfinite)
#: Numbers that a rule may name without a hyperparameter: the step's number from 1, and constants.
GIVEN = ("t", "zero", "half", "one", "two")


class NamedNumbers(Numbers):
    """Hyperparameters by their names, and numbers that exist for every rule."""

    def value(self, name: str) -> Any:
        return self.exact_lr if name == "lr" else self.h[name] if name in self.h else getattr(self, name)


def custom(
    update: Callable[..., Any],
    lr: Scheduled,
    *,
    state: Mapping[str, float] | None = None,
    row_state: Mapping[str, float] | None = None,
    rows: Literal["touched", "all"] = "touched",
    maximize: bool = False,
    frozen: Any = None,
    **hyper: Scheduled,
) -> Optimizer:
    """Return an optimizer whose rule is a function of yours, with the same bits on every framework.

    Parameters
    ----------
    update : function
        Of g (the coalesced gradient), w, the arrays of the state, and numbers, all by name; it returns the new w, then
        the new arrays in the order of state and row_state. It is a plain function of ``+``, ``-`` and the operators of
        `islices.optim.operators`, and may call others of this kind. A parameter ``q`` is the square of g. Numbers are
        lr, those of hyper, ``t`` (the step from 1), ``zero``, ``half``, ``one`` and ``two``.
    lr : float, array of one, or function of the step
        The learning rate.
    state, row_state : dict of str to float
        What the state's arrays begin with: one number per element, or one per row.
    rows : {"touched", "all"}
        Which rows a sparse gradient moves.
    maximize : bool
        Follow the gradient upwards.
    frozen : 1-D integer array or sequence, or boolean mask, optional
        Rows that keep their bits.
    **hyper : float, array of one, or function of the step
        Further numbers of the rule.

    Returns
    -------
    Optimizer
        ``.init(table) -> state`` and ``.step(table, grad, state) -> (table, state)``.

    Raises
    ------
    TypeError, ValueError
        No plain function, a parameter without a meaning, or a hyperparameter that is none.

    Notes
    -----
    Kernels run a rule without `row_mean` whose states are at most three and of one kind. SPEC clause 16.

    Examples
    --------
    >>> import numpy as np
    >>> from islices import IndexedSlices, optim
    >>> from islices.optim.operators import maximum, minimum, mul
    >>> def bounded_sgd(g, w, lr, bound):
    ...     return (w - mul(lr, minimum(maximum(g, -bound), bound)),)
    >>> optimizer = optim.custom(bounded_sgd, 0.5, bound=1.0)
    >>> table, grad = np.zeros((3, 1)), IndexedSlices(np.array([[4.0]]), np.array([2]), (3, 1))
    >>> optimizer.step(table, grad, optimizer.init(table))[0].ravel().tolist()
    [0.0, 0.0, -0.5]
    """
    bind(update, {})  # TypeError for what is no plain function
    state, row_state = dict(state or {}), dict(row_state or {})
    for name, initial in {**state, **row_state}.items():
        if not is_real(initial):
            raise TypeError(f"state: got {describe(initial)} for {name!r}; accepted is the number that it begins with")
    specs = [State(name, float(x), name in row_state) for name, x in {**state, **row_state}.items()]
    h = {"lr": lr, **hyper}
    limits = {**dict.fromkeys(hyper, ANY), "lr": FINITE}
    check_hyper(h, dict.fromkeys(h), (), limits)
    known = ["g", "q", "w", *(spec.name for spec in specs), *h, *GIVEN]
    parameters = parameters_of(update)
    odd = [name for name, x in parameters.items() if name not in known or x is not Parameter.empty]
    lacking = [name for name in ("g", "w", *(spec.name for spec in specs)) if name not in parameters]
    if odd or lacking:
        came = f"the parameter {odd[0]!r}" if odd else f"none for {lacking[0]!r}"
        raise ValueError(f"update: got {came}; accepted are {', '.join(known)}, without defaults")
    formula = Formula(
        update,
        NamedNumbers,
        tuple(specs),
        "element" if "q" in parameters else "",
        maximize=check_flag(maximize, "maximize"),
        limits=limits,
    )
    remake = partial(custom, update, state=state, row_state=row_state, rows=rows, maximize=maximize, **h)
    return Optimizer(
        update.__name__,
        h,
        formula,
        rows=check_name(rows, ROWS, "rows"),
        semantics="islices",
        asked=rows,
        frozen=frozen,
        remake=remake,
    )
