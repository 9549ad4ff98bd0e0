"""What is said of a step: how far the sides are apart at each position, and what rounding may do there.

May import: the standard library.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

__all__ = ["ORDER", "Found", "Verdict"]

#: The positions as they are judged, in the order of a training.
ORDER = ("batch", "start", "between", "outputs", "loss", "gradients", "clipped", "step", "state")


@dataclass(frozen=True)
class Found:
    """What was found at a position.

    Attributes
    ----------
    apart : float
        How far the sides are apart in the tensor that uses most of what it is allowed: relative to its norm for
        outputs, loss and gradients; for steps and states an element's.
    allowed : float
        What rounding may do there.
    tensor : str
        Its name.
    judged : bool
        False where the tables are so far apart already that nothing can be said.
    """

    apart: float
    allowed: float
    tensor: str
    judged: bool = True

    @property
    def share(self) -> float:
        """apart / allowed; above 1 rounding does not explain it."""
        if not self.apart:
            return 0.0
        return self.apart / self.allowed if self.allowed else math.inf


@dataclass
class Verdict:
    """A step of both sides.

    Attributes
    ----------
    step : int
    positions : dict of str to Found
        In order; where one is beyond what is allowed it is the last.
    gap : float
        The largest |difference| of an element of the tables after the step; NaN where a side has none.
    drift : float
        How far the tables were apart before it, relative to their norm, over the rows that the gradients name.
    loss : (float, float)
        NaN where a side has none.
    same_bits : bool
        Everything that both sides have is the same to the bit.
    stop : str or None
        The position that rounding does not explain.
    """

    step: int
    positions: dict[str, Found] = field(default_factory=dict)
    gap: float = math.nan
    drift: float = 0.0
    loss: tuple[float, float] = (math.nan, math.nan)
    same_bits: bool = True
    stop: str | None = None
