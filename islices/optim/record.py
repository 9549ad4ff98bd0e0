"""The record of an optimizer: what it computes under each semantics, what its hyperparameters may be, who names it how.

A record that is made is known to all that follows from records: `islices.optim.factory`, the framework fronts, the
conformance suite's tables, the tables of docs/optimizers.md. The records stand in islices/optim/records/. SPEC clauses
11 and 16.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from islices.optim.formulas import Formula, State
from islices.optim.frameworks import SPELLED
from islices.optim.hyperparameters import Accepted, Hyper

#: optimizer -> its record
RECORDS: dict[str, Record] = {}


@dataclass(frozen=True, eq=False)
class Preset:
    """An optimizer under one semantics.

    Attributes
    ----------
    defaults : mapping of str to number or bool
        The hyperparameters it has; None: to be given.
    formula : callable
        The formula that its hyperparameters, "rows" and "duplicates" pick.
    source : str
        The framework's own classes or functions, with commas between.
    spelled : mapping of str to str
        The framework's names of hyperparameters, where they are not those of `islices.optim.frameworks`.
    terms : mapping of str to float
        How it keeps arrays of the state that others keep otherwise (`islices.optim.carried`). momentum: 0, gradients;
        1, steps as they are subtracted; -1, as they are added. v_max: 1, of corrected means.
    within : float
        How far from the framework it may be, in units of tests/islices/optim/test_frameworks.py; 0: to the bit.
    """

    defaults: Mapping[str, Any]
    formula: Callable[[Hyper], Formula]
    source: str = ""
    spelled: Mapping[str, str] = field(default_factory=dict)
    terms: Mapping[str, float] = field(default_factory=dict)
    within: float = 8.0


@dataclass(frozen=True, eq=False)
class Record:
    """An optimizer.

    Attributes
    ----------
    name : str
        Of its function in `islices.optim`.
    title : str
        Of its class in the torch front: torch's, where torch has one.
    arguments : tuple of str
        Its hyperparameters, by islices' names, in the order of torch's class.
    presets : mapping of str to Preset
        By semantics.
    decoupled : bool, optional
        torch's flag decoupled_weight_decay as this one has it; None where torch's class has no such flag.
    variant_of : str
        The optimizer whose class in torch that of this one derives from.
    stored : mapping of str to str
        The name in torch's states of each array of the state, where that is another.
    added : tuple of str
        Arrays of the state that an option adds.
    recomputed : mapping of str to callable
        What torch's states hold besides, as a function of the hyperparameters and the step count, which suffice.
    fixed : tuple of str
        Hyperparameters that are a number before the first step, and stay it.
    limits : mapping of str to Accepted
        Of hyperparameters that may be something else than others'.
    additive : bool
        Whether the step is an addition to the weight that depends on the gradient and the state alone, but for decay.
    """

    name: str
    title: str
    arguments: tuple[str, ...]
    presets: Mapping[str, Preset]
    decoupled: bool | None = None
    variant_of: str = ""
    stored: Mapping[str, str] = field(default_factory=dict)
    added: tuple[str, ...] = ()
    recomputed: Mapping[str, Callable[[Hyper, int], float]] = field(default_factory=dict)
    fixed: tuple[str, ...] = ("initial_accumulator",)
    limits: Mapping[str, Accepted] = field(default_factory=dict)
    additive: bool = True

    def __post_init__(self) -> None:
        RECORDS[self.name] = self

    @cache  # noqa: B019  # there are as many records as optimizers
    def spelled(self, semantics: str) -> Mapping[str, str]:
        """islices' name of each hyperparameter -> the framework's; those of a semantics it does not have, as others."""
        preset = self.presets.get(semantics)
        own = preset.spelled if preset else {}
        return {name: own.get(name, SPELLED[semantics].get(name, name)) for name in self.arguments}

    def states(self, hyper: Hyper, semantics: str = "islices", **options: str) -> tuple[State, ...]:
        """The arrays of the state, beside the step count, with these hyperparameters."""
        preset = self.presets[semantics]
        chosen = {**preset.defaults, **hyper, "rows": "touched", "duplicates": "sum", **options}
        return preset.formula(chosen).state
