"""Limits for clipping. A limit is a number, or an array with one element, which may be traced. No gradient flows to a
limit.

A known value of a limit is checked; a traced value is not checked, since traced code cannot raise for a value. SPEC
clause 10. May import: `numpy`, the core below `islices.norms.clip`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from islices.backend import FLOATS, INTEGERS, Array, Backend
from islices.core import modes
from islices.core.arguments import is_real
from islices.core.linear import as_float, number_of
from islices.core.registry import describe, find_array_backend
from islices.core.slices import parts, with_values
from islices.norms.derivatives import constant


class Limit(NamedTuple):
    """The limit of a clipping function, such as max_norm. The limit is a number, or an array if it is traced.

    `number` is None if the limit is traced; `array` and `backend` are then set.
    """

    number: Any
    array: Array | None = None
    backend: Backend | None = None
    name: str = "max_norm"

    def check(self, backend: Backend) -> None:
        """Raise TypeError if the limit is a traced array of a framework other than `backend`."""
        if self.backend is not None and self.backend is not backend:
            raise TypeError(
                f"{self.name}: got an array of {self.backend.name}; accepted is a real number, or a 0-d array of "
                f"{backend.name}"
            )

    def lift(self, leaf: Any) -> Any:
        """Return the leaf. If the limit is traced, return the leaf with traced values, because the clipped values are
        unknown.
        """
        if self.number is not None:
            return leaf
        self.check(parts(leaf)[0])
        return traced_with(leaf, self.array)

    def of(self, E: Backend, dtype: str) -> Any:
        """Return the limit as a number, or a traced limit as a constant array of shape (1,) and of this dtype.

        A traced limit below 0 counts as 0, unless its name is "lo" or "hi".
        """
        if self.number is not None:
            return self.number
        x = E.astype(E.reshape(E.stop_gradient(self.array), (1,)), dtype)
        return x if self.name in ("lo", "hi") else E.maximum(x, 0.0)  # a NaN stays

    def as_array(self, backend: Backend, like: Array) -> Array:
        """Return the limit as an array of shape (1,) with the dtype of `like`."""
        dtype = backend.dtype(like)
        if self.number is not None:
            return backend.asarray(np.full(1, self.number, dtype), like)
        return self.of(backend, dtype)


def traced_with(leaf: Any, number: Array) -> Any:
    """Return the leaf with traced values. `number` is any traced array with one number, of the leaf's framework."""
    B, values = parts(leaf)
    if modes.is_traced(B, values):
        return leaf
    with B.scope():
        known = B.less_equal(number, number)
        values = B.where(B.reshape(known, (1,) * len(B.shape(values))), values, values)
    return with_values(leaf, values)


def limit_of(max_norm: Any, name: str = "max_norm") -> Limit:
    """Return max_norm as a `Limit`. Raise TypeError unless max_norm is a real number or an array of shape () or (1,).

    Raise ValueError for a known number that is not >= 0. `name` is the name of the argument in messages.
    """
    if type(max_norm) is float and max_norm >= 0:  # nearly always
        return Limit(max_norm)
    limit = bound_of(max_norm, name, "a real number >= 0")
    return limit if limit.number is None else Limit(check_max_norm(limit.number, name))


def bound_of(bound: Any, name: str, accepted: str = "a real number") -> Limit:
    """Return a bound of `clip_by_value` as a `Limit`; raise TypeError unless it is a real number or an array of shape
    () or (1,)."""
    if is_real(bound):
        return Limit(bound, name=name)
    B = find_array_backend(bound)
    if B is None or B.shape(bound) not in ((), (1,)) or B.dtype(bound) not in (*FLOATS, *INTEGERS):
        raise TypeError(f"{name}: got {describe(bound)}; accepted is {accepted}")
    known = constant(B, bound)  # jax.grad without jit knows the number
    return Limit(None, bound, B, name) if B.is_traced(known) else Limit(number_of(B, known), name=name)


def check_max_norm(max_norm: Any, name: str = "max_norm") -> float:
    """Return max_norm as a float; raise TypeError unless it is a real number, and ValueError unless it is >= 0."""
    if type(max_norm) is float and max_norm >= 0:  # nearly always
        return max_norm
    if not is_real(max_norm):
        raise TypeError(f"{name}: got {describe(max_norm)}; accepted is a real number >= 0")
    limit = as_float(max_norm)
    if not limit >= 0:
        raise ValueError(f"{name}: got {limit}; accepted is a number >= 0 (inf changes nothing)")
    return limit
