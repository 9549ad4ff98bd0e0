"""The cause that makes two sides equal, in words, and its evidence.

An `Explanation` is one cause or two; each needs enough separate evidence (`islices.porting.compare.evidence`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Finding:
    """One cause in words, with its stable name, its sentence and its details."""

    name: str
    text: str
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Explanation:
    """One cause, or two causes that act together, which make the sides equal.

    Attributes
    ----------
    causes : tuple of Finding
    exact : bool
        True if the sides agree to the bit, False if within the bound on rounding of SPEC clause 22.
    bits : float
        The evidence in bits: one in 2^bits random pairs agrees this well.
    slack : float
        The allowance for the arithmetic of two models in addition to rounding, as a part of each tensor's largest
        |value|.
    """

    causes: tuple[Finding, ...]
    exact: bool
    bits: float
    slack: float = 0.0

    @property
    def names(self) -> tuple[str, ...]:
        """Return the causes' names."""
        return tuple(cause.name for cause in self.causes)


def name_sides(text: str, names: tuple[str, str]) -> str:
    """Return a sentence with the names of the sides for {a} and {b}."""
    return re.sub(r"\{([ab])\}", lambda found: names["ab".index(found[1])], text)
