"""From what the user asks for to an optimizer: the preset, its defaults, what is refused. SPEC clauses 11 and 16."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Literal, TypeAlias

import numpy as np

from islices.arguments import check_name, is_real, show
from islices.deprecation import warn_deprecated
from islices.linear import as_float
from islices.optim.hyperparameters import check_hyper
from islices.optim.optimizer import Optimizer
from islices.optim.presets import PRESETS
from islices.presets import lookup_formula
from islices.registry import describe

__all__ = ["Duplicates", "Rows", "current_name", "make"]

#: Which rows a sparse gradient moves; None: those that it names, or all where the semantics has nothing else.
Rows: TypeAlias = Literal["touched", "all"] | None
#: "raw": what Keras makes of slices whose duplicates nobody summed.
Duplicates: TypeAlias = Literal["sum", "raw"]
ROWS = ("touched", "all")
DUPLICATES = ("sum", "raw")


def current_name(semantics: Any) -> Any:
    """The name that a semantics has now: "tf1" was that of "tensorflow"."""
    if isinstance(semantics, str) and semantics == "tf1":
        warn_deprecated("semantics='tf1' is deprecated: use 'tensorflow', which is the same; islices 0.2 takes it away")
        return "tensorflow"
    return semantics


def make(
    name: str,
    given: Mapping[str, Any],
    *,
    rows: Any,
    semantics: Any,
    maximize: bool,
    frozen: Any,
    duplicates: str,
) -> Optimizer:
    """The optimizer of a name: hyperparameters that are None come from the preset. Raises as the public functions."""
    semantics = current_name(semantics)
    preset = lookup_formula(PRESETS[name], semantics, name)
    unknown = [k for k, v in given.items() if v is not None and k not in preset.defaults]
    if unknown:
        names = ", ".join(preset.defaults)
        raise ValueError(
            f"{unknown[0]}: got {show(given[unknown[0]])}; {name} with semantics={semantics!r} has {names}"
        )
    hyper = {k: v if (v := given.get(k)) is not None else default for k, default in preset.defaults.items()}
    hyper = {k: v.item() if isinstance(v, np.number) and is_real(v) else v for k, v in hyper.items()}
    check_hyper(hyper, preset.defaults)
    if name == "ftrl" and is_real(hyper["lr"]) and as_float(hyper["lr"]) == 0:
        raise ValueError("lr: got 0; accepted by ftrl, which divides by it, is a number above 0")
    if not isinstance(maximize, (bool, np.bool_)):
        raise TypeError(f"maximize: got {describe(maximize)}; accepted is a bool")
    check_name(duplicates, DUPLICATES, "duplicates")
    if rows is not None:
        check_name(rows, ROWS, "rows")
    formula = preset.formula({**hyper, "rows": rows or "touched", "duplicates": duplicates})
    owner = f"{name} with semantics={semantics!r}"
    if formula.raw != (duplicates == "raw"):
        raise ValueError(f"duplicates: got {duplicates!r}; {owner} has {'raw' if formula.raw else 'sum'!r} only")
    if rows is None:
        rows = "touched" if "touched" in formula.rows else "all"
        formula = preset.formula({**hyper, "rows": rows, "duplicates": duplicates})
    if rows not in formula.rows:
        raise ValueError(f"rows: got {rows!r}; {owner} has {', '.join(map(repr, formula.rows))}")
    options = {"rows": rows, "semantics": semantics, "maximize": bool(maximize), "frozen": frozen}
    remake = partial(make, name, dict(given), **options, duplicates=duplicates)
    return Optimizer(name, hyper, formula, **options, remake=remake)
