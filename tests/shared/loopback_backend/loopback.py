"""Arrays that programs can only add, subtract, multiply and negate. Almost every other access raises TouchedError; repr
and isinstance are allowed.

`islices.backend` lists the operations that islices may use on an array. An operation outside this list raises
TouchedError, so that tests find a core that bypasses the adapter. Neither ``getattr(x, name, None)`` nor
``except (AttributeError, TypeError, ValueError)`` swallows this error. Apart from tests, only the adapter uses `box`
and `unbox`.
"""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np

__version__ = "1.0"


class TouchedError(Exception):
    """The error that an object raises if code outside of the adapter accesses the object."""


class Opaque:
    """The base class of this framework's arrays and sparse gradients. The class hides all attributes except
    ``__class__``."""

    __slots__ = ("__weakref__", "_inside")

    def __getattribute__(self, name: str) -> Any:
        if name == "__class__":  # isinstance reads __class__
            return type(self)
        raise TouchedError(f".{name} of a loopback object")

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise TouchedError(f".{name} = ... of a loopback object")

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"


class LoopbackArray(Opaque):
    __slots__ = ()

    def __add__(self, other: object) -> LoopbackArray:
        return box(unbox(self) + _operand(self, other))

    def __sub__(self, other: object) -> LoopbackArray:
        return box(unbox(self) - _operand(self, other))

    def __mul__(self, other: object) -> LoopbackArray:
        return box(unbox(self) * _operand(self, other))

    def __neg__(self) -> LoopbackArray:
        return box(-unbox(self))

    def __truediv__(self, other: object) -> Any:
        """Leave division to an operand of another library, as arrays of a framework do. Raise TouchedError for numbers
        and loopback arrays."""
        if isinstance(other, (LoopbackArray, int, float)):
            raise TouchedError("division of loopback arrays: it is the adapter's")
        return NotImplemented

    __radd__, __rmul__ = __add__, __mul__


class LoopbackRows(Opaque):
    """A sparse gradient that contains the tuple (values, indices, dense_shape, coalesced)."""

    __slots__ = ()


def _refusal(name: str) -> Any:
    def refuse(self: object, *args: object, **options: object) -> NoReturn:
        raise TouchedError(f"{name} of a loopback object")

    return refuse


#: Python reads special methods from the class, without __getattribute__. The list omits the arithmetic that
#: LoopbackArray allows.
for _name in """
    array array_interface array_struct array_priority array_function dlpack dlpack_device buffer
    len iter next reversed contains getitem setitem delitem missing length_hint
    bool int float complex index round trunc floor ceil hash
    eq ne lt le gt ge
    truediv rtruediv floordiv rfloordiv mod rmod divmod rdivmod pow rpow matmul rmatmul rsub
    and rand or ror xor rxor lshift rlshift rshift rrshift invert pos abs
    iadd isub imul itruediv ifloordiv imod ipow imatmul iand ior ixor ilshift irshift
    copy deepcopy reduce reduce_ex getstate dir sizeof format str bytes fspath call enter exit
""".split():  # noqa: SIM905 (a list of them would be a line each)
    setattr(Opaque, f"__{_name}__", _refusal(f"__{_name}__"))
Opaque.__array_ufunc__ = None  # type: ignore[attr-defined]  # NumPy's operators then call the methods above


def _operand(x: LoopbackArray, other: object) -> Any:
    """Return the NumPy array in an operation's second operand. The operand is an array of the same dtype, or a Python
    number, which gets this dtype."""
    inside = unbox(x)
    if type(other) in (int, float):
        return np.asarray(other, inside.dtype)
    if not isinstance(other, LoopbackArray):
        raise TouchedError(f"arithmetic of a loopback array with {type(other)}")
    if unbox(other).dtype != inside.dtype:
        raise TouchedError(f"arithmetic of {inside.dtype} with {unbox(other).dtype}: dtypes are the core's to match")
    return unbox(other)


# ---------------------------------------------------------------------- only for the adapter
def box(inside: Any, kind: type = LoopbackArray) -> Any:
    x = object.__new__(kind)
    object.__setattr__(x, "_inside", np.asarray(inside) if kind is LoopbackArray else inside)
    return x


def unbox(x: Opaque) -> Any:
    return object.__getattribute__(x, "_inside")
