"""From what the user asks for to an optimizer: the preset, its defaults, what is refused. SPEC clauses 11 and 16."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from islices.arguments import check_name, is_real, show
from islices.backend import FLOATS, INTEGERS
from islices.linear import as_float
from islices.optim.formulas import Hyper
from islices.optim.optimizer import Optimizer
from islices.optim.presets import PRESETS
from islices.presets import lookup_formula
from islices.registry import describe, find_backend
from islices.shapes import size_of

__all__ = ["make"]

ROWS = ("touched", "all")
DUPLICATES = ("sum", "raw")


def make(
    name: str,
    given: Mapping[str, Any],
    *,
    rows: str,
    semantics: str,
    maximize: bool,
    frozen: Any,
    duplicates: str,
) -> Optimizer:
    """The optimizer of a name: hyperparameters that are None come from the preset. Raises as the public functions."""
    preset = lookup_formula(PRESETS[name], semantics, name)
    unknown = [k for k, v in given.items() if v is not None and k not in preset.defaults]
    if unknown:
        names = ", ".join(preset.defaults)
        raise ValueError(
            f"{unknown[0]}: got {show(given[unknown[0]])}; {name} with semantics={semantics!r} has {names}"
        )
    hyper = {k: v if (v := given.get(k)) is not None else default for k, default in preset.defaults.items()}
    _check_types(hyper, preset.defaults)
    _check_ranges(hyper)
    if name == "ftrl" and is_real(hyper["lr"]) and as_float(hyper["lr"]) == 0:
        raise ValueError("lr: got 0; accepted by ftrl, which divides by it, is a number above 0")
    if not isinstance(maximize, (bool, np.bool_)):
        raise TypeError(f"maximize: got {describe(maximize)}; accepted is a bool")
    for argument, value, accepted in (("rows", rows, ROWS), ("duplicates", duplicates, DUPLICATES)):
        check_name(value, accepted, argument)
    formula = preset.formula({**hyper, "rows": rows, "duplicates": duplicates})
    owner = f"{name} with semantics={semantics!r}"
    if formula.raw != (duplicates == "raw"):
        raise ValueError(f"duplicates: got {duplicates!r}; {owner} has {'raw' if formula.raw else 'sum'!r} only")
    if rows not in formula.rows:
        raise ValueError(f"rows: got {rows!r}; {owner} has {', '.join(map(repr, formula.rows))}")
    options = {"rows": rows, "semantics": semantics, "maximize": bool(maximize), "frozen": frozen}
    remake = partial(make, name, dict(given), **options, duplicates=duplicates)
    return Optimizer(name, hyper, formula, **options, remake=remake)


def _check_types(hyper: Hyper, defaults: Hyper) -> None:
    for name, value in hyper.items():
        if isinstance(defaults[name], bool):
            if not isinstance(value, (bool, np.bool_)):
                raise TypeError(f"{name}: got {describe(value)}; accepted is a bool")
        elif name == "lr":
            if value is None or isinstance(value, (bool, np.bool_)) or not _is_rate(value):
                came = "none" if value is None else describe(value)
                raise TypeError(f"lr: got {came}; accepted is a number, an array of one, or a function of the step")
        elif isinstance(value, (bool, np.bool_)) or not is_real(value):
            raise TypeError(f"{name}: got {describe(value)}; accepted is a real number")


def _is_rate(value: Any) -> bool:
    backend = find_backend(value)
    if backend is None or not backend.is_array(value):
        return is_real(value) or callable(value)
    numeric = backend.dtype(value) in (*FLOATS, *INTEGERS)
    return is_real(value) or (numeric and size_of(backend.shape(value)) == 1)


def _check_ranges(h: Hyper) -> None:
    """ValueError for a hyperparameter that no optimizer accepts."""
    for name, value in h.items():
        if isinstance(value, bool) or (name == "lr" and not is_real(value)):
            continue
        if name == "lr_power":
            if not abs(as_float(value)) < math.inf:
                raise ValueError(f"lr_power: got {show(value)}; accepted is a finite number")
            continue
        below_one = name in ("beta1", "beta2", "rho")
        if not (0 <= as_float(value) < (1 if below_one else math.inf)):
            accepted = "0 <= value < 1" if below_one else "a finite number >= 0"
            raise ValueError(f"{name}: got {show(value)}; accepted is {accepted}")
