"""Tables of text, and what stands in their cells. May import: `islices.conformance.tools.bench.load`."""

from __future__ import annotations

from typing import Any, NamedTuple

from islices.conformance.tools.bench.load import BUSY

__all__ = ["Table", "figures", "is_disturbed", "name_of"]


class Table(NamedTuple):
    """A title, heads and rows of text; spare columns give way on a narrow screen."""

    title: str
    heads: tuple[str, ...]
    rows: list[list[str]]
    words: frozenset[str] = frozenset()
    """Heads of the columns that are not numbers."""
    spare: tuple[str, ...] = ()
    """Heads in the order in which they go."""


def name_of(record: dict[str, Any]) -> str:
    """Backend, version and variant, with a star where other processes were in the way."""
    words = (record["backend"], record["version"].partition("+")[0], record.get("variant"))
    return " ".join(x for x in (*words, "*" if is_disturbed(record) else "") if x)


def is_disturbed(record: dict[str, Any]) -> bool:
    """Whether other processes used cores while it was measured."""
    return (record.get("others") or 0) > BUSY


def figures(number: float | None) -> str:
    """A number with as many digits as it deserves; "-" for none."""
    if number is None:
        return "-"
    return f"{number:.0f}" if number >= 100 else f"{number:.1f}" if number >= 10 else f"{number:.3g}"
