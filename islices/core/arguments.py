"""Check arguments that are names, flags or numbers, and describe arguments in error messages.

A flag is a bool of Python or NumPy and nothing else. A bool is not a number, except as the factor of `islices.scale`.

An argument may be any object, even an object whose comparison or repr raises an error. So the functions check an
argument's type before they compare or print the argument. May import: `numpy`.
"""

from __future__ import annotations

import numbers
import operator
from collections.abc import Iterable
from typing import TypeVar

import numpy as np

T = TypeVar("T")

#: the largest number of rows, and the largest size of any dimension: the largest int64
LARGEST = 2**63 - 1
PLAIN = (bool, int, float, complex, str, bytes, type(None))


def show(x: object) -> str:
    """Return a text for error messages: the shortened repr of a plain object, or the name of any other object's type.

    Plain objects are Python's bools, numbers, strings and bytes, None, and lists and tuples of these. The repr of a
    framework's tensor could crash the process, for example after a resize of a torch tensor's storage.
    """
    kind = type(x).__name__
    if type(x) not in PLAIN and not (type(x) in (tuple, list) and all(type(item) in PLAIN for item in x)):  # type: ignore[attr-defined]
        return kind
    try:
        return f"{x!r:.60}"
    except ValueError:  # an int of thousands of digits
        return f"{kind} of very many digits"


def check_name(x: T, accepted: Iterable[str], argument: str) -> T:
    """Return x if it is one of the accepted names, else raise ValueError."""
    names = list(accepted)
    if not isinstance(x, str) or x not in names:
        raise ValueError(f"{argument}: got {show(x)}; accepted are {', '.join(map(repr, names))}")
    return x


def check_flag(x: object, argument: str) -> bool:
    """Return x as a Python bool if x is a bool of Python or NumPy; raise TypeError for any other object."""
    if type(x) is bool or type(x) is np.bool_:
        return bool(x)
    raise TypeError(f"{argument}: got {show(x)}; accepted is a bool")


def whole_number(x: object) -> int | None:
    """Return x as an int, or None if x is not an integer.

    A 0-d integer array counts as an integer; a bool of Python or NumPy does not.
    """
    if type(x) is bool:  # operator.index raises for NumPy's bool
        return None
    try:
        return operator.index(x)  # type: ignore[arg-type]
    except Exception:  # TypeError, or another error of a framework's tensor
        return None


def is_real(c: object) -> bool:
    """Return True if c is a real number of Python or NumPy. Bools, strings and dates are not real numbers."""
    if type(c) is float or type(c) is int:  # nearly always; the check with an abstract class takes ten times as long
        return True
    no_numbers = (bool, np.bool_, np.flexible, np.complexfloating, np.datetime64, np.timedelta64, np.object_)
    return isinstance(c, (numbers.Real, np.generic)) and not isinstance(c, no_numbers)
