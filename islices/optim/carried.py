"""An array of a state as one semantics keeps it, of another's: what a training that goes on elsewhere carries over.

Most arrays mean the same everywhere. A momentum buffer holds gradients (rmsprop's: what the learning rate is multiplied
by), or steps, which have the learning rate and the sign within. amsgrad's maximum is that of running means or, in
optax, of corrected ones: neither follows from the other. May import: `islices.core.arguments`, `islices.optim.record`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from islices.core.arguments import show
from islices.optim.record import Record

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
