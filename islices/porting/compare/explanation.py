"""Define `Explanation`, which describes the causes of a difference in words, and contains the evidence for them.

The search requires enough evidence for each single cause of an explanation (`islices.porting.compare.evidence`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Finding:
    """One cause of a difference. `name` stays the same in later versions, `text` is a sentence for the report, and
    `details` contains data for programs."""

    name: str
    text: str
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Explanation:
    """The causes that together explain a difference. `diff` combines at most two causes. An explanation of optimizer
    steps may contain any number of causes.

    Attributes
    ----------
    causes : tuple of Finding
    exact : bool
        True if, without the causes, the sides agree to the bit. False if they agree only within the bound on rounding
        of SPEC clause 22, plus `slack`.
    bits : float
        The evidence in bits. Of random pairs of tensors, about one in 2^bits agrees as well by chance.
    slack : float
        The additional allowance for two models that compute in different orders, as a fraction of each tensor's largest
        |value|.
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
