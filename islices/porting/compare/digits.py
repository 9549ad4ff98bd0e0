"""Numbers as short as people write them, and the cost of their digits in bits of evidence."""

from __future__ import annotations

from collections.abc import Callable

#: Bits of a number that no short decimal says.
FREE = 24.0


def as_written(x: float, fits: Callable[[float], bool], most: int = 4) -> tuple[float, float]:
    """Return x with as few decimal digits as possible, and their cost. fits tests whether a shorter number is good
    enough."""
    for digits in range(1, most + 1):
        short = float(f"{x:.{digits - 1}e}")
        if fits(short):
            return short, 4.0 + 4 * digits
    return x, FREE
