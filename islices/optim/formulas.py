"""One optimizer's arithmetic as data: its rule, its state, its numbers.

Kernels get this data unchanged. SPEC clause 16. May import: the standard library.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from islices.optim.hyperparameters import Limits
    from islices.optim.numbers import Numbers

#: A function of `islices.optim.rules`' kind.
Rule: TypeAlias = Callable[..., Any]
#: The numbers of each decay that runs before the rule; they follow the rule's numbers.
DECAYS: Mapping[str, tuple[str, ...]] = {
    "": (),
    "coupled": ("weight_decay",),
    "decoupled": ("keep",),
    "shrunk": ("weight_decay", "decay_rate"),
}


class State(NamedTuple):
    """One array of an optimizer's state. It is as large as the table, or has one number per row."""

    name: str
    #: the initial value: a hyperparameter's name, or a number
    initial: str | float = 0.0
    per_row: bool = False
    #: True if the array holds sums or means of squares or absolute values
    positive: bool = False


@dataclass(frozen=True, eq=False)
class Formula:
    """The arithmetic of one optimizer: everything that its step or kernel needs except arrays.

    Attributes
    ----------
    rule : callable
        See `islices.optim.rules`.
    numbers : subclass of Numbers
        Its methods and attributes give the rule's numbers by name.
    state : tuple of State
    squares : {"", "element", "row"}
        The meaning of q: none, g * g, or the mean of g * g over the row.
    decay : {"", "coupled", "decoupled", "shrunk"}
        Weight decay before the rule. "" is none, or decay within the rule; "coupled" adds to g. "decoupled" multiplies
        w by a factor, and "shrunk" subtracts from w.
    options : tuple of str
        The rule's optional parameters that this formula uses: flags are True, and others are numbers.
    rows : tuple of str
        The accepted values of the argument ``rows``.
    raw : bool
        True if the framework treats duplicates one by one. Then g is their sum and q the sum of their squares.
    maximize : bool
        True if the step follows the gradient upwards.
    limits : mapping of str to Accepted
        Ranges of hyperparameters that differ from the common ones (`islices.optim.hyperparameters`).
    names : tuple of str
        The numbers in the order of the rule's parameters, followed by the numbers of the decay.
    constants : mapping of str to bool or None
        The rule's optional parameters that are neither an array nor a number in this formula.
    """

    rule: Rule
    numbers: type[Numbers]
    state: tuple[State, ...] = ()
    squares: str = ""
    decay: str = ""
    rows: tuple[str, ...] = ("touched", "all")
    raw: bool = False
    maximize: bool = False
    limits: Limits = field(default_factory=dict)
    options: tuple[str, ...] = ()

    names: tuple[str, ...] = field(init=False)
    constants: Mapping[str, bool | None] = field(init=False)

    def __post_init__(self) -> None:
        arrays = ("g", *["q"] * bool(self.squares), "w", *(spec.name for spec in self.state))
        names: list[str] = []
        constants: dict[str, bool | None] = {}
        for name, default in parameters_of(self.rule).items():
            if name in arrays:
                continue
            if default is not False and (default is Parameter.empty or name in self.options):
                names.append(name)
            else:
                constants[name] = default if default is None else name in self.options
        object.__setattr__(self, "names", (*names, *DECAYS[self.decay]))
        object.__setattr__(self, "constants", constants)

    def ahead(self) -> tuple[str, ...]:
        """Return the rule's numbers, without those of the decay."""
        return self.names[: len(self.names) - len(DECAYS[self.decay])]


@cache
def parameters_of(rule: Rule) -> Mapping[str, Any]:
    """Return the defaults of a rule's parameters by name."""
    return {name: x.default for name, x in signature(rule).parameters.items()}
