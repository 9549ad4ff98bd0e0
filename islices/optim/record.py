"""The record of an optimizer: what it computes under each semantics, what its hyperparameters may be, who names it how.

A record that is made is known to all that follows from records: `islices.optim.factory`, the framework fronts, the
conformance suite's tables, the tables of docs/optimizers.md. The records stand in islices/optim/records/. SPEC clauses
11 and 16.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from islices.core.arguments import show
from islices.optim.formulas import Formula, State
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
        The framework's names of hyperparameters, where they are not those of `islices.optim.record`.
    terms : mapping of str to float
        How it keeps arrays of the state that others keep otherwise (`islices.optim.record`). momentum: 0, gradients;
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


TOUCHED = ("touched",)
ALL = ("all",)

#: semantics -> islices' name of a hyperparameter -> the framework's, where they differ
SPELLED: Mapping[str, Mapping[str, str]] = {
    "islices": {},
    "fbgemm": {"lr": "learning_rate"},
    "keras": {
        "lr": "learning_rate",
        "beta1": "beta_1",
        "beta2": "beta_2",
        "eps": "epsilon",
        "initial_accumulator": "initial_accumulator_value",
    },
    "mxnet": {"lr": "learning_rate", "eps": "epsilon", "weight_decay": "wd"},
    "optax": {
        "lr": "learning_rate",
        "beta1": "b1",
        "beta2": "b2",
        "rho": "decay",
        "initial_accumulator": "initial_accumulator_value",
    },
    "tensorflow": {
        "lr": "learning_rate",
        "eps": "epsilon",
        "rho": "decay",
        "nesterov": "use_nesterov",
        "initial_accumulator": "initial_accumulator_value",
    },
    "torch": {
        "beta1": "betas[0]",
        "beta2": "betas[1]",
        "rho": "alpha",
        "initial_accumulator": "initial_accumulator_value",
    },
}


def raw(h: Hyper) -> bool:
    """Keras on slices whose duplicates nobody summed."""
    return bool(h["duplicates"] == "raw")


#: The option that adds an array which semantics keep in different terms.
OPTIONS = {"momentum": "momentum", "v_max": "amsgrad"}


def terms_of(name: str, record: Record) -> dict[str, float]:
    """Semantics -> the terms in which it keeps an array, of those that have it."""
    option = OPTIONS.get(name)
    return {s: p.terms.get(name, 0.0) for s, p in record.presets.items() if option is None or option in p.defaults}


def carried(x: Any, name: str, record: Record, source: str | None, target: str, lr: float | None) -> Any:
    """The array of this name that source left, as target keeps it; ValueError where it does not follow.

    source: None where nobody has said it, which matters where presets keep the array in different terms. lr: None where
    it is not known.
    """
    terms = terms_of(name, record)
    if source is not None and source not in terms:
        raise ValueError(f"semantics: got {show(source)}; accepted for {record.name} are {_shown(terms)}")
    if source == target or len(set(terms.values())) == 1:
        return x
    if source is None:
        raise ValueError(
            f"semantics: got None, and the array {name!r}, which frameworks keep in different terms; accepted is that "
            f"of the optimizer it comes from: {_shown(terms)}"
        )
    left, kept = terms[source], terms[target]
    if left == kept:
        return x
    if name != "momentum":
        raise ValueError(
            f"semantics: got {show(source)} for the array {name!r}, the maximum of means that have been corrected, or "
            f"not, where {target!r} has the other; accepted are {_shown(s for s in terms if terms[s] == kept)}"
        )
    if left and kept:
        return x * (left * kept)
    if not lr:
        raise ValueError(f"learning rate: got {lr}; accepted is one above 0: {name!r} holds steps on one side")
    return x * (left / lr if left else kept * lr)


def _shown(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names))
