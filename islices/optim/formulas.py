"""One optimizer's arithmetic as data: its rule, its state, its numbers.

Pure data, which kernels are handed as it is. SPEC clause 16. May import: the standard library.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from inspect import signature
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from islices.optim.hyperparameters import Limit
    from islices.optim.numbers import Numbers

__all__ = ["Formula", "State", "parameters_of"]

#: What a decay ahead of the rule asks for: its number, behind the rule's own.
DECAYS: Mapping[str, tuple[str, ...]] = {"": (), "coupled": ("weight_decay",), "decoupled": ("keep",)}


class State(NamedTuple):
    """One array of an optimizer's state: as large as the table, or one number a row."""

    name: str
    #: the hyperparameter it begins with, or a number
    initial: str | float = 0.0
    per_row: bool = False
    #: whether it holds sums or means of sizes
    positive: bool = False


@dataclass(frozen=True, eq=False)
class Formula:
    """What one optimizer computes: all that its step, and the kernel it may run as, needs beside arrays.

    Attributes
    ----------
    rule : callable
        Its parameters are g, q (if squares), w, the state's names, and those of numbers, in any order; it returns w and
        the state.
    numbers : callable
        (Numbers) -> the rule's numbers by name, and maybe others: float64 arrays of shape (1,), or Python numbers.
    state : tuple of State
    squares : {"", "element", "row"}
        What q is: none, g * g, or its mean over the row.
    decay : {"", "coupled", "decoupled"}
        Weight decay ahead of the rule: none or in the rule, into g, or from w.
    rows : tuple of str
        Which rows a sparse gradient may move.
    raw : bool
        Whether the framework sees duplicates one by one: g is their sum, q the sum of their squares.
    maximize : bool
        Whether the gradient is followed upwards.
    limits : mapping of str to Limit
        Of hyperparameters, where they may be something else than others' (`islices.optim.hyperparameters`).
    names : tuple of str
        The numbers in the order of the rule's parameters, and behind them that of the decay.
    """

    rule: Callable[..., Any]
    numbers: Callable[[Numbers], Mapping[str, Any]]
    state: tuple[State, ...] = ()
    squares: str = ""
    decay: str = ""
    rows: tuple[str, ...] = ("touched", "all")
    raw: bool = False
    maximize: bool = False
    limits: Mapping[str, Limit] = field(default_factory=dict)

    names: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        arrays = ("g", "q", "w", *(spec.name for spec in self.state))
        own = (name for name in parameters_of(self.rule) if name not in arrays)
        object.__setattr__(self, "names", (*own, *DECAYS[self.decay]))


@cache
def parameters_of(rule: Callable[..., Any]) -> tuple[str, ...]:
    """The names of a rule's parameters."""
    return tuple(signature(rule).parameters)
