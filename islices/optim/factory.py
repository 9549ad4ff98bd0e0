"""Construct an optimizer from the user's arguments: fill in defaults, check the arguments, and build the optimizer.

SPEC clauses 11 and 16.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, Literal, TypeAlias

import numpy as np

from islices.core.arguments import check_flag, check_name, is_real, show
from islices.core.linear import as_float
from islices.norms.clip_formulas import lookup_formula
from islices.optim.hyperparameters import check_hyper
from islices.optim.optimizer import Optimizer
from islices.optim.record import RECORDS

#: The rows that a step with a sparse gradient updates. None means "touched", or "all" if the semantics supports only
#: "all" with these hyperparameters.
Rows: TypeAlias = Literal["touched", "all"] | None
ROWS = ("touched", "all")
#: With "sum", a rule that has the parameter q gets a q that is computed from the sum of the duplicates. With "raw",
#: which only some optimizers with semantics="keras" support, q is the sum of the duplicates' squares.
Duplicates: TypeAlias = Literal["sum", "raw"]
DUPLICATES = ("sum", "raw")


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
    """Return the optimizer with this name. Hyperparameters that are None get the defaults of `semantics`.

    Raise the errors that the public function documents.
    """
    record = RECORDS[name]
    preset = lookup_formula(record.presets, semantics, name)
    owner = f"{name} with semantics={semantics!r}"
    for k, v in given.items():
        if v is not None and k not in preset.defaults:
            raise ValueError(f"{k}: got {show(v)}; {owner} has {', '.join(preset.defaults)}")
    hyper = {k: _plain(v if (v := given.get(k)) is not None else default) for k, default in preset.defaults.items()}
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
    if formula.raw != (duplicates == "raw"):
        raise ValueError(f"duplicates: got {duplicates!r}; {owner} has {'raw' if formula.raw else 'sum'!r} only")
    if chosen["rows"] not in formula.rows:
        raise ValueError(f"rows: got {rows!r}; {owner} has {', '.join(map(repr, formula.rows))}")
    formula = replace(formula, maximize=maximize, limits=record.limits)
    remake = partial(make, name, **given, rows=rows, semantics=semantics, maximize=maximize, duplicates=duplicates)
    return Optimizer(
        name, hyper, formula, rows=chosen["rows"], semantics=semantics, requested=rows, frozen=frozen, remake=remake
    )


def _plain(x: Any) -> Any:
    """Return a NumPy bool as a bool, and a real number of another type than float and int as a float.

    Anything else is returned unchanged. With floats, arithmetic on hyperparameters is in float64; with NumPy's float32
    numbers, it would be in float32.
    """
    if isinstance(x, np.bool_):
        return bool(x)
    return as_float(x) if type(x) not in (float, int) and is_real(x) else x
