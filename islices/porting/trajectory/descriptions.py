"""An optimizer's formula on what a side had: the step that it should have taken, rounding aside.

A step is described by the record's name, a semantics and hyperparameters, as JSON holds them, so that a recording can
say what stepped it. Frameworks' names of a state's arrays are read as the records' own.

May import: `numpy`, the core, this folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from islices import optim
from islices.core.arguments import is_real, show
from islices.core.registry import describe
from islices.core.slices import IndexedSlices
from islices.optim import Optimizer
from islices.optim.record import RECORDS
from islices.porting.trajectory.positions import Leaf, Leaves

__all__ = ["Replay", "array_name", "as_description", "optimizer_from", "other_class"]

#: What frameworks call a state's arrays -> the records' names.
NAMES = {
    **{theirs: ours for record in RECORDS.values() for ours, theirs in record.stored.items()},
    "mu": "m", "nu": "v", "nu_max": "v_max", "count": "step", "iterations": "step", "trace": "momentum",
    "sum_of_squares": "accumulator",
}  # fmt: skip
#: Arrays that hold gradients under one semantics, and steps with learning rate and sign under another.
OWN_MEANING = ("momentum",)


def array_name(name: str) -> str:
    """A state's array by the record's name."""
    return NAMES.get(name, name)


def as_description(x: Any) -> dict[str, Any]:
    """An optimizer as JSON holds it; TypeError where a hyperparameter is a function or an array."""
    if isinstance(x, Mapping):
        if other_class(x) is None:
            optimizer_from(x)  # what cannot be replayed is refused where it is said
        return dict(x)
    if not isinstance(x, Optimizer):
        raise TypeError(f"optimizer: got {describe(x)}; accepted is one of islices.optim, or its description")
    numbers = {name: value for name, value in x.hyper.items() if value is not None}
    wrong = next((name for name, value in numbers.items() if not isinstance(value, bool) and not is_real(value)), None)
    if wrong is not None:
        raise TypeError(f"optimizer: got {wrong}={describe(numbers[wrong])}; a description holds numbers")
    plain = {name: value if isinstance(value, bool) else float(value) for name, value in numbers.items()}
    said: dict[str, Any] = {"name": x.name, "semantics": x.semantics, "rows": x.rows, **plain}
    if x._formula.raw:
        said["duplicates"] = "raw"
    if x.maximize:
        said["maximize"] = True
    return said


def other_class(said: Any) -> str | None:
    """The class that a description names of an optimizer which `islices.optim` does not have."""
    known = isinstance(said, Mapping) and list(said) == ["class"] and isinstance(said["class"], str)
    return said["class"] if known else None


def optimizer_from(x: Any) -> Optimizer:
    """The optimizer of a description, or the one that was given; TypeError, ValueError where there is none."""
    if isinstance(x, Optimizer):
        return x
    said = dict(x)
    name = said.pop("name", None)
    if not isinstance(name, str) or name not in RECORDS:
        raise ValueError(f"optimizer: got the name {show(name)}; accepted are {', '.join(map(repr, RECORDS))}")
    function = getattr(optim, name)
    known = [*RECORDS[name].arguments, "semantics", "rows", "duplicates", "maximize"]
    wrong = next((key for key in said if key not in known), None)
    if wrong is not None:
        raise ValueError(f"optimizer: got {show(wrong)} for {name}; accepted are {', '.join(map(repr, known))}")
    made = function(said.pop("lr", None), **said)
    assert isinstance(made, Optimizer)
    return made


class Replay:
    """An optimizer's steps of one tensor on a side's own gradients, with a state of its own that goes on from step to
    step and follows the recorded one where that is known and means the same.

    Parameters
    ----------
    optimizer : Optimizer
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        self.state: dict[str, Any] | None = None

    def step(
        self, table: np.ndarray[Any, Any], gradient: Leaf, recorded: Leaves, *, fresh: bool, own: bool
    ) -> tuple[np.ndarray[Any, Any], dict[str, Any]] | None:
        """(the table after, the state after); None where the state before is not known.

        recorded: the side's state before, by array; fresh: no step has been taken before this one; own: the state was
        written by this very semantics, so that every array of it means the same.
        """
        if self.state is None and fresh:
            self.state = self.optimizer.init(table)
        names = [spec.name for spec in self.optimizer._formula.state]
        like = self.state or self.optimizer.init(table)
        for name, x in recorded.items():
            ours = array_name(name)
            if ours == "step" and isinstance(x, np.ndarray) and x.size == 1:
                like["step"] = x.reshape(1).astype(np.int32)
            elif ours in names and isinstance(x, np.ndarray) and (own or ours not in OWN_MEANING):
                like[ours] = x.astype(like[ours].dtype).reshape(like[ours].shape)
        given = {array_name(name) for name in recorded}
        if self.state is None and not ({"step", *names} <= given and (own or not set(names) & set(OWN_MEANING))):
            return None
        gradient = _of_type(gradient, table)
        # no copy: the arrays are this replay's, and of what they were before nothing is asked any more
        after, state = self.optimizer.step(table.copy(), gradient, like)
        self.state = state
        return np.asarray(after), state

    def forget(self) -> None:
        """Steps are missing: what was carried along is of no use."""
        self.state = None


def _of_type(gradient: Leaf, table: np.ndarray[Any, Any]) -> Leaf:
    """A gradient in the table's type, as a step wants it: recordings may hold a wider one."""
    if isinstance(gradient, IndexedSlices):
        if gradient.values.dtype == table.dtype:
            return gradient
        return gradient.replace(values=gradient.values.astype(table.dtype))
    return gradient if gradient.dtype == table.dtype else gradient.astype(table.dtype)
