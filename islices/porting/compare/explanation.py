"""Define `Explanation`: the causes that make two sides equal, in words, with the evidence for these causes.

Each cause of an explanation needs enough evidence separately (`islices.porting.compare.evidence`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Finding:
    """One cause that was found: the stable name, a sentence about the cause, and details for programs."""

    name: str
    text: str
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Explanation:
    """One or more causes whose removal makes the sides equal: at most two for gradients, any number for steps.

    Attributes
    ----------
    causes : tuple of Finding
    exact : bool
        True if the sides agree to the bit, False if within the bound on rounding of SPEC clause 22.
    bits : float
        The evidence in bits: by chance, one in 2^bits random pairs agrees this well.
    slack : float
        The allowance, in addition to rounding, for two models that compute in different orders. The allowance is
        relative to each tensor's largest |value|.
    """

    causes: tuple[Finding, ...]
    exact: bool
    bits: float
    slack: float = 0.0

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the causes."""
        return tuple(cause.name for cause in self.causes)


def name_sides(text: str, names: tuple[str, str]) -> str:
    """Return a text in which the names of the sides replace {a} and {b}."""
    return re.sub(r"\{([ab])\}", lambda found: names["ab".index(found[1])], text)
