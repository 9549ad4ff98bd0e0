"""Arguments of all comparing commands, for pairs of tensors and metadata of the sides' files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from islices.cli import UsageError


def as_pair(text: str, place: str) -> tuple[str, str]:
    """Return the two names of ``--pair A=B``; place describes the place of these tensors' names."""
    p, equals, q = text.partition("=")
    if not (p and equals and q):
        raise UsageError(f"--pair: got {text!r:.60}; accepted is A=B, a tensor's name in each {place}")
    return p, q


def from_metadata(
    sides: Iterable[tuple[str, Mapping[str, str]]],
    kinds: Mapping[str, Callable[[str], Any]],
    known: Mapping[str, Any],
    place: str,
) -> dict[str, Any]:
    """Return options that the user has not given, from the metadata of (path, metadata) if they do not contradict
    each other."""
    statement: dict[str, set[Any]] = {}
    for path, metadata in sides:
        for name, kind in kinds.items():
            if known[name] is None and name in metadata:
                try:
                    statement.setdefault(name, set()).add(kind(metadata[name]))
                except ValueError:
                    raise UsageError(f"{path}: metadata {name} is {metadata[name]!r:.60}, no number") from None
    for name, values in statement.items():
        if len(values) > 1:
            option = name.replace("_", "-")
            raise UsageError(f"the {place}s' metadata disagree on {name}: {sorted(values)}; give --{option}")
    return {name: values.pop() for name, values in statement.items()}
