"""Functions of shapes; a dimension is None if it is unknown while tracing. May import: the standard library."""

from __future__ import annotations

import math

#: the largest number of dimensions of a dense_shape
MOST_NDIM = 64
#: the largest number of dimensions that all supported versions of NumPy allow
COMMON_NDIM = 32


def size_of(shape: tuple[int | None, ...]) -> int | None:
    """Return the number of elements of an array with this shape, or None if a dimension is unknown."""
    return None if None in shape else math.prod(shape)  # type: ignore[arg-type]


def same_shape(given: tuple[int | None, ...], wanted: tuple[int | None, ...]) -> bool:
    """Return True if two shapes have equally many dimensions, and are equal in each dimension that is known in both."""
    return len(given) == len(wanted) and all(None in (a, b) or a == b for a, b in zip(given, wanted, strict=True))
