"""Describe an optimizer as a JSON value, which contains its name in `islices.optim`, its semantics, its argument `rows`
and its hyperparameters.

Recordings contain these descriptions.

May import: the core.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from islices import optim
from islices.core.arguments import is_real, show
from islices.core.registry import describe
from islices.optim import Optimizer
from islices.optim.record import RECORDS


def as_description(x: Any) -> dict[str, Any]:
    """Return the description of an optimizer as a dict of JSON values. If x is already a description, check and copy
    it.

    Raise TypeError if x is neither an optimizer nor a mapping, or if a hyperparameter of an optimizer is a function or
    an array. Raise TypeError or ValueError if a description is invalid.
    """
    if isinstance(x, Mapping):
        if other_class(x) is None:
            _check(x)
        return dict(x)
    if not isinstance(x, Optimizer):
        raise TypeError(f"optimizer: got {describe(x)}; accepted is one of islices.optim, or its description")
    description: dict[str, Any] = {"name": x.name, "semantics": x.semantics, "rows": x.rows}
    for name, value in x.hyper.items():
        if isinstance(value, bool) or is_real(value):
            description[name] = value if isinstance(value, bool) else float(value)
        elif value is not None:
            raise TypeError(f"optimizer: got {name}={describe(value)}; a description holds numbers")
    if x._formula.raw:
        description["duplicates"] = "raw"
    if x.maximize:
        description["maximize"] = True
    return description


def optimizers_of(given: Any, argument: str) -> dict[str, Any]:
    """Return a dict that maps names of tensors to descriptions of their optimizers. If one optimizer is for all
    tensors, its key is "". If `given` is None, return an empty dict. Raise TypeError or ValueError if `given` is
    invalid."""
    if given is None:
        return {}
    if isinstance(given, Optimizer) or (
        isinstance(given, Mapping) and ("name" in given or isinstance(given.get("class"), str))
    ):
        return {"": as_description(given)}
    if isinstance(given, Mapping) and all(isinstance(x, (Optimizer, Mapping)) for x in given.values()):
        return {name: as_description(x) for name, x in given.items()}
    raise TypeError(
        f"{argument}: got the optimizer {describe(given)}; accepted is one of islices.optim, its description, or a "
        "dict of tensors' names to them"
    )


def other_class(description: Mapping[str, Any]) -> str | None:
    """Return the name if a description has the form {"class": name}, else None. Optimizers that `islices.optim` does
    not have are described in this form."""
    name = description.get("class") if len(description) == 1 else None
    return name if isinstance(name, str) else None


def _check(description: Mapping[str, Any]) -> None:
    """Raise TypeError or ValueError unless `islices.optim` can make an optimizer from the description."""
    options = dict(description)
    name = options.pop("name", None)
    if not isinstance(name, str) or name not in RECORDS:
        raise ValueError(f"optimizer: got the name {show(name)}; accepted are {', '.join(map(repr, RECORDS))}")
    known = [*RECORDS[name].arguments, "semantics", "rows", "duplicates", "maximize"]
    wrong = next((key for key in options if key not in known), None)
    if wrong is not None:
        raise ValueError(f"optimizer: got {show(wrong)} for {name}; accepted are {', '.join(map(repr, known))}")
    getattr(optim, name)(options.pop("lr", None), **options)
