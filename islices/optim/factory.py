"""From what the user asks for to an optimizer: its defaults, what is refused, and how its function is described.

SPEC clauses 11 and 16.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Literal, TypeAlias, TypedDict, TypeVar, get_type_hints

import numpy as np

from islices.core.arguments import check_flag, check_name, is_real, show
from islices.core.linear import as_float
from islices.norms.clip_formulas import Semantics, lookup_formula
from islices.optim.hyperparameters import check_hyper
from islices.optim.optimizer import Optimizer
from islices.optim.record import RECORDS, Record

__all__ = ["Options", "Rows", "made", "make", "public"]

#: Which rows a sparse gradient moves; None: those that it names, or all where the semantics has nothing else.
Rows: TypeAlias = Literal["touched", "all"] | None
ROWS = ("touched", "all")
DUPLICATES = ("sum", "raw")
Function = TypeVar("Function", bound=Callable[..., Optimizer])


class Options(TypedDict, total=False):
    """What all optimizers take beside their hyperparameters."""

    rows: Rows
    semantics: Semantics
    maximize: bool
    frozen: Any
    duplicates: Literal["sum", "raw"]


def make(
    name: str,
    /,
    *,
    rows: Any = None,
    semantics: Any = "islices",
    maximize: bool = False,
    frozen: Any = None,
    duplicates: str = "sum",
    **given: Any,
) -> Optimizer:
    """The optimizer of a name: hyperparameters that are None come from the preset. Raises as the public functions."""
    record = RECORDS[name]
    preset = lookup_formula(record.presets, semantics, name)
    unknown = [k for k, v in given.items() if v is not None and k not in preset.defaults]
    if unknown:
        names = ", ".join(preset.defaults)
        raise ValueError(
            f"{unknown[0]}: got {show(given[unknown[0]])}; {name} with semantics={semantics!r} has {names}"
        )
    hyper = {k: v if (v := given.get(k)) is not None else default for k, default in preset.defaults.items()}
    hyper = {k: _plain(v) for k, v in hyper.items()}
    check_hyper(hyper, preset.defaults, record.fixed, record.limits)
    maximize = check_flag(maximize, "maximize")
    check_name(duplicates, DUPLICATES, "duplicates")
    if rows is not None:
        check_name(rows, ROWS, "rows")
    chosen = {**hyper, "rows": rows or "touched", "duplicates": duplicates}
    formula = preset.formula(chosen)
    if rows is None and "touched" not in formula.rows:
        chosen["rows"] = "all"
        formula = preset.formula(chosen)
    owner = f"{name} with semantics={semantics!r}"
    if formula.raw != (duplicates == "raw"):
        raise ValueError(f"duplicates: got {duplicates!r}; {owner} has {'raw' if formula.raw else 'sum'!r} only")
    if chosen["rows"] not in formula.rows:
        raise ValueError(f"rows: got {rows!r}; {owner} has {', '.join(map(repr, formula.rows))}")
    formula = replace(formula, maximize=maximize, limits=record.limits)
    options = {"semantics": semantics, "maximize": formula.maximize, "duplicates": duplicates}
    remake = partial(make, name, **given, **options, rows=rows)
    return Optimizer(
        name, hyper, formula, rows=chosen["rows"], semantics=semantics, asked=rows, frozen=frozen, remake=remake
    )


def made(name: str, given: dict[str, Any]) -> Optimizer:
    """Return `make` of the arguments of a public function, whose locals these are."""
    return make(name, **given.pop("options"), **given)


def _plain(x: Any) -> Any:
    """A number or a flag of Python, in which numbers of a step are formed in float64; anything else as it is."""
    if isinstance(x, np.bool_):
        return bool(x)
    return as_float(x) if type(x) not in (float, int) and is_real(x) else x


# ---------------------------------------------------------------------- what all functions say
LR = """\
lr : float, array of one, or function of the step
    The learning rate; a function gets the number of steps taken before, from 0: an int, or a traced int32 array.
"""
REST = """\
rows : {{"touched", "all"}}, optional
    Which rows a sparse gradient moves: those it names, all others keeping their bits, or all, as the dense formula
    on its densified form does. Default: "touched", or "all" where the semantics has nothing else.
semantics : {{{semantics}}}
    Whose arithmetic, of another framework with its own defaults; see docs/optimizers.md.
maximize : bool
    Follow the gradient upwards.
frozen : 1-D integer array or sequence, or boolean mask, optional
    Rows that keep their bits, weight decay included.
duplicates : {{"sum", "raw"}}
    "raw", of semantics="keras" only: what Keras makes of slices whose duplicates nobody summed.

Returns
-------
Optimizer
    ``.init(table) -> state`` and ``.step(table, grad, state) -> (table, state)``.

Raises
------
TypeError, ValueError, IndexError
    A hyperparameter that is none, or that the semantics does not have.

Notes
"""
END = """
Every operation rounds once, in this order; g is the coalesced gradient. SPEC clause 16.

Examples
--------
>>> import numpy as np
>>> from islices import IndexedSlices
>>> table = np.ones((3, 1))
>>> optimizer = {name}(0.5)
>>> grad = IndexedSlices(np.array([[0.25], [0.25]]), np.array([2, 2]), (3, 1))
>>> table, state = optimizer.step(table, grad, optimizer.init(table))
>>> table[:2].tolist()
[[1.0], [1.0]]
"""


def public(record: Record) -> Callable[[Function], Function]:
    """A decorator of a record's function: what all of them take and say joins its signature and docstring."""

    def described(function: Function) -> Function:
        signature = inspect.signature(function)
        own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        values = {name: p.default for name, p in inspect.signature(make).parameters.items()}
        shared = [
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=values[name], annotation=kind.__forward_arg__
            )
            for name, kind in Options.__annotations__.items()
        ]
        function.__signature__ = signature.replace(parameters=[*own, *shared])  # type: ignore[attr-defined]
        del function.__annotations__["options"]
        function.__annotations__ |= get_type_hints(Options)
        if function.__doc__ is not None:  # python -OO has none
            parts = re.fullmatch(r"(.*?-{10}\n)(.*?\n)\nNotes\n(.*)", inspect.cleandoc(function.__doc__), re.DOTALL)
            head, parameters, notes = parts.groups() if parts else ("", "", "")
            names = ", ".join(f'"{semantics}"' for semantics in record.presets)
            text = head + LR + parameters + REST.format(semantics=names) + notes + END.format(name=record.name)
            function.__doc__ = textwrap.indent(text, "    ").strip()
        return function

    return described
