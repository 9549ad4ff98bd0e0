"""Define `Judged`, an entry to judge: a library's call, the formula to compare with, and the call as a step.

May import: `islices.conformance.formulas.judge`, `islices.conformance.formulas.records`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from islices.conformance.formulas.judge import Step
from islices.conformance.formulas.records import FORMULAS


class Judged(NamedTuple):
    """An implementation of a formula.

    Attributes
    ----------
    call : str
        The function or class, as the library's users write it.
    formula : str
        The name of the formula to compare with: a formula of the library, or of another framework.
    step : callable
        The step function for `islices.conformance.judge`.
    variant : str
        A variant of the call, such as "fused" or "without amsgrad"; "" for the plain call. Each variant is a column of
        the library's table.
    """

    call: str
    formula: str
    step: Step
    variant: str = ""


def renamed(options: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Return options with other names. `names` maps the names of a formula to the names of a library. Options whose
    names are not in `names` keep their names."""
    return {names.get(name, name): value for name, value in options.items()}


def taken(function: Callable[..., Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that a function accepts; a function with ``**options`` accepts all. Omit any other
    option that is off (zero, False or None), and raise NotImplementedError for any other option that is on."""
    accepted = inspect.signature(function).parameters
    if any(p.kind is p.VAR_KEYWORD for p in accepted.values()):
        return dict(options)
    if missing := [name for name, value in options.items() if name not in accepted and value]:
        raise NotImplementedError(f"it takes no {', '.join(missing)}")
    return {name: value for name, value in options.items() if name in accepted}


def lacking(step: Step, *names: str) -> Step:
    """Return a step that raises NotImplementedError if one of the options `names` is on. Otherwise, the returned step
    calls the given step with the options that the given step accepts."""

    def plain(w: Any, g: Any, state: Any, t: int, **options: Any) -> Any:
        if given := [name for name in names if options.get(name)]:
            raise NotImplementedError(f"{', '.join(given)} left off")
        return step(w, g, state, t, **taken(step, options))

    return plain


def clip_of(clip: Callable[[Any, float], Any]) -> Step:
    """Return a step that returns clip(gradient, max_norm)."""
    return lambda w, g, state, t, *, max_norm: clip(g, max_norm)


def betas(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options with beta1 and beta2 replaced by the pair `betas`."""
    rest = {k: v for k, v in options.items() if k not in ("beta1", "beta2")}
    return {**rest, "betas": (options["beta1"], options["beta2"])} if "beta1" in options else rest


def formulas(framework: str) -> Iterator[tuple[str, str]]:
    """Yield (name of a formula, name of its class) for the optimizers of a framework. "Adam sparse" belongs to the
    class Adam."""
    for name, formula in FORMULAS.items():
        if formula.framework == framework and formula.gives == "weights" and "renorm" not in name:
            yield name, name.partition(".")[2].partition(" ")[0]
