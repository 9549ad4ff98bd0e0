"""Warnings at a caller's line; most say that something will be removed. docs/stability.md.

May import: the standard library."""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

__all__ = ["renamed_keyword", "warn_caller", "warn_deprecated", "warn_renamed"]

P = ParamSpec("P")
R = TypeVar("R")

#: Modules whose frames are skipped: contextlib's enters a context of islices, and frameworks call steps.
OURS = ("islices", "contextlib", "jax", "keras", "optax", "tensorflow", "torch")


def warn_caller(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the line outside of islices that led here: Python shows it to the author of that line."""
    level, frame = 1, sys._getframe(0)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in OURS:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)


def warn_deprecated(message: str) -> None:
    """Issue a DeprecationWarning at the line outside of islices that led here."""
    warn_caller(message, DeprecationWarning)


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
