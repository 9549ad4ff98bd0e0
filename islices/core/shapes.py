"""Shapes of which a dimension may be None: unknown while tracing. May import: the standard library."""

from __future__ import annotations

import math

#: No framework's arrays have more dimensions.
MOST_NDIM = 64
#: Arrays of NumPy before 2 have no more: what is to be an array everywhere has no more either.
COMMON_NDIM = 32


def size_of(shape: tuple[int | None, ...]) -> int | None:
    """The number of elements, None where it is not known."""
    return None if None in shape else math.prod(shape)  # type: ignore[arg-type]


def same_shape(given: tuple[int | None, ...], wanted: tuple[int | None, ...]) -> bool:
    """Return True if two shapes agree, as far as they are known."""
    return len(given) == len(wanted) and all(None in (a, b) or a == b for a, b in zip(given, wanted, strict=True))
