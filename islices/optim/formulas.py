"""The arithmetic of one optimizer, stored as data: its rule, its state and its numbers.

Array operations and compiled kernels use the same data. SPEC clause 16. May import: the standard library.
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

#: A rule, as described in `islices.optim.rules`.
Rule: TypeAlias = Callable[..., Any]
#: The names of the numbers that each kind of weight decay needs. `Formula.names` lists these after the rule's numbers.
DECAYS: Mapping[str, tuple[str, ...]] = {
    "": (),
    "coupled": ("weight_decay",),
    "decoupled": ("keep",),
    "shrunk": ("weight_decay", "decay_rate"),
}


class State(NamedTuple):
    """The description of one array of an optimizer's state: an array of the table's shape, or one number per row."""

    name: str
    #: the initial value: a number, or the name of the hyperparameter that gives it
    initial: str | float = 0.0
    per_row: bool = False
    #: True only if the array contains sums, means or maxima of squares or absolute values, which are never negative
    positive: bool = False


@dataclass(frozen=True, eq=False)
class Formula:
    """The arithmetic of one optimizer: everything that its step or kernel needs except arrays and hyperparameters.

    Attributes
    ----------
    rule : callable
        See `islices.optim.rules`.
    numbers : subclass of Numbers
        The class whose methods and attributes compute the rule's numbers.
    state : tuple of State
    squares : {"", "element", "row"}
        The value of the rule's parameter q, unless raw is True. "" means that the rule gets no q, "element" means
        g * g, and "row" means the mean of g * g over the row.
    decay : {"", "coupled", "decoupled", "shrunk"}
        Weight decay before the rule. "" means that there is no weight decay, or that the rule itself applies it.
        "coupled" adds a term to g, "decoupled" multiplies w by a factor, and "shrunk" subtracts a term from w.
    options : tuple of str
        The rule's optional flags and numbers that this formula uses. Flags, which have the default False, get True.
    rows : tuple of str
        The accepted values of the argument ``rows``.
    raw : bool
        True if the step applies Keras's update to unsummed duplicates. In raw formulas g is the sum of the duplicates,
        and q the sum of the squares of the duplicates.
    maximize : bool
        True if the step maximizes the loss.
    additive : bool
        True if the step's last operation adds one term to the weight, and this term, apart from decay, depends only on
        gradient, state and numbers. Custom rules are not checked, and have the default True.
    limits : mapping of str to Accepted
        Accepted ranges of hyperparameters, where they differ from those in `islices.optim.hyperparameters`.
    names : tuple of str
        The names of the rule's numbers, in the order of the rule's parameters, and then of the weight decay's numbers
        in `DECAYS`.
    constants : mapping of str to bool or None
        The values of the rule's optional parameters that are neither an array nor a number in this formula.
    """

    rule: Rule
    numbers: type[Numbers]
    state: tuple[State, ...] = ()
    squares: str = ""
    decay: str = ""
    rows: tuple[str, ...] = ("touched", "all")
    raw: bool = False
    maximize: bool = False
    additive: bool = True
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
        """Return the names of the rule's numbers, without the numbers of the weight decay."""
        return self.names[: len(self.names) - len(DECAYS[self.decay])]


@cache
def parameters_of(rule: Rule) -> Mapping[str, Any]:
    """Return a dict from the names of a rule's parameters to their defaults (`Parameter.empty` if there is none)."""
    return {name: x.default for name, x in signature(rule).parameters.items()}
