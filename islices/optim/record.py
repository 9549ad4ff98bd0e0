"""The record of an optimizer: its formula in each semantics, and the ranges and names of its hyperparameters.

Making a record adds the record to `RECORDS`. The factory, the framework modules, `islices.porting`, the conformance
suite and the table in docs/optimizers.md use `RECORDS`. The records are in islices/optim/records/.
SPEC clauses 11 and 16.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from islices.core.arguments import show
from islices.optim.formulas import Formula, State
from islices.optim.hyperparameters import Hyper, Limits

#: the name of an optimizer -> its record
RECORDS: dict[str, Record] = {}


@dataclass(frozen=True, eq=False)
class Preset:
    """An optimizer's formula and defaults in one semantics.

    Attributes
    ----------
    defaults : mapping of str to number or bool
        The hyperparameters of this semantics with their defaults; None means that the user must pass a value. If
        this mapping lacks "lr", the preset adds "lr" with the default None.
    formula : callable
        A function that returns the formula for a dict, which contains the hyperparameters, "rows" and "duplicates".
    source : str
        The framework's classes, functions or enum members, separated by commas; "" for islices.
    spelled : mapping of str to str
        The framework's names of hyperparameters, where they differ from those in `SPELLED`.
    terms : mapping of str to float
        One number per state array that has different meanings in different semantics; the default is 0. "momentum"
        contains steps without the learning rate (0), or steps that include the learning rate and are subtracted (1) or
        added (-1). "v_max" is the maximum of means of squares without (0) or with (1) bias correction.
    """

    defaults: Mapping[str, Any]
    formula: Callable[[Hyper], Formula]
    source: str = ""
    spelled: Mapping[str, str] = field(default_factory=dict)
    terms: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "defaults", {"lr": None, **self.defaults})


@dataclass(frozen=True, eq=False)
class Record:
    """The description of an optimizer in all semantics.

    Attributes
    ----------
    name : str
        The name of the function in `islices.optim`.
    title : str
        The name of the class in the torch module of islices; it is torch's name if torch has the optimizer.
    arguments : tuple of str
        The hyperparameters, by islices' names, in the order of the arguments of the class in the torch module.
    presets : mapping of str to Preset
        The preset of each semantics.
    decoupled : bool, optional
        The fixed value of torch's flag decoupled_weight_decay for this optimizer, or None. The value is None if
        torch has no class with this flag for the optimizer, or if `arguments` contains the flag.
    variant_of : str
        The optimizer whose torch class is the base class of this optimizer's torch class.
    stored : mapping of str to str
        The names of the state's arrays in the torch classes' states, where they differ from the names in islices.
    added : tuple of str
        The names of the state's arrays that exist only with some option.
    recomputed : mapping of str to callable
        Functions that compute further entries of torch's states from the hyperparameters and the step count.
    fixed : tuple of str
        Hyperparameters that must be numbers and cannot be scheduled.
    limits : mapping of str to Accepted
        Accepted ranges of hyperparameters, where they differ from the common ranges.
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
    limits: Limits = field(default_factory=dict)

    def __post_init__(self) -> None:
        RECORDS[self.name] = self

    @cache  # noqa: B019  # there is only one record per optimizer
    def spelled(self, semantics: str) -> Mapping[str, str]:
        """Return a dict from islices' names of hyperparameters to a framework's names.

        The optimizer need not have a preset for this semantics.
        """
        preset = self.presets.get(semantics)
        own = preset.spelled if preset else {}
        return {name: own.get(name, SPELLED[semantics].get(name, name)) for name in self.arguments}

    def states(self, hyper: Hyper, semantics: str = "islices", **options: str) -> tuple[State, ...]:
        """Return the descriptions of the state's arrays for these hyperparameters, without the step count."""
        preset = self.presets[semantics]
        chosen = {**preset.defaults, **hyper, "rows": "touched", "duplicates": "sum", **options}
        return preset.formula(chosen).state


TOUCHED = ("touched",)
ALL = ("all",)

#: semantics -> islices' name of a hyperparameter -> the framework's name, where the names differ
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
    """Return True if the hyperparameters select Keras's update with unsummed duplicates."""
    return bool(h["duplicates"] == "raw")


#: The name of a state's array whose meaning differs between semantics -> the option that adds the array.
OPTIONS = {"momentum": "momentum", "v_max": "amsgrad"}


def terms_of(name: str, record: Record) -> dict[str, float]:
    """Return a dict from each semantics that has the array `name` to the meaning of the array (see `Preset.terms`)."""
    option = OPTIONS.get(name)
    return {s: p.terms.get(name, 0.0) for s, p in record.presets.items() if option is None or option in p.defaults}


def carried(x: Any, name: str, record: Record, source: str | None, target: str, lr: float | None) -> Any:
    """Convert a state's array from its meaning in `source` to its meaning in `target` (see `Preset.terms`).

    Raise ValueError if the conversion is impossible. `source` may be None if the array has the same meaning in all
    semantics. `lr` is needed only if exactly one of the two meanings includes the learning rate.
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


def check_names(given: Iterable[str], needed: Iterable[str], others: Iterable[str], place: str) -> None:
    """Check `given`, the names of a state's arrays.

    Raise ValueError if `given` lacks a name in `needed`, or has a name in neither `needed` nor `others`.
    """
    unknown = next((name for name in given if name not in (*needed, *others)), None)
    lacking = next((name for name in needed if name not in given), None)
    if unknown is not None or lacking is not None:
        came = f"the array {show(unknown)}" if unknown is not None else f"no {lacking!r}"
        raise ValueError(f"{place}: got {came}; accepted are {_shown(dict.fromkeys(('step', *needed)))}")


def _shown(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names))
