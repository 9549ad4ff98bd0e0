"""Marks of contracts: optional methods, and primitives declared as missing. May import: `numpy`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, ClassVar, NoReturn, TypeAlias, TypeVar

import numpy as np

#: A dense array of some framework.
Array = Any
#: An array in the host's memory.
Host: TypeAlias = np.ndarray[Any, Any]
#: A shape; a dimension is None where a trace does not know it.
Shape: TypeAlias = tuple[int | None, ...]

FLOATS = ("float16", "bfloat16", "float32", "float64")
INTEGERS = ("int32", "int64")
#: dtypes of indices, ids and row numbers: a separate constant from those of values, though equal today
INDICES = ("int32", "int64")
#: their names in errors
INDEX_NAMES = " or ".join(INDICES)
#: the reason for a primitive that mode framework needs and an adapter does not have yet
TO_DO = "to be written"

_Method = TypeVar("_Method", bound=Callable[..., Any])


def optional(without: str) -> Callable[[_Method], _Method]:
    """Mark a method that an adapter may leave out, with the effect of its absence.

    The mark is the method's attribute ``optional`` and the last paragraph of its docstring. A method without a mark is
    a primitive that every adapter needs.

    Examples
    --------
    >>> from islices.backend import Backend
    >>> Backend.is_traced.optional
    'nothing is traced'
    >>> hasattr(Backend.take, "optional")
    False
    """

    def mark(method: _Method) -> _Method:
        method.optional = without  # type: ignore[attr-defined]
        method.__doc__ = f"{inspect.cleandoc(method.__doc__ or '')}\n\nOptional. Without it: {without}."
        return method

    return mark


def primitive(method: _Method) -> _Method:
    """Mark a method that the framework computes in mode framework.

    In mode host the host replaces a method that an adapter does not supply; in mode framework the suite lists it as
    missing.

    Examples
    --------
    >>> from islices.backend import Backend
    >>> Backend.take.primitive, hasattr(Backend.shape, "primitive")
    (True, False)
    """

    @functools.wraps(method)
    def stood_in(self: Part, *args: Any, **static: Any) -> Any:
        return self.stand_in(method.__name__, *args, **static)

    stood_in.primitive = True  # type: ignore[attr-defined]
    return stood_in  # type: ignore[return-value]


class Part:
    """The common base of the parts of `Backend`."""

    name: ClassVar[str]
    #: (primitive, *args, **static) -> the host's result; set by `islices.core.modes`, which imports this module
    stand_in: ClassVar[Callable[..., Any]]

    def _missing(self, primitive: str) -> NotImplementedError:
        """Return the error of a method that every adapter needs. The suite counts it as a failure unless it is
        declared."""
        return NotImplementedError(f"{self.name}: {primitive}: the adapter supplies none")

    def lacks(self, primitive: str, reason: str = "the adapter supplies none") -> NotImplementedError:
        """Return the error that a primitive raises for a case it cannot compute, as if declared by `not_implemented`.

        Users read the reason.
        """
        return declared(self.name, primitive, reason)


def declared(name: str, primitive: str, reason: str) -> NotImplementedError:
    """Return the error of a primitive that is declared as missing."""
    error = NotImplementedError(f"{name}: {primitive}: {reason}")
    error.primitive = primitive  # type: ignore[attr-defined]  # marks a declaration
    return error


def not_implemented(reason: str) -> Any:
    """Declare a primitive that a backend cannot supply, with the reason that its users will read.

    Parameters
    ----------
    reason : str
        The reason, and an alternative.

    Returns
    -------
    descriptor
        For the class body of a `Backend`; calling it raises NotImplementedError. The suite counts a case that ends in
        one as unsupported (SPEC, Outcomes of the suite).

    Examples
    --------
    >>> from islices.backend import Backend
    >>> class Partial(Backend):
    ...     name = "partial"
    ...     segment_sum = not_implemented("partial has no scatter")
    >>> Partial().segment_sum(None, None, 1)
    Traceback (most recent call last):
        ...
    NotImplementedError: partial: segment_sum: partial has no scatter
    """
    return _NotImplementedPrimitive(reason)


class _NotImplementedPrimitive:
    def __init__(self, reason: str) -> None:
        self.reason = reason
        self.primitive = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.primitive = name

    def __get__(self, instance: Any, owner: Any) -> Callable[..., NoReturn]:
        def refuse(*args: Any, **kwargs: Any) -> NoReturn:
            raise declared(owner.name, self.primitive, self.reason)

        return refuse
