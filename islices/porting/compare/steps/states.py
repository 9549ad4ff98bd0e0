"""States of optimizers as the formulas of `islices.optim` name them, whichever framework kept them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from islices.core.trees import named_leaves
from islices.optim.record import RECORDS
from islices.porting.compare.stored import Array, read

__all__ = ["read_state"]

#: What frameworks call an array of a state -> our name, where records do not say it.
KNOWN = {
    "momentums": "m", "velocities": "v", "velocity_hats": "v_max", "mu": "m", "nu": "v", "mean": "m", "var": "v",
    "accumulator": "accumulator", "history": "accumulator", "sum_of_squares": "accumulator", "trace": "momentum",
    "rms": "mean_square", "velocity": "mean_square", "iterations": "step", "count": "step", "t": "step",
}  # fmt: skip


def read_state(tree: Any, argument: str) -> tuple[dict[str, Array], int | None]:
    """(the arrays by our names, the steps taken) of one table's state: a dict, or a tree of arrays with such names."""
    if tree is None:
        return {}, None
    if not isinstance(tree, Mapping):
        raise TypeError(f"{argument}: got {type(tree).__name__}; accepted is a dict of a state's arrays by name")
    names = _names(set(tree))
    arrays: dict[str, Array] = {}
    steps = None
    for name, x in named_leaves(tree, argument).items():
        known = names.get(name, name)
        if known == "step":
            steps = int(np.asarray(read(np.asarray(x), name, argument).values).reshape(-1)[0])
        elif x is not None:
            arrays[known] = read(x, name, f"{argument}[{name!r}]").values
    arrays.pop("master", None)
    return arrays, steps


def _names(given: set[str]) -> dict[str, str]:
    """The framework's names -> ours: those of the optimizer whose arrays they are."""
    for record in RECORDS.values():
        theirs = {record.stored.get(n, n): n for n in ("m", "v", "v_max", *record.stored)}
        if given - {"step"} <= set(theirs) and not given - {"step"} <= set(record.stored):
            return theirs
    own = {n for record in RECORDS.values() for n in record.stored} | {"z", "n"}
    return {n: KNOWN[n] for n in given if n in KNOWN and n not in own}
