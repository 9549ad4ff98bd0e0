"""Optimizers that apply a rule which you write. SPEC clause 16."""

from __future__ import annotations

import dis
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from inspect import Parameter
from types import FunctionType
from typing import Any, Literal

import numpy as np

from islices.core.arguments import check_flag, check_name, is_real
from islices.core.registry import describe, get_backend
from islices.optim import operators
from islices.optim.factory import ROWS
from islices.optim.formulas import Formula, Rule, State, parameters_of
from islices.optim.hyperparameters import FINITE, Accepted, Scheduled, check_hyper
from islices.optim.numbers import Numbers
from islices.optim.optimizer import Optimizer
from islices.optim.row_steps import array_rule

ANY = Accepted("a finite number", math.isfinite)
#: The numbers that every custom rule may use besides its hyperparameters: the step count, from 1, and constants.
GIVEN = ("t", "zero", "half", "one", "two")
#: The names that the user's arrays and hyperparameters must not have.
RESERVED = ("g", "q", "w", "lr", "step", "master", *GIVEN)
#: The end of an error text.
ACCEPTED = (
    "accepted are +, - and the operators of islices.optim.operators, imported by name; a literal is their second "
    "argument"
)


class NamedNumbers(Numbers):
    """The numbers of a custom rule, which are the hyperparameters and the numbers in `GIVEN`."""

    def value(self, name: str) -> Any:
        return self.exact_lr if name == "lr" else self.h[name] if name in self.h else getattr(self, name)


def custom(
    update: Rule,
    lr: Scheduled,
    *,
    state: Mapping[str, float] | None = None,
    row_state: Mapping[str, float] | None = None,
    rows: Literal["touched", "all"] | None = None,
    maximize: bool = False,
    frozen: Any = None,
    **hyper: Scheduled,
) -> Optimizer:
    """Return an optimizer that applies a rule which you write; results have the same bits on every framework.

    Parameters
    ----------
    update : function
        The rule, which gets its arguments by name. ``g`` is the coalesced gradient, or its negative if maximize is
        True. ``q`` is the square of g, and ``w`` contains the weights. The other parameters are arrays of the state and
        numbers. The numbers are ``lr``, the hyperparameters, ``t`` (the step count, which starts at 1), ``zero``,
        ``half``, ``one`` and ``two``. The rule returns a tuple: the new w, then the new arrays in the order of state
        and row_state. update must be a plain function that uses only ``+``, ``-``, the operators of
        `islices.optim.operators`, and functions that use only these.
    lr : float, array of one, or function of the step
        The learning rate.
    state, row_state : dict of str to float
        The names and initial values of the state's arrays. Arrays in state have one number per element; arrays in
        row_state have one number per row.
    rows : {"touched", "all"}, optional
        The rows that a step with a sparse gradient updates; the default is "touched". A dense gradient updates all
        rows.
    maximize : bool
        If True, maximize the loss instead of minimizing it.
    frozen : 1-D integer array or sequence, or boolean mask, optional
        Rows that no step changes.
    **hyper : float, array of one, or function of the step
        Further hyperparameters, which the rule gets by name.

    Returns
    -------
    Optimizer
        ``.init(table) -> state`` and ``.step(table, grad, state) -> (table, state)``.

    Raises
    ------
    TypeError, ValueError, IndexError
        update is not a plain function, or uses an operator that is not accepted. update has an unknown parameter or one
        with a default, or lacks ``g``, ``w`` or an array of the state. In a trial with NumPy arrays of one row, update
        raises an error, or returns a wrong number of results or a wrong shape. Another argument is invalid.

    Notes
    -----
    Compiled kernels run a rule only if the source of the rule can be read. A compiled rule must not call `row_mean`, or
    use literal numbers or constants of its module. A compiled rule has at most three arrays, all in state or all in
    row_state. Other rules run as array operations, which are slower. SPEC clause 16.

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
    operators.bind(update, {})  # raises TypeError unless update is a plain function
    state, row_state = dict(state or {}), dict(row_state or {})
    names = [*RESERVED, *state, *row_state, *hyper]
    if taken := [name for k, name in enumerate(names) if name in names[:k]]:
        raise ValueError(
            f"state, row_state, hyperparameters: got the name {taken[0]!r}; accepted are names that differ from each "
            f"other and from {', '.join(RESERVED)}"
        )
    specs = []
    for name, initial in {**state, **row_state}.items():
        if not is_real(initial):
            raise TypeError(f"state: got {describe(initial)} for {name!r}; accepted is the number that it begins with")
        specs.append(State(name, float(initial), name in row_state))
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
    _check_code(update)
    _check_results(update, parameters, specs)
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
        rows="touched" if rows is None else check_name(rows, ROWS, "rows"),
        semantics="islices",
        requested=rows,
        frozen=frozen,
        remake=remake,
    )


def _check_code(rule: Any) -> None:
    """Raise TypeError if a rule uses an expression that may fail or round differently in some frameworks.

    These expressions are comparisons of order or equality, attributes, and binary operators other than ``+`` and ``-``.
    For example, XLA may fuse the product of ``*`` with a following addition. The functions that the rule calls are
    checked too.
    """
    for x in dis.get_instructions(rule):
        if x.opname == "COMPARE_OP" or (x.opname == "BINARY_OP" and x.argrepr.rstrip("=") not in ("+", "-")):
            came = f"the operator {x.argrepr}"
        elif x.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            came = f"the attribute .{x.argval.strip()}" if isinstance(x.argval, str) else "an attribute"
        else:
            continue
        raise TypeError(f"update: got {came} in the function {rule.__name__}; {ACCEPTED}")
    for called in map(rule.__globals__.get, rule.__code__.co_names):
        if isinstance(called, FunctionType) and called.__module__ != operators.__name__:
            _check_code(called)


def _check_results(update: Rule, parameters: Iterable[str], specs: Sequence[State]) -> None:
    """Run a rule on NumPy arrays of one row, and check the results.

    Raise TypeError if the rule fails on these arrays (see the types of errors below), or returns a wrong number of
    results. Raise ValueError if a result has a wrong shape.
    """
    elements, number = np.array([[0.5, 0.25]]), np.array([[0.5]])
    shapes = {"w": elements.shape, **{x.name: (number if x.per_row else elements).shape for x in specs}}
    given = {name: elements if name in "gq" or shapes.get(name) == elements.shape else number for name in parameters}
    try:
        with np.errstate(all="ignore"):
            results = array_rule(update, get_backend("numpy"))(**given)
    except (ArithmeticError, AttributeError, LookupError, NameError, TypeError, ValueError) as error:
        raise TypeError(f"update: it raised {type(error).__name__}: {error}; {ACCEPTED}") from error
    if not isinstance(results, (tuple, list)) or len(results) != len(shapes):
        came = f"{len(results)} results" if isinstance(results, (tuple, list)) else describe(results)
        raise TypeError(f"update: got {came}; accepted is a tuple of {len(shapes)}: {', '.join(shapes)}")
    for (name, shape), x in zip(shapes.items(), results, strict=True):
        if np.shape(x) != shape:
            kind = "one number per row, such as row_mean" if shape == number.shape else "one number per element"
            raise ValueError(f"update: got {name} of shape {np.shape(x)} for a row of 2 elements; accepted is {kind}")
