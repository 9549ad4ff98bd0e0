"""Warnings that what a caller uses will be taken away. docs/stability.md. May import: the standard library."""

from __future__ import annotations

import sys
import warnings

__all__ = ["warn_deprecated"]

#: Whose frames the caller's line is looked for behind: a ``with`` block enters a context of islices by contextlib.
OURS = ("islices", "contextlib")


def warn_deprecated(message: str) -> None:
    """A DeprecationWarning at the line outside of islices that led here: Python shows it to who wrote that line."""
    level, frame = 1, sys._getframe(0)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in OURS:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, DeprecationWarning, stacklevel=level)
