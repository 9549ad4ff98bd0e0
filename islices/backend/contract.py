"""Define marks for methods of the contract: optional methods, primitives, and primitives declared as missing. May
import: `numpy`."""

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
#: A shape; a dimension is None if a trace does not know it.
Shape: TypeAlias = tuple[int | None, ...]

FLOATS = ("float16", "bfloat16", "float32", "float64")
INTEGERS = ("int32", "int64")
#: the dtypes that indices, ids and row numbers may have
INDICES = ("int32", "int64")
#: these dtypes as error messages list them
INDEX_NAMES = " or ".join(INDICES)
#: the reason that an adapter declares for a primitive that mode framework needs and that is not written yet
TO_DO = "to be written"

_Method = TypeVar("_Method", bound=Callable[..., Any])


def optional(without: str) -> Callable[[_Method], _Method]:
    """Mark a method that an adapter may leave out; `without` describes the effect of leaving the method out.

    The mark is stored as the method's attribute ``optional`` and as the last paragraph of the method's docstring. Every
    adapter needs the methods that are marked neither as optional nor as `primitive`.

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
    """Mark a method that the framework itself computes in mode framework.

    In mode host, NumPy computes a marked method that the adapter lacks; in mode framework, the suite lists the method
    as missing.

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
    """The common base class of the parts of `Backend`."""

    name: ClassVar[str]
    #: a function (primitive, *args, **static) -> the result that NumPy computes. `islices.core.modes`, which imports
    #: this module, sets the attribute
    stand_in: ClassVar[Callable[..., Any]]

    def _missing(self, primitive: str) -> NotImplementedError:
        """Return the error for a required method that an adapter lacks. The suite counts this error as a failure."""
        return NotImplementedError(f"{self.name}: {primitive}: the adapter supplies none")

    def lacks(self, primitive: str, reason: str = "the adapter supplies none") -> NotImplementedError:
        """Return the error that a primitive raises for a case that it cannot compute. The suite counts the case as
        unsupported, as for a primitive that `not_implemented` declares.

        The message shows the reason to users.
        """
        return declared(self.name, primitive, reason)


def declared(name: str, primitive: str, reason: str) -> NotImplementedError:
    """Return the error of a primitive that is declared as missing."""
    error = NotImplementedError(f"{name}: {primitive}: {reason}")
    error.primitive = primitive  # type: ignore[attr-defined]  # the attribute marks the error as declared
    return error


def not_implemented(reason: str) -> Any:
    """Declare that a backend cannot supply a primitive, with a reason that the error shows to users.

    Parameters
    ----------
    reason : str
        The reason, and advice on what to do instead.

    Returns
    -------
    descriptor
        A value to assign in the class body of a `Backend`. Calling the primitive then raises NotImplementedError, and
        the suite counts the case as unsupported (SPEC, Outcomes of the suite).

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
