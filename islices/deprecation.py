"""Warnings that what a caller uses will be taken away. docs/stability.md. May import: the standard library."""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

__all__ = ["renamed_keyword", "warn_deprecated", "warn_renamed"]

P = ParamSpec("P")
R = TypeVar("R")

#: Whose frames the caller's line is looked for behind: a ``with`` block enters a context of islices by contextlib.
OURS = ("islices", "contextlib")


def warn_deprecated(message: str) -> None:
    """A DeprecationWarning at the line outside of islices that led here: Python shows it to who wrote that line."""
    level, frame = 1, sys._getframe(0)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in OURS:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, DeprecationWarning, stacklevel=level)


def warn_renamed(old: str, new: str) -> None:
    """The warning of a name that is another one now."""
    warn_deprecated(f"{old} is deprecated: use {new}, which is the same; islices 0.2 takes it away")


def renamed_keyword(old: str, new: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A decorator: the function takes its keyword ``new`` by its former name ``old`` too, with a warning."""

    def decorate(fn: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(fn)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            if old not in kwargs:
                return fn(*args, **kwargs)
            warn_renamed(f"{old}=", f"{new}=")
            named: dict[str, Any] = {new if name == old else name: given for name, given in kwargs.items()}
            if new in kwargs:
                raise TypeError(f"{old}: got it beside {new}, of which it is the deprecated name; accepted is one")
            return fn(*args, **named)

        return call

    return decorate
