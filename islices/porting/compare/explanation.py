"""What makes two sides equal, as it is told, and what speaks for it.

An `Explanation` is one cause or two; each has to have enough evidence of its own (`islices.porting.compare.evidence`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from islices.porting.compare.cause import Proposal

__all__ = ["Explanation", "Finding", "name_sides", "said"]


@dataclass(frozen=True)
class Finding:
    """One cause as it is told: its stable name, the sentence, and what was found."""

    name: str
    text: str
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Explanation:
    """One cause, or two that act together, that make the sides equal.

    Attributes
    ----------
    causes : tuple of Finding
    exact : bool
        To the bit; else within the bound on rounding of SPEC clause 22.
    bits : float
        The evidence: random data agree so far once in 2^bits pairs.
    slack : float
        What was granted to the arithmetic of two models beside rounding, as a part of each tensor's largest |value|.
    """

    causes: tuple[Finding, ...]
    exact: bool
    bits: float
    slack: float = 0.0

    @property
    def names(self) -> tuple[str, ...]:
        """The causes' names."""
        return tuple(cause.name for cause in self.causes)


def name_sides(text: str, names: tuple[str, str]) -> str:
    """A sentence with what the sides are called in the places of {a} and {b}."""
    return re.sub(r"\{([ab])\}", lambda found: names["ab".index(found[1])], text)


def said(p: Proposal) -> Finding:
    """A proposal in words: {x} and {y} become {a} and {b}."""
    x, y = "ab"[p.which], "ba"[p.which]
    text, details = p.change.say() if p.change.say else (p.change.text, p.change.details)
    text = text.replace("{x}", f"{{{x}}}").replace("{y}", f"{{{y}}}")
    return Finding(p.cause.name, text, {"side": x, **details})
