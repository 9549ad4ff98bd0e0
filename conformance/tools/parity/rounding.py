"""Numbers that carry a bound of their rounding errors: running error analysis.

A `Rounded` is a float64 array and, for each element, how many eps (of float32, 2^-23) a float32 computation of the same
formula may be away from it, whatever the order of its sums. Each operation adds half an eps of its result, a sum of n
terms n / 2 of the sum of their sizes (Higham, Accuracy and Stability of Numerical Algorithms, 2002, sections 3.1, 3.3).
To first order in eps; errors that come in may be of any size, so a result is bounded by the largest that it may be.
Nothing is allowed for overflow and underflow. May import: `numpy`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["EPS", "Rounded"]

EPS = 2.0**-23
#: What is asked of a framework's exp, log, tanh, sigmoid: within so many eps of the true value.
FUNCTION = 4.0

Array = np.ndarray[Any, Any]


class Rounded:
    """value, float64; error, of its shape: a float32 computation is within EPS * error of value.

    Examples
    --------
    >>> total = (Rounded(np.array([1.0, 2.0, 4.0])) * 0.5).sum()
    >>> float(total.value), float(total.error)  # half an eps of each product, 3 / 2 of the sum of their sizes
    (3.5, 7.0)
    """

    __slots__ = ("error", "value")

    def __init__(self, value: Array, error: Array | float = 0.0) -> None:
        self.value = np.asarray(value, np.float64)
        self.error = np.broadcast_to(np.asarray(error, np.float64), self.value.shape)

    def __getitem__(self, key: Any) -> Rounded:
        return Rounded(self.value[key], self.error[key])

    @property
    def T(self) -> Rounded:
        return Rounded(self.value.T, self.error.T)

    @property
    def size(self) -> Array:
        return np.abs(self.value)

    @property
    def reach(self) -> Array:
        """The largest size that a computation's number may have."""
        return self.size + EPS * self.error

    def __add__(self, other: Rounded | float) -> Rounded:
        b = _rounded(other)
        carried = Rounded(self.value + b.value, self.error + b.error)
        return Rounded(carried.value, carried.error + carried.reach / 2)

    def __sub__(self, other: Rounded | float) -> Rounded:
        return self + (-_rounded(other))

    def __neg__(self) -> Rounded:
        return Rounded(-self.value, self.error)

    def __mul__(self, other: Rounded | Array | float) -> Rounded:
        b = _rounded(other)
        carried = self.error * b.reach + self.size * b.error
        return Rounded(self.value * b.value, carried + self.reach * b.reach / 2)

    def __matmul__(self, other: Rounded) -> Rounded:
        carried = self.error @ other.reach + self.size @ other.error
        rounding = self.value.shape[-1] / 2 * (self.reach @ other.reach)
        return Rounded(self.value @ other.value, carried + rounding)

    def sum(self, axis: int | None = None) -> Rounded:
        """The sum along an axis, in any order."""
        n = self.value.size if axis is None else self.value.shape[axis]
        return Rounded(self.value.sum(axis), self.error.sum(axis) + n / 2 * self.reach.sum(axis))

    def apply(self, f: Callable[[Array], Array], slope: Callable[[Array], Array]) -> Rounded:
        """f of each element, |slope| its derivative, which must be largest at 0 and fall to both sides."""
        radius = EPS * self.error
        steepest = np.clip(0.0, self.value - radius, self.value + radius)
        carried = Rounded(f(self.value), np.abs(slope(steepest)) * self.error)
        return Rounded(carried.value, carried.error + FUNCTION * carried.reach)

    def scatter(self, ids: Array, rows: int) -> Rounded:
        """(rows, *row_shape): the sum of the elements at each of the ids, as `islices.to_dense` adds them."""
        ids = ids.ravel()
        counts = np.bincount(ids, minlength=rows)[:, None]

        def added(x: Array) -> Array:
            out = np.zeros((rows, x.size // len(ids)))
            np.add.at(out, ids, x.reshape(len(ids), -1))
            return out

        return Rounded(added(self.value), added(self.error) + counts / 2 * added(self.reach))


def _rounded(x: Rounded | Array | float) -> Rounded:
    return x if isinstance(x, Rounded) else Rounded(np.asarray(x))
