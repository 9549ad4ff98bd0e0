"""The cause that makes two sides equal, in words, and its evidence.

An `Explanation` is one cause or two; each has to have enough evidence of its own (`islices.porting.compare.evidence`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Finding:
    """One cause in words: its stable name, the sentence, and what was found."""

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
        What was granted to the arithmetic of two models on top of rounding, as a part of each tensor's largest |value|.
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
    """Return a sentence with the names of the sides in the places of {a} and {b}."""
    return re.sub(r"\{([ab])\}", lambda found: names["ab".index(found[1])], text)
